"""How the cached keys of all sequences are shared among warps, and how their results are merged.

The keys of a sequence and a key head (a *pair*) are cut into tiles of 16. All tiles of all pairs
are numbered, sequence by sequence, and each warp gets as many neighbouring ones as any other, so
that lengths do not decide how long a launch takes. What a warp computes of one pair is a *part*:
for each query the largest score, the sum of weights, and the weighted sum of values. The part of
warp w and pair p is number ``w + p``: from one part to the next one, at least one of the two grows.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32

import numbasync as na
from numbasync_kernels.nn.warp import WARP, warp_max, warp_sum

TILE = 16  # keys
LEAST = 4  # tiles of a warp, if there are so many
MERGERS = 8  # warps of a block that merges
LOWEST = -1e30  # where a maximum begins: finite, so that differences are
int32, uint32 = np.int32, np.uint32


class PartsKernel(NamedTuple):
    """A kernel that computes parts, and how it is launched.

    Attributes:
        launcher: called with (parts, bounds, spans, q, keys, values, page_table, lengths,
            page_size, power); parts, bounds and spans as in `merge`; q of shape (sequences,
            queries, heads, width); keys and values of one axis.
        rows: queries that a block has for each key; blocks along y have the others.
        warps: of a block, along its y axis.
        workers: warps of a block that have other keys.
        workers_at_once: of a multiprocessor.
    """

    launcher: Any
    rows: int
    warps: int
    workers: int
    workers_at_once: int


@cuda.jit(device=True)
def tiles_of(lengths: Any, sequence: Any) -> Any:
    """The tiles of a sequence and one key head; 0 behind the last sequence."""
    if sequence < lengths.shape[0]:
        return (max(lengths[sequence], 0) + TILE - 1) // TILE
    return 0


@cuda.jit(device=True)
def add_up(tiles: Any, lengths: Any) -> None:
    """Make ``tiles[lane]`` those of the lane's sequences, which are neighbours."""
    each = (lengths.shape[0] + WARP - 1) // WARP
    own = 0
    for sequence in range(cuda.threadIdx.x * each, (cuda.threadIdx.x + 1) * each):
        own += tiles_of(lengths, sequence)
    tiles[cuda.threadIdx.x] = own


@cuda.jit(device=True)
def share_of(tiles: Any, lengths: Any, key_heads: Any, worker: Any, workers: Any) -> Any:
    """The most tiles of any warp; of this one its first tile's number, its own tiles, and its first
    tile's sequence, key head and place.

    Args:
        tiles: what all lanes have made by `add_up`.
    """
    total = 0
    for lane in range(WARP):
        total += tiles[lane]
    total *= key_heads
    share = max((total + workers - 1) // workers, LEAST)
    first = share * worker
    count = max(min(share, total - first), 0)
    place = first
    lane = 0
    while lane < WARP - 1 and place >= tiles[lane] * key_heads:
        place -= tiles[lane] * key_heads
        lane += 1
    sequence = lane * ((lengths.shape[0] + WARP - 1) // WARP)
    while sequence < lengths.shape[0] and place >= tiles_of(lengths, sequence) * key_heads:
        place -= tiles_of(lengths, sequence) * key_heads
        sequence += 1
    of_sequence = max(tiles_of(lengths, sequence), 1)
    return share, first, count, sequence, place // of_sequence, place % of_sequence


@cuda.jit(device=True)
def following(lengths: Any, key_heads: Any, sequence: Any, head: Any, tile: Any, tiles: Any) -> Any:
    """Sequence, key head and place of the next tile, and the tiles of its sequence."""
    tile += 1
    if tile == tiles:
        tile = 0
        head += 1
        if head == key_heads:
            head = 0
            sequence += 1
            while sequence < lengths.shape[0] and lengths[sequence] <= 0:
                sequence += 1
            tiles = tiles_of(lengths, sequence)
    return sequence, head, tile, tiles


@cuda.jit(device=True)
def row_of(
    page_table: Any, page_size: Any, lengths: Any, sequence: Any, tile: Any, key_heads: Any,
    head: Any,
) -> Any:  # fmt: skip
    """The row, counted through all pages and key heads, of one of a tile's keys: of number ``lane %
    16``, or of the sequence's last one, if that comes before. A shuffle takes int32; what is made
    of it is a uint32, so that no row counts from the end.
    """
    lane = cuda.threadIdx.x
    key = min(tile * TILE + lane % TILE, lengths[sequence] - 1)
    page = uint32(key) // uint32(page_size)
    place = uint32(key) % uint32(page_size)
    row = uint32(page_table[sequence, page]) * uint32(page_size) + place
    return int32(row * uint32(key_heads) + uint32(head))


@cuda.jit(device=True)
def query_of(row: Any, group: Any) -> Any:
    """The query that a row is of; rows are the queries' heads that share a key head."""
    return uint32(row) // uint32(group)


@cuda.jit(device=True)
def is_seen(key: Any, row: Any, length: Any, queries: Any, group: Any) -> Any:
    """Whether a row's query sees a key: the last one sees all of them."""
    return int32(key) <= int32(length) - int32(queries) + int32(query_of(row, group))


@cache
def merge(width: int) -> Any:
    """The launcher that merges the parts of each pair: a block a pair.

    Arguments: ``out``, shape (sequences, queries, heads, width); ``parts``, (parts, rows, width)
    and ``bounds``, (parts, rows, 2), float32: weighted sums, and the largest score and the sum of
    weights; ``spans``, (sequences, key heads, 2), int32: the first and the last warp of a pair;
    ``lengths``; and the factor of scores in powers of 2.
    """
    columns = width // WARP

    @na.launcher(threads=(WARP, MERGERS))
    @cuda.jit(cache=True)
    def merge_parts(
        out: na.KernelOutput, parts: na.KernelInput, bounds: na.KernelInput, spans: na.KernelInput,
        lengths: na.KernelInput, power: float,
    ) -> None:  # fmt: skip
        sums = cuda.shared.array((MERGERS, width), float32)
        lane = cuda.threadIdx.x
        warp = cuda.threadIdx.y
        key_heads = spans.shape[1]
        head = cuda.blockIdx.x % key_heads
        sequence = cuda.blockIdx.x // key_heads
        group = out.shape[2] // key_heads
        rows = out.shape[1] * group
        beside = max(MERGERS // rows, 1)  # warps that share a row
        at_once = MERGERS // beside
        first = 0
        count = 0
        if lengths[sequence] > 0:
            first = spans[sequence, head, 0] + cuda.blockIdx.x
            count = spans[sequence, head, 1] + cuda.blockIdx.x + 1 - first
        factor = float32(power)
        for start in range(0, rows, at_once):
            row = start + warp // beside
            counts = row < rows and warp // beside < at_once
            highest = float32(LOWEST)
            if counts:
                for i in range(lane, count, WARP):
                    highest = max(highest, bounds[first + i, row, 0])
            highest = warp_max(highest)
            total = float32(0.0)
            if counts:
                for i in range(lane, count, WARP):
                    weight = cuda.libdevice.exp2f((bounds[first + i, row, 0] - highest) * factor)
                    total += weight * bounds[first + i, row, 1]
            total = warp_sum(total)
            for j in range(columns):
                sums[warp, lane + j * WARP] = float32(0.0)
            if counts:
                for i in range(warp % beside, count, beside):
                    weight = cuda.libdevice.exp2f((bounds[first + i, row, 0] - highest) * factor)
                    for j in range(columns):
                        column = lane + j * WARP
                        sums[warp, column] += weight * parts[first + i, row, column]
            cuda.syncthreads()
            if counts and warp % beside == 0:
                shrink = float32(1.0) / total if total > float32(0.0) else float32(0.0)
                query = query_of(row, group)
                own = head * group + row - query * group
                for j in range(columns):
                    column = lane + j * WARP
                    value = float32(0.0)
                    for k in range(beside):
                        value += sums[warp + k, column]
                    out[sequence, query, own, column] = value * shrink
            cuda.syncthreads()

    return merge_parts
