"""What was recorded for a graph: commands, the storages that they use, and their order."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from numbasync.backend import protocols
from numbasync.backend.protocols import Command
from numbasync.device.ordering import is_strict
from numbasync.device.storage import Storage
from numbasync.device.submission import Submission
from numbasync.errors import AccessConflictError


@dataclass(frozen=True, slots=True)
class Step:
    """A command, and what it is about.

    Attributes:
        reads, writes: the storages that it uses.
        origin: the launch that it is of; None of other commands.
        sources: other libraries' arrays that it uses.
    """

    command: Command
    reads: frozenset[Storage]
    writes: frozenset[Storage]
    origin: Any = None
    sources: tuple[protocols.Foreign, ...] = ()


@dataclass(frozen=True)
class Recorded:
    """What was recorded.

    Attributes:
        kept: what must live as long as the commands may run.
        priors: submissions that the first run comes after.
        nbytes: of memory that was allocated for it.
    """

    steps: tuple[Step, ...] = ()
    kept: tuple[object, ...] = ()
    dependencies: tuple[Submission, ...] = ()
    nbytes: int = 0

    @cached_property
    def sources(self) -> tuple[protocols.Foreign, ...]:
        """Other libraries' arrays, whose own work comes before each run."""
        return tuple({id(s): s for step in self.steps for s in step.sources}.values())

    @property
    def commands(self) -> list[Command]:
        return [step.command for step in self.steps]

    @property
    def writes(self) -> dict[Storage, None]:
        """The storages that it writes."""
        return {s: None for step in self.steps for s in step.writes}

    @property
    def reads(self) -> dict[Storage, None]:
        """The storages that it reads and does not write."""
        writes = self.writes
        return {s: None for step in self.steps for s in step.reads if s not in writes}


@dataclass
class Order:
    """Which command of a recording starts after which; conflicts between branches."""

    before: list[int] = field(default_factory=list)  # of each command, as bits: all before it
    writer: dict[Storage, int] = field(default_factory=dict)
    readers: dict[Storage, list[int]] = field(default_factory=dict)

    def after(
        self, last: Sequence[int], reads: frozenset[Storage], writes: frozenset[Storage]
    ) -> tuple[int, ...]:
        """What a command must start after: as few as say it all.

        Raises:
            AccessConflictError: strict ordering, and it conflicts with one of another branch.
        """
        known = self._all(last)
        wanted = dict.fromkeys(last)
        for i, storage in self._conflicts(reads, writes):
            if not known >> i & 1:
                if is_strict():
                    raise AccessConflictError(
                        f"two branches of a graph both use {storage!r}, and at least one writes "
                        "it.\nJoin the branches first, or record both on one; "
                        "na.set_ordering('auto') does it for you."
                    )
                wanted[i] = None
        covered = 0
        for i in sorted(wanted, reverse=True):  # what one starts after was recorded before it
            if covered >> i & 1:
                del wanted[i]
            covered |= self._all((i,))
        return tuple(wanted)

    def unordered(self, step: Step) -> int | None:
        """A command that it conflicts with and does not start after, if there is one."""
        known = self._all(step.command.after)
        found = (i for i, _ in self._conflicts(step.reads, step.writes) if not known >> i & 1)
        return next(found, None)

    def _conflicts(
        self, reads: frozenset[Storage], writes: frozenset[Storage]
    ) -> Generator[tuple[int, Storage], None, None]:
        for storage in reads | writes:
            for each in (storage, *storage.overlapping()):
                if each in self.writer:
                    yield self.writer[each], storage
                if storage in writes:
                    yield from ((i, storage) for i in self.readers.get(each, ()))

    def _all(self, last: Sequence[int]) -> int:
        """As bits, `last` and everything before them."""
        found = 0
        for i in last:
            found |= self.before[i] | 1 << i
        return found

    def add(self, step: Step) -> None:
        position = len(self.before)
        self.before.append(self._all(step.command.after))
        for storage in step.writes:
            self.writer[storage] = position
            self.readers.pop(storage, None)
        for storage in step.reads - step.writes:
            self.readers.setdefault(storage, []).append(position)


def missing_edge(steps: Sequence[Step]) -> tuple[int, int] | None:
    """Two commands that use a buffer, one of which writes it, in no order; None: there are none."""
    order = Order()
    for position, step in enumerate(steps):
        earlier = order.unordered(step)
        if earlier is not None:
            return earlier, position
        order.add(step)
    return None
