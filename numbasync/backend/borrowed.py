"""Arrays of other libraries on a GPU that have a quick reader: their memory, and the order of use.

All of them may be written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbasync.backend.array_attributes import ArrayView
from numbasync.backend.array_protocols import Exported
from numbasync.backend.array_readers import Reader
from numbasync.native import compiled, known


@known
class Borrowed:
    """Such an array, together with its memory.

    Attributes:
        address, nbytes: the memory from the array's lowest byte to its highest.
        lent: another library may use the memory.
        keep: an object that keeps the memory alive while it is held.
        ordinal: the GPU's.
        reader: of the array's type.
        stream: the handle of the stream on which its library worked when the array was read; 0
            where `mark` or nothing stands for that.
        owner: the library's object of that stream, which keeps the handle valid, or None.
        mark: an event behind the work that its library had enqueued when `as_tensor` was called;
            None if there is none, or it has passed.
    """

    __slots__ = (
        "_export", "address", "keep", "lent", "mark", "nbytes", "ordinal", "owner", "reader",
        "stream",
    )  # fmt: skip
    is_nonblocking = True

    def __init__(
        self, reader: Reader, reading: ArrayView, low: int, nbytes: int, keep: object
    ) -> None:
        self.reader = reader
        self.address = low
        self.nbytes = nbytes
        self.keep = keep
        self.ordinal = reading.ordinal
        self.stream = reading.stream
        self.owner = reading.owner
        self.lent = False
        self.mark: Any = None
        self._export: Exported | None = None

    @classmethod
    def exported(cls, reader: Reader, reading: ArrayView, export: Exported, mark: Any) -> Borrowed:
        """An array for longer than one launch, with an event behind its library's work of now."""
        array = cls(reader, reading, export.low, export.nbytes, export.keep)
        array._export, array.mark = export, mark
        if reader.current_stream(reading.ordinal) is not None:
            array.stream, array.owner = 0, None
        return array

    @property
    def memory(self) -> Borrowed:
        return self

    @property
    def export(self) -> Exported:
        """The description of an array of `as_tensor`; of any other one, of its bytes."""
        if self._export is None:
            self._export = Exported(
                self.address, self.nbytes, 0, (self.nbytes,), (1,), np.dtype(np.uint8), False,
                self.keep,
            )  # fmt: skip
        return self._export

    @compiled
    def order(self, stream: Any) -> None:
        """Order later work of `stream` after the present work of the library's current stream, and
        of the one on which it worked when the array was read.
        """
        self.follow(stream.put_behind, stream.wait)

    def follow(self, put_behind: Callable[[int], None], wait: Callable[[Any], None]) -> None:
        """`order`, of a stream with these methods."""
        mark = self.mark
        if mark is not None:
            if mark.query():
                self.mark = None
            else:
                wait(mark)
        current = self.reader.current_stream(self.ordinal)
        if current is not None:
            put_behind(current)
        if self.stream not in (0, current):
            put_behind(self.stream)
