"""How the cached keys of all sequences are shared among warps, and how their results are merged.

The keys of a sequence and a key head are cut into tiles of 16. Tiles are numbered, sequence by
sequence and in it head by head, and each worker (a block) gets as many neighbouring ones as any
other, so that lengths do not decide how long a launch takes. Where the warps of a block have the
same tokens of neighbouring key heads, these heads are a *unit*, and count as one.

What a worker computes of a unit is a *part*: for each query the weighted sum of values, the largest
score, and the sum of weights. The part of worker w and unit n is number ``w + n``, as from one part
to the next at least one of the two grows.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, float32
from numbasync_kernels.nn.warp import EVERYONE, WARP, warp_max, warp_sum

TILE = 16  # keys
LEAST = 4  # tiles of a worker, if there are so many
MERGERS = 8  # warps of a block that merges
LOWEST = -1e30  # where a maximum begins: finite, so that differences are
int32, uint32 = np.int32, np.uint32
exp2 = cuda.libdevice.exp2f


class PartsKernel(NamedTuple):
    """A kernel that computes parts, and how it is launched.

    Attributes:
        launcher: called with (parts, spans, q, keys, values, page_table, lengths, page_size,
            power); parts and spans as in `merge`; q of shape (sequences, queries, heads, width);
            keys and values of one axis.
        rows: queries that a block has for each key; blocks along y have the others.
        warps: of a block, along its y axis.
        resident_blocks: of a multiprocessor; each block is a worker.
        together: neighbouring key heads that a block has, a *unit*; if several, each is a warp's.
    """

    launcher: Any
    rows: int
    warps: int
    resident_blocks: int
    together: int = 1


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
def share_of(tiles: Any, lengths: Any, units: Any, worker: Any, workers: Any) -> Any:
    """The most tiles of any worker; of this one its first tile's number, its own tiles, and its
    first tile's sequence, unit and place.

    Args:
        tiles: what all lanes have made by `add_up`.
    """
    total = 0
    for lane in range(WARP):
        total += tiles[lane]
    total *= units
    share = max((total + workers - 1) // workers, LEAST)
    first = share * worker
    count = max(min(share, total - first), 0)
    place = first
    lane = 0
    while lane < WARP - 1 and place >= tiles[lane] * units:
        place -= tiles[lane] * units
        lane += 1
    sequence = lane * ((lengths.shape[0] + WARP - 1) // WARP)
    while sequence < lengths.shape[0] and place >= tiles_of(lengths, sequence) * units:
        place -= tiles_of(lengths, sequence) * units
        sequence += 1
    of_sequence = max(tiles_of(lengths, sequence), 1)
    return share, first, count, sequence, place // of_sequence, place % of_sequence


@cuda.jit(device=True)
def following(lengths: Any, units: Any, sequence: Any, unit: Any, tile: Any, tiles: Any) -> Any:
    """Sequence, unit and place of the next tile, and the tiles of its sequence."""
    tile += 1
    if tile == tiles:
        tile = 0
        unit += 1
        if unit == units:
            unit = 0
            sequence += 1
            while sequence < lengths.shape[0] and lengths[sequence] <= 0:
                sequence += 1
            tiles = tiles_of(lengths, sequence)
    return sequence, unit, tile, tiles


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
def merge(width: int, beside: int) -> Any:
    """The launcher that merges parts.

    Args:
        beside: warps that share a row; blocks of `MERGERS` warps go through all rows.

    Arguments: ``out``, shape (sequences, queries, heads, width); ``parts``, (parts, rows, width +
    2), float32: weighted sums, then the largest score and the sum of weights; ``spans``,
    (sequences, units, 2), int32: the first and the last worker of a unit of neighbouring key heads;
    ``lengths``; the number of key heads; and the factor of scores in powers of 2.
    """
    columns = width // WARP
    rows_at_once = MERGERS // beside

    @na.launcher(threads=(WARP, MERGERS))
    @cuda.jit(cache=True, max_registers=80)
    def merge_parts(
        out: na.KernelOutput, parts: na.KernelInput, spans: na.KernelInput,
        lengths: na.KernelInput, key_heads: int, power: float,
    ) -> None:  # fmt: skip
        sums = cuda.shared.array((MERGERS, width), float32)
        own = cuda.local.array(columns, float32)
        lane = cuda.threadIdx.x
        warp = cuda.threadIdx.y
        number = uint32(cuda.blockIdx.x * rows_at_once + warp // beside)
        place = number // uint32(out.shape[2])  # of a sequence's query
        head = number % uint32(out.shape[2])
        sequence = place // uint32(out.shape[1])
        query = place % uint32(out.shape[1])
        group = uint32(out.shape[2]) // uint32(key_heads)
        together = uint32(key_heads) // uint32(spans.shape[1])
        key_head = head // group
        unit = key_head // together
        row = query * group + head % group
        first = 0
        count = 0
        if sequence < out.shape[0] and lengths[sequence] > 0:
            first = spans[sequence, unit, 0]
            count = spans[sequence, unit, 1] + 1 - first
            first += sequence * spans.shape[1] + unit
        factor = float32(power)
        highest = float32(LOWEST)
        for i in range(lane, count, WARP):
            highest = max(highest, parts[(first + i) * together + key_head % together, row, width])
        highest = warp_max(highest)
        total = float32(0.0)
        for j in range(columns):
            own[j] = float32(0.0)
        for start in range(0, count, WARP):
            weight = float32(0.0)
            if start + lane < count:
                part = (first + start + lane) * together + key_head % together
                weight = exp2((parts[part, row, width] - highest) * factor)
                total += weight * parts[part, row, width + 1]
            for i in range(warp % beside, min(WARP, count - start), beside):
                part = (first + start + i) * together + key_head % together
                other = cuda.shfl_sync(EVERYONE, weight, i)
                for j in range(columns):
                    own[j] += other * parts[part, row, lane + j * WARP]
        total = warp_sum(total)
        if beside > 1:
            for j in range(columns):
                sums[warp, lane + j * WARP] = own[j]
            cuda.syncthreads()
            for k in range(1, beside):
                if warp % beside == 0:
                    for j in range(columns):
                        own[j] += sums[warp + k, lane + j * WARP]
        if warp % beside == 0 and sequence < out.shape[0]:
            shrink = float32(1.0) / total if total > float32(0.0) else float32(0.0)
            for j in range(columns):
                out[sequence, query, head, lane + j * WARP] = own[j] * shrink

    return merge_parts
