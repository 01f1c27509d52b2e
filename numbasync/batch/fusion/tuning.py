"""Launch extents of generated kernels, and the extents that suit a device."""

from __future__ import annotations

from dataclasses import dataclass, fields

from numbasync.arguments import check_bool, shown
from numbasync.backend.protocols import Limits
from numbasync.errors import CallerError

WARP = 32
WORD = 4  # bytes
MOST_THREADS = 1024  # per block, on every device


class _Hashed:
    """A base class that stores a hash: the tuning is part of a plan's key for each batch."""

    __slots__ = ("_hash",)
    _hash: int


@dataclass(frozen=True, slots=True)
class Tuning(_Hashed):
    """Extents of kernels. Otherwise a kernel's source depends only on the computation: on its
    structure and, through the distribution of work over threads, on some of the shapes.

    Attributes:
        threads: per block; of a block that holds a row, at most, where each thread then has
            `row_most` elements of the row or fewer.
        elements: that a thread has in flight: all loads come first, then the rest. For a multiple
            of 4, 4 neighbours are loaded by one instruction. Without a reduction, more elements if
            they have fewer than 4 bytes, or if all are broadcast; for columns, up to twice as many.
        row_elements: of a row, per thread in the smallest blocks.
        row_most: of a row, per thread at most.
        kept_words: words of 4 bytes in which a thread may keep elements of a row, in registers;
            half of them in the largest blocks.
        warp_most: columns up to which a warp holds a row, or several; a block holds longer rows.
        splits: the most blocks that share the reductions of rows that no block holds, or of all.
        at_once: the approximate number of blocks that run concurrently: reductions of columns are
            not shared by more blocks, and threads of a block share them where there would be fewer
            than twice as many blocks.
        shared_bytes: per block, in which the block may keep a row if its threads do not, and in
            which threads that share reductions of columns add up: as many reductions at a time as
            fit.
        unroll: a thread's elements are unrolled in the source, so that their loads are in flight
            together. False: loops iterate over them in the same order: the results have the same
            bits.

    Examples:
        >>> b = na.CommandBatch(tuning=na.batch.Tuning(threads=128))
        >>> await b.compute(b.upload(np.arange(4, dtype=np.float32)) * 2)
        array([0., 2., 4., 6.], dtype=float32)
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
        """The number of elements of this item size (bytes) that a thread has in flight."""
        return self.elements * max(1, WORD // itemsize)

    @classmethod
    def suited_to(cls, limits: Limits) -> Tuning:
        """The tuning that a device runs fast, with kernels that compile in short time."""
        return GPU if limits.loads_in_flight > 1 else SERIAL

    def __post_init__(self) -> None:
        """Raises CallerError where kernels cannot have these extents."""
        least = {
            "threads": WARP, "elements": 1, "row_elements": 1, "row_most": 1, "kept_words": 1,
            "warp_most": 0, "splits": 1, "at_once": 1, "shared_bytes": 0,
        }  # fmt: skip
        for name, value in least.items():
            extent = getattr(self, name)
            if type(extent) is not int or not value <= extent < 2**31:
                raise CallerError(
                    f"Tuning: {name}={shown(extent)}; write a whole number from {value} to 2**31 - "
                    "1."
                )
        if self.threads % WARP or self.threads > MOST_THREADS:
            raise CallerError(
                f"Tuning: threads={self.threads}; write a multiple of {WARP}, at most "
                f"{MOST_THREADS}: threads of a block add up by warps."
            )
        check_bool(self.unroll, "Tuning: unroll")
        values = tuple(getattr(self, f.name) for f in fields(self))
        object.__setattr__(self, "_hash", hash(values))

    def __hash__(self) -> int:
        return self._hash


GPU = Tuning()
SERIAL = Tuning(unroll=False)
