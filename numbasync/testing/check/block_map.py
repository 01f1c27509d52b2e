"""Which blocks computed wrong results: the owners of elements, and a map of the grid in text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbasync.backend.protocols import Dim3
from numbasync.testing.check.closeness import Array

WIDEST, HIGHEST = 64, 16  # characters; larger grids are drawn with many blocks to a character


@dataclass(frozen=True, slots=True, eq=False)
class Owners:
    """The owning block and thread of each element of one output, in one launch.

    Attributes:
        grid, block: of the launch.
        threads: for each element, the number of the thread in the launch, plus 1; 0 for no
            thread. Of the output's shape.
        tiles: for each element, the number of the block whose tile holds it; None without a
            partition.
    """

    grid: Dim3
    block: Dim3
    threads: Array
    tiles: Array | None = None

    @property
    def blocks(self) -> Array:
        """The number of the block of each element; -1 for none."""
        if self.tiles is not None:
            return self.tiles
        return np.where(self.threads > 0, (self.threads - 1) // math.prod(self.block), -1)

    def of(self, index: tuple[int, ...]) -> str:
        """A text that names the owner of an element."""
        number = int(self.threads[index])
        if number:
            b, t = divmod(number - 1, math.prod(self.block))
            return (
                f"written by block {_place(b, self.grid)}, thread {_place(t, self.block)} "
                "(the last that changed it)"
            )
        if self.tiles is not None:
            tile_of = _place(int(self.tiles[index]), self.grid)
            return f"in the tile of block {tile_of}, of which no thread changed it"
        return "no thread changed it"

    def drawn(self, bad: Array) -> str:
        """A map of the grid: `#` a block whose elements are all wrong, `+` some, `.` none; "" if
        some wrong elements have no block.
        """
        blocks = self.blocks
        count = math.prod(self.grid)
        owned = blocks >= 0
        wrong = np.bincount(blocks[bad & owned].reshape(-1), minlength=count)
        total = np.bincount(blocks[owned].reshape(-1), minlength=count)
        if (bad & ~owned).any():
            return ""
        gx, gy, gz = self.grid
        shape = (gz * gy, gx)
        rows = _map_rows(wrong.reshape(shape), total.reshape(shape))
        along = f"{gx} block{'s' * (gx > 1)} along x" + (f", {gy} along y, down" if gy > 1 else "")
        along += f", {gz} along z, one after the other" if gz > 1 else ""
        return _lines(f"blocks ({along}; {_KEY})", rows)


_KEY = "# all wrong, + some, . none"


def map_of_elements(bad: Array) -> str:
    """A map of an output without known owners, over its last two axes, as `Owners.drawn`."""
    flat = bad.reshape(-1, bad.shape[-1]) if bad.ndim else bad.reshape(1, 1)
    rows = _map_rows(flat.astype(np.int64), np.ones(flat.shape, np.int64))
    return _lines(f"elements of shape {bad.shape} ({_KEY})", rows)


def _lines(title: str, rows: list[str]) -> str:
    return "\n".join([f"  {title}:", *(f"    {row}" for row in rows)])


def _map_rows(wrong: Array, total: Array) -> list[str]:
    """Rows of text with one character per cell, or per as many cells as make the map fit."""
    down = -(-wrong.shape[0] // HIGHEST)
    across = -(-wrong.shape[1] // WIDEST)
    wrong, total = _coarsened(wrong, down, across), _coarsened(total, down, across)
    marks = np.where(wrong == 0, ".", np.where(wrong == total, "#", "+"))
    return ["".join(row) for row in marks]


def _coarsened(counts: Array, down: int, across: int) -> Array:
    for axis, step in ((0, down), (1, across)):
        counts = np.add.reduceat(counts, np.arange(0, counts.shape[axis], step), axis=axis)
    return counts


def tiles_of(
    shape: tuple[int, ...], tile: tuple[int, ...], axes: tuple[int, ...], grid: Dim3
) -> Array:
    """The number of the block of each element of a partitioned tensor."""
    block_index: list[Any] = [0, 0, 0]
    for k, index in enumerate(np.indices(shape, sparse=True)):
        block_index[axes[k]] = index // tile[k]
    number = block_index[0] + grid[0] * (block_index[1] + grid[1] * block_index[2])
    return np.broadcast_to(number, shape)


def _place(number: int, extents: Dim3) -> str:
    x, y, _ = extents
    return str((number % x, number // x % y, number // x // y))
