"""When something will be done, if it takes as long as it did before."""

from __future__ import annotations

import math


class LatencyEstimate:
    """How long the waits for one stream took, in seconds of a clock that the caller reads."""

    __slots__ = ("_before", "_began", "_last")

    LEAD_S = 0.0015  # event loops sleep whole milliseconds
    WINDOW_S = 2 * LEAD_S
    # What looking may cost of a processor: no more than 4 % of the time that is waited.
    SHORTEST = WINDOW_S / 0.04
    # To sleep and be woken takes 0.13 ms: waits of no more than this are looked through.
    SHORT_S = 0.0005

    def __init__(self) -> None:
        self._began = 0.0
        self._last = 0.0
        self._before = math.inf

    def begin(self, now: float) -> None:
        """A wait begins."""
        self._began = now

    def end(self, now: float) -> None:
        """What was waited for is done; what is behind it begins."""
        self._before, self._last = self._last, now - self._began
        self._began = now

    def begin_looking(self) -> float:
        """From when on to look, for `WINDOW_S` seconds; infinity if nobody can know: the last two
        were short, or not alike.
        """
        if self._last < self.SHORTEST or abs(self._last - self._before) > self.LEAD_S:
            return math.inf
        return self._began + self._last - self.LEAD_S

    def patience(self) -> float:
        """How long to look before sleeping, in seconds: until what took no longer than `SHORT_S`
        twice should be done, with a quarter to spare; 0 for anything else.
        """
        longest = max(self._last, self._before)
        return 1.25 * longest if longest <= self.SHORT_S else 0.0
