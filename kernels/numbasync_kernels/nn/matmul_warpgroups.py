"""Matrix products by warpgroups of tensor cores (`wgmma`), for GPUs of capability 9.0.

A block of three warpgroups goes through tiles of the result. One thread of the first warpgroup
copies tiles of the operands, by tensor maps, into stages of shared memory; the other two multiply
them, 64 rows each, and store. Two barriers a stage say that it is full, and that it is free again.
While a tile is stored, the next one's operands are on their way.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, int64, uint32

import numbasync as na
from numbasync import tensor_cores as tc
from numbasync_kernels.nn.finish import finished

ROWS = 128  # of a tile: 64 for each of two warpgroups
THREADS = 384
ROW_BYTES = 128  # of a tile of an operand in shared memory
BAND = 8  # tiles of the rows that share columns of b in the L2 cache
SHARED_BYTES = 196608  # for stages


class WarpgroupKernel(NamedTuple):
    """A kernel of `matmul_warpgroups`, and how its operands are mapped.

    Attributes:
        launcher: called with (out, a, b, k, bias, residual, activation), with `THREADS` a block.
        columns: of a tile of the result; tiles have `ROWS` rows.
        box_a, box_b: the boxes of the operands' tensor maps.
    """

    launcher: Any
    columns: int
    box_a: tuple[int, int]
    box_b: tuple[int, int]

    def blocks(self, out: na.Tensor, multiprocessors: int) -> int:
        """The blocks of a launch: each goes through several tiles."""
        m, n = out.shape
        return min(-(-m // ROWS) * -(-n // self.columns), multiprocessors)


@cuda.jit(device=True)
def corner_of(tile: Any, tiles_m: Any, tiles_n: Any) -> Any:
    """The tile's place among those of the result, in bands of `BAND` rows of tiles: blocks that run
    at the same time read the same operands. Quotients are of 32 bits: those of 64 are calls.
    """
    wide = uint32(BAND * tiles_n)
    band = uint32(uint32(tile) // wide)
    rest = uint32(tile - band * wide)
    height = uint32(min(tiles_m - band * BAND, BAND))
    j = uint32(rest // height)
    return int64(band * BAND + rest - j * height), int64(j)


@cache
def matmul_warpgroups(
    dtype: str, columns: int = 256, rows_of_k: bool = False, finishes: bool = False
) -> WarpgroupKernel:
    """The kernel of ``out = a @ b``.

    Args:
        dtype: of the operands: "float16", "bfloat16" or "float32" (cut to TF32). Sums are float32.
        columns: of a tile: 64, 128, 192 or 256.
        rows_of_k: b is stored as ``(k, n)``, row-major; else as ``(n, k)``, each column's elements
            side by side. Rows of k need elements of 16 bits.
        finishes: each sum is finished by `finished` before it is rounded.

    The launcher's arguments: ``out``, shape (m, n), of float32 or the operands' type; tensor maps
    of ``a``, shape (m, k), and of ``b``; ``k``; and those of `finished`. Any sizes: what lies
    outside counts as 0. Reads ``mk n / columns + kn m / 128`` elements, most of them from the L2
    cache, and writes mn.

    Error bound: products are exact (of float32: of operands cut to 11 bits); a sum of k of them in
    float32, in an order that is the hardware's: ``k u abs(a) @ abs(b)`` with u = 2**-23, and half a
    unit of `out`.
    Source: M. Fasi, N. J. Higham, M. Mikaitis, S. Pranesh, Numerical behavior of NVIDIA tensor
    cores, PeerJ Computer Science 7, 2021.
    """
    size = 4 if dtype == "float32" else 2
    depth = ROW_BYTES // size
    chunks = -(-columns // depth)
    stages = min(SHARED_BYTES // ((ROWS + columns) * ROW_BYTES), 8)
    nbytes = (ROWS + (chunks * depth if rows_of_k else columns)) * ROW_BYTES
    element = dtype_of(dtype)
    tile_b = (stages, chunks, depth, depth) if rows_of_k else (stages, columns, depth)
    # Nothing else is captured: functions would have other keys in the disk cache in each process.
    layout = na.shared_layout(
        a=tc.tile(element, (stages, ROWS, depth)),
        b=tc.tile(element, tile_b),
        full=tc.barriers(stages),
        empty=tc.barriers(stages),
    )

    @na.launcher(threads=THREADS)
    @cuda.jit(launch_bounds=(THREADS, 1), cache=True)
    def matmul_by_warpgroups(
        out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, k: int,
        bias: na.KernelInput = None, residual: na.KernelInput = None, activation: int = 0,
    ) -> None:  # fmt: skip
        thread = cuda.threadIdx.x
        warpgroup = thread >> 7
        if thread == 0:
            tc.prefetch_map(a)
            tc.prefetch_map(b)
            for i in range(stages):
                tc.barrier_init(layout.full, i, 1)
                tc.barrier_init(layout.empty, i, 2)
            tc.fence_barrier_init()
        cuda.syncthreads()
        tiles_m = (out.shape[0] + ROWS - 1) // ROWS
        tiles_n = (out.shape[1] + columns - 1) // columns
        steps = (k + depth - 1) // depth
        stage = 0
        parity = 0
        if warpgroup == 0:
            tc.give_up_registers(40)
            if thread == 0:
                tile = cuda.blockIdx.x
                while tile < tiles_m * tiles_n:
                    i, j = corner_of(tile, tiles_m, tiles_n)
                    row, column = i * ROWS, j * columns
                    for step in range(steps):
                        start = step * depth
                        tc.barrier_wait(layout.empty, stage, parity ^ 1)
                        tc.barrier_expect(layout.full, stage, nbytes)
                        tc.load_tile(layout.a, (stage, 0, 0), a, (row, start), layout.full, stage)
                        if rows_of_k:
                            for chunk in range(chunks):
                                chunk_of = stage, chunk, 0, 0
                                corner = start, column + chunk * depth
                                tc.load_tile(layout.b, chunk_of, b, corner, layout.full, stage)
                        else:
                            place = stage, 0, 0
                            tc.load_tile(layout.b, place, b, (column, start), layout.full, stage)
                        stage += 1
                        if stage == stages:
                            stage = 0
                            parity ^= 1
                    tile += cuda.gridDim.x
        else:
            tc.take_registers(232)
            own_row = (warpgroup - 1) * 64
            speaks = thread % 128 == 0
            warp_row = own_row + ((thread >> 5) & 3) * 16
            before = 0
            tile = cuda.blockIdx.x
            while tile < tiles_m * tiles_n:
                i, j = corner_of(tile, tiles_m, tiles_n)
                sums = tc.accumulator(16, columns)
                for step in range(steps):
                    tc.barrier_wait(layout.full, stage, parity)
                    left = stage, own_row, 0
                    if rows_of_k:
                        sums = tc.wgmma(
                            sums, layout.a, left, layout.b, (stage, 0, 0, 0), step, depth, False,
                            True,
                        )  # fmt: skip
                    else:
                        sums = tc.wgmma(sums, layout.a, left, layout.b, (stage, 0, 0), step, depth)
                    sums = tc.wgmma_wait(sums, 1)
                    if step > 0 and speaks:  # the product before this one is done
                        tc.barrier_arrive(layout.empty, before)
                    before = stage
                    stage += 1
                    if stage == stages:
                        stage = 0
                        parity ^= 1
                sums = tc.wgmma_wait(sums, 0)
                if speaks:
                    tc.barrier_arrive(layout.empty, before)
                corner = i * ROWS + warp_row, j * columns
                if finishes:  # a branch here, not one for each element
                    if activation == 2:
                        sums = tc.apply(finished, sums, corner, bias, residual, 2)
                    elif activation == 1:
                        sums = tc.apply(finished, sums, corner, bias, residual, 1)
                    else:
                        sums = tc.apply(finished, sums, corner, bias, residual, 0)
                tc.store(out, corner, sums)
                tile += cuda.gridDim.x

    box_b = (depth, depth) if rows_of_k else (columns, depth)
    return WarpgroupKernel(matmul_by_warpgroups, columns, (ROWS, depth), box_b)


def dtype_of(name: str) -> Any:
    """The dtype of a name, "bfloat16" included."""
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(name)
