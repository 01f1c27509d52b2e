"""The record that a block leaves in its memory when it is stopped, and the places it names."""

from __future__ import annotations

from dataclasses import dataclass

RECORD_BYTES = 128  # at the beginning of a block's memory
# The record: 64-bit integers, in this order.
FIELDS = ("kind", "site", "axis", "index", "extent", "block x", "y", "z", "thread x", "y", "z")
# Behind it: the number of the barrier of the grid at which the block waits; 0 when it is done.
WAITS_AT = 11
OUT_OF_RANGE, RAISED, DIVERGED = 1, 2, 3
UNWRITTEN, INPUT_WRITTEN, OUTSIDE_TILE, RACE, OVERFLOWN = 4, 5, 6, 7, 8  # in checked kernels
MISALIGNED = 9
WAITS_FOR_EVER = 10  # in checked kernels
LANES_MISSING = 11
NO_SITE = -1  # somewhere in the kernel


@dataclass(frozen=True)
class Site:
    """A place in the source that a message may name."""

    function: str
    file: str
    line: int
    what: str
