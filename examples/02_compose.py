"""Compose operations.

Arguments of a launch may be operations themselves. `then` continues on the same stream,
`zip` puts several on one stream, `shared` runs once for everyone who needs the result, and
the whole is one operation: one stream, one await.

    python examples/02_compose.py
"""

import math

import numpy as np
from numba import cuda, float32

import numbasync as na

THREADS = 128


@na.launcher
@cuda.jit
def squared_distance(out: na.KernelOutput, x: na.KernelInput, centre):
    i = cuda.grid(1)
    if i < out.shape[0]:
        d = x[i] - centre
        out[i] = d * d


@na.launcher(threads=THREADS)
@cuda.jit
def block_sums(sums: na.KernelOutput, x: na.KernelInput):
    """One sum a block of 128 elements: a tree in shared memory, a barrier a level."""
    own = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    own[t] = x[i] if i < x.shape[0] else 0.0
    step = THREADS // 2
    while step > 0:
        cuda.syncthreads()
        if t < step:
            own[t] += own[t + step]
        step //= 2
    if t == 0:
        sums[cuda.blockIdx.x] = own[0]


def sums_of_blocks(x: na.DeviceOp) -> na.DeviceOp:
    """An operation that gives the sum of each 128 elements of a tensor, as a NumPy array."""

    def of(tensor: na.Tensor) -> na.DeviceOp:
        blocks = -(-tensor.size // THREADS)
        sums = block_sums(na.empty(blocks).partition(1), tensor)
        return sums.output().to_host()

    return x.then(of)


async def main() -> None:
    values = np.random.default_rng(7).normal(5.0, 2.0, 10_000).astype(np.float32)
    data = na.from_host(values).shared()  # uploaded once, used twice

    mean = float((await sums_of_blocks(data)).sum()) / values.size

    squares = squared_distance(na.empty(values.size).partition(256), data, mean)
    host = await sums_of_blocks(squares.output().unpartition())
    deviation = math.sqrt(float(host.sum()) / values.size)

    print(f"mean {mean:.4f}, standard deviation {deviation:.4f}")
    np.testing.assert_allclose([mean, deviation], [values.mean(), values.std()], rtol=1e-4)

    # Everything can be written down first and run as one operation, on one stream.
    op = na.zip(na.full(4, 2.0), na.arange(4)).then(
        lambda pair: squared_distance(pair[0].partition(4), pair[1], 1.5)
    )
    print(f"built, not run: {op}")
    print(f"squares: {await op.output().to_host()}")


na.run(main())
