"""Matrix products by warps of tensor cores (`mma`), for GPUs from capability 8.0 on.

A block makes a tile of the result, each warp 64 columns of half of the rows. Copies bring the
operands of several steps of k ahead into stages of shared memory; a barrier in each step says that
the next stage is full, and that the one before is free again. While a warp multiplies fragments of
its operands, it loads the next ones.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

import numbasync as na
from numbasync import tensor_cores as tc
from numbasync.kernel_names import cuda, float32, int32
from numbasync_kernels.fits import dtype_of
from numbasync_kernels.nn.finish import finished
from numbasync_kernels.nn.matmul_warpgroups import ROW_BYTES
from numbasync_kernels.nn.tile_order import corner_of, first_row_of, group_of

WIDE = 64  # columns of the result of a warp, and of a tile in shared memory whose rows are of k
DOWN = 2  # warps that have the same columns
PARTS = 4  # of a step: 32 bytes along k, which one instruction multiplies
SIDES = ((128, 256), (128, 128), (64, 128), (64, 64))  # of tiles, the fastest first
STAGES, FEWEST = 4, 3
PER_TILE = 4096  # elements whose products take as long as what a tile costs beside its products
RESIDENT = 256  # threads of a multiprocessor: each may have as many registers as there can be


class Tile(NamedTuple):
    """Rows and columns of the result that a block makes, and stages of its operands."""

    rows: int
    columns: int
    stages: int

    @property
    def threads(self) -> int:
        return DOWN * (self.columns // WIDE) * 32


class WarpKernel(NamedTuple):
    """A kernel of `matmul_warps`, and how it is launched.

    Attributes:
        launcher: called with (out, a, b, k, rows, offsets, bias, residual), `tile.threads` a block.
        tile: of the result.
    """

    launcher: Any
    tile: Tile

    def blocks(self, out: na.Tensor, groups: int = 1) -> int:
        """The blocks of a launch, enough however rows are divided into groups."""
        m, n = out.shape
        high = self.tile.rows
        return -(-(m + (groups - 1) * high) // high) * -(-n // self.tile.columns)


def tile_of(
    shape: tuple[int, ...], multiprocessors: int, shared_bytes: int, count: int = 1
) -> Tile:
    """The tile by which `count` results of this shape are done first.

    Args:
        shared_bytes: that a block can have.
    """
    m, n = shape

    def staged(rows: int, columns: int) -> Tile:
        """With stages for as many blocks as run at once on a multiprocessor, or for one."""
        nbytes = (rows + columns) * ROW_BYTES
        blocks = RESIDENT // Tile(rows, columns, 0).threads
        most = shared_bytes // (blocks * nbytes)
        return Tile(rows, columns, min(most if most >= FEWEST else shared_bytes // nbytes, STAGES))

    def rounds(tile: Tile) -> int:
        tiles = count * -(-m // tile.rows) * -(-n // tile.columns)
        return -(-tiles // multiprocessors) * (tile.rows * tile.columns + PER_TILE)

    tiles = [staged(*sides) for sides in SIDES]
    return min((tile for tile in tiles if tile.stages >= FEWEST), key=rounds)


@cuda.jit(device=True, forceinline=True)
def source(by_k: Any, part: Any, own: Any, start: Any) -> Any:
    """The element of an operand that a part of its tile begins with; `own` is the first row or
    column of the result's tile.
    """
    if by_k:
        return start, own + part * WIDE
    return own, start


@cuda.jit(device=True, forceinline=True)
def place(by_k: Any, stage: Any, own: Any, k: Any, depth: Any) -> Any:
    """The index in a tile of the element k of a row or column of the result."""
    if by_k:
        return stage, own // WIDE * depth + k, own % WIDE
    return stage, own, k


@cache
def matmul_warps(
    dtype: str, tile: Tile, rows_of_k: tuple[bool, bool] = (False, False),
    activation: int | None = None, several: bool = False,
) -> WarpKernel:  # fmt: skip
    """The kernel of ``out = a @ b``, or of several products, whose results lie one below the other.

    Args:
        dtype: of the operands: "float16", "bfloat16", "float32" (cut to TF32) or "int8".
        tile: of 64 or 128 rows, and a multiple of 64 columns; with 2 or more stages, each of which
            has 128 bytes of k of both operands.
        rows_of_k: of a and of b, whether they are stored as ``(k, m)`` and ``(k, n)``; else as
            ``(m, k)`` and ``(n, k)``. Rows of k need elements of 16 bits.
        activation: the one with which `finished` finishes each sum before it is rounded, a number
            of `ACTIVATIONS`; None: sums are stored, as those of int8 always are.
        several: each group of rows of out is the product of the same rows of a, which is not stored
            as ``(k, m)``, and of the group's own matrix, of a b of three axes. Blocks that are left
            over return.

    The launcher's arguments: ``out``, shape (m, n), of float32 or the operands' type, or of int32;
    ``a`` and ``b``, whose rows begin at multiples of 16 bytes and have multiples of 16 bytes, with
    0 behind k; ``k``; ``rows`` of each group, or ``offsets`` of groups, as of `group_of`; and
    ``bias`` and ``residual`` of `finished`. Any m, n and k. Reads ``mk n / columns + kn m / rows``
    elements, most of them from the L2 cache, and writes mn.

    Error bound: products are exact (of float32: of operands cut to 11 bits); a sum of k of them in
    float32, in an order that is the hardware's: ``k u abs(a) @ abs(b)`` with u = 2**-23, and half a
    unit of `out`. Sums of int8 are exact, in int32, up to a k of 2**17.
    Source: M. Fasi, N. J. Higham, M. Mikaitis, S. Pranesh, Numerical behavior of NVIDIA tensor
    cores, PeerJ Computer Science 7, 2021.
    """
    element = dtype_of(dtype)
    depth = ROW_BYTES // np.dtype(element).itemsize  # of a step
    unit = depth // PARTS
    a_by_k, b_by_k = rows_of_k
    (tile_rows, columns, stages), threads = tile, tile.threads
    across = columns // WIDE
    high = tile_rows // DOWN  # rows of a warp
    parts_a, parts_b = tile_rows // WIDE if a_by_k else 1, across if b_by_k else 1
    lines_a = parts_a * depth if a_by_k else tile_rows
    lines_b = parts_b * depth if b_by_k else columns
    total = int32 if dtype == "int8" else float32
    ahead, pending = stages - 1, stages - 2
    # Nothing else is captured: functions would have other keys in the disk cache in each process.
    layout = na.shared_layout(
        a=tc.tile(element, (stages, lines_a, depth)), b=tc.tile(element, (stages, lines_b, depth))
    )

    @na.launcher(threads=threads)
    @cuda.jit(launch_bounds=(threads, RESIDENT // threads), cache=True)
    def matmul_by_warps(
        out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, k: int,
        rows: int = 0, offsets: na.KernelInput = None, bias: na.KernelInput = None,
        residual: na.KernelInput = None,
    ) -> None:  # fmt: skip
        thread = cuda.threadIdx.x
        warp = thread >> 5
        own_row, own_column = warp // across * high, warp % across * WIDE
        tiles_n = (out.shape[1] + columns - 1) // columns
        group, before, first, end = 0, 0, 0, out.shape[0]
        if several:
            group, before = group_of(cuda.blockIdx.x, 0, 0, rows, offsets, tile_rows, tiles_n)
            if group >= b.shape[0]:
                return
            first = first_row_of(group, rows, offsets)
            end = first_row_of(group + 1, rows, offsets)
        matrix = b[group] if several else b
        i, j = corner_of(
            cuda.blockIdx.x - before, (end - first + tile_rows - 1) // tile_rows, tiles_n
        )
        row, column = first + i * tile_rows, j * columns
        steps = (k + depth - 1) // depth
        for step in range(ahead):
            start = step * depth
            for part in range(parts_a):
                from_a = source(a_by_k, part, row, start)
                to_a = step, part * depth, 0
                tc.copy_rows(layout.a, to_a, a, from_a, thread, threads, parts_a)
            for part in range(parts_b):
                from_b = source(b_by_k, part, column, start)
                to_b = step, part * depth, 0
                tc.copy_rows(layout.b, to_b, matrix, from_b, thread, threads, parts_b)
            tc.commit_copies()
        tc.wait_copies(pending)
        cuda.syncthreads()
        sums = tc.accumulator(high, WIDE, total)
        stage, free = 0, ahead
        at_a, at_b = place(a_by_k, 0, own_row, 0, depth), place(b_by_k, 0, own_column, 0, depth)
        left = tc.load_a(layout.a, at_a, high, a_by_k)
        right = tc.load_b(layout.b, at_b, WIDE, b_by_k)
        for step in range(steps):
            start = (step + ahead) * depth
            for part in range(parts_a):
                from_a = source(a_by_k, part, row, start)
                to_a = free, part * depth, 0
                tc.copy_rows(layout.a, to_a, a, from_a, thread, threads, parts_a)
            for part in range(parts_b):
                from_b = source(b_by_k, part, column, start)
                to_b = free, part * depth, 0
                tc.copy_rows(layout.b, to_b, matrix, from_b, thread, threads, parts_b)
            tc.commit_copies()
            at_a = place(a_by_k, stage, own_row, unit, depth)
            at_b = place(b_by_k, stage, own_column, unit, depth)
            next_left = tc.load_a(layout.a, at_a, high, a_by_k)
            next_right = tc.load_b(layout.b, at_b, WIDE, b_by_k)
            sums = tc.mma(sums, left, right)
            at_a = place(a_by_k, stage, own_row, 2 * unit, depth)
            at_b = place(b_by_k, stage, own_column, 2 * unit, depth)
            left = tc.load_a(layout.a, at_a, high, a_by_k)
            right = tc.load_b(layout.b, at_b, WIDE, b_by_k)
            sums = tc.mma(sums, next_left, next_right)
            at_a = place(a_by_k, stage, own_row, 3 * unit, depth)
            at_b = place(b_by_k, stage, own_column, 3 * unit, depth)
            next_left = tc.load_a(layout.a, at_a, high, a_by_k)
            next_right = tc.load_b(layout.b, at_b, WIDE, b_by_k)
            sums = tc.mma(sums, left, right)
            tc.wait_copies(pending)
            cuda.syncthreads()
            free = stage
            stage = 0 if stage == ahead else stage + 1
            at_a = place(a_by_k, stage, own_row, 0, depth)
            at_b = place(b_by_k, stage, own_column, 0, depth)
            left = tc.load_a(layout.a, at_a, high, a_by_k)
            right = tc.load_b(layout.b, at_b, WIDE, b_by_k)
            sums = tc.mma(sums, next_left, next_right)
        corner = row + own_row, column + own_column
        if activation is not None:
            sums = tc.apply(finished, sums, corner, bias, residual, activation)
        tc.store(out[:end], corner, sums)

    return WarpKernel(matmul_by_warps, tile)
