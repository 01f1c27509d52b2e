"""The memory that a running block has: its record, shared and local arrays, what threads keep."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from numbasync.backend.cpu.library.entry_points import FIELDS
from numbasync.errors import KernelError

_own = threading.local()

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]


MOST_BYTES = 2**30  # of the blocks of a launch that meet


class Slab:
    """Memory of `blocks` blocks, `each` bytes each, aligned for every type.

    Attributes:
        address: of the first.
    """

    __slots__ = ("_bytes", "_kinds", "_records", "address", "each")

    def __init__(self, each: int, blocks: int = 1) -> None:
        self.each = -(-each // 64) * 64
        raw = np.empty(self.each * blocks + 64, np.uint8)
        self.address = int(raw.ctypes.data) + -raw.ctypes.data % 64
        skip = self.address - raw.ctypes.data
        self._bytes: Bytes = raw[skip : skip + self.each * blocks].reshape(blocks, self.each)
        self._records = self._bytes[:, : 8 * len(FIELDS)].view(np.int64)
        self._kinds = self._records[:, 0]

    def clear(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Nothing has happened yet; and what nobody has written is no number: a NaN, or -1."""
        self._kinds.fill(0)
        for at, nbytes in ranges:
            self._bytes[:, at : at + nbytes].fill(0xFF)

    def put(self, word: int, value: int) -> None:
        """Write a 64-bit word of each block's memory."""
        self._bytes[:, 8 * word : 8 * word + 8].view(np.int64)[:] = value

    def record(self) -> list[int]:
        """What the first block that stopped has left; see `native.FIELDS`."""
        (stopped,) = np.nonzero(self._kinds)
        found: list[int] = self._records[stopped[0] if len(stopped) else 0].tolist()
        return found


def slab_of_blocks(name: str, nbytes: int, blocks: int) -> Slab:
    """Memory of all blocks of a launch of kernel `name`, which meet.

    Raises:
        KernelError: they are too many.
    """
    if nbytes * blocks > MOST_BYTES:
        raise KernelError(
            f"kernel {name}: {blocks:,} blocks that meet need {nbytes:,} bytes each; at most "
            f"{MOST_BYTES:,} are lent to them.\n"
            "A GPU holds some hundred blocks at a time. Launch fewer, and loop in them."
        )
    return Slab(nbytes, blocks)


def slab_of_thread(nbytes: int) -> Slab:
    """The calling thread's memory for one block at a time, of `nbytes` or more."""
    found: Slab | None = getattr(_own, "slab", None)
    if found is None or found.each < nbytes:
        found = _own.slab = Slab(nbytes)
    return found
