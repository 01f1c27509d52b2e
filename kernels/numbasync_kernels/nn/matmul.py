"""Matrix products through tiles in shared memory, with what a layer does to them at the end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32

import numbasync as na
from numbasync_kernels.nn.gelu import gelu_of, gelu_reference

SIDE = 16  # threads along each side of a block, and the depth of a step
EACH = 4  # elements along each side that a thread computes
MATMUL_TILE = (SIDE * EACH, SIDE * EACH)
WIDE = SIDE * EACH
PADDED = SIDE + 1

FITS = ("a.shape[1] == b.shape[0]", "out.shape[0] == a.shape[0]", "out.shape[1] == b.shape[1]")
FITS_BIAS = (*FITS, "bias.shape[0] == b.shape[1]")


@cuda.jit(device=True)
def _accumulate(totals: Any, a: Any, b: Any, row: Any, column: Any) -> None:
    """Make `totals` 4 x 4 elements of ``a @ b``, at rows ``row + 16 i``, columns ``column + 16 j``.

    Neighbouring threads compute neighbouring columns: what they read of `right` and write in the
    end lies side by side, and what they read of `left` is one element for all.
    """
    left = cuda.shared.array((WIDE, PADDED), float32)  # padded: two rows share no bank
    right = cuda.shared.array((SIDE, WIDE), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    depth = a.shape[1]
    zero = float32(0.0)

    for i in range(EACH):
        for j in range(EACH):
            totals[i, j] = zero
    for start in range(0, depth, SIDE):
        for i in range(EACH):
            y = row + i * SIDE
            k = start + tx
            left[ty + i * SIDE, tx] = a[y, k] if y < a.shape[0] and k < depth else zero
            x = column + i * SIDE
            k = start + ty
            right[ty, tx + i * SIDE] = b[k, x] if x < b.shape[1] and k < depth else zero
        cuda.syncthreads()
        for k in range(SIDE):
            for i in range(EACH):
                factor = left[ty + i * SIDE, k]
                for j in range(EACH):
                    totals[i, j] += factor * right[k, tx + j * SIDE]
        cuda.syncthreads()


@na.launcher(axes=(1, 0), threads=(SIDE, SIDE), preconditions=FITS)
@cuda.jit
def matmul(out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput) -> None:
    """``out = a @ b``, of any sizes.

    Args:
        out: shape ``(m, n)``, float32; cut it by `MATMUL_TILE`.
        a: shape ``(m, k)``, float32.
        b: shape ``(k, n)``, float32.

    Blocks of 16 by 16 threads make 64 by 64 elements, each thread 4 by 4 of them, 16 steps of
    k at a time: two barriers a step. Reads ``mk ceil(n / 64) + kn ceil(m / 64)`` elements and
    writes mn.

    Raises:
        LaunchError: the shapes do not fit, before anything is enqueued.

    Error bound: an element is a sum of k products in order, so ``k u abs(a) @ abs(b)`` with
    u = 2**-24, to first order.
    Source: N. J. Higham, Accuracy and Stability of Numerical Algorithms, SIAM, 2002, section 3.1.
    """
    totals = cuda.local.array((EACH, EACH), float32)
    row = cuda.blockIdx.y * WIDE + cuda.threadIdx.y
    column = cuda.blockIdx.x * WIDE + cuda.threadIdx.x
    _accumulate(totals, a, b, row, column)
    for i in range(EACH):
        for j in range(EACH):
            y = row + i * SIDE
            x = column + j * SIDE
            if y < out.shape[0] and x < out.shape[1]:
                out[y, x] = totals[i, j]


@na.launcher(axes=(1, 0), threads=(SIDE, SIDE), preconditions=FITS_BIAS)
@cuda.jit
def linear(
    out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, bias: na.KernelInput
) -> None:
    """``out = a @ b + bias``: a layer's product. As `matmul`, and:

    Args:
        bias: shape ``(n,)``, float32, added to every row.

    Error bound: ``(k + 1) u (abs(a) @ abs(b) + abs(bias))``, to first order.
    """
    totals = cuda.local.array((EACH, EACH), float32)
    row = cuda.blockIdx.y * WIDE + cuda.threadIdx.y
    column = cuda.blockIdx.x * WIDE + cuda.threadIdx.x
    _accumulate(totals, a, b, row, column)
    for i in range(EACH):
        for j in range(EACH):
            y = row + i * SIDE
            x = column + j * SIDE
            if y < out.shape[0] and x < out.shape[1]:
                out[y, x] = totals[i, j] + bias[x]


@na.launcher(axes=(1, 0), threads=(SIDE, SIDE), preconditions=FITS_BIAS)
@cuda.jit
def linear_gelu(
    out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, bias: na.KernelInput
) -> None:
    """``out = gelu(a @ b + bias)``: as `linear`, and `gelu` before the one write.

    Error bound: GELU is nowhere steeper than 1.13, so 1.13 times that of `linear`, and that of
    `gelu` at the result.
    """
    totals = cuda.local.array((EACH, EACH), float32)
    row = cuda.blockIdx.y * WIDE + cuda.threadIdx.y
    column = cuda.blockIdx.x * WIDE + cuda.threadIdx.x
    _accumulate(totals, a, b, row, column)
    for i in range(EACH):
        for j in range(EACH):
            y = row + i * SIDE
            x = column + j * SIDE
            if y < out.shape[0] and x < out.shape[1]:
                out[y, x] = gelu_of(totals[i, j] + bias[x])


def matmul_reference(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What `matmul` approximates, in float64; shape ``(m, n)``."""
    product: np.ndarray[Any, Any] = a.astype(np.float64) @ b.astype(np.float64)
    return product


def linear_reference(
    a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], bias: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """What `linear` approximates, in float64; shape ``(m, n)``."""
    result: np.ndarray[Any, Any] = matmul_reference(a, b) + bias
    return result


def linear_gelu_reference(
    a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], bias: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """What `linear_gelu` approximates, in float64; shape ``(m, n)``."""
    return gelu_reference(linear_reference(a, b, bias))
