"""Graphs of the CPU device: lists of tasks, made once and run by one entry of a stream.

Tasks run in the order of recording, which satisfies all dependencies. While the device is
stepped, the seed draws the order of independent tasks, and other streams advance in between.
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

SHORT = 16  # the most short tasks that the submitting thread runs itself


class CpuGraph:
    """Commands with the tasks that carry them out on the CPU device."""

    def __init__(self, engine: Engine, commands: Sequence[Command]) -> None:
        self._engine = engine
        self._commands = tuple(commands)
        self._checks: Checks | None = None  # the checks that the tasks were made for
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
        """The tasks that one replay enqueues."""
        if self._checks is not self._engine.checks:
            self._make()
        if self._engine.stepper is not None:
            return [self._tasks[i] for i in self._drawn(self._engine.stepper.draw)]
        calls = [call for call, _ in self._tasks]

        def run() -> None:
            for call in calls:
                call()

        return [(run, self._is_short)]

    def _drawn(self, draw: Callable[[int], int]) -> list[int]:
        """The positions of the commands, in a drawn order that satisfies their dependencies."""
        unmet = [len(c.after) for c in self._commands]
        dependents: list[list[int]] = [[] for _ in unmet]
        for i, command in enumerate(self._commands):
            for before in command.after:
                dependents[before].append(i)
        ready, order = [i for i, n in enumerate(unmet) if n == 0], list[int]()
        while ready:
            drawn = ready.pop(draw(len(ready)))
            order.append(drawn)
            for i in dependents[drawn]:
                unmet[i] -= 1
                if unmet[i] == 0:
                    insort(ready, i)
        return order
