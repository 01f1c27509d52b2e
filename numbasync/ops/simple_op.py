"""The base class of the small operations with a fast path: one call enqueues them."""

from __future__ import annotations

from types import CodeType
from typing import TypeVar

from numbasync.native import known
from numbasync.ops.op import DeviceOp

T = TypeVar("T")


@known
class SimpleOp(DeviceOp[T]):
    """An operation without operand operations, whose `try_enqueue` sets `_result`.

    The constructors of the classes set `_site` and `_unused` themselves: these operations are so
    frequent that the call of a base class would show.
    """

    __slots__ = ("_result", "_site", "_unused")
    _result: T
    _site: tuple[CodeType, int] | None
    _unused: bool

    def result(self) -> T:
        result = self._result
        del self._result  # its last reference is the program's
        return result
