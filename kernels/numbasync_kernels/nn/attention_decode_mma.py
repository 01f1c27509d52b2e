"""Parts of attention for decoding, by tensor cores: on GPUs of capability 8.0 and later.

All queries that share a key head are the rows of one matrix, and a step of a warp multiplies it
with 16 keys, and the weights with their values. Each warp copies its own keys and values, some
tiles ahead, into its own part of shared memory, and waits for no other warp.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

import numbasync as na
from numbasync import tensor_cores as tc
from numbasync.kernel_names import cuda, float32, int32
from numbasync_kernels.fits import dtype_of
from numbasync_kernels.nn.attention_decode_shares import (
    LOWEST,
    TILE,
    PartsKernel,
    add_up,
    following,
    is_seen,
    query_of,
    row_of,
    share_of,
    tiles_of,
)
from numbasync_kernels.nn.warp import EVERYONE, WARP

ROWS = 16  # of a matrix of queries
MOST_WARPS = 8  # of a block
STAGES = 2  # tiles of a warp in shared memory
PIECE = 8  # elements of a copy: 16 bytes
NEVER = float32(-math.inf)
uint32, uint64 = np.uint32, np.uint64


def warps_at_once(width: int) -> int:
    """The warps of a multiprocessor whose shared memory is large enough for them, as an H100's."""
    return min(1024 // width, 16)


def warps_of_block(width: int, key_heads: int, shared_bytes: int) -> int:
    """The warps of a block, with neighbouring key heads, on a device with so much shared memory a
    block.
    """
    tiles = STAGES * (ROWS + 2 * TILE) * (width + PIECE) * 2
    most = min(warps_at_once(width), MOST_WARPS, shared_bytes // (tiles + 4 * WARP))
    return max(n for n in range(1, max(most, 1) + 1) if key_heads % n == 0)


@cuda.jit(device=True)
def seen(score: Any, row: Any, key: Any, length: Any, queries: Any, group: Any) -> Any:
    """The score, if the row's query sees the key."""
    return score if is_seen(key, row, length, queries, group) else NEVER


@cache
def decode_by_tensor_cores(dtype: str, width: int, warps: int) -> PartsKernel:
    """The kernel of keys and values of "float16" or "bfloat16", with `width` features.

    Args:
        warps: of a block, which have neighbouring key heads of the same tokens; by
            `warps_of_block`.
    """
    element = dtype_of(dtype)
    ahead = STAGES - 1  # tiles on their way
    # All warps that run at once have no more than a multiprocessor's 65,536.
    registers = min(65536 // (WARP * warps_at_once(width)), 255) // 8 * 8
    lanes = width // PIECE  # that copy a row
    at_once = WARP // lanes  # rows
    padded = width + PIECE  # so that 8 rows begin in different banks
    layout = na.shared_layout(
        q=tc.tile(element, (warps, STAGES, ROWS, padded), 0),
        k=tc.tile(element, (warps, STAGES, TILE, padded), 0),
        v=tc.tile(element, (warps, STAGES, TILE, padded), 0),
    )

    @cuda.jit(device=True)
    def copy_queries(
        q: Any, warp: Any, slot: Any, sequence: Any, head: Any, first_row: Any, group: Any
    ) -> None:
        """Begin to copy the matrix of queries; rows that are not there are zeros."""
        lane = cuda.threadIdx.x
        column = lane % lanes * PIECE
        for i in range(ROWS // at_once):
            place = i * at_once + lane // lanes
            row = first_row + place
            query = query_of(row, group)
            source = sequence, query, head * group + row - query * group, column
            inside = row < q.shape[1] * group
            tc.copy_async(layout.q, (warp, slot, place, column), q, source, PIECE, inside)

    @cuda.jit(device=True)
    def copy_tile(keys: Any, values: Any, warp: Any, stage: Any, key_row: Any) -> None:
        """Begin to copy a tile, of whose rows each lane has one."""
        lane = cuda.threadIdx.x
        column = lane % lanes * PIECE
        for i in range(TILE // at_once):
            place = i * at_once + lane // lanes
            row = uint32(cuda.shfl_sync(EVERYONE, key_row, place))
            source = uint64(row) * uint64(width) + uint64(column)
            target = warp, stage, place, column
            tc.copy_async(layout.k, target, keys, source, PIECE)
            tc.copy_async(layout.v, target, values, source, PIECE)

    @na.launcher(threads=(WARP, warps))
    @cuda.jit(cache=True, max_registers=registers)
    def attend_by_tensor_cores(
        parts: na.KernelOutput, spans: na.KernelOutput, q: na.KernelInput,
        keys: na.KernelInput, values: na.KernelInput, page_table: na.KernelInput,
        lengths: na.KernelInput, page_size: int, power: float,
    ) -> None:  # fmt: skip
        lane = cuda.threadIdx.x
        warp = cuda.threadIdx.y
        worker = cuda.blockIdx.y
        first_row = cuda.blockIdx.x * ROWS
        queries = q.shape[1]
        units = spans.shape[1]
        group = q.shape[2] // (units * warps)
        rows = queries * group
        factor = float32(power)
        tiles_before = cuda.shared.array((warps, WARP), int32)
        add_up(tiles_before[warp], lengths)
        cuda.syncwarp()
        share, first, count, sequence, unit, tile = share_of(
            tiles_before[warp], lengths, units, worker, cuda.gridDim.y
        )
        tiles = tiles_of(lengths, sequence)
        new_sequence = sequence
        new_unit = unit
        new_tile = tile
        new_tiles = tiles
        new_stage = 0
        new_slot = 0  # of queries
        key_row = np.int32(0)
        if count > 0:
            key_row = row_of(
                page_table,
                page_size,
                lengths,
                sequence,
                tile,
                units * warps,
                unit * warps + warp,
            )
        stage = 0
        slot = -1
        most = (float32(LOWEST), float32(LOWEST))
        total = (float32(0.0), float32(0.0))
        sums = tc.accumulator(ROWS, width)
        for i in range(-ahead, count):
            # The lanes have read the stage of the step before.
            cuda.syncwarp()
            coming = i + ahead
            if coming < count:
                if coming == 0 or new_tile == 0:
                    head = new_unit * warps + warp
                    copy_queries(q, warp, new_slot, new_sequence, head, first_row, group)
                    new_slot = new_slot + 1 if new_slot < ahead else 0
                copy_tile(keys, values, warp, new_stage, key_row)
                new_sequence, new_unit, new_tile, new_tiles = following(
                    lengths, units, new_sequence, new_unit, new_tile, new_tiles
                )
                if coming + 1 < count:
                    key_row = row_of(
                        page_table,
                        page_size,
                        lengths,
                        new_sequence,
                        new_tile,
                        units * warps,
                        new_unit * warps + warp,
                    )
            tc.commit_copies()
            new_stage = new_stage + 1 if new_stage < ahead else 0
            if i >= 0:
                tc.wait_copies(ahead)
                cuda.syncwarp()
                if i == 0 or tile == 0:
                    slot = slot + 1 if slot < ahead else 0
                    most = (float32(LOWEST), float32(LOWEST))
                    total = (float32(0.0), float32(0.0))
                    sums = tc.accumulator(ROWS, width)
                    if tile == 0 and cuda.blockIdx.x == 0 and warp == 0 and lane == 0:
                        spans[sequence, unit, 0] = worker
                        spans[sequence, unit, 1] = (first + i + tiles - 1) // share
                scores = tc.accumulator(ROWS, TILE)
                for k in range(0, width, 16):
                    left = tc.load_a(layout.q, (warp, slot, 0, k), ROWS)
                    right = tc.load_b(layout.k, (warp, stage, 0, k), TILE)
                    scores = tc.mma(scores, left, right)
                length = lengths[sequence]
                start = tile * TILE
                if start + TILE > length - queries + 1:
                    scores = tc.apply(seen, scores, (first_row, start), length, queries, group)
                higher = tc.row_max(scores, most)
                shrink = (
                    tc.exp2((most[0] - higher[0]) * factor),
                    tc.exp2((most[1] - higher[1]) * factor),
                )
                weights = tc.exp2_rows(scores, factor, higher)
                added = tc.row_sum(weights, False)
                total = total[0] * shrink[0] + added[0], total[1] * shrink[1] + added[1]
                most = higher
                sums = tc.scale_rows(sums, shrink)
                right = tc.load_b(layout.v, (warp, stage, 0, 0), width, True)
                sums = tc.mma(sums, tc.to_fragment(weights, element), right)
                if tile == tiles - 1 or i == count - 1:
                    number = (worker + sequence * units + unit) * warps + warp
                    tc.store(parts[number], (first_row, 0), sums)
                    upper, lower = tc.sum_over_row(total[0]), tc.sum_over_row(total[1])
                    row = first_row + lane // 4
                    if lane % 4 == 0 and row < rows:
                        parts[number, row, width] = most[0]
                        parts[number, row, width + 1] = upper
                    if lane % 4 == 0 and row + 8 < rows:
                        parts[number, row + 8, width] = most[1]
                        parts[number, row + 8, width + 1] = lower
                stage = stage + 1 if stage < ahead else 0
                sequence, unit, tile, tiles = following(lengths, units, sequence, unit, tile, tiles)

    return PartsKernel(
        attend_by_tensor_cores, ROWS, warps, max(warps_at_once(width) // warps, 1), warps
    )
