"""How a task waits for a point of a stream: by polls of its own, or woken by the reactor.

One look of a task lasts for `SLICE_S` here. How long a wait polls before it sleeps is the device's
`spin_seconds` (`backend/cuda/device.py`), and for work whose last waits are known a decision of
`wait_estimate.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from numbasync.backend import protocols
from numbasync.device import reactor, tracing
from numbasync.device.in_flight import Progress
from numbasync.device.latency import has_low_latency
from numbasync.device.loop_turns import let_turn
from numbasync.device.submission import Submission
from numbasync.device.wait_estimate import kind_of
from numbasync.native import compiled

if TYPE_CHECKING:
    from numbasync.device.device import Device

# How long a task polls in one go by the core, while no other task is known to be ready.
SLICE_S = 25e-6
BESIDE_S = 10e-6  # and while one other is
CROWDED_S = 20e-6  # a turn of the loop that took longer has run other tasks


class Waits(Progress):
    """The waits for one stream."""

    __slots__ = ()
    if TYPE_CHECKING:
        device: Device

    @property
    def spin_seconds(self) -> float:
        return self.device.backend.spin_seconds

    def wake(self, sequence: int, waker: protocols.Waker) -> bool:
        # The notification comes behind all enqueued work, and the backend knows only the work
        # before the latest signal. Unsignalled work behind it would make the wake-up late.
        return self.backend.wake(sequence, waker) and self._signalled >= self._sequence

    @compiled
    def has_passed_soon(self, sequence: int, work: Submission | None) -> bool:
        """Whether the device has passed `sequence`; for an await, which may look for a moment if at
        most one other is served by a turn of the loop, and the work is not known to take long. That
        other one has its turn afterwards. What is found idle is verified, too, and needs no signal.
        """
        if self.advance() >= sequence:
            return True
        watcher = reactor.current()
        others = watcher.others()
        if others > 1 or watcher.last_waits.is_long(work):
            return False
        number = self._sequence
        try:
            is_idle = self.backend.spin_poll()
        except BaseException:
            self._is_broken()
            self.check()  # raises the fault, whose message names the work that was running
            raise
        if is_idle:
            self._has_passed(number)
            self.verified = max(self.verified, number)
            self.advance()
            watcher.last_waits.note(kind_of(work), 0.0)
            if others:
                let_turn()
        return is_idle

    @compiled
    def passes_soon(self, sequence: int) -> bool:
        """Whether the device passes the signalled `sequence` within `SLICE_S`."""
        end = time.perf_counter() + SLICE_S
        while self.advance() < sequence:
            if time.perf_counter() >= end:
                return False
        return True

    def wait(self, sequence: int, work: Submission | None = None) -> Generator[Any, None, None]:
        """Suspend the running task until the device has passed `sequence`.

        Args:
            work: what is waited for, as far as is known: the last waits for like work foresee its
                end.
        """
        recorder = tracing.recorder
        began = 0 if recorder is None else recorder.now()
        try:
            if self.has_passed_soon(sequence, work):
                yield from reactor.need_not_wait()
            else:
                yield from self.wait_longer(sequence, work)
        finally:
            if recorder is not None and work is not None:
                recorder.awaited(work, began)

    def wait_longer(
        self, sequence: int, work: Submission | None = None
    ) -> Generator[Any, None, None]:
        """Suspend the running task until a signal says that the device has passed `sequence`. Short
        work is polled by the task itself, at each turn of the loop; else the reactor wakes it.
        """
        watcher, began = reactor.current(), time.perf_counter()
        if self._signalled < sequence:
            self.ensure_signalled(sequence)  # before others enqueue more
            if self.advance() >= sequence:
                yield from reactor.need_not_wait()
                return
        low, kind = has_low_latency(self.device), kind_of(work)
        spin = self.spin_seconds
        if 0 < spin < math.inf and len(watcher.spinning) < reactor.MOST_SPINNING:
            if low:  # afterwards the reactor polls, which finds faults
                spin = reactor.WATCHDOG_SECONDS
            elif watcher.last_waits.is_long(work):
                spin = 0.0
            mark = object()
            try:
                watcher.spinning.add(mark)
                before = began
                while before - began < spin:
                    yield
                    now = time.perf_counter()
                    watcher.note_poll()
                    if self.advance() >= sequence or (
                        not watcher.others()
                        and now - before <= CROWDED_S
                        and self.passes_soon(sequence)
                    ):
                        watcher.note_end(kind, time.perf_counter() - began)
                        return
                    before = time.perf_counter()
            finally:
                watcher.spinning.discard(mark)
        future = watcher.wait(self, sequence, None if low else kind, began)
        try:
            yield from future
        finally:
            if future.cancelled():
                watcher.forget(self, future)
