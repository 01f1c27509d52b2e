"""Matrix products by warpgroups of tensor cores (`wgmma`), for GPUs of capability 9.0.

A block of three warpgroups goes through tiles of the result. One thread of the first warpgroup
copies tiles of the operands, by tensor maps, into stages of shared memory; the other two multiply
them, 64 rows each, and store. Two barriers a stage say that it is full, and that it is free again.
While a tile is stored, the next one's operands are on their way.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numbasync as na
from numbasync import tensor_cores as tc
from numbasync.kernel_names import cuda
from numbasync_kernels.fits import dtype_of
from numbasync_kernels.nn.finish import finished
from numbasync_kernels.nn.tile_order import corner_of, first_row_of, group_of

ROWS = 128  # of a tile: 64 for each of two warpgroups
THREADS = 384
ROW_BYTES = 128  # of a tile of an operand in shared memory
SHARED_BYTES = 196608  # for stages


class WarpgroupKernel(NamedTuple):
    """A kernel of `matmul_warpgroups`, and how its operands are mapped.

    Attributes:
        launcher: called with (out, a, b, k, n, rows, offsets, bias, residual), with `THREADS` a
            block.
        columns: of a tile of the result; tiles have `ROWS` rows.
        box_a, box_b: the boxes of the operands' tensor maps.
        box_out, swizzle_out: of the result's; None: the launcher takes the tensor.
    """

    launcher: Any
    columns: int
    box_a: tuple[int, int]
    box_b: tuple[int, ...]
    box_out: tuple[int, int] | None = None
    swizzle_out: int = ROW_BYTES

    def target(self, out: na.Tensor) -> na.Tensor | na.TensorMap:
        """What the launcher takes as the result."""
        if self.box_out is None:
            return out
        return na.tensor_map(out, self.box_out, self.swizzle_out)

    def tiles(self, m: int, n: int) -> int:
        return -(-m // ROWS) * -(-n // self.columns)

    def blocks(self, out: na.Tensor, multiprocessors: int, groups: int = 1) -> int:
        """The blocks of a launch, each of which goes through several tiles; of several groups, as
        many as might have a tile.
        """
        m, n = out.shape
        return min(self.tiles(m + ROWS * (groups - 1), n), multiprocessors)


@cache
def matmul_warpgroups(
    dtype: str,
    columns: int = 256,
    rows_of_k: bool = False,
    activation: int | None = None,
    several: str | None = None,
    stored: str | None = None,
) -> WarpgroupKernel:
    """The kernel of ``out = a @ b``, or of several products whose results lie one below the other.

    Args:
        dtype: of the operands: "float16", "bfloat16" or "float32" (cut to TF32). Sums are float32.
        columns: of a tile: 64, 128, 192 or 256; or 96, without rows of k.
        rows_of_k: b is stored as ``(k, n)``, row-major; else as ``(n, k)``, each column's elements
            side by side. Rows of k need elements of 16 bits.
        activation: the one with which `finished` finishes each sum before it is rounded, a number
            of `ACTIVATIONS`; None: sums are stored.
        several: None: one product. "groups": each group of rows of out is the product of the same
            rows of a and of the group's own b, of a map of three axes. "parts": each group of rows
            of out is the product of all of a and b along a part of k, of the same length.
        stored: the dtype of out, of one product, if it is stored by its tensor map, which the
            launcher then takes in its place (`WarpgroupKernel.target`): while the next tile is
            multiplied.

    The launcher's arguments: ``out``, shape (m, n), of float32 or the operands' type; tensor maps
    of ``a``, shape (m, k), and of ``b``; ``k``, of a part if there are parts; ``n``; ``rows`` of a
    group, m if there is one; ``offsets`` of groups that are not all as long, int64, else None; and
    ``bias`` and ``residual`` of `finished`. Any sizes: what lies outside counts as 0. A part's k is
    a multiple of 64.

    Reads ``mk n / columns + kn m / 128`` elements, most of them from the L2 cache, and writes mn.

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
    own_b = several == "groups"
    parts = several == "parts"
    width = 32 if stored == "float32" or columns % 64 else 64  # of a tile on its way to out
    swizzle = width * (4 if stored == "float32" else 2)
    # Nothing else is captured: functions would have other keys in the disk cache in each process.
    layout = na.shared_layout(
        a=tc.tile(element, (stages, ROWS, depth)),
        b=tc.tile(element, tile_b),
        full=tc.barriers(stages),
        empty=tc.barriers(stages),
        out=tc.tile(dtype_of(stored or "float16"), (8, 2, 16, width), swizzle),  # of 8 warps
    )

    @na.launcher(threads=THREADS)
    @cuda.jit(launch_bounds=(THREADS, 1), cache=True)
    def matmul_by_warpgroups(
        out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, k: int, n: int, rows: int,
        offsets: na.KernelInput = None, bias: na.KernelInput = None,
        residual: na.KernelInput = None,
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
        groups = 1
        if not stored:
            groups = out.shape[0] // rows if offsets is None else offsets.shape[0] - 1
        tiles_n = (n + columns - 1) // columns
        steps = (k + depth - 1) // depth
        stage = 0
        parity = 0
        tile = cuda.blockIdx.x
        group, before = group_of(tile, 0, 0, rows, offsets, ROWS, tiles_n)
        if warpgroup == 0:
            tc.give_up_registers(40)
            if thread == 0:
                while group < groups:
                    first = first_row_of(group, rows, offsets)
                    height = first_row_of(group + 1, rows, offsets) - first
                    i, j = corner_of(tile - before, (height + ROWS - 1) // ROWS, tiles_n)
                    row, column = i * ROWS, j * columns
                    first_k = 0
                    if parts:
                        first_k = group * k
                    else:
                        row += first
                    for step in range(steps):
                        start = first_k + step * depth
                        tc.barrier_wait(layout.empty, stage, parity ^ 1)
                        tc.barrier_expect(layout.full, stage, nbytes)
                        tc.load_tile(layout.a, (stage, 0, 0), a, (row, start), layout.full, stage)
                        if rows_of_k:
                            for chunk in range(chunks):
                                place = stage, chunk, 0, 0
                                across = column + chunk * depth
                                corner = (group, start, across) if own_b else (start, across)
                                tc.load_tile(layout.b, place, b, corner, layout.full, stage)
                        else:
                            corner = (group, column, start) if own_b else (column, start)
                            tc.load_tile(layout.b, (stage, 0, 0), b, corner, layout.full, stage)
                        stage += 1
                        if stage == stages:
                            stage = 0
                            parity ^= 1
                    tile += cuda.gridDim.x
                    group, before = group_of(tile, group, before, rows, offsets, ROWS, tiles_n)
        else:
            tc.take_registers(232)
            own_row = (warpgroup - 1) * 64
            speaks = thread % 128 == 0
            warp_row = own_row + ((thread >> 5) & 3) * 16
            used = 0
            while group < groups:
                first = first_row_of(group, rows, offsets)
                last = first_row_of(group + 1, rows, offsets)
                i, j = corner_of(tile - before, (last - first + ROWS - 1) // ROWS, tiles_n)
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
                        tc.barrier_arrive(layout.empty, used)
                    used = stage
                    stage += 1
                    if stage == stages:
                        stage = 0
                        parity ^= 1
                sums = tc.wgmma_wait(sums, 0)
                if speaks:
                    tc.barrier_arrive(layout.empty, used)
                corner = first + i * ROWS + warp_row, j * columns
                if activation is not None:
                    sums = tc.apply(finished, sums, corner, bias, residual, activation)
                if stored:
                    warp = (thread >> 5) - 4
                    tc.store_by_map(out, corner, layout.out, (warp, 0, 0, 0), sums)
                else:
                    tc.store(out[:last], corner, sums)
                tile += cuda.gridDim.x
                group, before = group_of(tile, group, before, rows, offsets, ROWS, tiles_n)
            if stored:
                tc.wait_stores(0)

    box_b = (depth, depth) if rows_of_k else (columns, depth)
    return WarpgroupKernel(
        matmul_by_warpgroups, columns, (ROWS, depth), (1, *box_b) if own_b else box_b,
        (16, width) if stored else None, swizzle,
    )  # fmt: skip
