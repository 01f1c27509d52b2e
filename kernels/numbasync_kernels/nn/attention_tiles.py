"""The tiles of attention: which queries of which head a block has, and which keys they see.

Tiles are counted through all heads of all sequences. Quotients are of 32 bits: those of 64 bits
are calls of a function, several for each tile.
"""

from __future__ import annotations

import math
from typing import Any

from numbasync.kernel_names import cuda, float32, int32, int64, uint32

KEYS = 128  # of a step
BAND = 8  # heads whose keys are in the L2 cache at the same time
NEVER = float32(-math.inf)  # the score of a key that a query does not see


@cuda.jit(device=True)
def tile_at(number: Any, all_heads: Any, heads: Any, blocks: Any, causal: Any, offsets: Any) -> Any:
    """The head of a tile, among those of all sequences, and its place along the queries.

    If causal: of a band of heads, those with many keys come first, and tiles with as many keys are
    neighbours. With offsets, where tiles of later places may be empty: heads of a sequence are
    neighbours, and the first place moves on from sequence to sequence, so that no block gets the
    same places only.
    """
    n = uint32(number)
    if offsets is not None:
        row = uint32(n // uint32(heads))
        sequence = uint32(row // uint32(blocks))
        turned = uint32(row - sequence * blocks + sequence)
        block = turned - uint32(turned // uint32(blocks)) * blocks
        return int64(sequence * heads + n - row * heads), int64(block)
    if causal:
        wide = uint32(BAND * blocks)
        band = uint32(n // wide)
        rest = uint32(n - band * wide)
        height = uint32(min(all_heads - band * BAND, BAND))
        down = uint32(rest // height)
        return int64(band * BAND + rest - down * height), int64(blocks - 1 - down)
    head = uint32(n // uint32(blocks))
    return int64(head), int64(n - head * blocks)


@cuda.jit(device=True)
def quotient(head: Any, divisor: Any) -> Any:
    """``head // divisor``, neither of them negative."""
    return int64(uint32(head) // uint32(divisor))


@cuda.jit(device=True)
def sequence_of(head: Any, heads: Any, queries: Any, keys: Any, lengths: Any, offsets: Any) -> Any:
    """The sequence of a head: the row where it begins, its queries, and the keys that exist.

    Args:
        heads: of a sequence.
        lengths: keys that exist, of each sequence, or None.
        offsets: where each sequence begins, if they lie one behind the other; or None.
    """
    if offsets is not None:
        sequence = quotient(head, heads)
        first = int64(offsets[sequence])
        count = int64(offsets[sequence + 1]) - first
        if lengths is not None:
            return first, count, min(int64(lengths[sequence]), count)
        return first, count, count
    if lengths is not None:
        return int64(0), queries, min(int64(lengths[quotient(head, heads)]), keys)
    return int64(0), queries, keys


@cuda.jit(device=True)
def with_queries(
    number: Any, tiles: Any, all_heads: Any, heads: Any, blocks: Any, causal: Any, rows: Any,
    offsets: Any,
) -> Any:  # fmt: skip
    """The block's next tile from `number` on that has queries."""
    if offsets is not None:
        while number < tiles:
            head, block = tile_at(number, all_heads, heads, blocks, causal, offsets)
            sequence = quotient(head, heads)
            if block * rows < offsets[sequence + 1] - offsets[sequence]:
                break
            number += cuda.gridDim.x
    return number


@cuda.jit(device=True)
def heads_of(head: Any, heads: Any, shared_by: Any, offsets: Any) -> Any:
    """The places of a head, and of its key head, along the tensors' axis of heads."""
    if offsets is not None:
        own = head - quotient(head, heads) * heads
        return own, quotient(own, shared_by)
    return head, quotient(head, shared_by)


@cuda.jit(device=True)
def corner_of(head: Any, first: Any, row: Any, column: Any, offsets: Any) -> Any:
    """The corner of a box that begins at a row of a sequence."""
    if offsets is not None:
        return first + row, head, column
    return head, row, column


@cuda.jit(device=True)
def begin_in_out(head: Any, heads: Any, first: Any, queries: Any, width: Any, offsets: Any) -> Any:
    """The row and the column of the output's matrix where a head of a sequence begins."""
    if offsets is not None:
        return first, (head - quotient(head, heads) * heads) * width
    return head * queries, int64(0)


@cuda.jit(device=True)
def steps_of(first_row: Any, rows: Any, shift: Any, seen: Any, causal: Any) -> Any:
    """The steps along the keys, at least one: query i sees keys up to ``i + shift`` if causal."""
    last = seen
    if causal:
        last = min(seen, first_row + rows + shift)
    return max((last + KEYS - 1) // KEYS, 1)


# --- scores ---


@cuda.jit(device=True)
def visible(score: Any, row: Any, column: Any, shift: Any) -> Any:
    """The score, if the query sees the key. The difference is of 32 bits: of its parts only
    constants differ between elements.
    """
    return score if int32(column - row) <= shift else NEVER


@cuda.jit(device=True)
def existing(score: Any, row: Any, column: Any, keys: Any) -> Any:
    """The score, if there is such a key."""
    return score if int32(column) < keys else NEVER


@cuda.jit(device=True)
def page_of(head: Any, mask: Any, shared_by: Any) -> Any:
    """The page of the mask for a head."""
    return 0 if mask is None else quotient(head, shared_by) % mask.shape[0]


@cuda.jit(device=True)
def masked(
    score: Any, row: Any, column: Any, mask: Any, page: Any, is_added: Any, scale: Any
) -> Any:
    """``score * scale``, plus the mask's element; or, if it is not added, where that is true. Of a
    mask with one row, all queries have that.
    """
    last_row, last_column = mask.shape[1] - 1, mask.shape[2] - 1
    value = float32(mask[page, min(row, last_row), min(column, last_column)])
    scaled = score * scale
    if is_added:
        return scaled + value
    return scaled if value != float32(0.0) else NEVER
