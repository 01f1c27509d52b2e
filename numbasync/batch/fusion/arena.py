"""The arena: one block of memory, reused over time, for the buffers between kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

ALIGNMENT = 256  # bytes; the alignment of the driver's own allocations


class Life(NamedTuple):
    """A buffer and the steps that need it: from `first` to `last`, both included."""

    key: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Arena:
    """The positions of buffers in one block of memory.

    Attributes:
        offsets: by key, in bytes.
        nbytes: of the block.
        naive: the bytes that separate buffers would take.
    """

    offsets: Mapping[int, int] = field(default_factory=dict)
    nbytes: int = 0
    naive: int = 0


def rounded(nbytes: int) -> int:
    """The bytes that a buffer takes, rounded up to the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def place(lives: Sequence[Life]) -> Arena:
    """Assign every buffer an offset; buffers that are needed at the same step do not overlap.

    The largest buffer is placed first, each at the lowest offset that is free for as long as the
    buffer is needed. Finding the least memory is a hard problem; this result may take more, but
    never more than separate buffers.
    """
    placed: list[tuple[Life, int]] = []
    offsets: dict[int, int] = {}
    total = 0
    for life in sorted(lives, key=lambda b: (-b.nbytes, b.first, b.key)):
        size = rounded(life.nbytes)
        offset = 0
        for neighbour, start in sorted(placed, key=lambda p: p[1]):
            if neighbour.last < life.first or life.last < neighbour.first:
                continue
            if start >= offset + size:
                break
            offset = max(offset, start + rounded(neighbour.nbytes))
        placed.append((life, offset))
        offsets[life.key] = offset
        total = max(total, offset + size)
    return Arena(offsets, total, sum(rounded(b.nbytes) for b in lives))
