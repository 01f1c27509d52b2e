"""What a reactor watches, and what it tells of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from numbasync.backend import protocols


class Watched(Protocol):
    """A stream, as seen by the reactor."""

    @property
    def spin_seconds(self) -> float:
        """How long to poll what nobody could foresee. 0: never poll, infinity: only poll."""
        ...

    def advance(self) -> int:
        """Retire finished submissions; the latest sequence number that the stream has passed."""
        ...

    def wake(self, sequence: int, waker: protocols.Waker) -> bool:
        """Notify `waker` once past `sequence`. False if the notification may be late or lost."""
        ...

    def query_device(self) -> bool:
        """Query the driver. Everything on the stream counts as passed if the stream is broken, or
        is idle although its counter lags; whether either was found.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReactorStatistics:
    """What one loop's reactor has done so far.

    Attributes:
        waiting: tasks and futures that wait now.
        turns: polls of all streams.
        sleeps: times that the reactor slept instead of turning the loop.
        wakeups: notifications of the waker.
        completed: futures that were woken.
    """

    waiting: int
    turns: int
    sleeps: int
    wakeups: int
    completed: int
