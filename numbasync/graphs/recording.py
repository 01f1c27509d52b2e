"""The recording of a graph: commands, the storages that they use, and their order."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from numbasync.backend import protocols
from numbasync.backend.protocols import Command
from numbasync.device.access import is_strict
from numbasync.device.storage import Storage
from numbasync.device.submission import Submission
from numbasync.errors import AccessConflictError, GraphUpdateError


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a recording.

    Attributes:
        reads, writes: the storages that the command uses.
        origin: the `Launch` operation of a kernel; None for other commands.
        sources: other libraries' arrays that the command uses.
    """

    command: Command
    reads: frozenset[Storage]
    writes: frozenset[Storage]
    origin: Any = None
    sources: tuple[protocols.Foreign, ...] = ()


@dataclass(frozen=True)
class Recorded:
    """A finished recording.

    Attributes:
        kept: objects that must live as long as the commands may run.
        dependencies: submissions that the first run starts after.
        nbytes: bytes that were allocated for the recording.
        names: what errors call a storage: the tensor by which the operations use it.
    """

    steps: tuple[Step, ...] = ()
    keep_alive: tuple[object, ...] = ()
    dependencies: tuple[Submission, ...] = ()
    nbytes: int = 0
    names: Mapping[Storage, str] = field(default_factory=dict)

    @cached_property
    def sources(self) -> tuple[protocols.Foreign, ...]:
        """Other libraries' arrays, whose libraries' enqueued work each run starts after."""
        return tuple({id(s): s for step in self.steps for s in step.sources}.values())

    @property
    def commands(self) -> list[Command]:
        return [step.command for step in self.steps]

    @property
    def writes(self) -> dict[Storage, None]:
        """The storages that the commands write."""
        return {s: None for step in self.steps for s in step.writes}

    @property
    def reads(self) -> dict[Storage, None]:
        """The storages that the commands read and none of them writes."""
        writes = self.writes
        return {s: None for step in self.steps for s in step.reads if s not in writes}


@dataclass
class Order:
    """The order of a recording's commands, with edges for conflicts between branches."""

    before: list[int] = field(default_factory=list)  # per command, a bit set of its ancestors
    writer: dict[Storage, int] = field(default_factory=dict)
    readers: dict[Storage, list[int]] = field(default_factory=dict)
    names: Mapping[Storage, str] = field(default_factory=dict)  # for errors

    def after(
        self, last: Sequence[int], reads: frozenset[Storage], writes: frozenset[Storage]
    ) -> tuple[int, ...]:
        """The predecessors of a new command, without those that other predecessors imply.

        Raises:
            AccessConflictError: strict ordering, and the command conflicts with another branch.
        """
        known = self._all(last)
        wanted = dict.fromkeys(last)
        for i, storage in self._conflicts(reads, writes):
            if not known >> i & 1:
                if is_strict():
                    raise AccessConflictError(
                        "two branches of a graph both use "
                        f"{self.names.get(storage, storage)}, and at least one writes it.\n"
                        "Join the branches first, or record both on one; na.set_ordering('auto') "
                        "does it for you."
                    )
                wanted[i] = None
        covered = 0
        for i in sorted(wanted, reverse=True):  # a predecessor was recorded earlier
            if covered >> i & 1:
                del wanted[i]
            covered |= self._all((i,))
        return tuple(wanted)

    def unordered(self, step: Step) -> int | None:
        """The position of a command that conflicts with `step` and is not before it, or None."""
        known = self._all(step.command.after)
        conflicts = (i for i, _ in self._conflicts(step.reads, step.writes) if not known >> i & 1)
        return next(conflicts, None)

    def _conflicts(
        self, reads: frozenset[Storage], writes: frozenset[Storage]
    ) -> Generator[tuple[int, Storage], None, None]:
        for storage in reads | writes:
            for shared in (storage, *storage.overlapping()):
                if shared in self.writer:
                    yield self.writer[shared], storage
                if storage in writes:
                    yield from ((i, storage) for i in self.readers.get(shared, ()))

    def _all(self, last: Sequence[int]) -> int:
        """A bit set of the commands `last` and all their ancestors."""
        ancestors = 0
        for i in last:
            ancestors |= self.before[i] | 1 << i
        return ancestors

    def add(self, step: Step) -> None:
        position = len(self.before)
        self.before.append(self._all(step.command.after))
        for storage in step.writes:
            self.writer[storage] = position
            self.readers.pop(storage, None)
        for storage in step.reads - step.writes:
            self.readers.setdefault(storage, []).append(position)


def check_edges(steps: Sequence[Step]) -> None:
    """Refuse arguments that make two nodes conflict which no edge orders.

    Raises:
        GraphUpdateError: two unordered commands use one buffer, which one of them writes.
    """
    order = Order()
    for position, step in enumerate(steps):
        earlier = order.unordered(step)
        if earlier is not None:
            raise GraphUpdateError(
                f"with these arguments node {position} must start after node {earlier}, since both "
                "use a buffer and one writes it, and the graph does not say so: capture it again."
            )
        order.add(step)
