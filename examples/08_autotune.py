"""Measure which configuration of a kernel is the fastest here.

A transpose through shared memory, whose tile is part of the kernel's code. The second run of this
program measures nothing: it finds the choice where the first has kept it.

    python examples/08_autotune.py
"""

import numpy as np
from numba import cuda, float32

import numbasync as na


def transpose(tile: int) -> na.Launcher:
    """The kernel for square tiles of this many rows."""
    width = tile + 1  # a column's elements lie in different banks

    @na.launcher
    @cuda.jit
    def transposed(z: na.KernelOutput, x: na.KernelInput):
        held = cuda.shared.array((tile, width), float32)
        across, down = cuda.threadIdx.x, cuda.threadIdx.y
        column, row = cuda.blockIdx.x * tile, cuda.blockIdx.y * tile
        if row + down < x.shape[0] and column + across < x.shape[1]:
            held[down, across] = x[row + down, column + across]
        cuda.syncthreads()
        if column + down < z.shape[0] and row + across < z.shape[1]:
            z[column + down, row + across] = held[across, down]

    return transposed


def blocks(tile: int):
    """The grid for such tiles, as a function of the arguments."""
    return lambda z, x: (-(-x.shape[1] // tile), -(-x.shape[0] // tile))


async def main() -> None:
    tuned = na.autotune(
        transpose,
        [{"tile": n, "grid": blocks(n), "block": (n, n)} for n in (8, 16, 32, 64)],
        reference=lambda z, x: x.T,
    )
    x = np.random.default_rng(0).random((300, 500), np.float32)
    z = await na.zeros((500, 300))
    for result in await tuned.tune(z, x):
        time = (
            "" if result.ms is None else f"{result.ms:.4f} ms [{result.low:.4f}, {result.high:.4f}]"
        )
        chosen = ", chosen" if result.chosen else ""
        reason = result.reason.split("\n")[0]
        print(f"tile {result.config['tile']:2}: {result.status} {time}{reason}{chosen}")

    await tuned(z, x)
    assert (await z.to_host() == x.T).all()


na.run(main())
