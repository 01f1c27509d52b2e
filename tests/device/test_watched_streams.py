"""Streams that a thread watches for the loop: when it is asked, and that the loop then sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from numbasync.backend import protocols
from numbasync.device import reactor
from numbasync.device.wait_estimate import (
    LATEST_S,
    SHORT_S,
    WATCHED_S,
    WaitEstimate,
)
from tests.device.fake_streams import FakeStream, run, turns
from tests.device.test_reactor import Alarms, polls_on
from tests.device.test_reactor import alarms as alarms
from tests.device.test_wait_estimate import after
from tests.waiting import LOOPS

MS = 1e-3


class WatchedStream(FakeStream):
    """A stream with a thread, which rings as a bell does."""

    def __init__(self, has_thread: bool = True) -> None:
        super().__init__(spin_seconds=SHORT_S)
        self.has_thread = has_thread
        self.watches: list[tuple[int, float]] = []

    def watch(self, sequence: int, waker: protocols.Waker, seconds: float) -> bool:
        self.watches.append((sequence, seconds))
        if self.has_thread:
            self.bells.append((sequence, waker))
        return self.has_thread


@pytest.fixture(params=LOOPS, autouse=True)
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return LOOPS[request.param]


async def _slow_start(alarms: Alarms, stream: FakeStream, kind: str = "work") -> Any:
    """A wait that has been polled for as long as one of which nothing is known."""
    future = reactor.current().wait(stream, 1, kind)
    await turns()
    alarms.clock.now += 1.01 * SHORT_S
    await turns()
    return future


def test_what_nobody_can_foresee_is_left_to_the_thread(loop_factory: Any, alarms: Alarms) -> None:
    async def main() -> None:
        stream = WatchedStream()
        future = await _slow_start(alarms, stream)
        assert len(stream.watches) == 1
        number, seconds = stream.watches[0]
        assert number == 1 and seconds == pytest.approx(WATCHED_S - 1.01 * SHORT_S)
        looks = stream.looks
        await turns(20)
        assert stream.looks == looks and not alarms.seconds, "it sleeps, and no timer wakes it"
        stream.reach(1)
        await future
        assert reactor.current().statistics().rings == 1

    run(loop_factory, main())


def test_without_a_thread_the_loop_polls_as_ever_and_asks_once(
    loop_factory: Any, alarms: Alarms
) -> None:
    async def main() -> None:
        stream = WatchedStream(has_thread=False)
        future = await _slow_start(alarms, stream)
        for _ in range(3):
            alarms.ring()
            await turns()
        assert len(stream.watches) == 1 and len(alarms.seconds) >= 3
        stream.passed = 1
        alarms.ring()
        await future

    run(loop_factory, main())


def test_a_waiter_for_an_earlier_number_is_watched_for_too(
    loop_factory: Any, alarms: Alarms
) -> None:
    async def main() -> None:
        stream, watcher = WatchedStream(), reactor.current()
        late = watcher.wait(stream, 9)
        await turns()
        alarms.clock.now += 1.01 * SHORT_S
        await turns()
        early = watcher.wait(stream, 3)
        await turns()
        assert [number for number, _ in stream.watches] == [9, 3]
        stream.reach(3)
        await early
        assert not late.done()
        alarms.clock.now += 1.01 * SHORT_S  # from the end of the first wait on
        await turns()
        assert [number for number, _ in stream.watches] == [9, 3, 9]
        stream.reach(9)
        await late

    run(loop_factory, main())


def test_long_work_is_foreseen_by_the_loop_itself(loop_factory: Any, alarms: Alarms) -> None:
    async def main() -> None:
        stream, watcher = WatchedStream(), reactor.current()
        for _ in range(2):
            watcher.last_waits.note("work", 50 * MS)
        future = watcher.wait(stream, 1, "work")
        await turns()
        assert not stream.watches and alarms.seconds
        start, end = watcher.last_waits["work"].window(alarms.lateness.seconds)
        alarms.clock.now = (start + end) / 2
        watcher.look()
        assert await polls_on(stream) and not stream.watches
        alarms.clock.now = end + 1.01 * WATCHED_S
        watcher.look()
        await turns()
        assert stream.watches == [(1, 0.0)], "an interrupt tells"
        stream.reach(1)
        await future

    run(loop_factory, main())


def looks(elapsed: float, *waits: float, lateness: float = 6e-5) -> float | None:
    return after(*waits).looks(elapsed, lateness)


def test_how_long_the_thread_looks() -> None:
    assert looks(0.0) == WATCHED_S
    assert looks(5 * MS) == 0.0, "it has taken too long"
    assert looks(0.0, 8 * MS, 5 * MS, 20 * MS) == 0.0, "it always does"
    assert looks(0.0, 0.5 * MS, 0.8 * MS, 2 * MS) == WATCHED_S
    assert looks(0.0, lateness=2 * LATEST_S) == 0.0, "another thread computes"


@pytest.mark.parametrize("seconds", [2 * MS, 50 * MS])
def test_what_the_loop_foresees_is_not_watched_until_it_is_overdue(seconds: float) -> None:
    _, end = after(seconds, seconds).window(6e-5)
    assert looks(0.5 * seconds, seconds, seconds) is None
    assert looks(end + 0.9 * WATCHED_S, seconds, seconds) is None
    assert looks(end + 1.1 * WATCHED_S, seconds, seconds) == 0.0
    assert looks(0.1 * seconds, seconds, 3 * seconds, seconds) == 0.0, "it may end any time"


def test_a_watched_wait_needs_no_polls_but_those_of_its_own() -> None:
    inf, spin = float("inf"), SHORT_S
    assert WaitEstimate().seconds_until_poll(0.0, 6e-5, spin, True) == 0.0, "first, as ever"
    assert WaitEstimate().seconds_until_poll(2 * spin, 6e-5, spin, True) == inf
    sometimes = after(50 * MS, 80 * MS, 50 * MS)
    start, end = sometimes.window(6e-5)
    assert sometimes.seconds_until_poll(1 * MS, 6e-5, spin, True) == pytest.approx(start - 1 * MS)
    assert sometimes.seconds_until_poll((start + end) / 2, 6e-5, spin, True) == 0.0
    assert sometimes.seconds_until_poll(end, 6e-5, spin, True) == inf
