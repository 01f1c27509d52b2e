"""Functions that a module calls and one above it has, which it must not import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Provided(Generic[P, R]):
    """A function that the module above provides once, when it is imported; until then `default`.

    Examples:
        below:  `before_signal = Provided(do_nothing)`, and calls `before_signal()`
        above:  `@stream.before_signal.provide`, above the function
    """

    __slots__ = ("_function",)

    def __init__(self, default: Callable[P, R]) -> None:
        self._function = default

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def provide(self, function: Callable[P, R]) -> Callable[P, R]:
        """Take `function` from now on; returns it."""
        self._function = function
        return function
