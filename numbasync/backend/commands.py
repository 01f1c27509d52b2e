"""Recorded commands, and the graphs of a device that replay them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Call = Literal["launch", "upload", "download", "copy", "fill", "generate"]
NodeKind = Literal["kernel", "memcpy", "memset"]

_KINDS: dict[Call, NodeKind] = {
    "launch": "kernel", "upload": "memcpy", "download": "memcpy", "copy": "memcpy",
    "fill": "memset", "generate": "kernel",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Command:
    """One call of a `Queue` method, to be made later, any number of times.

    Attributes:
        call: the name of the queue's method.
        operands: the call's arguments. The command's holder keeps their memory alive.
        name: the kernel's name, or the name of the operation.
        after: positions of the commands after which this command starts.
    """

    call: Call
    operands: tuple[Any, ...]
    name: str
    after: tuple[int, ...] = ()

    @property
    def kind(self) -> NodeKind:
        """The kind of graph node that the command becomes."""
        return _KINDS[self.call]

    def enqueue(self, queue: Any) -> None:
        """Make the call on `queue`."""
        getattr(queue, self.call)(*self.operands)


class Graph(Protocol):
    """Commands prepared to be replayed repeatedly, by one call each time.

    The graph's holder keeps the commands' operands alive. The caller serialises the graph's
    methods and its replays.
    """

    @property
    def commands(self) -> Sequence[Command]:
        """The commands that a replay runs."""
        ...

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of nodes of each kind that the device created for the commands."""
        ...

    def change(self, position: int, command: Command) -> None:
        """Replace one launch; replays that are already enqueued are unaffected.

        Raises:
            GraphUpdateError: the device cannot make this update; the graph is unchanged.
        """
        ...

    def replace(self, commands: Sequence[Command]) -> None:
        """Replace all commands by commands of the same kinds and order.

        Raises:
            GraphUpdateError: the device cannot make this update; the graph is unchanged.
        """
        ...
