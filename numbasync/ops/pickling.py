"""Pickling of operations that have not run, and refusing it for what belongs to one process.

An operation is data: what it is made of is pickled, and the operation is built again from that.
The copy runs once, and so may the original.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any, NoReturn

from numbasync.errors import AlreadySubmittedError

Recipe = tuple[Callable[..., Any], tuple[Any, ...]]


_OWN = frozenset(("_unused", "_sent", "_site"))  # of an operation in its process


class Picklable:
    """What operations offer to `pickle` and `copy`."""

    is_shared = False  # it may be part of several operations, and be run several times
    _unused: bool
    _sent = False  # it was pickled: if it never runs here, that needs no warning

    def consume(self) -> None:
        """See `DeviceOp.consume`."""
        raise NotImplementedError

    def _recipe(self) -> Recipe:
        """What makes an operation like it, and of what."""
        state = {k: packed(v) for k, v in self.__dict__.items() if k not in _OWN}
        return _restored, (type(self), state)

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
    """An operation that another one holds, to be pickled with that."""

    def __init__(self, op: Picklable) -> None:
        self._op = op

    def __reduce__(self) -> Recipe:
        return self._op._recipe()


def packed(value: Any) -> Any:
    """`value`, which an operation holds, as it is pickled with it; also tuples of such values."""
    if isinstance(value, Picklable) and not value.is_shared:
        return _Part(value)
    return tuple(map(packed, value)) if type(value) is tuple else value


def _restored(kind: type[Any], state: dict[str, Any]) -> Any:
    op = object.__new__(kind)
    op.__dict__.update(state)
    for value in state.values():
        for part in value if type(value) is tuple else (value,):
            if isinstance(part, Picklable):
                part.consume()
    return op


class Copied:
    """What tensors offer to `copy`: NumPy's rule for arrays."""

    __slots__ = ()

    def __copy__(self) -> Any:
        """A contiguous copy on the same device; blocks the thread until it is made."""
        tensor: Any = self
        if tensor.device is None:
            return tensor[...]
        return tensor.dup().sync_on(tensor.device.policy.next_stream())

    def __deepcopy__(self, memo: object) -> Any:
        return self.__copy__()


def unpicklable(kind: type[Any], instead: str) -> None:
    """Objects of this class belong to one process: pickling and copying them is a TypeError.

    Args:
        instead: what to write, a sentence.
    """

    def refuse(thing: object) -> NoReturn:
        raise TypeError(f"{thing!r} belongs to this process and cannot be pickled.\n{instead}")

    copyreg.pickle(kind, refuse)
