"""Context variables that a `with` block sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def scoped(variable: ContextVar[T | None], value: T) -> Iterator[T]:
    """`variable` as `value` inside the block, for this task or thread only.

    The release asks the variable, not a token that ^C could keep from being stored: `value` is set
    back wherever ^C came, once, and only in the context that has it.
    """
    before = variable.get()
    try:
        try:
            variable.set(value)
            yield value
        finally:
            _set_back(variable, value, before)
    finally:
        _set_back(variable, value, before)


def _set_back(variable: ContextVar[T | None], value: T, before: T | None) -> None:
    if variable.get() is value:
        variable.set(before)
