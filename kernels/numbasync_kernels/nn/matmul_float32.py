"""Matrix products in float32 without tensor cores: sums in registers, tiles in shared memory.

A block makes a square tile of the result. `DEPTH` columns of a and as many rows of b are brought to
shared memory at a time, elements of one k side by side; while they are multiplied, the next ones
are on their way into registers. Each thread keeps 8 by 16 sums, or 8 by 8 where tiles are small:
what it reads of one k, four elements by an instruction, serves as many products.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, uint32

import numbasync as na
from numbasync import vectors
from numbasync_kernels.nn.finish import finished
from numbasync_kernels.nn.tile_order import corner_of

DEPTH = 8  # of the tiles of a and b; the kernel has a line for two of them
WIDE = 4  # elements of 16 bytes
LANES_Y, LANES_X = 8, 4  # threads of a warp along the rows and columns of the result
APART_Y, APART_X = WIDE * LANES_Y, WIDE * LANES_X  # from four elements of a thread to the next four
EACH_Y = 8  # rows of the result that a thread computes
PAD = 4  # elements; so that those of other k are in other banks
RATES = {128: 1.0, 64: 0.8}  # by the side of a tile: at which its elements are computed


@cuda.jit(device=True)
def _place(i: Any, held: Any, side: Any, along_k: Any) -> Any:
    """The k, and the row of a or column of b, at which load `i` of the thread begins."""
    number = (uint32(cuda.threadIdx.x) % side + i * side) * held.shape[1]
    if along_k:
        return number % DEPTH, number // DEPTH
    return number // side, number % side


@cuda.jit(device=True)
def _source(i: Any, held: Any, matrix: Any, first: Any, start: Any, side: Any, along_k: Any) -> Any:
    """Where load `i` of the thread begins in the operand, and its k, counted from `start` on. Rows
    (of b: columns) behind the last one, whose sums nobody stores, are the last one.
    """
    k, x = _place(i, held, side, along_k)
    if along_k:
        return uint32(min(first + x, matrix.shape[0] - 1)), uint32(start + k), k
    return uint32(start + k), uint32(min(first + x, matrix.shape[1] - held.shape[1])), k


@cuda.jit(device=True)
def _fetch_fours(
    held: Any, matrix: Any, first: Any, start: Any, count: Any, side: Any, along_k: Any
) -> None:
    """The thread's elements of `count` k of an operand, from `start` on, and of its rows (of b: its
    columns) from `first` on; four by an instruction. Behind the last k are zeros.
    """
    for i in range(held.shape[0]):
        row, column, k = _source(i, held, matrix, first, start, side, along_k)
        four = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
        if k < count:
            four = vectors.load(matrix, (row, column), WIDE)
        held[i, 0], held[i, 1], held[i, 2], held[i, 3] = four


@cuda.jit(device=True)
def _fetch_each(
    held: Any, matrix: Any, first: Any, start: Any, count: Any, side: Any, along_k: Any
) -> None:
    """As `_fetch_fours`, of any matrix: one element by an instruction."""
    for i in range(held.shape[0]):
        row, column, k = _source(i, held, matrix, first, start, side, along_k)
        held[i, 0] = matrix[row, column] if k < count else float32(0.0)


@cuda.jit(device=True)
def _put(tile: Any, stage: Any, held: Any, side: Any, along_k: Any) -> None:
    """What has been fetched, into shared memory."""
    for i in range(held.shape[0]):
        k, x = _place(i, held, side, along_k)
        for j in range(held.shape[1]):
            if along_k:
                tile[stage, k + j, x] = held[i, j]
            else:
                tile[stage, k, x + j] = held[i, j]


@cuda.jit(device=True)
def _read(held: Any, left: Any, right: Any, stage: Any, k: Any, y: Any, x: Any) -> None:
    """What the thread multiplies of one k: 8 elements of a, and behind them 8 or 16 of b."""
    for i in range(2):
        _read_four(held, i * WIDE, left, stage, k, y + i * APART_Y)
    for i in range(2):
        _read_four(held, 8 + i * WIDE, right, stage, k, x + i * APART_X)
    if held.shape[0] > 16:
        for i in range(2, 4):
            _read_four(held, 8 + i * WIDE, right, stage, k, x + i * APART_X)


@cuda.jit(device=True)
def _read_four(held: Any, at: Any, tile: Any, stage: Any, k: Any, x: Any) -> None:
    held[at], held[at + 1], held[at + 2], held[at + 3] = vectors.load(tile, (stage, k, x), WIDE)


@cuda.jit(device=True)
def _add_products(sums: Any, held: Any) -> None:
    """Add the products of what `_read` has read."""
    for i in range(8):
        for j in range(8):
            sums[i, j] += held[i] * held[8 + j]
        if held.shape[0] > 16:
            for j in range(8, 16):
                sums[i, j] += held[i] * held[8 + j]


@cuda.jit(device=True)
def _add_two(
    sums: Any, even: Any, odd: Any, left: Any, right: Any, stage: Any, k: Any, y: Any, x: Any
) -> None:
    """Add the products of `k - 1`, whose elements are in `even`, and of k; read for `k + 1`."""
    _read(odd, left, right, stage, k, y, x)
    _add_products(sums, even)
    _read(even, left, right, stage, uint32(k + 1), y, x)
    _add_products(sums, odd)


@cuda.jit(device=True)
def _store(out: Any, row: Any, column: Any, values: Any, i: Any, j: Any) -> None:
    """Four neighbouring elements of a row, as far as they are inside."""
    at = uint32(row), uint32(column)
    if column + WIDE <= out.shape[1] and vectors.is_aligned(out, at, WIDE):
        four = values[i, j], values[i, j + 1], values[i, j + 2], values[i, j + 3]
        vectors.store(out, at, four)
    else:
        for n in range(WIDE):
            if column + n < out.shape[1]:
                out[uint32(row), uint32(column + n)] = values[i, j + n]


@cache
def matmul_float32(
    side: int = 128, a_along_k: bool = True, b_along_k: bool = False, wide: bool = True,
    finishes: bool = False,
) -> Any:  # fmt: skip
    """The launcher of ``out = finished(a @ b)``, with a block for each tile of the result.

    Args:
        side: of a tile: 128 or 64. A block has as many threads.
        a_along_k: a is passed as it is, shape ``(m, k)``, neighbours along k; else transposed.
        b_along_k: b is passed transposed, shape ``(n, k)``, neighbours along k; else as it is.
        wide: what is passed is C-contiguous, its rows are multiples of 16 bytes, and it begins at
            one. Else it may have any strides.
        finishes: sums are finished by `finished`; else they are stored.

    Its arguments: ``out``, shape (m, n), C-contiguous, a and b, of float32, and those of
    `finished`. Any sizes. Reads ``mk ceil(n / side) + kn ceil(m / side)`` elements, most of them
    from the L2 cache, and writes mn.

    Error bound: an element is a sum of k products in order, so ``k u abs(a) @ abs(b)`` with
    u = 2**-24, to first order.
    Source: N. J. Higham, Accuracy and Stability of Numerical Algorithms, SIAM, 2002, section 3.1.
    """
    each_x = 16 if side == 128 else 8
    warps_x = side // (LANES_X * each_x)
    warp_y, warp_x = LANES_Y * EACH_Y, LANES_X * each_x
    held_shape = (DEPTH // WIDE, WIDE) if wide else (DEPTH, 1)
    sums_shape, read = (EACH_Y, each_x), EACH_Y + each_x
    # Nothing else is captured: functions would have other keys in the disk cache in each process.
    tile = np.float32, (2, DEPTH, side + PAD)  # one shape: addresses need fewer registers
    layout = na.shared_layout(a=tile, b=tile)

    @na.launcher(threads=side)
    @cuda.jit(launch_bounds=(side, 256 // side), cache=True)
    def product(
        out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput,
        bias: na.KernelInput = None, residual: na.KernelInput = None, activation: int = 0,
    ) -> None:  # fmt: skip
        left, right = layout.a, layout.b
        for_left = cuda.local.array(held_shape, float32)
        for_right = cuda.local.array(held_shape, float32)
        sums = cuda.local.array(sums_shape, float32)
        even = cuda.local.array(read, float32)
        odd = cuda.local.array(read, float32)
        thread = uint32(cuda.threadIdx.x) % side
        warp, lane = thread // 32, thread % 32
        y = warp // warps_x * warp_y + lane // LANES_X * WIDE
        x = warp % warps_x * warp_x + lane % LANES_X * WIDE
        tiles_m, tiles_n = (out.shape[0] + side - 1) // side, (out.shape[1] + side - 1) // side
        i, j = corner_of(cuda.blockIdx.x, tiles_m, tiles_n)
        top, first = uint32(i * side), uint32(j * side)

        for i in range(EACH_Y):
            for j in range(each_x):
                sums[i, j] = float32(0.0)
        total = a.shape[1] if a_along_k else a.shape[0]
        steps = max((total + DEPTH - 1) // DEPTH, 1)
        k = uint32(total - (steps - 1) * DEPTH)  # what is left over first: the others are whole
        if wide:
            _fetch_fours(for_left, a, top, 0, k, side, a_along_k)
            _fetch_fours(for_right, b, first, 0, k, side, b_along_k)
        else:
            _fetch_each(for_left, a, top, 0, k, side, a_along_k)
            _fetch_each(for_right, b, first, 0, k, side, b_along_k)
        stage = uint32(0)
        for step in range(steps):
            _put(left, stage, for_left, side, a_along_k)
            _put(right, stage, for_right, side, b_along_k)
            if step + 1 < steps:  # before the barrier, behind which compilers would move it
                if wide:
                    _fetch_fours(for_left, a, top, k, DEPTH, side, a_along_k)
                    _fetch_fours(for_right, b, first, k, DEPTH, side, b_along_k)
                else:
                    _fetch_each(for_left, a, top, k, DEPTH, side, a_along_k)
                    _fetch_each(for_right, b, first, k, DEPTH, side, b_along_k)
                k = uint32(k + DEPTH)
            cuda.syncthreads()
            _read(even, left, right, stage, uint32(0), y, x)
            if step > 0:
                _add_products(sums, odd)
            # No loop: it would not be unrolled. No literals: a function would be compiled for each.
            _add_two(sums, even, odd, left, right, stage, uint32(1), y, x)
            _add_two(sums, even, odd, left, right, stage, uint32(3), y, x)
            _add_two(sums, even, odd, left, right, stage, uint32(5), y, x)
            _read(odd, left, right, stage, uint32(DEPTH - 1), y, x)
            _add_products(sums, even)
            stage = uint32(1 - stage)
        _add_products(sums, odd)

        # A copy, so that a loop that is not unrolled leaves the sums in registers.
        results = cuda.local.array(sums_shape, float32)
        for i in range(EACH_Y):
            for j in range(each_x):
                results[i, j] = sums[i, j]
        for i in range(EACH_Y):
            row = top + y + i // WIDE * APART_Y + i % WIDE
            if finishes:
                for j in range(each_x):
                    column = first + x + j // WIDE * APART_X + j % WIDE
                    results[i, j] = finished(results[i, j], row, column, bias, residual, activation)
            if row < out.shape[0]:
                for j in range(0, each_x, WIDE):
                    _store(out, row, first + x + j // WIDE * APART_X, results, i, j)

    return product


def multiply_float32(
    out: na.Tensor, a: na.Tensor, b: na.Tensor, bias: na.Tensor | None = None,
    residual: na.Tensor | None = None, activation: int = 0,
) -> na.DeviceOp[na.Tensor]:  # fmt: skip
    """``out = finished(a @ b)``, by the kernel that fits shapes and strides.

    Args:
        out: shape ``(m, n)``, C-contiguous.
        a, b: shapes ``(m, k)`` and ``(k, n)``; views will do. All are float32.
        bias, residual, activation: see `finished`.
    """
    if not out.size:
        return na.value(out)
    a_along_k, b_along_k = not is_transposed(a), is_transposed(b)
    operands = (a if a_along_k else a.T), (b.T if b_along_k else b)
    finishes = bias is not None or residual is not None or activation != 0
    multiprocessors = out.device.limits.multiprocessors if out.device is not None else 1
    side = tile_side(out.shape, multiprocessors)
    launcher = matmul_float32(side, a_along_k, b_along_k, all(map(_is_wide, operands)), finishes)
    call = launcher[_tiles(out.shape, side), side]
    launched: na.DeviceOp[Any] = call(out, *operands, bias, residual, activation)
    return launched.first()


def tile_side(shape: tuple[int, ...], multiprocessors: int) -> int:
    """The side of the tiles by which a result of this shape is done first."""

    def time(side: int) -> float:
        return -(-_tiles(shape, side) // multiprocessors) * side * side / RATES[side]

    return min(RATES, key=time)


def _tiles(shape: tuple[int, ...], side: int) -> int:
    return -(-shape[0] // side) * -(-shape[1] // side)


def is_transposed(t: na.Tensor) -> bool:
    """Whether the elements of a column, not those of a row, are neighbours."""
    size = t.dtype.itemsize
    return t.strides[1] != size and t.strides[0] == size


def _is_wide(t: na.Tensor) -> bool:
    """Whether each row can be loaded four elements at a time."""
    return t.is_contiguous and t.is_aligned and t.shape[1] % WIDE == 0
