"""The work that all contestants do: saxpy on 1,024 float32 elements, 128 threads a block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

import numbasync as na

N = 1024
THREADS = 128
BLOCKS = -(-N // THREADS)
WIDTH = 1000  # operations in flight at once
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
    """`z` was zero, and `launches` times twice a row of ones has been added to it."""
    np.testing.assert_array_equal(np.asarray(z), np.full(N, 2.0 * launches, np.float32))
