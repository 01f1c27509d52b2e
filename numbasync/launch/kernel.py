"""The protocol by which a launch sees its kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from numbasync.launch.arguments import BoundArguments
from numbasync.launch.fast_calls import FastCall
from numbasync.launch.parameters import Parameter
from numbasync.launch.plan import Planner
from numbasync.launch.preconditions import Precondition
from numbasync.launch.result import LaunchResult


class KernelSpec(Protocol):
    """A kernel, its parameters, and the cached facts about its calls. A `Launcher` is one.

    Attributes:
        name: of the function.
        names: `(name,)`, which submissions list.
        label: the description of its launches, for messages.
        parameters: in signature order.
        preconditions: conditions on the arguments of its calls.
        planner: its plans and compiled variants.
        move_inputs: inputs on other devices are copied to the launch's.
        launch_class: of its calls that name no stream.
    """

    name: str
    names: tuple[Any, ...]
    label: str
    parameters: tuple[Parameter, ...]
    preconditions: tuple[Precondition, ...]
    planner: Planner
    move_inputs: bool
    launch_class: Any
    result: Callable[[tuple[Any, ...]], LaunchResult]

    def arrange(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The values of a call, in signature order."""
        ...

    def form(self, values: tuple[Any, ...]) -> FastCall | None:
        """The fast call for values of these types; None if such calls must be bound."""
        ...

    def bind(self, values: tuple[Any, ...]) -> BoundArguments:
        """The values, each checked and classified against its parameter."""
        ...

    def check(self, values: tuple[Any, ...]) -> None:
        """Refuse known errors before all values are available."""
        ...
