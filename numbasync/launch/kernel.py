"""What a launch needs of its kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from numbasync.launch.arguments import BoundArguments
from numbasync.launch.fast_path import FastCall
from numbasync.launch.parameters import Parameter
from numbasync.launch.plan import Planner
from numbasync.launch.preconditions import Precondition
from numbasync.launch.result import LaunchResult


class KernelSpec(Protocol):
    """A kernel, its parameters, and what is known of its calls. A `Launcher` is one.

    Attributes:
        name: of the function.
        names: `(name,)`, which submissions list.
        label: the operation of its launches, for messages.
        parameters: in signature order.
        preconditions: conditions of its calls.
        planner: what it has planned and compiled.
    """

    name: str
    names: tuple[Any, ...]
    label: str
    parameters: tuple[Parameter, ...]
    preconditions: tuple[Precondition, ...]
    planner: Planner
    result: Callable[[tuple[Any, ...]], LaunchResult]

    def arrange(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The values of a call, in signature order."""
        ...

    def form(self, values: tuple[Any, ...]) -> FastCall | None:
        """How calls with values of such types are enqueued at once; None if that is not known."""
        ...

    def bind(self, values: tuple[Any, ...]) -> BoundArguments:
        """The values, each checked and sorted by what its parameter takes."""
        ...

    def check(self, values: tuple[Any, ...]) -> None:
        """Refuse what is known to be wrong before the values are there."""
        ...
