"""Where what lies between two kernels is kept: one block of memory, used again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

ALIGNMENT = 256  # bytes, as the driver's own allocations have


class Life(NamedTuple):
    """A buffer and when it is needed: from step `first` to step `last`, both included."""

    key: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Arena:
    """Where buffers lie in one block of memory.

    Attributes:
        offsets: by key, in bytes.
        nbytes: of the block.
        naive: what buffers of their own would take.
    """

    offsets: Mapping[int, int] = field(default_factory=dict)
    nbytes: int = 0
    naive: int = 0


def rounded(nbytes: int) -> int:
    """The bytes that a buffer takes."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def place(lives: Sequence[Life]) -> Arena:
    """Give every buffer a place; buffers that are needed at the same step do not overlap.

    The largest first, each at the lowest place that is free for as long as it is needed: not
    always the least memory, which is a hard problem, but never more than buffers of their own.
    """
    placed: list[tuple[Life, int]] = []
    offsets: dict[int, int] = {}
    total = 0
    for life in sorted(lives, key=lambda b: (-b.nbytes, b.first, b.key)):
        size = rounded(life.nbytes)
        at = 0
        for other, begin in sorted(placed, key=lambda p: p[1]):
            if other.last < life.first or life.last < other.first:
                continue
            if begin >= at + size:
                break
            at = max(at, begin + rounded(other.nbytes))
        placed.append((life, at))
        offsets[life.key] = at
        total = max(total, at + size)
    return Arena(offsets, total, sum(rounded(b.nbytes) for b in lives))
