"""When to poll for work whose last waits are known: times in, a decision out."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Protocol

from numbasync.device.callsite import CallSite
from numbasync.memo import Memo
from numbasync.native import compiled, known

# Waits of at most this are polled throughout: to sleep and wake takes a fifth. It is the device's
# `spin_seconds`, which bounds a wait of which nothing is known; they need not be the same.
SHORT_S = 300e-6
LEAST_SLEEP_S = 10e-6  # to sleep for less is to be late
LATENESS_S = 100e-6  # of a timer, until its own lateness is known
LATEST_S = 0.002  # the lateness from which on a notification is asked for, too
# A poll that ends a sleep takes 15 to 100 us of a processor. Work that nobody could foresee is
# polled after a fifth of the time that has passed, until a notification of its end is asked for:
# that comes 200 to 300 us late, and keeps later work of the stream waiting.
FIRST_PERIOD_S = 60e-6
RING_S = 0.002
# Between polls before the work is due: it may also be done earlier than it was before.
LONGEST_PERIOD_S = 0.005
# Work that is due later than this notifies the loop, too, which costs less than more polls would:
# it may have less to do than the work of this kind before, as where two devices share what one did.
FAR_S = 0.01


def poll_period(unforeseen: float) -> float:
    """The seconds between two polls, so many seconds after the time from which on nothing foresees
    the end of the work.
    """
    return max(unforeseen / (5 if unforeseen < RING_S else 2), FIRST_PERIOD_S)


def poll_time(seconds: float) -> float:
    """How long a wait of about these `seconds` may poll without a pause."""
    return min(0.3 * seconds, max(SHORT_S, 0.03 * seconds))


@known
class WaitEstimate:
    """The durations of the last three waits for like work, of which two must be alike to foresee
    the next one. All times are in seconds.

    Attributes:
        is_long: the last waits, two at least, all took longer than what is polled throughout.
    """

    __slots__ = ("_high", "_is_sure", "_last", "_least", "_low", "_was_early", "is_long")

    def __init__(self) -> None:
        self._last: tuple[float, ...] = ()
        self._low = self._high = 0.0  # of the two waits that were alike; 0: there are none
        self._is_sure = False  # the last two were
        self._was_early = False  # the end of the last wait was not foreseen so early
        self._least = 0.0  # the shortest of two or three waits
        self.is_long = False

    def note(self, seconds: float, sooner: float = 0.0, by_timer: bool = False) -> None:
        """Note a wait, whose end was seen after so many seconds.

        What was done before a timer ended the sleep, and before it was due, was so for a time that
        nobody knows. Noted as it is, what is foreseen would creep towards what is; the second time
        in a row it is forgotten instead.

        Args:
            sooner: how much earlier the loop should have looked, as where it was asleep.
            by_timer: a timer has ended a sleep, and the work was done by then.
        """
        is_early = by_timer and seconds < self._low
        if is_early and self._was_early:
            self._last = ()
        self._was_early = is_early
        seconds -= sooner
        self._last = (*self._last[-2:], seconds)
        self._low = self._high = 0.0
        pairs = itertools.combinations(reversed(self._last), 2)  # the last two waits come first
        for i, (one, other) in enumerate(pairs):
            if abs(one - other) <= max(FIRST_PERIOD_S, 0.02 * one):
                self._low, self._high = min(one, other), max(one, other)
                self._is_sure = i == 0
                break
        else:
            self._is_sure = False
        self._least = min(self._last) if len(self._last) > 1 else 0.0
        self.is_long = self._least > SHORT_S

    def window(self, lateness: float) -> tuple[float, float]:
        """The seconds from the start of a wait between which polling pays; (0, 0): nothing is
        known.

        Args:
            lateness: of the timer that ends the sleep before.
        """
        low, high = self._low, self._high
        if not high:
            return 0.0, 0.0
        most = poll_time(low)
        lead = min(lateness + 0.005 * low, 0.6 * most)
        tail = FIRST_PERIOD_S + 0.01 * high
        start = low - lead
        return start, min(high + tail, start + 1.5 * most)

    def seconds_until_poll(self, elapsed: float, lateness: float, spin: float) -> float:
        """How long to sleep before the next poll, `elapsed` after the start of the wait; 0: poll
        again at once.

        Args:
            lateness: as for `window`.
            spin: how long a wait is polled of which nothing is known.
        """
        start, end = self.window(lateness)
        if elapsed < spin and self._least <= spin:
            return 0.0
        if start - LEAST_SLEEP_S <= elapsed < end:
            return 0.0
        if elapsed >= end:
            return poll_period(elapsed - end)
        ahead = start - elapsed
        if not self._is_sure:
            return min(ahead, poll_period(elapsed))
        return min(ahead, max(LONGEST_PERIOD_S, ahead / 16))

    def needs_notification(self, elapsed: float, lateness: float) -> bool:
        """Whether nothing has foreseen the end of the work for so long that polls are rare."""
        end = self.window(lateness)[1]
        is_foreseen = self._is_sure or elapsed >= end
        return elapsed - (end if is_foreseen else 0.0) >= RING_S

    def is_far(self, elapsed: float, lateness: float) -> bool:
        """Whether the work is due so late that it is polled rarely before."""
        return self._is_sure and self.window(lateness)[0] - elapsed > FAR_S


MOST_KINDS = 256  # of work whose last waits are known


class Work(Protocol):
    """What is waited for."""

    name: str
    site: CallSite | None


@compiled
def kind_of(work: Work | None) -> Hashable:
    """What like work has in common: its name, and the line of the program that submits it."""
    if work is None or work.site is None:
        return "" if work is None else work.name
    return work.name, id(work.site.code), work.site.instruction  # to hash a code takes long


class LastWaits(Memo[Hashable, WaitEstimate]):
    """The last waits by kind of work, of work that has taken long once."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(MOST_KINDS)

    def is_long(self, work: Work | None) -> bool:
        """Whether such work takes longer than what is polled throughout."""
        estimate = self.get(kind_of(work)) if self else None
        return estimate is not None and estimate.is_long

    def note(
        self, kind: Hashable, seconds: float, sooner: float = 0.0, by_timer: bool = False
    ) -> None:
        """Note a wait for work of this kind, as `WaitEstimate.note` does."""
        estimate = self.get(kind)
        if estimate is None:
            if seconds - sooner <= SHORT_S:
                return
            estimate = self[kind] = WaitEstimate()
        estimate.note(seconds, sooner, by_timer)


class Lateness:
    """How late timers wake this loop: the latest one, which fades."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = LATENESS_S

    def note(self, seconds: float) -> None:
        """Note that a timer was this late."""
        self.seconds = max(seconds, self.seconds + (seconds - self.seconds) / 8)

    @property
    def is_long(self) -> bool:
        """Whether timers come so late that a notification may come earlier, as where another thread
        computes, and keeps the interpreter lock.
        """
        return self.seconds > LATEST_S
