"""Stepping: a CPU device without threads, whose next step a seed decides.

Each poll of a stream, or wait for one, runs one entry of a stream that can advance. A generator
draws this stream, so a seed determines an interleaving, and every interleaving that a GPU may
show has seeds. Time is the number of steps. Memory is overwritten when it is allocated and when
it is freed, so that a use before the first write, or after the free, gives wrong numbers.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from numbasync.errors import StateError
from numbasync.native import compiled, known

if TYPE_CHECKING:
    from numbasync.backend.cpu.runtime.workers import Engine

STEP_NS = 1_000_000


@known
class Stepper:
    """Replaces the threads of one engine."""

    __slots__ = ("_draw_bits", "_engine", "_lock", "_thread", "steps")

    def __init__(self, engine: Engine, seed: int) -> None:
        self._engine = engine
        self._draw_bits = random.Random(seed).getrandbits  # noqa: S311 - no secret depends on it
        self._lock = threading.Lock()
        self._thread = 0
        self.steps = 0

    def now_ns(self) -> int:
        return self.steps * STEP_NS

    def draw(self, n: int) -> int:
        """A drawn number below `n`: that of `random.randrange`, in a third of its time."""
        bits = n.bit_length()
        number = self._draw_bits(bits)
        while number >= n:
            number = self._draw_bits(bits)
        return number

    @compiled
    def step(self) -> bool:
        """Run one entry of a stream that can advance. Returns whether there was one."""
        is_at_work = self._lock.locked()
        if is_at_work and self._thread == threading.get_ident():
            return False  # a running entry may poll as well
        if not self._engine.has_ready and (is_at_work or self._engine.drawn is None):
            return False
        with self._lock:
            self._thread = threading.get_ident()  # counts only while the lock is held
            self._engine.put_back()  # of a step that ^C has ended
            stream = self._engine.draw(self.draw)
            if stream is None:
                return False
            self.steps += 1
            stream.run_one()
            self._engine.put_back()
            return True

    @property
    def is_at_work(self) -> bool:
        """Whether a thread is inside a step."""
        return self._lock.locked()

    def put_back(self) -> None:
        """Let the stream go on that a step had taken which ^C has ended."""
        with self._lock:
            self._engine.put_back()


@contextmanager
def stepping(engine: Engine, seed: int) -> Iterator[Stepper]:
    """Step `engine` inside the block; afterwards its threads run the remaining work.

    Raises:
        StateError: the engine is being stepped already.
    """
    if engine.stepper is not None:
        raise StateError("the device is seeded already; one seed at a time.")
    stepper = Stepper(engine, seed)
    try:
        engine.be_stepped(stepper)
        yield stepper
    finally:
        try:
            stepper.put_back()
        finally:
            engine.be_stepped(None)
