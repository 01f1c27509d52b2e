"""A device's events as times of the host's clock, and the events that are used again."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from numbasync.device.device import Device

TRIES = 5
LONGEST_NS = 2_000_000  # for an event on a stream that is idle; others may use the device, too
GOOD_NS = 20_000  # an error that is not worth another comparison
# Events give the time between two as 32-bit floating-point milliseconds, and the two clocks drift
# apart: after so long the device's clock is compared with the host's again.
FRESH_NS = 4_000_000_000
EVENT_NS = 1_000  # how far the time between two events may be off


class Clock:
    """The times of one device's events.

    An event on an idle stream is passed between two readings of the host's clock: before it was
    recorded, and when it was seen to be passed. Each such event says within which bounds the first
    one, the base, was passed, since the device tells the time between the two. On a device that
    runs other programs an event may come late. Then it is looked at again the next time, and its
    bounds are wide, but right. The events of the program's own work narrow them: they were passed
    after their work was submitted, and before its await ended.

    Attributes:
        error_ns: how far a time that was given may be off; 0 until one was.
    """

    def __init__(self, device: Device, now: Callable[[], int] = perf_counter_ns) -> None:
        self._device = device
        self._now = now
        self._base: Any = None
        self._earliest = self._latest = 0  # bounds of when the base was passed
        self._pending: tuple[Any, int] | None = None  # an event that is not passed yet
        self._spare: list[Any] = []
        self._stream: Any = None
        self.error_ns = 0

    def take(self) -> Any:
        """An event with timing, to be recorded."""
        return self._spare.pop() if self._spare else self._device.backend.new_event(timing=True)

    def give(self, *events: Any) -> None:
        """Take back events whose times were read."""
        self._spare += [event for event in events if event is not None]

    def compare(self, longest_ns: int = 0) -> bool:
        """Compare the clocks, unless they were lately, and well; whether times are known.

        Args:
            longest_ns: how long to wait at most if no time would be known otherwise.
        """
        start = self._now()
        for _ in range(TRIES):
            if self._base is not None and self._error <= GOOD_NS and not self._is_old(self._now()):
                break
            if self._pending is None:
                if self._stream is None:
                    self._stream = self._device.new_stream().backend
                event, before = self.take(), self._now()
                self._stream.record(event)
                self._pending = event, before
            event, before = self._pending
            until = max(before + LONGEST_NS, 0 if self._base is not None else start + longest_ns)
            while not (is_passed := event.query()) and self._now() < until:
                self._stream.query()  # a seeded device takes a step
            if not is_passed:
                break
            after, self._pending = self._now(), None
            self._learn(event, before, after)
        return self._base is not None

    def time_ns(self, event: Any) -> int | None:
        """When the device has passed an event, in the host's time; None: it has not, or the clocks
        could not be compared.
        """
        if event is None or self._base is None or not event.query():
            return None
        elapsed = self._since_base(event)
        self.error_ns = max(self.error_ns, self._error)
        return (self._earliest + self._latest) // 2 + elapsed

    @property
    def is_known(self) -> bool:
        """Whether the clocks were compared."""
        return self._base is not None

    @property
    def _error(self) -> int:
        return (self._latest - self._earliest + 1) // 2 + EVENT_NS

    def _is_old(self, now: int) -> bool:
        return now - self._latest >= FRESH_NS

    def _since_base(self, event: Any) -> int:
        elapsed: float = self._base.elapsed_ms(event)
        return round(elapsed * 1e6)

    def bound(self, event: Any, earliest: int, latest: int) -> bool:
        """Note that the device passed an event between two of the host's times. False: there is no
        base, or it contradicts what is known of it, as the clocks drift.
        """
        if self._base is None or self._is_old(earliest):
            return False
        elapsed = self._since_base(event)
        earliest = max(self._earliest, earliest - elapsed - EVENT_NS)
        latest = min(self._latest, latest - elapsed + EVENT_NS)
        if earliest > latest:
            return False
        self._earliest, self._latest = earliest, latest
        return True

    def _learn(self, event: Any, before: int, after: int) -> None:
        if self.bound(event, before, after):
            self.give(event)
        else:
            self._base, self._earliest, self._latest = event, before, after
