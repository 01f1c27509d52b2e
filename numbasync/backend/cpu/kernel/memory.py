"""The memory of a running block: its record, its arrays, and what its threads keep."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from numbasync.backend.cpu.record import FIELDS, WAITS_AT
from numbasync.backend.cpu.regions.blocks_code import MASKED_STATE
from numbasync.errors import KernelError
from numbasync.native import compiled, core, known

_own = threading.local()

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]


MOST_BYTES = 2**30  # of a cooperative launch, whose blocks are all in memory


@known
class BlockMemory:
    """Memory of `blocks` blocks of threads, of `each` bytes each, aligned for every type.

    Attributes:
        address: of the first block's memory.
    """

    __slots__ = ("_bytes", "_outcomes", "_records", "address", "each")

    def __init__(self, each: int, blocks: int = 1) -> None:
        self.each = -(-each // 64) * 64
        raw = np.empty(self.each * blocks + 64, np.uint8)
        self.address = int(raw.ctypes.data) + -raw.ctypes.data % 64
        skip = self.address - raw.ctypes.data
        self._bytes: Bytes = raw[skip : skip + self.each * blocks].reshape(blocks, self.each)
        self._records = self._bytes[:, : 8 * len(FIELDS)].view(np.int64)
        self._outcomes = self._records[:, 0]

    def clear(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Reset the records. Fill (offset, bytes) of each block with a pattern that is no correct
        result: NaN in floats, -1 in ints.
        """
        self._outcomes.fill(0)
        for offset, nbytes in ranges:
            self._bytes[:, offset : offset + nbytes].fill(0xFF)

    def put(self, word: int, value: int) -> None:
        """Write a 64-bit word of each block's memory."""
        self._bytes[:, 8 * word : 8 * word + 8].view(np.int64)[:] = value

    def meeting(self) -> tuple[int, int | None]:
        """The last barrier of the grid at which a block waits, 0 if all are done; and a block that
        does not wait there, if there is one.
        """
        waits = self._bytes[:, 8 * WAITS_AT : 8 * WAITS_AT + 4].view(np.int32)[:, 0] % MASKED_STATE
        latest = int(waits.max())
        (others,) = np.nonzero(waits != latest)
        return latest, int(others[0]) if len(others) else None

    def stop(self, block: int, words: Sequence[int]) -> None:
        """Write the record of a block."""
        self._records[block] = words

    def record(self) -> list[int]:
        """The record of the first block that stopped; see `record.FIELDS`."""
        (stopped,) = np.nonzero(self._outcomes)
        words: list[int] = self._records[stopped[0] if len(stopped) else 0].tolist()
        return words


def memory_of_blocks(name: str, nbytes: int, blocks: int) -> BlockMemory:
    """Memory of all blocks of a cooperative launch of kernel `name`.

    Raises:
        KernelError: the blocks are too many.
    """
    if nbytes * blocks > MOST_BYTES:
        raise KernelError(
            f"kernel {name}: {blocks:,} blocks that synchronise need {nbytes:,} bytes each; at "
            f"most {MOST_BYTES:,} are available to them.\n"
            "A GPU holds some hundred blocks at a time. Launch fewer, and loop in them."
        )
    memory = BlockMemory(nbytes, blocks)
    memory.put(WAITS_AT, 0)
    return memory


@compiled
def memory_of_thread(nbytes: int) -> BlockMemory:
    """The calling thread's memory, reused from block to block, of `nbytes` or more."""
    memory: BlockMemory | None = getattr(_own, "memory", None)
    if memory is None or memory.each < nbytes:
        memory = _own.memory = BlockMemory(nbytes)
    return memory


if core is not None:
    core.know_block_memory(_own)
