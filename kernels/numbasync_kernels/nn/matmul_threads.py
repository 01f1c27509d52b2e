"""Matrix products without tensor cores, of any dtype and any strides, on every device."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, float32, int32
from numbasync_kernels.blocks import row_and_column
from numbasync_kernels.nn.finish import finished
from numbasync_kernels.nn.tile_order import first_row_of, group_of

SIDE = 8  # threads along each side of a block
EACH = 4  # elements along each side that a thread computes
WIDE = SIDE * EACH  # of a tile, also of those that are read
PADDED = WIDE + 1
HELD = WIDE * WIDE // (SIDE * SIDE)  # elements of a tile that a thread brings
ROWS_APART = SIDE * SIDE // WIDE
THREADS = (SIDE, SIDE)
THREADS_INT8 = (32, 8)


@cuda.jit(device=True)
def _fetch(held: Any, matrix: Any, group: Any, top: Any, first: Any) -> None:
    """The thread's elements of the tile of `matrix`, of three axes ``matrix[group]``, with its
    corner at ``(top, first)``; 0 outside.

    All loads are under way before the first of them is used. A warp reads a row of the tile.
    """
    thread = cuda.threadIdx.y * SIDE + cuda.threadIdx.x
    x = first + thread % WIDE
    for i in range(HELD):
        y = top + thread // WIDE + i * ROWS_APART
        held[i] = float32(0.0)
        if y < matrix.shape[-2] and x < matrix.shape[-1]:
            if matrix.ndim == 3:
                held[i] = float32(matrix[group, y, x])
            else:
                held[i] = float32(matrix[y, x])


@cuda.jit(device=True)
def _put(tile: Any, held: Any) -> None:
    """What `_fetch` has brought, into shared memory."""
    thread = cuda.threadIdx.y * SIDE + cuda.threadIdx.x
    for i in range(HELD):
        tile[thread // WIDE + i * ROWS_APART, thread % WIDE] = held[i]


@cuda.jit(device=True)
def _multiply(sums: Any, a: Any, b: Any, group: Any, top: Any, first: Any) -> None:
    """Make `sums` the thread's elements of ``a @ b``, or of ``a @ b[group]``: of the tile with its
    corner at ``(top, first)``, those at ``(threadIdx.y + 8 i, threadIdx.x + 8 j)``.

    While a step is computed, the next one's tiles are on their way into registers.
    """
    left = cuda.shared.array((WIDE, PADDED), float32)  # padded: rows begin in other banks
    right = cuda.shared.array((WIDE, PADDED), float32)
    for_left = cuda.local.array(HELD, float32)
    for_right = cuda.local.array(HELD, float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    for i in range(EACH):
        for j in range(EACH):
            sums[i, j] = float32(0.0)
    _fetch(for_left, a, group, top, 0)
    _fetch(for_right, b, group, 0, first)
    for start in range(WIDE, a.shape[1] + WIDE, WIDE):
        _put(left, for_left)
        _put(right, for_right)
        cuda.syncthreads()
        _fetch(for_left, a, group, top, start)
        _fetch(for_right, b, group, start, first)
        for k in range(WIDE):
            for i in range(EACH):
                factor = left[ty + i * SIDE, k]
                for j in range(EACH):
                    sums[i, j] += factor * right[k, tx + j * SIDE]
        cuda.syncthreads()


@cache
def matmul_threads(several: bool) -> Any:
    """The launcher of ``out = finished(a @ b)``, or of several products, whose results lie one
    below the other.

    Args:
        several: each group of rows of out is the product of the same rows of a and of the group's
            own matrix, of a b of three axes. Blocks that are left over return.

    Its arguments: ``out`` and ``a``, shapes (m, n) and (m, k), and ``b``, shape (k, n) or
    (groups, k, n), of float16, bfloat16 or float32 and any strides; ``rows`` of each group, or
    ``offsets`` of groups, as of `group_of`; and those of `finished`. Sums are float32.

    A block makes 32 by 32 elements, each thread 4 by 4 of them, 32 products of each at a time,
    between two barriers: an element that is read from shared memory serves 4 sums. Blocks are
    small, so that products of some dozens of rows keep a device busy, too. Reads ``mk ceil(n / 32)
    + kn ceil(m / 32)`` elements and writes mn.

    Error bound: an element is a sum of k products in order, so ``k u abs(a) @ abs(b)`` with
    u = 2**-24, to first order.
    Source: N. J. Higham, Accuracy and Stability of Numerical Algorithms, SIAM, 2002, section 3.1.
    """

    @na.launcher(threads=THREADS)
    @cuda.jit(cache=True)
    def product(
        out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, rows: int = 0,
        offsets: na.KernelInput = None, bias: na.KernelInput = None,
        residual: na.KernelInput = None, activation: int = 0,
    ) -> None:  # fmt: skip
        tiles_n = (out.shape[1] + WIDE - 1) // WIDE
        tile = cuda.blockIdx.x
        group, before, start, end = 0, 0, 0, out.shape[0]
        if several:
            group, before = group_of(tile, 0, 0, rows, offsets, WIDE, tiles_n)
            if group >= b.shape[0]:
                return
            start = first_row_of(group, rows, offsets)
            end = first_row_of(group + 1, rows, offsets)
        top = start + (tile - before) // tiles_n * WIDE
        first = (tile - before) % tiles_n * WIDE
        sums = cuda.local.array((EACH, EACH), float32)
        _multiply(sums, a, b, group, top, first)
        for i in range(EACH):
            for j in range(EACH):
                y = top + cuda.threadIdx.y + i * SIDE
                x = first + cuda.threadIdx.x + j * SIDE
                if y < end and x < out.shape[1]:
                    out[y, x] = finished(sums[i, j], y, x, bias, residual, activation)

    return product


@cuda.jit(device=True)
def _group_of_row(row: Any, groups: Any, rows: Any, offsets: Any) -> Any:
    """The group of a row, or -1; see `first_row_of`."""
    for group in range(groups):
        if first_row_of(group, rows, offsets) <= row < first_row_of(group + 1, rows, offsets):
            return group
    return -1


@cache
def matmul_int8_threads(several: bool) -> Any:
    """As `matmul_threads`, of int8 into int32, exact up to a k of 2**17. A thread makes an element.

    Its arguments: ``out``, ``a``, ``b``, ``rows`` and ``offsets``. Reads each row of `a` n times
    and each column of `b` m times, most of it from caches, and writes mn.
    """

    @na.launcher(threads=THREADS_INT8)
    @cuda.jit(cache=True)
    def product(
        out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, rows: int = 0,
        offsets: na.KernelInput = None,
    ) -> None:  # fmt: skip
        wide, high = THREADS_INT8
        row, column = row_and_column(cuda.blockIdx.x, (out.shape[1] + wide - 1) // wide)
        x = column * wide + cuda.threadIdx.x
        y = row * high + cuda.threadIdx.y
        if y < out.shape[0] and x < out.shape[1]:
            group = _group_of_row(y, b.shape[0], rows, offsets) if several else 0
            if group >= 0:
                total = int32(0)
                for k in range(a.shape[1]):
                    if several:
                        total += int32(a[y, k]) * int32(b[group, k, x])
                    else:
                        total += int32(a[y, k]) * int32(b[k, x])
                out[y, x] = total

    return product


def multiply_by_threads(
    out: na.Tensor, a: na.Tensor, b: na.Tensor, bias: na.Tensor | None = None,
    residual: na.Tensor | None = None, activation: int = 0, rows: int = 0,
    offsets: na.Tensor | None = None,
) -> na.DeviceOp[na.Tensor]:  # fmt: skip
    """``out = finished(a @ b)``, or of groups of rows; as `multiply_float32`, but:

    Args:
        out, a, b: of any dtype that products can have, and of any strides; out is int32 if a is
            int8, of which nothing is finished.
    """
    several, (m, n) = b.ndim == 3, out.shape
    launched: na.DeviceOp[Any]
    if a.dtype == np.int8:
        wide, high = THREADS_INT8
        integers = matmul_int8_threads(several)[-(-m // high) * -(-n // wide), THREADS_INT8]
        launched = integers(out, a, b, rows, offsets)
    else:  # however rows are divided into groups
        tiles = m // WIDE + len(b) if several else -(-m // WIDE)
        floats = matmul_threads(several)[tiles * -(-n // WIDE), THREADS]
        launched = floats(out, a, b, rows, offsets, bias, residual, activation)
    return launched.first()
