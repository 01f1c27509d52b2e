"""Matrix products through tiles in shared memory, with what a layer does to them at the end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32

import numbasync as na
from numbasync_kernels.fits import FLOATS, fits
from numbasync_kernels.nn.finish import finished
from numbasync_kernels.nn.gelu import gelu_of, gelu_reference
from numbasync_kernels.nn.tile_order import first_row_of, group_of

SIDE = 8  # threads along each side of a block
EACH = 4  # elements along each side that a thread computes
WIDE = SIDE * EACH  # of a tile, also of those that are read
PADDED = WIDE + 1
HELD = WIDE * WIDE // (SIDE * SIDE)  # elements of a tile that a thread brings
ROWS_APART = SIDE * SIDE // WIDE
MATMUL_TILE = (WIDE, WIDE)
GROUP_THREADS = (SIDE, SIDE)

FITS = (
    *fits("out a b", 2, FLOATS), "a.dtype == b.dtype", "a.shape[1] == b.shape[0]",
    "out.shape[0] == a.shape[0]", "out.shape[1] == b.shape[1]",
)  # fmt: skip
FITS_BIAS = (*FITS, *fits("bias", 1, FLOATS), "bias.shape[0] == b.shape[1]")


@cuda.jit(device=True)
def _fetch(held: Any, matrix: Any, top: Any, first: Any) -> None:
    """The thread's elements of the tile of `matrix` with its corner at ``(top, first)``; 0 outside.

    All loads are under way before the first of them is used. A warp reads a row of the tile.
    """
    thread = cuda.threadIdx.y * SIDE + cuda.threadIdx.x
    x = first + thread % WIDE
    for i in range(HELD):
        y = top + thread // WIDE + i * ROWS_APART
        is_inside = y < matrix.shape[0] and x < matrix.shape[1]
        held[i] = float32(matrix[y, x]) if is_inside else float32(0.0)


@cuda.jit(device=True)
def _put(tile: Any, held: Any) -> None:
    """What `_fetch` has brought, into shared memory."""
    thread = cuda.threadIdx.y * SIDE + cuda.threadIdx.x
    for i in range(HELD):
        tile[thread // WIDE + i * ROWS_APART, thread % WIDE] = held[i]


@cuda.jit(device=True)
def _accumulate(totals: Any, a: Any, b: Any, top: Any, first: Any) -> None:
    """Make `totals` the thread's elements of ``a @ b``: of the tile with its corner at
    ``(top, first)``, those at ``(threadIdx.y + 8 i, threadIdx.x + 8 j)``.

    While a step is computed, the next one's tiles are on their way into registers. Each element
    that is read from shared memory serves 4 sums.
    """
    left = cuda.shared.array((WIDE, PADDED), float32)  # padded: rows begin in other banks
    right = cuda.shared.array((WIDE, PADDED), float32)
    for_left = cuda.local.array(HELD, float32)
    for_right = cuda.local.array(HELD, float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y

    for i in range(EACH):
        for j in range(EACH):
            totals[i, j] = float32(0.0)
    _fetch(for_left, a, top, 0)
    _fetch(for_right, b, 0, first)
    for start in range(WIDE, a.shape[1] + WIDE, WIDE):
        _put(left, for_left)
        _put(right, for_right)
        cuda.syncthreads()
        _fetch(for_left, a, top, start)
        _fetch(for_right, b, start, first)
        for k in range(WIDE):
            for i in range(EACH):
                factor = left[ty + i * SIDE, k]
                for j in range(EACH):
                    totals[i, j] += factor * right[k, tx + j * SIDE]
        cuda.syncthreads()


@na.launcher(axes=(1, 0), threads=(SIDE, SIDE), preconditions=FITS)
@cuda.jit(cache=True)
def matmul(out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput) -> None:
    """``out = a @ b``, of any sizes.

    Args:
        out: shape ``(m, n)``, float16, bfloat16 or float32; cut it by `MATMUL_TILE`.
        a, b: shapes ``(m, k)`` and ``(k, n)``, both float16, bfloat16 or float32. Sums are float32.

    Blocks of 8 by 8 threads make 32 by 32 elements, each thread 4 by 4 of them, 32 products of
    each at a time, between two barriers. Small blocks, so that products of some dozens of rows
    keep a device busy, too. Reads ``mk ceil(n / 32) + kn ceil(m / 32)`` elements and writes mn.

    Raises:
        LaunchError: the shapes do not fit, before anything is enqueued.

    Error bound: an element is a sum of k products in order, so ``k u abs(a) @ abs(b)`` with
    u = 2**-24, to first order.
    Source: N. J. Higham, Accuracy and Stability of Numerical Algorithms, SIAM, 2002, section 3.1.
    """
    totals = cuda.local.array((EACH, EACH), float32)
    top = cuda.blockIdx.y * WIDE
    first = cuda.blockIdx.x * WIDE
    _accumulate(totals, a, b, top, first)
    for i in range(EACH):
        for j in range(EACH):
            y = top + cuda.threadIdx.y + i * SIDE
            x = first + cuda.threadIdx.x + j * SIDE
            if y < out.shape[0] and x < out.shape[1]:
                out[y, x] = totals[i, j]


@na.launcher(axes=(1, 0), threads=(SIDE, SIDE), preconditions=FITS_BIAS)
@cuda.jit(cache=True)
def linear(
    out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, bias: na.KernelInput
) -> None:
    """``out = a @ b + bias``: a layer's product. As `matmul`, and:

    Args:
        bias: shape ``(n,)``, added to every row.

    Error bound: ``(k + 1) u (abs(a) @ abs(b) + abs(bias))``, to first order.
    """
    totals = cuda.local.array((EACH, EACH), float32)
    top = cuda.blockIdx.y * WIDE
    first = cuda.blockIdx.x * WIDE
    _accumulate(totals, a, b, top, first)
    for i in range(EACH):
        for j in range(EACH):
            y = top + cuda.threadIdx.y + i * SIDE
            x = first + cuda.threadIdx.x + j * SIDE
            if y < out.shape[0] and x < out.shape[1]:
                out[y, x] = totals[i, j] + bias[x]


@na.launcher(axes=(1, 0), threads=(SIDE, SIDE), preconditions=FITS_BIAS)
@cuda.jit(cache=True)
def linear_gelu(
    out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, bias: na.KernelInput
) -> None:
    """``out = gelu(a @ b + bias)``: as `linear`, and `gelu` before the one write.

    Error bound: GELU is nowhere steeper than 1.13, so 1.13 times that of `linear`, and that of
    `gelu` at the result.
    """
    totals = cuda.local.array((EACH, EACH), float32)
    top = cuda.blockIdx.y * WIDE
    first = cuda.blockIdx.x * WIDE
    _accumulate(totals, a, b, top, first)
    for i in range(EACH):
        for j in range(EACH):
            y = top + cuda.threadIdx.y + i * SIDE
            x = first + cuda.threadIdx.x + j * SIDE
            if y < out.shape[0] and x < out.shape[1]:
                out[y, x] = gelu_of(totals[i, j] + bias[x])


@na.launcher(axes=(1, 0), threads=(SIDE, SIDE), preconditions=FITS)
@cuda.jit(cache=True)
def matmul_finished(
    out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, bias: na.KernelInput = None,
    residual: na.KernelInput = None, activation: int = 0,
) -> None:  # fmt: skip
    """``out = finished(a @ b)``: as `matmul`, and each sum is finished by `finished`."""
    totals = cuda.local.array((EACH, EACH), float32)
    top = cuda.blockIdx.y * WIDE
    first = cuda.blockIdx.x * WIDE
    _accumulate(totals, a, b, top, first)
    for i in range(EACH):
        for j in range(EACH):
            y = top + cuda.threadIdx.y + i * SIDE
            x = first + cuda.threadIdx.x + j * SIDE
            if y < out.shape[0] and x < out.shape[1]:
                out[y, x] = finished(totals[i, j], y, x, bias, residual, activation)


@na.launcher(threads=(SIDE, SIDE))
@cuda.jit(cache=True)
def matmul_groups(
    out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, rows: int,
    offsets: na.KernelInput = None, bias: na.KernelInput = None, residual: na.KernelInput = None,
    activation: int = 0,
) -> None:  # fmt: skip
    """``out[s:e] = finished(a[s:e] @ b[i])`` for each group i of rows, from s to e: as `matmul`.

    Args:
        out, a: shapes ``(m, n)`` and ``(m, k)``. `blocks_of_groups` blocks are launched.
        b: shape ``(groups, k, n)``.
        rows: of each group, if offsets is None.
        offsets: shape ``(groups + 1,)``: the first row of each group, and the end of the last one.
    """
    groups = b.shape[0]
    tiles_n = (b.shape[2] + WIDE - 1) // WIDE
    tile = cuda.blockIdx.x
    group, before = group_of(tile, 0, 0, rows, offsets, WIDE, tiles_n)
    if group < groups:
        start = first_row_of(group, rows, offsets)
        end = first_row_of(group + 1, rows, offsets)
        top = start + (tile - before) // tiles_n * WIDE
        first = (tile - before) % tiles_n * WIDE
        totals = cuda.local.array((EACH, EACH), float32)
        _accumulate(totals, a[:end], b[group], top, first)
        for i in range(EACH):
            for j in range(EACH):
                y = top + cuda.threadIdx.y + i * SIDE
                x = first + cuda.threadIdx.x + j * SIDE
                if y < end and x < out.shape[1]:
                    out[y, x] = finished(totals[i, j], y, x, bias, residual, activation)


def blocks_of_groups(out: na.Tensor, groups: int) -> int:
    """The blocks of a launch of `matmul_groups`: tiles, however rows are divided into groups."""
    m, n = out.shape
    return (m // WIDE + groups) * -(-n // WIDE)


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
