"""A device's events as times of the host's clock, and the events that are used again."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from numbasync.device.device import Device
from numbasync.errors import StateError

TRIES = 5
PATIENCE_NS = 2_000_000  # for an event on a stream that is idle
# Events give the time between two as 32-bit floating-point milliseconds, and the two clocks drift
# apart: after so long the device's clock is compared with the host's again.
FRESH_NS = 4_000_000_000


class Clock:
    """The times of one device's events.

    An event on an idle stream is passed between two readings of the host's clock. The closest two
    of some tries say what an event's time is in the host's; half their distance is the error.

    Attributes:
        error_ns: how far a time may be off; 0 until the clocks were compared.
    """

    def __init__(self, device: Device, now: Callable[[], int] = perf_counter_ns) -> None:
        self._device = device
        self._now = now
        self._base: Any = None
        self._base_ns = 0
        self._spare: list[Any] = []
        self._stream: Any = None
        self.error_ns = 0

    def take(self) -> Any:
        """An event with timing, to be recorded."""
        return self._spare.pop() if self._spare else self._device.backend.new_event(timing=True)

    def give(self, *events: Any) -> None:
        """Take back events whose times were read."""
        self._spare += [event for event in events if event is not None]

    def compare(self) -> bool:
        """Compare the clocks, unless that was done lately; whether times are known."""
        if self._base is not None and self._now() - self._base_ns < FRESH_NS:
            return True
        if self._stream is None:
            self._stream = self._device.new_stream().backend
        best: tuple[int, int, Any] | None = None
        for _ in range(TRIES):
            event, before = self.take(), self._now()
            self._stream.record(event)
            while not (is_passed := event.query()) and self._now() - before < PATIENCE_NS:
                self._stream.query()  # a seeded device takes a step
            after = self._now()
            if not is_passed:
                break
            if best is None or after - before < best[0]:
                best = after - before, before, event
            else:
                self.give(event)
        if best is not None:
            distance, before, self._base = best
            self._base_ns, self.error_ns = before + distance // 2, (distance + 1) // 2
        return self._base is not None

    def time_ns(self, event: Any) -> int | None:
        """When the device has passed an event, in the host's time; None: it has not."""
        if event is None or self._base is None or not event.query():
            return None
        try:
            elapsed: float = self._base.elapsed_ms(event)
        except StateError:
            return None
        return self._base_ns + round(elapsed * 1e6)
