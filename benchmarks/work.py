"""The work of all contestants: saxpy on 1,024 float32 elements, 128 threads a block."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from numba import cuda

import numbasync as na
from numbasync.testing.timing.timer import seconds_of

N = 1024
THREADS = 128
BLOCKS = -(-N // THREADS)
WIDTH = 1000  # operations in flight at the same time
STREAMS = 4
CHAIN = 100  # launches of one operation

# The factor is a double, as Numba passes a Python float.
CUDA_SOURCE = """
extern "C" __global__ void saxpy(float* z, double a, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = a * x[i] + z[i];
}
"""


def body(z: Any, a: Any, x: Any) -> None:
    """The kernel, as a function for `cuda.jit`."""
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = a * x[i] + z[i]


@na.launcher
@cuda.jit
def saxpy(z: na.KernelOutput, a: Any, x: na.KernelInput) -> None:
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = a * x[i] + z[i]


def check(z: Any, launches: int = 1) -> None:
    """Raise unless `z`, which was zero, has had twice a row of ones added by each launch."""
    np.testing.assert_array_equal(np.asarray(z), np.full(N, 2.0 * launches, np.float32))


async def check_run(z: na.Tensor, run: Callable[[], Awaitable[object]], launches: int = 1) -> None:
    """Raise unless `run` launches so many saxpys on `z`."""
    await na.fill(z, 0)
    await run()
    check(await z.to_host(), launches)


def calls_of_a_round(stream: na.Stream, z: na.Tensor, x: na.Tensor) -> int:
    """500, or fewer where a call takes long; a multiple of `CHAIN`."""

    def launch() -> None:
        saxpy(z.partition(THREADS), 2.0, x).sync_on(stream)

    launch()
    calls = max(CHAIN, min(500, round(0.02 / seconds_of(launch))))
    return calls - calls % CHAIN
