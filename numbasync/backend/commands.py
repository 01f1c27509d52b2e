"""Recorded commands, of which graphs are made; the same on every device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Call = Literal["launch", "upload", "download", "copy", "fill"]
NodeKind = Literal["kernel", "memcpy", "memset"]

_KINDS: dict[Call, NodeKind] = {
    "launch": "kernel", "upload": "memcpy", "download": "memcpy", "copy": "memcpy",
    "fill": "memset",
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
