"""Extents of kernels, and those that suit a device."""

from __future__ import annotations

from dataclasses import dataclass, fields

from numbasync.backend.protocols import Limits
from numbasync.errors import CallerError

WARP = 32
WORD = 4  # bytes
MOST_THREADS = 1024  # of a block, on every device


class _Hashed:
    """What is hashed once: a plan is looked for by its tuning for each batch."""

    __slots__ = ("_hash",)
    _hash: int


@dataclass(frozen=True, slots=True)
class Tuning(_Hashed):
    """Extents of kernels. What else a text depends on is what it computes: its structure, and by
    how its threads share that, some of the shapes.

    Attributes:
        threads: of a block; of one that has a row, at most, where that leaves a thread `row_most`
            elements of it or less.
        elements: that a thread has in flight: loads first, then the rest. Of a multiple of 4,
            4 are neighbours and are loaded at once. Where nothing is reduced, more if they have
            fewer than 4 bytes, or if all are broadcast; of columns, up to twice as many.
        row_elements: of a row, that a thread has in the smallest blocks.
        row_most: of a row, that a thread has at most.
        kept_words: of 4 bytes, that a thread may keep of its elements of a row, in registers; half
            of it in the largest blocks.
        warp_most: columns up to which a warp has a row, or several; a block has those of more.
        splits: blocks at most that share the reductions of rows that no block holds, or of all.
        at_once: blocks that run at once, about: those that share reductions of columns are not
            more, and threads of a block share them where there would be fewer than twice as many.
        shared_bytes: of a block, in which it may keep a row if its threads do not, and in which
            those who share reductions of columns add up: as many reductions at a time as fit.
        unroll: a thread's elements are written out, for loads to be in flight together. False:
            they are gone through in loops, in the same order: the results have the same bits.
    """

    threads: int = 256
    elements: int = 4
    row_elements: int = 16
    row_most: int = 40
    kept_words: int = 64
    warp_most: int = 512
    splits: int = 4224
    at_once: int = 528
    shared_bytes: int = 48 * 1024
    unroll: bool = True

    def in_flight(self, itemsize: int) -> int:
        """Elements of so many bytes that a thread has in flight."""
        return self.elements * max(1, WORD // itemsize)

    @classmethod
    def suited_to(cls, limits: Limits) -> Tuning:
        """What a device runs fast, and what its kernels are compiled soon for."""
        return GPU if limits.loads_in_flight > 1 else SERIAL

    def __post_init__(self) -> None:
        """Raises CallerError where kernels cannot have these extents."""
        least = {
            "threads": WARP, "elements": 1, "row_elements": 1, "row_most": 1, "kept_words": 1,
            "warp_most": 0, "splits": 1, "at_once": 1, "shared_bytes": 0,
        }  # fmt: skip
        for name, value in least.items():
            given = getattr(self, name)
            if type(given) is not int or given < value:
                raise CallerError(f"Tuning: {name}={given!r}; write a whole number from {value}.")
        if self.threads % WARP or self.threads > MOST_THREADS:
            raise CallerError(
                f"Tuning: threads={self.threads}; write a multiple of {WARP}, at most "
                f"{MOST_THREADS}: threads of a block add up by warps."
            )
        own = tuple(getattr(self, f.name) for f in fields(self))
        object.__setattr__(self, "_hash", hash(own))

    def __hash__(self) -> int:
        return self._hash


GPU = Tuning()
SERIAL = Tuning(unroll=False)
