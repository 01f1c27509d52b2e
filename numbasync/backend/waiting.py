"""What can be waited for, and what tells of it: prerequisites, events and wakers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Prerequisite(Protocol):
    """A slow step that must be completed once before work can be enqueued.

    Examples:
        >>> from numbasync.extending import Prerequisite
        >>> class Pause(Prerequisite):  # an operation's steps yield it
        ...     def run(self):
        ...         time.sleep(0.01)  # on a worker thread, while the event loop turns
    """

    def run(self) -> None:
        """Complete the step, or wait until another thread has. Blocks; any thread may call it."""
        ...


class Waker(Protocol):
    """Wakes one event loop. `notify` may be called on any thread and never blocks."""

    @property
    def eventfd(self) -> int:
        """Descriptor to which native code may write eight bytes, or -1 if there is none."""
        ...

    def notify(self) -> None: ...


class Event(Protocol):
    """A recorded point in a stream."""

    def query(self) -> bool: ...
    def synchronize(self) -> None: ...
    def notify(self, call: Callable[[], None]) -> None:
        """Call `call`, on any thread, behind the latest record. Only where events can call back."""
        ...

    def elapsed_ms(self, later: Any) -> float:
        """Device milliseconds from this event to `later`; both were recorded, with timing."""
        ...
