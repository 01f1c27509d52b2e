"""Graphs of the CPU device: lists of tasks, made once and done by one entry of a stream.

They are done in the order in which they were recorded, which starts each after those that it
must start after. While the device is stepped, the seed draws the order of those that nothing
orders, and other streams go on in between.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from numbasync.backend.cpu.runtime import tasks
from numbasync.backend.protocols import Checks, Command
from numbasync.errors import GraphUpdateError

if TYPE_CHECKING:
    from numbasync.backend.cpu.runtime.workers import Engine

SHORT = 16  # short tasks at most that the submitting thread does itself


class CpuGraph:
    """Commands, and what they do here."""

    def __init__(self, engine: Engine, commands: Sequence[Command]) -> None:
        self._engine = engine
        self._commands = tuple(commands)
        self._checks: Checks | None = None  # what the tasks were made for
        self._tasks: tuple[tasks.Task, ...] = ()
        self._make()

    @property
    def commands(self) -> Sequence[Command]:
        return self._commands

    @property
    def counts(self) -> Mapping[str, int]:
        return Counter(command.kind for command in self._commands)

    def change(self, position: int, command: Command) -> None:
        changed = list(self._commands)
        changed[position] = command
        self._commands = tuple(changed)
        self._make()

    def replace(self, commands: Sequence[Command]) -> None:
        before, after = ([(c.kind, c.after) for c in list_] for list_ in (self._commands, commands))
        if before != after:
            raise GraphUpdateError("the new commands are of other kinds, or in another order.")
        self._commands = tuple(commands)
        self._make()

    def _make(self) -> None:
        self._checks = self._engine.checks
        self._tasks = tuple(
            getattr(tasks, c.call)(self._engine, *c.operands) for c in self._commands
        )
        self._is_short = len(self._tasks) <= SHORT and all(short for _, short in self._tasks)

    def entries(self) -> list[tasks.Task]:
        """What one replay queues."""
        if self._checks is not self._engine.checks:
            self._make()
        if self._engine.stepper is not None:
            return [self._tasks[i] for i in self._drawn(self._engine.stepper.draw)]
        todo = [call for call, _ in self._tasks]

        def run() -> None:
            for call in todo:
                call()

        return [(run, self._is_short)]

    def _drawn(self, draw: Callable[[int], int]) -> list[int]:
        """The positions in an order that the commands allow."""
        waits = [len(c.after) for c in self._commands]
        behind: list[list[int]] = [[] for _ in waits]
        for i, command in enumerate(self._commands):
            for before in command.after:
                behind[before].append(i)
        ready, order = [i for i, n in enumerate(waits) if n == 0], list[int]()
        while ready:
            drawn = ready.pop(draw(len(ready)))
            order.append(drawn)
            for i in behind[drawn]:
                waits[i] -= 1
                if waits[i] == 0:
                    insort(ready, i)
        return order
