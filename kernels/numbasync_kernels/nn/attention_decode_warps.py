"""Parts of attention for decoding, by multiplications and additions of float32: on every device."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

import numbasync as na
from numbasync import vectors
from numbasync.kernel_names import cuda, float32, int32
from numbasync_kernels.nn.attention_decode_shares import (
    LOWEST,
    TILE,
    add_up,
    following,
    is_seen,
    query_of,
    row_of,
    share_of,
    tiles_of,
)
from numbasync_kernels.nn.warp import EVERYONE, WARP

EACH = 8  # elements of a key that a lane has
SUMS = EACH + 1  # of values, and of weights
WARPS = 8  # of a block, at most
NEVER = float32(-math.inf)
uint32, uint64 = np.uint32, np.uint64
exp2 = cuda.libdevice.exp2f


@cache
def decode_by_warps(width: int, itemsize: int, rows: int) -> Any:
    """The launcher of the kernel for keys and values with `width` features of `itemsize` bytes.

    Args:
        rows: queries of a warp for each key, 1 or 2. Warps of a block, at most `WARPS`, have the
            same keys and other rows; the keys come from memory once, and then from the L1 cache.

    ``width / 8`` lanes hold a key, 8 features each, loaded by 16 bytes; the lanes of a warp hold
    several keys, and several loads of each are on their way.
    """
    lanes = width // EACH
    at_once = WARP // lanes  # keys
    batch = min(TILE // at_once, 4)  # keys of a lane on their way
    unit = min(16 // itemsize, EACH)
    pieces = EACH // unit
    steps = TILE // at_once // batch
    halvings = int(math.log2(lanes))

    @na.launcher
    @cuda.jit(cache=True, max_registers=168)
    def attend_by_warps(
        parts: na.KernelOutput, spans: na.KernelOutput, q: na.KernelInput,
        keys: na.KernelInput, values: na.KernelInput, page_table: na.KernelInput,
        lengths: na.KernelInput, page_size: int, power: float,
    ) -> None:  # fmt: skip
        tiles_before = cuda.shared.array((WARPS, WARP), int32)
        asked = cuda.local.array((rows, EACH), float32)
        sums = cuda.local.array((rows, SUMS), float32)
        most = cuda.local.array(rows, float32)
        held = cuda.local.array((batch, EACH), float32)
        given = cuda.local.array((batch, EACH), float32)
        scores = cuda.local.array(batch, float32)
        lane = cuda.threadIdx.x
        warp = cuda.threadIdx.y
        own = lane // lanes  # the lane's key, of those that a warp has at once
        part = lane % lanes  # the lane's features of it
        worker = cuda.blockIdx.y
        first_row = (cuda.blockIdx.x * cuda.blockDim.y + warp) * rows
        queries = q.shape[1]
        key_heads = spans.shape[1]
        group = q.shape[2] // key_heads
        all_rows = queries * group
        factor = float32(power)
        add_up(tiles_before[warp], lengths)
        cuda.syncwarp()
        share, first, count, sequence, head, tile = share_of(
            tiles_before[warp], lengths, key_heads, worker, cuda.gridDim.y
        )
        tiles = tiles_of(lengths, sequence)
        for i in range(count):
            if i == 0 or tile == 0:
                for r in range(rows):
                    row = min(first_row + r, all_rows - 1)
                    query = query_of(row, group)
                    own_head = head * group + row - query * group
                    for p in range(pieces):
                        column = (p * lanes + part) * unit
                        loaded = vectors.load(q, (sequence, query, own_head, column), unit)
                        for e in range(unit):
                            asked[r, p * unit + e] = float32(loaded[e])
                    for e in range(SUMS):
                        sums[r, e] = float32(0.0)
                    most[r] = float32(LOWEST)
                if tile == 0 and first_row == 0 and lane == 0:
                    spans[sequence, head, 0] = worker
                    spans[sequence, head, 1] = (first + i + tiles - 1) // share
            length = lengths[sequence]
            key_row = row_of(page_table, page_size, lengths, sequence, tile, key_heads, head)
            for step in range(steps):
                for b in range(batch):
                    number = (step * batch + b) * at_once + own
                    source = uint64(uint32(cuda.shfl_sync(EVERYONE, key_row, number)))
                    for p in range(pieces):
                        place = source * uint64(width) + uint64((p * lanes + part) * unit)
                        loaded = vectors.load(keys, place, unit)
                        other = vectors.load(values, place, unit)
                        for e in range(unit):
                            held[b, p * unit + e] = float32(loaded[e])
                            given[b, p * unit + e] = float32(other[e])
                for r in range(rows):
                    for b in range(batch):
                        score = float32(0.0)
                        for e in range(EACH):
                            score += asked[r, e] * held[b, e]
                        for h in range(halvings):
                            score += cuda.shfl_xor_sync(EVERYONE, score, 1 << h)
                        key = tile * TILE + (step * batch + b) * at_once + own
                        seen = is_seen(key, first_row + r, length, queries, group)
                        scores[b] = score if seen else NEVER
                    higher = most[r]
                    for b in range(batch):
                        higher = max(higher, scores[b])
                    shrink = exp2((most[r] - higher) * factor)
                    most[r] = higher
                    for e in range(SUMS):
                        sums[r, e] *= shrink
                    for b in range(batch):
                        weight = exp2((scores[b] - higher) * factor)
                        for e in range(EACH):
                            sums[r, e] += weight * given[b, e]
                        sums[r, EACH] += weight
            if tile == tiles - 1 or i == count - 1:
                slot = worker + sequence * key_heads + head
                for r in range(rows):
                    higher = most[r]
                    for h in range(halvings, 5):
                        higher = max(higher, cuda.shfl_xor_sync(EVERYONE, higher, 1 << h))
                    shrink = exp2((most[r] - higher) * factor)
                    stored = own == 0 and first_row + r < all_rows
                    for e in range(SUMS):
                        value = sums[r, e] * shrink
                        for h in range(halvings, 5):
                            value += cuda.shfl_xor_sync(EVERYONE, value, 1 << h)
                        if stored and e < EACH:
                            column = (e // unit * lanes + part) * unit + e % unit
                            parts[slot, first_row + r, column] = value
                        elif stored and part == 0:
                            parts[slot, first_row + r, width] = higher
                            parts[slot, first_row + r, width + 1] = value
            sequence, head, tile, tiles = following(lengths, key_heads, sequence, head, tile, tiles)

    return attend_by_warps
