"""The order in which the tiles of one result, or of several, are computed."""

from __future__ import annotations

from typing import Any

from numbasync.kernel_names import cuda, int64, uint32

BAND = 16  # tiles of the rows that share columns of b in the L2 cache


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


@cuda.jit(device=True)
def first_row_of(group: Any, rows: Any, offsets: Any) -> Any:
    """The first row of a group: as offsets say, or, if they are None, of groups of `rows`."""
    if offsets is None:
        return group * rows
    return offsets[group]


@cuda.jit(device=True)
def group_of(
    tile: Any, group: Any, before: Any, rows: Any, offsets: Any, height: Any, tiles_n: Any
) -> Any:
    """The group of a tile, and the number of tiles of all groups before it.

    Args:
        group, before: the answer for an earlier tile; 0 and 0 at first.
        rows: of each group, if `offsets` is None.
        offsets: shape ``(groups + 1,)``, the first rows of the groups, and their end.
        height: rows of a tile.
        tiles_n: tiles along a row.

    Returns:
        The number of groups as the group, if there is no such tile and `offsets` is not None.
    """
    if offsets is None:
        tiles = (rows + height - 1) // height * tiles_n
        group = int64(uint32(uint32(tile) // uint32(tiles)))
        return group, group * tiles
    while group < offsets.shape[0] - 1:
        tiles = (offsets[group + 1] - offsets[group] + height - 1) // height * tiles_n
        if tile < before + tiles:
            break
        before += tiles
        group += 1
    return group, before
