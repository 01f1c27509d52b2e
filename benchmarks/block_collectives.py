"""`numbasync bench algorithms`, second table: `na.block` beside CUB, called by hand in CUDA C++.

Each block loads a tile, combines or sorts it, and stores what comes out. Both sides have the same
tiles: as many threads, and as many elements for each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import cuda

import numbasync as na
from benchmarks import report
from benchmarks.measure import Case
from benchmarks.peer_registry import has_own_processor
from benchmarks.plain_kernels import device_time
from benchmarks.tables import table
from benchmarks.targets import Target
from numbasync.device.device import Device

LARGE, FEW = 2**27, 2**13  # elements, of 4 bytes, on a GPU, and on the CPU device
THREADS, EACH = 256, 8  # of a block, and the elements of a thread
TILE = THREADS * EACH
CALLS = 3
REFERENCES: dict[str, Callable[[Any], Any]] = {
    "sum": lambda tiles: tiles.sum(1),
    "scan": lambda tiles: tiles.cumsum(1),
    "sort": lambda tiles: np.sort(tiles, 1),
}
METHOD = (
    "Tiles of {tile:,} elements, {threads} threads for each: {size:,} float32 summed and scanned, "
    "int32 sorted. Device time between two events of a call that follows another one on the "
    "stream. CUB's are BlockLoad, BlockReduce, BlockScan and BlockRadixSort in kernels of CUDA C++ "
    "that nvcc compiles."
)


@na.launcher
@cuda.jit
def sum_tiles(z: na.KernelOutput, x: na.KernelInput) -> None:
    total = x.dtype.type(0)
    for value in na.block.load(x, cuda.blockIdx.x * TILE, EACH):
        total += value
    total = na.block.sum(total)
    if cuda.threadIdx.x == 0:
        z[cuda.blockIdx.x] = total


@na.launcher
@cuda.jit
def scan_tiles(z: na.KernelOutput, x: na.KernelInput) -> None:
    first = cuda.blockIdx.x * TILE
    a, b, c, d, e, f, g, h = na.block.load(x, first, EACH)
    b += a
    c += b
    d += c
    e += d
    f += e
    g += f
    h += g
    before = na.block.scan(h, exclusive=True)
    na.block.store(
        z, first,
        (before + a, before + b, before + c, before + d,
         before + e, before + f, before + g, before + h),
    )  # fmt: skip


@na.launcher
@cuda.jit
def sort_tiles(z: na.KernelOutput, x: na.KernelInput) -> None:
    first = cuda.blockIdx.x * TILE
    keys = na.block.load(x, first, EACH)
    na.block.store(z, first, na.block.sort(keys, threads=THREADS))


@cache
def numbers(what: str, size: int) -> np.ndarray[Any, Any]:
    """Whole numbers, of which all sums are exact."""
    rng = np.random.default_rng(64)
    if what == "sort":
        return rng.integers(-(2**31), 2**31, size, np.int32)
    return rng.integers(0, 100, size, np.uint8).astype(np.float32)


def check_answer(what: str, size: int, answer: Any) -> None:
    """Compare the answer with NumPy's.

    Raises:
        AssertionError: they differ.
    """
    tiles = numbers(what, size).reshape(-1, TILE)
    expected = REFERENCES[what](tiles)
    np.testing.assert_array_equal(np.asarray(answer).reshape(expected.shape), expected)


def outputs(what: str, size: int) -> int:
    """The elements of the result."""
    return size // TILE if what == "sum" else size


def _own(device: Device, size: int) -> list[Case]:
    stream = device.new_stream()
    kernels = {"sum": sum_tiles, "scan": scan_tiles, "sort": sort_tiles}
    cases = []
    for what in REFERENCES:
        x = na.from_host(numbers(what, size)).sync_on(stream)
        z = na.zeros(outputs(what, size), x.dtype).sync_on(stream)
        kernel = kernels[what][size // TILE, THREADS]

        def op(kernel: Any = kernel, z: Any = z, x: Any = x) -> na.DeviceOp[Any]:
            return kernel(z, x)  # type: ignore[no-any-return]

        async def check(what: str = what, op: Any = op) -> None:
            check_answer(what, size, await op().first().to_host().schedule(stream))

        cases.append(Case(f"numbasync: block {what}", device_time(stream, op, op, 1), check))
    return cases


async def tables(device: Device, rounds: int) -> list[report.Record]:
    size = LARGE if has_own_processor(device) else FEW
    targets = [
        Target(f"{what} / CUB", f"numbasync: block {what}", f"CUB: block {what}", 1 / 0.97, 0.9)
        for what in REFERENCES
    ]
    own = _own(device, size)
    return [
        await table(
            device, rounds, "block_collectives", f"tiles of {size:,} elements", own, calls=CALLS,
            method=METHOD, base=own[0].name, targets=targets,
            unit="device microseconds a call", size=size, tile=TILE, threads=THREADS, sizes=(size,),
        )
    ]  # fmt: skip
