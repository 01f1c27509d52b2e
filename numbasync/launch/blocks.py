"""Blocks that nobody asks for: pure arithmetic from a number of threads to a block.

The number of threads comes from the compiled kernel, as its `suggested_threads`.
"""

from __future__ import annotations

from numbasync.backend.protocols import Dim3, Limits


def spread(threads: int, rank: int) -> Dim3:
    """A block of at most `threads` threads over `rank` axes: (256,), (16, 16), (8, 8, 4)."""
    if rank == 1:
        return threads, 1, 1
    extents = [1, 1, 1]
    axis = 0
    while 2 * extents[0] * extents[1] * extents[2] <= threads:
        extents[axis] *= 2
        axis = (axis + 1) % rank
    return extents[0], extents[1], extents[2]


def reaching(block: Dim3, extents: Dim3, limits: Limits) -> Dim3:
    """The block, made longer along y and z and shorter along another axis, as far as the grid over
    so many elements would have too many blocks there.
    """
    sides = list(block)
    for axis in (1, 2):
        while extents[axis] > sides[axis] * limits.max_grid[axis]:
            longest = max((a for a in range(3) if a != axis), key=lambda a: sides[a])
            if sides[longest] == 1 or 2 * sides[axis] > limits.max_block[axis]:
                break
            sides[longest] //= 2
            sides[axis] *= 2
    return sides[0], sides[1], sides[2]
