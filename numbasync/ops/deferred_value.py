"""Values that are there when the device is done, and not when the work has been enqueued.

A tensor is handed out at once, and so is an array that the device will fill. A number of Python's
cannot be filled: it is made when somebody gets the value of the operation, who has waited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbasync.errors import OperationError


class Later:
    """A value that is made when the device is done."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], object]) -> None:
        self.make = make


def made(value: Any) -> Any:
    """`value`, of which what is made later is made now; the device is done."""
    if type(value) is Later:
        return value.make()
    if type(value) is tuple and is_later(value):
        return tuple(map(made, value))
    return value


def is_later(value: Any) -> bool:
    """Whether something of it is made later."""
    if type(value) is tuple:  # of `zip`; the results of launches have types of their own
        return any(map(is_later, value))
    return type(value) is Later


def check_there(value: Any, who: object) -> None:
    """Refuse to hand what is made later to `who`, who gets values when work has been enqueued.

    Raises:
        OperationError: it is such a value.
    """
    if (type(value) is Later or type(value) is tuple) and is_later(value):
        raise OperationError(
            f"{who} would get the number of item() before the device has it: closures, and "
            "async_on, get what there is when the work has been enqueued.\n"
            "Await it first, and go on with the number: x = await t.item()"
        )
