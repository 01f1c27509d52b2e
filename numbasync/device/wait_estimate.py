"""An estimate of when the next wait ends, if it takes as long as the waits before."""

from __future__ import annotations

import math


class LatencyEstimate:
    """The durations of the last two waits for one stream, in seconds of the caller's clock."""

    __slots__ = ("_before", "_began", "_last")

    LEAD_S = 0.0015  # event loops sleep whole milliseconds
    WINDOW_S = 2 * LEAD_S
    # Polling may cost at most 4 % of a processor during a wait, so shorter waits get no window.
    SHORTEST = WINDOW_S / 0.04
    # Sleeping and waking takes 0.13 ms: waits of at most SHORT_S are polled throughout.
    SHORT_S = 0.0005

    def __init__(self) -> None:
        self._began = 0.0
        self._last = 0.0
        self._before = math.inf

    def begin(self, now: float) -> None:
        """Note the start of a wait, at `now`."""
        self._began = now

    def end(self, now: float) -> None:
        """Note the end of the wait, at `now`, which is the start of a wait for work behind it."""
        self._before, self._last = self._last, now - self._began
        self._began = now

    def begin_looking(self) -> float:
        """The time from which to poll, for `WINDOW_S` seconds; infinity without a usable estimate:
        the last wait was short, or the last two differed by more than `LEAD_S`.
        """
        if self._last < self.SHORTEST or abs(self._last - self._before) > self.LEAD_S:
            return math.inf
        return self._began + self._last - self.LEAD_S

    def patience(self) -> float:
        """How many seconds to poll before sleeping: if the last two waits took at most `SHORT_S`,
        the longer of them plus a quarter; else 0.
        """
        longest = max(self._last, self._before)
        return 1.25 * longest if longest <= self.SHORT_S else 0.0
