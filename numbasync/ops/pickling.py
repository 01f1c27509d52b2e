"""Pickling of operations that have not run, and refusal for objects that belong to one process.

An operation is data: pickling stores the operation's attributes, and unpickling rebuilds the
operation from them. The copy runs once, and the original may run once too.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any, NoReturn

from numbasync.errors import AlreadySubmittedError

__all__ = ["Recipe", "packed"]

# What `__reduce__` gives: a function, and its arguments, that build an equal operation.
Recipe = tuple[Callable[..., Any], tuple[Any, ...]]


_OWN = frozenset(("_unused", "_result", "_sent", "_site"))  # attributes that are not pickled


class Picklable:
    """The methods of operations for `pickle` and `copy`."""

    is_shared = False  # True: may be part of several operations, and be run several times
    _unused: bool
    _sent = False  # the operation was pickled, so it may stay unused here without a warning

    def consume(self) -> None:
        """See `DeviceOp.consume`."""
        raise NotImplementedError

    def _recipe(self) -> Recipe:
        """A function and its arguments that build an equal operation."""
        slots = (k for cls in type(self).__mro__ for k in cls.__dict__.get("__slots__", ()))
        names = (k for k in (*slots, *self.__dict__) if k not in _OWN)
        return _restored, (type(self), {k: packed(getattr(self, k)) for k in names})

    def __reduce__(self) -> Recipe:
        if not self._unused and not self.is_shared:
            raise AlreadySubmittedError(
                f"{self} was already submitted, or made part of another operation; only an "
                "operation that has not run can be pickled.\n"
                "Pickle its result, await op, or the operation that it is part of."
            )
        self._sent = True
        return self._recipe()

    def __copy__(self) -> NoReturn:
        raise TypeError(
            f"{self} runs once, and so does what it is made of. To use its result twice, write "
            "op.shared(); to have it computed twice, copy.deepcopy(op), which copies its tensors."
        )


class _Part:
    """An operation held by another operation, pickled as a part of the latter."""

    def __init__(self, op: Picklable) -> None:
        self._op = op

    def __reduce__(self) -> Recipe:
        return self._op._recipe()


def packed(value: Any) -> Any:
    """The picklable form of `value`, an attribute of an operation or a tuple of such values."""
    if isinstance(value, Picklable) and not value.is_shared:
        return _Part(value)
    return tuple(map(packed, value)) if type(value) is tuple else value


def _restored(kind: type[Any], state: dict[str, Any]) -> Any:
    op = object.__new__(kind)
    op._unused, op._site = True, None
    for name, value in state.items():
        setattr(op, name, value)
    for value in state.values():
        for operand in value if type(value) is tuple else (value,):
            if isinstance(operand, Picklable):
                operand.consume()
    return op


class Copied:
    """The methods of tensors for `copy`, with NumPy's rule for arrays."""

    __slots__ = ()

    def __copy__(self) -> Any:
        """A contiguous copy on the same device; blocks the thread until the copy is done."""
        tensor: Any = self
        if tensor.device is None:
            return tensor[...]
        return tensor.dup().sync_on(tensor.device.policy.next_stream())

    def __deepcopy__(self, memo: object) -> Any:
        return self.__copy__()


def unpicklable(kind: type[Any], instead: str) -> None:
    """Make pickling and copying objects of class `kind` a TypeError: they belong to one process.

    Args:
        instead: a sentence that says what to write instead.

    Examples:
        >>> import pickle
        >>> from numbasync.extending import unpicklable
        >>> class Session:
        ...     def __repr__(self):
        ...         return "<Session>"
        >>> unpicklable(Session, "Open one where it is used.")
        >>> pickle.dumps(Session())
        Traceback (most recent call last):
            ...
        TypeError: <Session> belongs to this process and cannot be pickled.
        Open one where it is used.
    """

    def refuse(thing: object) -> NoReturn:
        raise TypeError(f"{thing!r} belongs to this process and cannot be pickled.\n{instead}")

    copyreg.pickle(kind, refuse)
