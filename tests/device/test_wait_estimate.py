"""When to poll for work whose last waits are known: times in, a decision out."""

from __future__ import annotations

import math

import pytest

from numbasync.device.wait_estimate import (
    FAR_S,
    FIRST_PERIOD_S,
    LATENESS_S,
    LATEST_S,
    LONGEST_PERIOD_S,
    MOST_KINDS,
    RING_S,
    SHORT_S,
    LastWaits,
    Lateness,
    WaitEstimate,
    poll_period,
)

US, MS = 1e-6, 1e-3
LATE = 60 * US  # of the timers here


def after(*waits: float) -> WaitEstimate:
    estimate = WaitEstimate()
    for seconds in waits:
        estimate.note(seconds)
    return estimate


def waited(estimate: WaitEstimate, seconds: float) -> tuple[float, float, int]:
    """A wait of that length: how late its end is seen, the seconds that were polled without a
    pause, and how often the loop slept. Timers come `LATE` late, a poll takes a microsecond.
    """
    now = polled = 0.0
    sleeps = 0
    while True:
        if now >= seconds:
            return now - seconds, polled, sleeps
        sleep = estimate.seconds_until_poll(now, LATE, SHORT_S)
        assert sleep >= 0.0
        if sleep:
            sleeps += 1
            now += sleep + LATE
        else:
            polled += US
            now += US


@pytest.mark.parametrize("elapsed", [0.0, 5 * US, 0.99 * SHORT_S])
def test_work_without_history_is_polled_at_first(elapsed: float) -> None:
    assert WaitEstimate().seconds_until_poll(elapsed, LATE, SHORT_S) == 0.0
    assert not WaitEstimate().is_long


@pytest.mark.parametrize(
    ("elapsed", "period"),
    [(SHORT_S, FIRST_PERIOD_S), (1 * MS, 200 * US), (2 * MS, 1 * MS), (1.0, 0.5)],
)  # fmt: skip
def test_then_now_and_again(elapsed: float, period: float) -> None:
    assert math.isclose(poll_period(elapsed), period)
    for estimate in (after(), after(20 * MS), after(20 * MS, 30 * MS), after(1 * US, 20 * MS)):
        assert math.isclose(estimate.seconds_until_poll(elapsed, LATE, SHORT_S), period)


@pytest.mark.parametrize("seconds", [350 * US, 1 * MS, 3 * MS, 10 * MS, 75 * MS, 0.5, 30.0])
def test_regular_work_is_polled_shortly_before_its_end(seconds: float) -> None:
    estimate = after(seconds, seconds)
    late, polled, sleeps = waited(estimate, seconds)
    assert estimate.is_long
    assert late <= US
    assert polled <= (0.3 if seconds < 10 * MS else 0.03) * seconds
    assert sleeps <= min(1 + seconds / (LONGEST_PERIOD_S - LATE), 120)
    start, end = estimate.window(LATE)
    assert start < seconds < end
    for elapsed in (start, seconds, 0.999 * end):
        assert estimate.seconds_until_poll(elapsed, LATE, SHORT_S) == 0.0
    assert estimate.seconds_until_poll(end, LATE, SHORT_S) == FIRST_PERIOD_S


@pytest.mark.parametrize("seconds", [350 * US, 1 * MS, 10 * MS, 75 * MS, 0.5])
@pytest.mark.parametrize("factor", [0.996, 1.004])
def test_small_changes_of_time_are_seen_at_once(seconds: float, factor: float) -> None:
    late, _, _ = waited(after(seconds, seconds), factor * seconds)
    assert late <= US


@pytest.mark.parametrize(("usual", "now"), [(10 * MS, 1 * MS), (0.5, 0.1), (1 * MS, 20 * MS)])
def test_what_takes_another_time_is_seen_soon(usual: float, now: float) -> None:
    late, polled, _ = waited(after(usual, usual), now)
    assert late <= max(LONGEST_PERIOD_S, usual / 16, now / 2) + LATE
    assert polled <= 0.05 * max(usual, now)
    surprised = after(usual, usual, now)
    late, _, _ = waited(surprised, now)
    assert late <= now / 2 + LATE


def test_one_outlier_does_not_hide_equal_waits() -> None:
    start, end = after(10 * MS, 10 * MS).window(LATE)
    assert after(10 * MS, 10 * MS, 3 * MS).window(LATE) == (start, end)
    assert after(10 * MS, 3 * MS, 10 * MS).window(LATE) == (start, end)
    assert after(3 * MS, 10 * MS, 10 * MS).window(LATE) == (start, end)
    assert after(10 * MS, 10 * MS, 3 * MS, 4 * MS).window(LATE) == (0.0, 0.0)
    late, _, _ = waited(after(10 * MS, 3 * MS, 10 * MS), 10 * MS)
    assert late <= US


def test_short_waits_are_polled_throughout() -> None:
    for estimate in (after(5 * US, 5 * US), after(250 * US, 250 * US), after(0.0, 1.0, 0.0)):
        assert not estimate.is_long
        late, _, sleeps = waited(estimate, 200 * US)
        assert (late <= US, sleeps) == (True, 0)


def test_long_irregular_work_is_not_polled_at_first() -> None:
    for seconds in (0.5 * MS, 2 * MS, 10 * MS):
        late, polled, _ = waited(after(0.7 * MS, 4 * MS, 9 * MS), seconds)
        assert (late <= seconds / 2 + LATE, polled) == (True, 0.0)
    late, polled, _ = waited(after(0.7 * MS, 4 * MS, 9 * MS), 10 * US)
    assert late <= FIRST_PERIOD_S + LATE, "once; it is short then"
    assert not after(0.7 * MS, 4 * MS, 10 * US).is_long


def test_how_late_timers_are_decides_when_to_wake() -> None:
    estimate = after(100 * MS, 100 * MS)
    early, _ = estimate.window(300 * US)
    usual, _ = estimate.window(60 * US)
    assert math.isclose(usual - early, 240 * US)
    assert estimate.window(5 * MS) == estimate.window(6 * MS), "as much as it may poll"


def test_an_unforeseen_end_asks_for_a_notification() -> None:
    def needs(elapsed: float, *waits: float) -> bool:
        return after(*waits).needs_notification(elapsed, LATE)

    assert [needs(t) for t in (0.99 * RING_S, RING_S)] == [False, True]
    _, end = after(0.5, 0.5).window(LATE)
    assert [needs(t, 0.5, 0.5) for t in (0.1, end, end + 1.01 * RING_S)] == [False, False, True]
    assert needs(0.1, 0.5, 0.3, 0.5), "it may be done any time"
    assert not needs(end + 0.9 * RING_S, 0.5, 0.3, 0.5), "it is due now"


def test_what_is_due_late_notifies_the_loop_before() -> None:
    start, _ = after(20 * MS, 20 * MS).window(LATE)
    assert after(20 * MS, 20 * MS).is_far(start - 1.01 * FAR_S, LATE)
    assert not after(20 * MS, 20 * MS).is_far(start - 0.99 * FAR_S, LATE), "it is polled"
    assert not after(20 * MS, 20 * MS, 5 * MS).is_far(0.0, LATE), "nobody knows when it is due"


def test_what_was_foreseen_too_late_twice_is_forgotten() -> None:
    for between in ((), (8 * MS,)):
        estimate = after(8 * MS, 8 * MS)
        estimate.note(5 * MS, by_timer=True)
        for seconds in between:
            estimate.note(seconds)
        estimate.note(5 * MS, by_timer=True)
        assert (estimate.window(LATE) == (0.0, 0.0)) == (not between), "two in a row"
    estimate = after(8 * MS, 8 * MS)
    for _ in range(4):
        estimate.note(5 * MS, by_timer=True)
    assert estimate.window(LATE)[0] < 5 * MS < estimate.window(LATE)[1], "and known again"


def test_a_late_timer_is_no_early_work() -> None:
    estimate = after(1 * MS, 1 * MS)
    for _ in range(5):
        estimate.note(1.1 * MS, sooner=0.1 * MS, by_timer=True)
        assert estimate.window(LATE)[0] < 1 * MS < estimate.window(LATE)[1]


def test_waits_that_nothing_foresaw_are_not_early() -> None:
    estimate = WaitEstimate()
    for _ in range(3):
        estimate.note(5 * MS, by_timer=True)
    assert estimate.window(LATE)[0] < 5 * MS < estimate.window(LATE)[1]


@pytest.mark.parametrize("factor", [1.02, 1.05, 1.2])
def test_what_takes_a_little_longer_is_polled_soon(factor: float) -> None:
    for seconds in (1 * MS, 10 * MS, 0.5):
        estimate = after(seconds, seconds)
        late, _, _ = waited(estimate, factor * seconds)
        over = factor * seconds - estimate.window(LATE)[1]
        assert late <= max(over / 2, FIRST_PERIOD_S) + LATE


def test_lateness_of_timers_rises_at_once_and_fades() -> None:
    lateness = Lateness()
    assert lateness.seconds == LATENESS_S and not lateness.is_long
    lateness.note(2.1 * LATEST_S)
    assert lateness.seconds == 2.1 * LATEST_S and lateness.is_long
    for _ in range(6):
        lateness.note(10 * US)
    assert not lateness.is_long and lateness.seconds > 0.9 * MS
    for _ in range(100):
        lateness.note(10 * US)
    assert math.isclose(lateness.seconds, 10 * US, rel_tol=0.1)


def test_only_work_that_took_long_once_is_remembered() -> None:
    waits = LastWaits()
    waits.note("short", 0.9 * SHORT_S)
    assert not waits
    for n in range(3 * MOST_KINDS):
        waits.note(n, 1.0)
    assert 0 < len(waits) <= MOST_KINDS
    waits.note("long", 1.0)
    assert not waits["long"].is_long
    waits.note("long", 1.0)
    assert waits["long"].is_long
    waits.note("long", 10 * US)
    assert not waits["long"].is_long
