"""Deferred values: values that exist only when the device is done, not when work is enqueued.

A tensor, or a host array that the device will fill, is returned when the work is enqueued. A
Python number cannot be filled later, so it is made when an awaiter, which has waited for the
device, gets the operation's value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbasync.errors import OperationError
from numbasync.native import compiled, known


@known
class Later:
    """A deferred value: `make()` builds it once the device is done."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], object]) -> None:
        self.make = make


def made(value: Any) -> Any:
    """`value`, with deferred values in it built. The caller has waited for the device."""
    if type(value) is Later:
        return value.make()
    if type(value) is tuple and is_later(value):
        return tuple(map(made, value))
    return value


@compiled
def is_later(value: Any) -> bool:
    """Whether `value` is, or contains, a deferred value."""
    pending = [value]
    while pending:  # no recursion: a value of the program may be nested as deep as it likes
        part = pending.pop()
        if type(part) is Later:
            return True
        if type(part) is tuple:  # a result of `zip`; the results of launches have other types
            pending.extend(part)
    return False


@compiled
def check_there(value: Any, who: object) -> None:
    """Refuse to pass a deferred value to `who`, which gets values when work has been enqueued.

    Raises:
        OperationError: `value` is, or contains, a deferred value.
    """
    if (type(value) is Later or type(value) is tuple) and is_later(value):
        raise OperationError(
            f"{who} would get the number of item() before the device has it: closures, and "
            "async_on, get what there is when the work has been enqueued.\n"
            "Await it first, and go on with the number: x = await t.item()"
        )
