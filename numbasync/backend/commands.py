"""Recorded work: what graphs are made of, the same on every device."""

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
    """One call of a `Queue`, to be made later, any number of times.

    Attributes:
        call: the queue's method.
        operands: its arguments. Whoever holds the command keeps their memory alive.
        name: the kernel's name, or what is done.
        after: the commands, by position, that it starts after.
    """

    call: Call
    operands: tuple[Any, ...]
    name: str
    after: tuple[int, ...] = ()

    @property
    def kind(self) -> NodeKind:
        """What it is in a graph."""
        return _KINDS[self.call]

    def enqueue(self, queue: Any) -> None:
        """Make the call."""
        getattr(queue, self.call)(*self.operands)
