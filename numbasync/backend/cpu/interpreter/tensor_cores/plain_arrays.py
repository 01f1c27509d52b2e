"""Plain arrays of a shared layout, whose bytes tiles may share: writes to them are known to the
asynchronous operations and the fragments that read them. Of one another, plain accesses are not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numbasync.backend.cpu.interpreter.places import Place, place_of_call, text_of
from numbasync.backend.cpu.interpreter.tensor_cores.accesses import UNIT, Copy, Ints
from numbasync.backend.cpu.interpreter.tensor_cores.block import TensorCoreBlock
from numbasync.backend.cpu.interpreter.tensor_cores.order import Event


class PlainArray(np.ndarray[Any, Any]):
    """An array in dynamic shared memory. Its views are such arrays, too."""

    _block: TensorCoreBlock
    _name: str
    _offsets: Ints | None = None  # in bytes, of the elements

    @classmethod
    def of(
        cls, array: np.ndarray[Any, Any], block: TensorCoreBlock, name: str, offset: int
    ) -> PlainArray:
        """`array`, a view of dynamic shared memory from `offset` on."""
        made = array.view(cls)
        made._block, made._name = block, name
        steps = np.arange(array.size, dtype=np.int64) * array.itemsize
        made._offsets = offset + steps.reshape(array.shape)
        return made

    def __getitem__(self, index: Any) -> Any:
        value = super().__getitem__(index)
        if self._offsets is None:
            return value
        offsets = self._offsets[index]
        if isinstance(value, PlainArray):
            value._block, value._name, value._offsets = self._block, self._name, offsets
            return value
        access = _Access(self._block, f"a read of {self._name}")
        units = _units(offsets, self.itemsize)
        self._block.accesses.check_read(
            access, self._name, [access.number], units, is_async=False, plain=True
        )
        return value

    def __setitem__(self, index: Any, value: Any) -> None:
        if self._offsets is not None:
            access = _Access(self._block, f"a write to {self._name}")
            units = _units(self._offsets[index], self.itemsize)
            self._block.accesses.begin_copy(_record(access), access, self._name, units)
        super().__setitem__(index, value)


def untracked(array: Any) -> Any:
    """An array as its elements are for atomic operations, which need no barriers."""
    return array.view(np.ndarray) if isinstance(array, PlainArray) else array


class _Access:
    """An access of the thread that runs.

    Attributes:
        number: of the thread.
    """

    __slots__ = ("block", "number", "place", "what")

    def __init__(self, block: TensorCoreBlock, what: str) -> None:
        self.block, self.what = block, what
        self.number = block.threads.current.number
        self.place: Place = place_of_call(3)

    def __str__(self) -> str:
        return text_of(self.what, self.place)


def _units(offsets: Any, itemsize: int) -> Ints:
    first = np.asarray(offsets).reshape(-1, 1)
    return np.unique((first + np.arange(0, itemsize, min(UNIT, itemsize))) // UNIT)


def _record(access: _Access) -> int:
    """The number of what the thread writes at a place between two of its barriers or fences."""
    block = access.block
    key, step = (access.number, access.place), int(block.order.steps[access.number])
    known_step, number = block.written.get(key, (-1, 0))
    if known_step == step and block.accesses.is_known(number):
        return number
    if access.number not in block.write_columns:
        block.write_columns[access.number] = block.new_fenced_columns()
    column = block.write_columns[access.number]
    count = int(block.order.known[access.number, column]) + 1
    copy = Copy(
        str(access), lambda: "a barrier must lie between",
        Event(column, count), Event(column + 1, count), is_plain=True,
    )  # fmt: skip
    copy.pending = False
    block.order.note([access.number], copy.event)
    number = block.accesses.new_copy(copy)
    block.written[key] = step, number
    return number
