"""The bytes of a block's dynamic shared memory, and who has copied into them and read them.

A copy writes bytes when it ends, and fills them with NaN when it begins. Reads, and copies over
what others read, are errors unless the threads know that the other access is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from numbasync.backend.cpu.interpreter.tensor_cores.order import Event, Order
from numbasync.errors import DataRaceError, UninitialisedReadError

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
WARP = 32
UNIT = 4  # bytes whose accesses are known together: the least that a copy writes
MANY = 1 << 14  # copies; then those that have been written over are forgotten


class Copy:
    """A copy, or a group of them, into shared memory.

    Attributes:
        text: the call, for messages.
        missing: what a thread must do before it relies on the copy, for messages.
        pending: whether the bytes are yet to come.
        event: known to a thread that may read the bytes.
        fenced: known to a thread whose `wgmma` and `store_tile` may read them; None if `event` will
            do.
        is_plain: whether it is a write to a plain array.
    """

    __slots__ = ("event", "fenced", "is_plain", "missing", "pending", "text")

    def __init__(
        self,
        text: str,
        missing: Callable[[], str],
        event: Event,
        fenced: Event | None = None,
        is_plain: bool = False,
    ) -> None:
        self.text, self.missing, self.event, self.fenced = text, missing, event, fenced
        self.is_plain = is_plain
        self.pending = True


class AsyncRead:
    """An asynchronous read that is not done.

    Args:
        units: of the bytes.
        missing: what must be waited for, for messages.
    """

    __slots__ = ("missing", "text", "units")

    def __init__(self, text: str, units: Ints, missing: str) -> None:
        self.text, self.units, self.missing = text, units, missing


class Accesses:
    """Dynamic shared memory.

    Args:
        memory: its bytes.
        threads: of the block.
    """

    def __init__(self, memory: np.ndarray[Any, Any], order: Order, threads: int) -> None:
        whole = len(memory) // 16 * 16
        self.bytes = memory
        self.chunks = memory[:whole].reshape(-1, 16)
        self._order = order
        warps = -(-threads // WARP)
        self._columns = order.columns(warps)
        count = -(-len(memory) // UNIT)
        self._writer = np.zeros(count, np.int64)  # a copy's number; 0: no copy
        self._reads = np.zeros((count, warps), np.int64)  # a warp's count of reads
        self._read_texts: list[list[str]] = [[""] for _ in range(warps)]
        self._copies: dict[int, Copy] = {}
        self._last = 0
        self._readings: list[AsyncRead] = []
        self._pending = np.zeros(count, np.int64)  # readings that are not done

    def writer_of(self, units: Ints) -> str:
        """The copy that has written into bytes, in words."""
        copies = [self._copies.get(n) for n in np.unique(self._writer[units]).tolist()]
        return next((copy.text for copy in copies if copy is not None), "something else")

    # --- copies ---

    def new_copy(self, copy: Copy) -> int:
        """The number of a copy."""
        if len(self._copies) > MANY:
            used = set(np.unique(self._writer).tolist())
            self._copies = {n: c for n, c in self._copies.items() if n in used or c.pending}
        self._last += 1
        self._copies[self._last] = copy
        return self._last

    def is_known(self, number: int) -> bool:
        """Whether a copy of this number has not been forgotten."""
        return number in self._copies

    def begin_copy(self, number: int, call: Any, name: str, units: Ints) -> None:
        """A thread, perhaps of another block, begins to copy into bytes.

        Args:
            number: of the copy.
            name: of the tile or array, for messages.

        Raises:
            DataRaceError: another copy or read of them may not be done.
        """
        for writer in np.unique(self._writer[units]).tolist():
            other = self._copies.get(writer)
            if other is None or (other.is_plain and self._copies[number].is_plain):
                continue
            if other.pending or not call.block.order.is_known([call.number], other.event):
                raise DataRaceError(
                    f"{call} writes bytes of {name} that {other.text} writes, too, and may "
                    f"not have written yet: {other.missing()}."
                )
        self._check_read(call, name, units)
        self._writer[units] = number

    def _check_read(self, call: Any, name: str, units: Ints) -> None:
        for reading in self._readings if self._pending[units].any() else ():
            if np.isin(units, reading.units).any():
                raise DataRaceError(
                    f"{call} writes bytes of {name} that {reading.text} may still read: "
                    f"{reading.missing} is missing before it."
                )
        reads = self._reads[units].max(axis=0)
        warps = len(reads)
        known = call.block.order.known[call.number, self._columns : self._columns + warps]
        behind = np.flatnonzero(reads > known)
        if behind.size:
            warp = int(behind[0])
            raise DataRaceError(
                f"{call} writes bytes of {name} that {self._read_texts[warp][reads[warp]]}, "
                f"of warp {warp} may still read: no barrier lies between the two."
            )

    # --- reads ---

    def check_read(
        self,
        call: Any,
        name: str,
        numbers: Sequence[int],
        units: Ints,
        is_async: bool,
        plain: bool = False,
    ) -> None:
        """
        Args:
            plain: whether an element of a plain array is read: other threads' plain writes do not
                count then.
            name: of the tile or array, for messages.
            numbers: of the threads that read.
            units: of the bytes.
            is_async: whether `wgmma` or `store_tile` reads.

        Raises:
            DataRaceError: a copy into the bytes may not be done, or not be seen.
        """
        for writer in np.unique(self._writer[units]).tolist():
            copy = self._copies.get(writer)
            if copy is None or (plain and copy.is_plain):
                continue
            if copy.pending or not self._order.is_known(numbers, copy.event):
                raise DataRaceError(
                    f"{call} reads bytes of {name} that {copy.text} may not have written "
                    f"yet: {copy.missing()}."
                )
            if is_async and copy.fenced and not self._order.is_known(numbers, copy.fenced):
                raise DataRaceError(
                    f"{call} reads bytes of {name} that {copy.text} has written: "
                    "asynchronous reads see them only if fence_async follows "
                    f"{'it' if copy.is_plain else 'wait_copies'}, before the barrier."
                )

    def check_written(self, call: Any, name: str, units: Ints) -> None:
        """
        Raises:
            UninitialisedReadError: nothing has written some of these bytes of floats.
        """
        empty = units[self._writer[units] == 0]
        unwritten = self.chunks.view(np.uint32).reshape(-1)[empty] == 0xFFFFFFFF
        if unwritten.any():
            raise UninitialisedReadError(
                f"{call} reads {UNIT * int(unwritten.sum()):,} bytes of {name} that nothing "
                "has written."
            )

    def note_read(self, call: Any, numbers: Sequence[int], units: Ints) -> None:
        """These threads have read bytes together, and each of them knows that."""
        for warp in sorted({number // WARP for number in numbers}):
            texts = self._read_texts[warp]
            count = len(texts)
            texts.append(str(call))
            self._order.note(numbers, Event(self._columns + warp, count))
            self._reads[units, warp] = count

    def begin_reading(self, reading: AsyncRead) -> None:
        self._readings.append(reading)
        self._pending[reading.units] += 1

    def end_reading(self, reading: AsyncRead) -> None:
        self._readings.remove(reading)
        self._pending[reading.units] -= 1


def units_of(addresses: Ints, nbytes: int) -> Ints:
    """The units of pieces of `nbytes`, a multiple of the unit, at these addresses."""
    first = np.asarray(addresses).reshape(-1, 1) // UNIT
    return (first + np.arange(nbytes // UNIT)).ravel()
