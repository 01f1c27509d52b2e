"""The device's clock and the host's, on a device whose events a test lets pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from numbasync.device.device import Device
from numbasync.timeline.clock import EVENT_NS, FRESH_NS, GOOD_NS, LONGEST_NS, Clock

STEP = 1_000  # what a look at either clock takes


class Events:
    """A device of one stream, and both clocks: what was recorded is passed `late` afterwards."""

    def __init__(self) -> None:
        self.ns = 50_000
        self.late = 3 * STEP
        self.backend = self
        self.streams = 0

    def now(self) -> int:
        self.ns += STEP
        return self.ns

    def new_stream(self) -> Events:
        self.streams += 1
        return self

    def new_event(self, timing: bool) -> Event:
        assert timing
        return Event(self)

    def record(self, event: Event) -> None:
        event.at = self.ns + self.late

    def query(self) -> bool:
        return True


class Event:
    def __init__(self, device: Events) -> None:
        self.device = device
        self.at = 0

    def query(self) -> bool:
        return self.device.now() >= self.at

    def elapsed_ms(self, later: Event) -> float:
        return (later.at - self.at) / 1e6


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def clock(events: Events) -> Clock:
    return Clock(cast(Device, events), events.now)


def passed(events: Events, clock: Clock) -> Any:
    """An event that was recorded and is passed."""
    event = clock.take()
    events.record(event)
    events.ns = event.at
    return event


def check(events: Events, clock: Clock) -> None:
    event = passed(events, clock)
    time = clock.time_ns(event)
    assert time is not None and abs(time - event.at) <= clock.error_ns


def test_times_are_the_host_s_within_the_error(events: Events, clock: Clock) -> None:
    assert clock.time_ns(passed(events, clock)) is None and clock.error_ns == 0
    assert clock.compare()
    check(events, clock)
    assert 0 < clock.error_ns <= 4 * STEP + EVENT_NS


def test_a_late_event_is_looked_at_again(events: Events, clock: Clock) -> None:
    """As on a device that other programs use: it is theirs for longer than anybody waits."""
    events.late = 3 * LONGEST_NS
    assert not clock.compare()
    work = passed(events, clock)
    assert clock.compare()  # the event of the first time is passed by now
    time = clock.time_ns(work)
    assert time is not None and abs(time - work.at) <= clock.error_ns
    wide = clock.error_ns
    assert wide > LONGEST_NS / 2
    events.late, events.ns = STEP, events.ns + 3 * LONGEST_NS
    clock.compare()
    check(events, clock)
    assert clock.error_ns == wide  # of times that were given
    assert clock._error <= GOOD_NS


def test_work_narrows_the_bounds(events: Events, clock: Clock) -> None:
    """It is passed after its submission, and before its await ends, also where the clocks could
    only be compared badly.
    """
    events.late = 3 * LONGEST_NS
    assert clock.compare(10 * LONGEST_NS)
    events.late = 3 * STEP
    submitted = events.now()
    work = passed(events, clock)
    seen = events.now()
    time = clock.time_ns(work)
    assert time is not None and abs(time - work.at) > LONGEST_NS  # within the bounds
    assert clock.bound(work, submitted, seen)
    time = clock.time_ns(work)
    assert time is not None and submitted <= time <= seen
    assert not clock.bound(work, seen + LONGEST_NS, seen + 2 * LONGEST_NS)
    assert clock.time_ns(work) == time


def test_readers_of_closed_traces_wait_for_the_first(events: Events, clock: Clock) -> None:
    events.late = 3 * LONGEST_NS
    assert not clock.compare(LONGEST_NS)
    assert clock.compare(10 * LONGEST_NS)
    check(events, clock)


def test_clocks_are_compared_anew(events: Events, clock: Clock) -> None:
    clock.compare()
    base = clock._base
    clock.compare()
    assert clock._base is base and events.streams == 1
    events.ns += FRESH_NS
    clock.compare()
    assert clock._base is not base and events.streams == 1
    check(events, clock)


def test_bounds_that_contradict_each_other_begin_anew(
    events: Events, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.compare()
    monkeypatch.setattr(clock, "_latest", clock._earliest + 4 * GOOD_NS)  # to be compared again
    real: Callable[[Any], int] = clock._since_base
    monkeypatch.setattr(clock, "_since_base", lambda event: real(event) + FRESH_NS)
    base = clock._base
    clock.compare()
    assert clock._base is not base
