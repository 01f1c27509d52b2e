"""Arrays in tuples that a kernel takes, and arrays of no axes that are passed as numbers."""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

from numbasync import dtypes
from numbasync.arguments import shown
from numbasync.backend.protocols import NamedTupleKey
from numbasync.errors import LauncherError
from numbasync.launch.parameters import Parameter, Role
from numbasync.ops.run import describe
from numbasync.tensors.expected_results import UNKNOWN
from numbasync.tensors.partition import Partition
from numbasync.tensors.tensor import SharedTensor, Tensor

__all__ = ["flat", "holds_arrays", "replaced"]

MOST_LEVELS = 16  # of nested tuples; the compiler's time grows with them
_ARRAYS = (Tensor, SharedTensor, Partition, np.ndarray)


def _is_plain(value: Any) -> bool:
    """Whether a value is a tuple, and no launch's result, which is one of all its arguments."""
    return isinstance(value, tuple) and not hasattr(type(value), "_output_positions")


def holds_arrays(value: Any, kernel: str = "", name: str = "an argument") -> bool:
    """Whether a value is a tuple that contains an array, directly or in a nested tuple; False for a
    launch's result.

    Raises:
        LauncherError: tuples are nested deeper than `MOST_LEVELS`.
    """
    level = [value] if _is_plain(value) else []
    found = False
    for _ in range(MOST_LEVELS):
        members = [member for part in level for member in part]
        found = found or any(isinstance(member, _ARRAYS) for member in members)
        level = [member for member in members if _is_plain(member)]
        if not level:
            return found
    raise LauncherError(
        f"kernel {kernel}: {name} is {shown(value)}, a tuple of tuples in more than {MOST_LEVELS} "
        "levels; write an array, or fewer levels."
    )


def members(
    kernel: str, p: Parameter, value: tuple[Any, ...], member: Callable[[Any], Any]
) -> tuple[Any, ...]:
    """A tuple that contains arrays, as tensors, NumPy arrays and numbers.

    Args:
        member: converts a member of the tuple to one of these, or refuses the member.

    Raises:
        LauncherError: the parameter takes no arrays; or a member of the tuple is of another type.
    """
    if p.role in (Role.TILE, Role.SCALAR):
        raise LauncherError(
            f"kernel {kernel}: {p.name} cannot be {describe(value)}, a tuple with arrays in it.\n"
            "Pass it to a parameter that is declared neither a number nor a na.Tile."
        )

    def checked(v: Any) -> Any:
        converted = member(v)
        if not isinstance(v, (np.generic, int, float, complex, enum.Enum, *_ARRAYS)):
            raise LauncherError(
                f"kernel {kernel}: {p.name} is a tuple with {describe(v)} in it; a kernel takes "
                "tuples of tensors, NumPy arrays and numbers."
            )
        return converted

    return replaced(value, checked)


def fingerprint(values: tuple[Any, ...]) -> Hashable:
    """A key that is equal for tuples of equal types, layouts and shapes."""

    def member_key(v: Any) -> Hashable:
        if isinstance(v, Tensor):
            return v.fingerprint
        if isinstance(v, np.ndarray):
            return dtypes.dtype_key(v.dtype), v.shape
        return type(v), type(v) is int and v >= 2**63

    return key_of(values, member_key)


def replaced(values: tuple[Any, ...], change: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The tuple with `change` applied to its members, and to those of nested tuples."""
    made = tuple(replaced(v, change) if isinstance(v, tuple) else change(v) for v in values)
    named: Any = values
    return named._make(made) if _is_named(named) else made


def key_of(values: tuple[Any, ...], member_key: Callable[[Any], Hashable]) -> Hashable:
    """A key of a tuple, and of nested ones, from those of the members."""
    made = tuple(key_of(v, member_key) if isinstance(v, tuple) else member_key(v) for v in values)
    return NamedTupleKey(type(values), made) if _is_named(values) else made


def _is_named(values: Any) -> bool:
    """Whether a tuple is a named one, and no launch's result."""
    return hasattr(values, "_fields") and _is_plain(values)


def flat(values: tuple[Any, ...]) -> Iterator[Any]:
    """The members of a tuple, and of nested tuples."""
    for v in values:
        if isinstance(v, tuple):
            yield from flat(v)
        else:
            yield v


def numbers(parameters: tuple[Parameter, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values, with NumPy arrays of no axes as numbers where the kernel takes numbers."""
    for i, p in enumerate(parameters):
        value = values[i]
        if type(value) is np.ndarray and not value.shape and (p.is_number or not p.takes_tensor):
            values = (*values[:i], value[()], *values[i + 1 :])
    return values


def is_open(value: Any) -> bool:
    """Whether a value, or a member of a tuple that is not a launch's result, is not known yet."""
    pending = [value]
    while pending:
        part = pending.pop()
        if part is UNKNOWN:
            return True
        if _is_plain(part):
            pending.extend(part)
    return False
