"""Blocks that run as fewer and larger ones, of kernels that do the same in any blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numbasync.backend.protocols import Dim3

_MOST_TRIED = 64


@dataclass(frozen=True, slots=True)
class Shape:
    """The blocks in which the threads of a launch run.

    Attributes:
        grid, block: as they run.
        launched: the block of the launch.
    """

    grid: Dim3
    block: Dim3
    launched: Dim3

    def record(self, words: Sequence[int]) -> list[int]:
        """A block's record, with block and thread as they were launched."""
        if self.block == self.launched:
            return list(words)
        block, thread = divmod(words[5] * self.block[0] + words[8], self.launched[0])
        return [*words[:5], block, 0, 0, thread, 0, 0]


def merged(grid: Dim3, block: Dim3, most: int, parts: int) -> Shape:
    """As few blocks as may be, of as many threads in all; those of the launch if there are none.

    Args:
        most: how many threads a block may have; 0 if blocks may not be merged.
        parts: how many blocks there are to be at least.
    """
    if most > block[0] and grid[1] * grid[2] * block[1] * block[2] == 1:
        threads = grid[0] * block[0]
        least = max(parts, -(-threads // most))
        for blocks in range(least, min(least + _MOST_TRIED, grid[0])):
            if threads % blocks == 0:
                return Shape((blocks, 1, 1), (threads // blocks, 1, 1), block)
    return Shape(grid, block, block)
