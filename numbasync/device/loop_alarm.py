"""What ends the sleep of an event loop at a time, to the microsecond."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from numbasync.device.loop_wakeup import Timer
from numbasync.device.wait_estimate import Lateness


class Alarm:
    """The alarm of one loop. All methods must be called on that loop's thread.

    Attributes:
        lateness: how late its timers are.
        has_timers: whether there are such timers, as far as is known.
    """

    __slots__ = ("_call", "_due_at", "_timer", "has_timers", "lateness")

    def __init__(self) -> None:
        self.lateness = Lateness()
        self._timer: Timer | None = None
        self.has_timers = True
        self._due_at = math.inf  # infinity: not set
        self._call: Callable[[], None] | None = None

    def start(
        self, loop: asyncio.AbstractEventLoop, seconds: float, call: Callable[[], None]
    ) -> bool:
        """Call `call` so many seconds from now. False where there are no such timers."""
        if self._timer is None and self.has_timers:
            self._timer = self._timer_of(loop)
            self.has_timers = self._timer is not None
        if self._timer is None:
            return False
        self._call = call
        self._due_at = time.perf_counter() + seconds
        self._timer.start(seconds)
        return True

    def stop(self) -> None:
        """Call nothing."""
        if self._due_at < math.inf and self._timer is not None:
            self._due_at, self._call = math.inf, None
            self._timer.stop()

    def close(self) -> None:
        """Hand the timer on to the next loop."""
        self._due_at, self._call = math.inf, None
        timer, self._timer = self._timer, None
        if timer is not None:
            Timer.hand_on(timer)

    def _timer_of(self, loop: asyncio.AbstractEventLoop) -> Timer | None:
        try:
            timer = Timer.take()
        except (OSError, AttributeError):  # other systems than Linux have none
            return None
        try:
            loop.add_reader(timer.fileno, self._on_time)
        except NotImplementedError:
            Timer.hand_on(timer)
            return None
        return timer

    def _on_time(self) -> None:
        call, due_at, self._due_at, self._call = self._call, self._due_at, math.inf, None
        if call is not None:
            self.lateness.note(time.perf_counter() - due_at)
            call()
        if self._timer is not None and self._due_at == math.inf:
            self._timer.stop()  # which has ended, and would go on to wake the loop
