"""What the parts of the CPU device see of its workers."""

from __future__ import annotations

from typing import Protocol


class Stepping(Protocol):
    """What takes the place of threads while a seed decides what runs next."""

    def now_ns(self) -> int: ...

    def draw(self, n: int) -> int: ...

    def step(self) -> bool: ...

    @property
    def is_at_work(self) -> bool: ...


class Workers(Protocol):
    """What runs kernels: threads, or steps."""

    stopping: bool

    @property
    def stepper(self) -> Stepping | None: ...


class Numbered(Protocol):
    """A device of the host's, as its streams see it."""

    @property
    def ordinal(self) -> int: ...


class Schedulable(Protocol):
    """A stream, as those that run it see it."""

    @property
    def engine(self) -> Scheduler: ...

    def run_one(self) -> bool: ...

    def resume(self) -> bool: ...

    def start_over(self) -> None: ...


class Scheduler(Protocol):
    """What a stream is given to when it can go on."""

    def schedule(self, stream: Schedulable) -> bool: ...

    def run_here(self, stream: Schedulable) -> None: ...
