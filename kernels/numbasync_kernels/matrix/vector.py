"""A matrix times a vector."""

from __future__ import annotations

from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, float32
from numbasync_kernels.fits import FLOATS, fits

THREADS = 256


@na.launcher(
    threads=THREADS,
    preconditions=[
        *fits("out x", 1, FLOATS), *fits("a", 2, FLOATS), "a.shape == (out.shape[0], x.shape[0])",
    ],
)  # fmt: skip
@cuda.jit(cache=True)
def matvec(out: na.KernelOutput, a: na.KernelInput, x: na.KernelInput) -> None:
    """``out = a @ x``.

    Args:
        out: shape ``(m,)``. All are of float16, bfloat16 or float32, and added up in float32. Any
            grid of blocks of 256 threads will do: ``matvec[m, 256]``.
        a: shape ``(m, n)``.
        x: shape ``(n,)``.

    A block takes a row, and goes on to the next one that no other takes. Reads each element of `a`
    once, and `x` from the cache.

    Error bound: ``(n / 256 + 15) u sum(abs(a * x))`` of a row, u = 2**-24, to first order: n / 256
    products and sums a thread, and 13 sums of threads; and half a unit of `out`.

    Examples:
        >>> from numbasync_kernels import matrix
        >>> out = await na.zeros(2)
        >>> a, x = np.array([[1, 2], [3, 4]], np.float32), np.array([1, 10], np.float32)
        >>> _ = await matrix.matvec[2, 256](out, a, x)
        >>> (await out.to_host()).tolist()
        [21.0, 43.0]
    """
    for row in range(cuda.blockIdx.x, out.shape[0], cuda.gridDim.x):
        own = float32(0)
        for i in range(cuda.threadIdx.x, x.shape[0], THREADS):
            own += float32(a[row, i]) * float32(x[i])
        total = na.block.sum(own)
        if cuda.threadIdx.x == 0:
            out[row] = total


def matvec_reference(a: np.ndarray[Any, Any], x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What `matvec` approximates, in float64; shape ``(m,)``."""
    result: np.ndarray[Any, Any] = a.astype(np.float64) @ x.astype(np.float64)
    return result
