"""Matrix products in float32 without tensor cores: sums in registers, tiles in shared memory.

A block makes a tile of the result. `DEPTH` columns of a and as many rows of b are brought to
shared memory at a time, elements of one k side by side; while they are multiplied, the next ones
are on their way into registers. Each thread keeps 8 by 16 sums, or 8 by 12 or 8 by 8 where tiles
are small: what it reads of one k, four elements by an instruction, serves as many products.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import numbasync as na
from numbasync import vectors
from numbasync.kernel_names import cuda, float32, uint32
from numbasync_kernels.nn.finish import finished
from numbasync_kernels.nn.operands import is_transposed
from numbasync_kernels.nn.tile_order import corner_of, first_row_of, group_of

DEPTH = 8  # of the tiles of a and b; the kernel has a line for two of them
WIDE = 4  # elements of 16 bytes
LANES_Y, LANES_X = 8, 4  # threads of a warp along the rows and columns of the result
APART_Y, APART_X = WIDE * LANES_Y, WIDE * LANES_X  # from four elements of a thread to the next four
EACH_Y = 8  # rows of the result that a thread computes
PAD = 4  # elements; so that those of other k are in other banks


class Tile(NamedTuple):
    """A tile of the result, made by a block of as many threads as it has rows.

    Attributes:
        rows: a multiple of 64.
        columns: 64, 96 or 128; a thread computes an eighth of them.
    """

    rows: int
    columns: int

    def tiles(self, m: int, n: int) -> int:
        """The tiles of a result of shape ``(m, n)``."""
        return -(-m // self.rows) * -(-n // self.columns)


class Cost(NamedTuple):
    """What a multiprocessor needs for tiles of a shape, as measured on an H200.

    Attributes:
        blocks: that run at the same time.
        rate: at which these compute elements, in relation to the best.
        alone: the rate of one block of 128 threads, or of two of 64, that have it for themselves.
    """

    blocks: int
    rate: float
    alone: float


COSTS = {
    Tile(128, 128): Cost(2, 1.0, 0.81),
    Tile(64, 96): Cost(4, 0.87, 0.755),
    Tile(64, 64): Cost(6, 0.86, 0.68),
}


@cuda.jit(device=True)
def _place(i: Any, held: Any, side: Any, along_k: Any) -> Any:
    """The k, and the row of a or column of b, at which load `i` of the thread begins."""
    threads = DEPTH * side // (held.shape[0] * held.shape[1])
    number = (uint32(cuda.threadIdx.x) % threads + i * threads) * held.shape[1]
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
        return uint32(min(first + x, matrix.shape[-2] - 1)), uint32(start + k), k
    return uint32(start + k), uint32(min(first + x, matrix.shape[-1] - held.shape[1])), k


@cuda.jit(device=True)
def _fetch_fours(
    held: Any,
    matrix: Any,
    group: Any,
    first: Any,
    start: Any,
    count: Any,
    side: Any,
    along_k: Any,
) -> None:
    """The thread's elements of `count` k of an operand, from `start` on, and of its rows (of b: its
    columns) from `first` on; four by an instruction. Behind the last k are zeros.
    """
    for i in range(held.shape[0]):
        row, column, k = _source(i, held, matrix, first, start, side, along_k)
        four = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
        if k < count:
            if matrix.ndim == 3:
                four = vectors.load(matrix, (group, row, column), WIDE)
            else:
                four = vectors.load(matrix, (row, column), WIDE)
        held[i, 0], held[i, 1], held[i, 2], held[i, 3] = four


@cuda.jit(device=True)
def _fetch_each(
    held: Any,
    matrix: Any,
    group: Any,
    first: Any,
    start: Any,
    count: Any,
    side: Any,
    along_k: Any,
) -> None:
    """As `_fetch_fours`, of any matrix: one element by an instruction."""
    for i in range(held.shape[0]):
        row, column, k = _source(i, held, matrix, first, start, side, along_k)
        held[i, 0] = float32(0.0)
        if k < count:
            if matrix.ndim == 3:
                held[i, 0] = matrix[group, row, column]
            else:
                held[i, 0] = matrix[row, column]


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
    """What the thread multiplies of one k: 8 elements of a, and behind them those of b."""
    for i in range(2):
        _read_four(held, i * WIDE, left, stage, k, y + i * APART_Y)
    for i in range((held.shape[0] - EACH_Y) // WIDE):
        _read_four(held, EACH_Y + i * WIDE, right, stage, k, x + i * APART_X)


@cuda.jit(device=True)
def _read_four(held: Any, at: Any, tile: Any, stage: Any, k: Any, x: Any) -> None:
    held[at], held[at + 1], held[at + 2], held[at + 3] = vectors.load(tile, (stage, k, x), WIDE)


@cuda.jit(device=True)
def _add_products(sums: Any, held: Any) -> None:
    """Add the products of what `_read` has read."""
    for i in range(EACH_Y):
        for j in range(sums.shape[1]):
            sums[i, j] += held[i] * held[EACH_Y + j]


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
    tile: Tile, a_along_k: bool = True, b_along_k: bool = False, wide: bool = True,
    finishes: bool = False, groups: bool = False,
) -> Any:  # fmt: skip
    """The launcher of ``out = finished(a @ b)``, with a block for each tile of the result; or of
    several products, whose results lie one below the other.

    Args:
        tile: one of `COSTS`. A block has `tile.rows` threads.
        a_along_k: a is passed as it is, shape ``(m, k)``, neighbours along k; else transposed.
        b_along_k: b is passed transposed, shape ``(n, k)``, neighbours along k; else as it is.
        wide: what is passed is C-contiguous, its rows are multiples of 16 bytes, and it begins at
            one. Else it may have any strides. Not of groups if a is transposed.
        finishes: sums are finished by `finished`; else they are stored.
        groups: each group of rows of out is the product of the same rows of a and of the group's
            own matrix, of a b of three axes. Blocks that are left over return.

    Its arguments: ``out``, shape (m, n), C-contiguous, a and b, of float32; ``rows`` of each group,
    or ``offsets`` of groups, as of `group_of`; and those of `finished`. Any sizes. Reads
    ``mk ceil(n / tile.columns) + kn ceil(m / tile.rows)`` elements, most of them from the L2 cache,
    and writes mn.

    Error bound: an element is a sum of k products in order, so ``k u abs(a) @ abs(b)`` with
    u = 2**-24, to first order.
    Source: N. J. Higham, Accuracy and Stability of Numerical Algorithms, SIAM, 2002, section 3.1.
    """
    rows_each, columns_each = tile.rows, tile.columns  # of a tile; numbers, which kernels can hold
    threads, each_x, resident = rows_each, columns_each // 8, COSTS[tile].blocks
    warp_y, warp_x = LANES_Y * EACH_Y, LANES_X * each_x
    by = WIDE if wide else 1
    left_shape, right_shape = (DEPTH // by, by), (DEPTH * columns_each // threads // by, by)
    sums_shape, read = (EACH_Y, each_x), EACH_Y + each_x
    # Nothing else is captured: functions would have other keys in the disk cache in each process.
    held = np.float32, (2, DEPTH, max(tile) + PAD)  # one shape: addresses need fewer registers
    layout = na.shared_layout(a=held, b=held)

    @na.launcher(threads=threads)
    @cuda.jit(launch_bounds=(threads, resident), cache=True)
    def product(
        out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, rows: int = 0,
        offsets: na.KernelInput = None, bias: na.KernelInput = None,
        residual: na.KernelInput = None, activation: int = 0,
    ) -> None:  # fmt: skip
        left, right = layout.a, layout.b
        for_left = cuda.local.array(left_shape, float32)
        for_right = cuda.local.array(right_shape, float32)
        sums = cuda.local.array(sums_shape, float32)
        even = cuda.local.array(read, float32)
        odd = cuda.local.array(read, float32)
        thread = uint32(cuda.threadIdx.x) % threads
        warp, lane = thread // 32, thread % 32
        y = warp // 2 * warp_y + lane // LANES_X * WIDE
        x = warp % 2 * warp_x + lane % LANES_X * WIDE
        tiles_n = (out.shape[1] + columns_each - 1) // columns_each
        group, before, start, end = 0, 0, 0, out.shape[0]
        if groups:
            group, before = group_of(cuda.blockIdx.x, 0, 0, rows, offsets, rows_each, tiles_n)
            if group >= b.shape[0]:
                return
            start = first_row_of(group, rows, offsets)
            end = first_row_of(group + 1, rows, offsets)
        tiles_m = (end - start + rows_each - 1) // rows_each
        i, j = corner_of(cuda.blockIdx.x - before, tiles_m, tiles_n)
        top, first = uint32(start + i * rows_each), uint32(j * columns_each)

        for i in range(EACH_Y):
            for j in range(each_x):
                sums[i, j] = float32(0.0)
        total = a.shape[1] if a_along_k else a.shape[0]
        steps = max((total + DEPTH - 1) // DEPTH, 1)
        k = uint32(total - (steps - 1) * DEPTH)  # what is left over first: the others are whole
        if wide:
            _fetch_fours(for_left, a, group, top, 0, k, rows_each, a_along_k)
            _fetch_fours(for_right, b, group, first, 0, k, columns_each, b_along_k)
        else:
            _fetch_each(for_left, a, group, top, 0, k, rows_each, a_along_k)
            _fetch_each(for_right, b, group, first, 0, k, columns_each, b_along_k)
        stage = uint32(0)
        for step in range(steps):
            _put(left, stage, for_left, rows_each, a_along_k)
            _put(right, stage, for_right, columns_each, b_along_k)
            if step + 1 < steps:  # before the barrier, behind which compilers would move it
                if wide:
                    _fetch_fours(for_left, a, group, top, k, DEPTH, rows_each, a_along_k)
                    _fetch_fours(for_right, b, group, first, k, DEPTH, columns_each, b_along_k)
                else:
                    _fetch_each(for_left, a, group, top, k, DEPTH, rows_each, a_along_k)
                    _fetch_each(for_right, b, group, first, k, DEPTH, columns_each, b_along_k)
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
            if row < end:
                for j in range(0, each_x, WIDE):
                    _store(out, row, first + x + j // WIDE * APART_X, results, i, j)

    return product


def multiply_float32(
    out: na.Tensor, a: na.Tensor, b: na.Tensor, bias: na.Tensor | None = None,
    residual: na.Tensor | None = None, activation: int = 0, rows: int = 0,
    offsets: na.Tensor | None = None,
) -> na.DeviceOp[na.Tensor]:  # fmt: skip
    """``out = finished(a @ b)``, by the kernel that fits shapes and strides; of groups of rows if b
    has three axes: with s, e the first row of group i and of the next one,
    ``out[s:e] = finished(a[s:e] @ b[i])``.

    Args:
        out: shape ``(m, n)``, C-contiguous.
        a, b: shapes ``(m, k)``, and ``(k, n)`` or ``(groups, k, n)``; views will do. All are
            float32.
        bias, residual, activation: see `finished`.
        rows: of each group, if offsets is None.
        offsets: shape ``(groups + 1,)``, int64: the first row of each group, and the end.
    """
    if not out.size:
        return na.value(out)
    multiply = float32_like(out, a, b, bias, residual, activation, rows)
    return multiply(out, a, b, bias, residual, activation, rows, offsets)


def float32_like(
    out: na.Tensor, a: na.Tensor, b: na.Tensor, bias: na.Tensor | None = None,
    residual: na.Tensor | None = None, activation: int = 0, rows: int = 0,
    offsets: na.Tensor | None = None,
) -> Callable[..., na.DeviceOp[na.Tensor]]:  # fmt: skip
    """`multiply_float32` for arguments of the shapes and strides of these, `out` not empty: the
    kernel that fits them is found once.
    """
    a_along_k, b_along_k = not is_transposed(a), is_transposed(b)
    operands = (a if a_along_k else a.T), (b.mT if b_along_k else b)
    several = b.ndim == 3
    wide = all(map(_is_wide, operands)) and (a_along_k or not several)
    finishes = bias is not None or residual is not None or activation != 0
    (m, n), groups = out.shape, len(b) if several else 1
    multiprocessors = out.device.limits.multiprocessors if out.device is not None else 1
    tile = tile_of(rows or -(-m // groups), n, multiprocessors, groups)
    kernel = matmul_float32(tile, a_along_k, b_along_k, wide, finishes, several)
    blocks = tile.tiles(m + (groups - 1) * tile.rows, n)  # however rows are divided into groups
    call = kernel[blocks, tile.rows]

    def multiply(
        out: na.Tensor, a: na.Tensor, b: na.Tensor, bias: na.Tensor | None = None,
        residual: na.Tensor | None = None, activation: int = 0, rows: int = 0,
        offsets: na.Tensor | None = None,
    ) -> na.DeviceOp[na.Tensor]:  # fmt: skip
        left, right = (a if a_along_k else a.T), (b.mT if b_along_k else b)
        launched: na.DeviceOp[Any] = call(
            out, left, right, rows, offsets, bias, residual, activation
        )
        return launched.first()

    return multiply


@cache
def tile_of(m: int, n: int, multiprocessors: int, count: int = 1) -> Tile:
    """The tiles by which `count` results of shape ``(m, n)`` are done first, by `COSTS`."""

    def time(tile: Tile) -> float:
        blocks, rate, alone = COSTS[tile]
        pair = 128 // tile.rows  # blocks that keep the four schedulers equally busy
        each = -(-count * tile.tiles(m, n) // multiprocessors)
        # Blocks of a later round go to what is free first, as many as there is room for.
        unit = pair if each <= blocks else blocks
        each = -(-each // unit) * unit
        return tile.rows * tile.columns * max(each / rate, pair / alone)

    return min(COSTS, key=time)


def _is_wide(t: na.Tensor) -> bool:
    """Whether each row can be loaded four elements at a time."""
    return t.is_contiguous and t.is_aligned and t.shape[-1] % WIDE == 0
