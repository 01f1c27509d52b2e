"""Stepping: a CPU device without threads, whose next step a seed decides.

Whoever looks at a stream, or waits for one, runs one entry of some stream that could go on.
Which one is drawn from a generator, so a seed is an interleaving, and every interleaving that
a GPU may show has seeds. Time is the number of steps. Memory is overwritten when it is handed
out and when it comes back, so that a use before a write, or after the end, gives wrong numbers.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from numbasync.errors import StateError

if TYPE_CHECKING:
    from numbasync.backend.cpu.runtime.workers import Engine

STEP_NS = 1_000_000


class Stepper:
    """Takes the place of one engine's threads."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self._engine = engine
        self._random = random.Random(seed)  # noqa: S311 - no secret depends on it
        self._lock = threading.Lock()
        self._thread = 0
        self.steps = 0

    def now_ns(self) -> int:
        return self.steps * STEP_NS

    def draw(self, n: int) -> int:
        """One of `n` ways."""
        return self._random.randrange(n)

    def step(self) -> bool:
        """Run one entry of a stream that can go on; whether there was one."""
        if self._thread == threading.get_ident():
            return False  # what an entry calls may look as well
        with self._lock:
            self._thread = threading.get_ident()
            try:
                stream = self._engine.draw(self._random.randrange)
                if stream is None:
                    return False
                self.steps += 1
                self._engine.put_back(stream, stream.run_one())
                return True
            finally:
                self._thread = 0


@contextmanager
def stepping(engine: Engine, seed: int) -> Iterator[Stepper]:
    """Step `engine` inside the block; its threads go on with the rest afterwards.

    Raises:
        StateError: it is being stepped already.
    """
    if engine.stepper is not None:
        raise StateError("the device is seeded already; one seed at a time.")
    stepper = Stepper(engine, seed)
    engine.be_stepped(stepper)
    try:
        yield stepper
    finally:
        engine.be_stepped(None)
