"""The completion protocol, with streams that are a number: no device, no sleep."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from numbasync.device import reactor
from numbasync.device.wait_estimate import LATENESS_S, RING_S, Lateness
from tests.device.fake_streams import Clock, FakeStream, run, turns
from tests.waiting import LOOPS, eventually


@pytest.fixture(params=LOOPS, autouse=True)
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return LOOPS[request.param]


def test_a_prefix_is_settled_in_one_look(loop_factory: Any) -> None:
    async def main() -> None:
        stream, watcher = FakeStream(), reactor.current()
        futures = [watcher.wait(stream, n) for n in (3, 1, 2, 5)]
        await turns()
        assert not any(f.done() for f in futures)
        stream.reach(3)
        await turns()
        assert [f.done() for f in futures] == [True, True, True, False]
        stream.reach(5)
        await turns()
        assert all(f.done() for f in futures)

    run(loop_factory, main())


def test_an_idle_reactor_schedules_nothing(loop_factory: Any) -> None:
    async def main() -> None:
        stream, watcher = FakeStream(spin_seconds=10.0), reactor.current()
        future = watcher.wait(stream, 1)
        stream.reach(1)
        await future
        before = watcher.statistics().turns
        await turns(50)
        assert watcher.statistics().turns == before
        assert watcher.statistics().waiting == 0

    run(loop_factory, main())


def test_it_looks_every_turn_while_work_is_short(loop_factory: Any) -> None:
    async def main() -> None:
        stream, watcher = FakeStream(spin_seconds=10.0), reactor.current()
        future = watcher.wait(stream, 1)
        await turns(20)
        assert stream.looks >= 15
        assert not stream.wakers
        stream.passed = 1  # it does not ring: looking is enough
        await turns()
        assert future.done()

    run(loop_factory, main())


def test_past_the_budget_it_sleeps_until_rung(loop_factory: Any) -> None:
    async def main() -> None:
        stream, watcher = FakeStream(spin_seconds=0.0), reactor.current()
        future = watcher.wait(stream, 7)
        await turns()
        assert [number for number, _ in stream.wakers] == [7]
        looks = stream.looks
        await turns(50)
        assert stream.looks == looks, "asleep, yet looking"
        threading.Thread(target=stream.reach, args=(7,)).start()
        await future
        assert watcher.statistics().wakeups >= 1

    run(loop_factory, main())


def test_a_late_but_shorter_waiter_is_rung(loop_factory: Any) -> None:
    async def main() -> None:
        stream, watcher = FakeStream(spin_seconds=0.0), reactor.current()
        late = watcher.wait(stream, 9)
        await turns()
        early = watcher.wait(stream, 3)
        await turns()
        assert [number for number, _ in stream.wakers] == [9, 3]
        threading.Thread(target=stream.reach, args=(3,)).start()
        await early
        assert not late.done()
        stream.reach(9)
        await late

    run(loop_factory, main())


def test_a_late_bell_is_not_trusted(loop_factory: Any) -> None:
    async def main() -> None:
        stream, watcher = FakeStream(spin_seconds=0.0), reactor.current()
        stream.prompt = False
        future = watcher.wait(stream, 1)
        await turns()
        stream.passed = 1  # and nobody rings
        await asyncio.wait_for(future, 300)
        assert len(stream.wakers) == 1, "asked once, not at every look"

    run(loop_factory, main())


@pytest.mark.parametrize("spin_seconds", [0.0, 60.0])
def test_a_stream_that_breaks_without_ringing_is_found(
    loop_factory: Any, monkeypatch: pytest.MonkeyPatch, spin_seconds: float
) -> None:
    monkeypatch.setattr(reactor, "WATCHDOG_SECONDS", 0.001)

    async def main() -> None:
        stream, watcher = FakeStream(spin_seconds), reactor.current()
        future = watcher.wait(stream, 1)
        await turns()
        stream.broken = True
        await asyncio.wait_for(future, 300)

    run(loop_factory, main())


@pytest.mark.parametrize("method", ["query_device", "wake"])
def test_a_question_that_fails_leaves_nobody_waiting(
    loop_factory: Any, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(reactor, "WATCHDOG_SECONDS", 0.001)

    failures: list[object] = []

    def fail(*args: object) -> bool:
        failures.append(args)
        raise OSError(f"{method} failed")

    async def main() -> None:
        asked, other, watcher = FakeStream(), FakeStream(), reactor.current()
        monkeypatch.setattr(asked, method, fail)
        first, second = watcher.wait(asked, 1), watcher.wait(other, 1)
        if method == "query_device":
            with pytest.raises(OSError, match="query_device failed"):
                await asyncio.wait_for(first, 300)
        else:
            await eventually(lambda: failures)
            asked.passed = 1  # nothing rings
            await asyncio.wait_for(first, 300)
        assert not second.done()
        other.passed = 1
        await asyncio.wait_for(second, 300)

    run(loop_factory, main())


class Alarms:
    """Stands for the alarm of a reactor: notes when it is to ring, and rings when the test says."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.seconds, self.lateness = clock, list[float](), Lateness()
        self.has_timers = True
        self.call: Callable[[], None] | None = None

    def start(self, loop: object, seconds: float, call: Callable[[], None]) -> bool:
        self.seconds.append(seconds)
        self.call = call
        return self.has_timers

    def stop(self) -> None:
        self.call = None

    close = stop

    def ring(self) -> None:
        """Let the time pass until the alarm, and ring it."""
        self.clock.now += self.seconds[-1]
        call, self.call = self.call, None
        assert call is not None
        call()


@pytest.fixture
def alarms(monkeypatch: pytest.MonkeyPatch) -> Alarms:
    clock = Clock()
    alarms = Alarms(clock)
    monkeypatch.setattr(reactor, "time", clock)
    monkeypatch.setattr(reactor, "Alarm", lambda: alarms)
    return alarms


async def polls_on(stream: FakeStream) -> bool:
    before = stream.looks
    await turns(20)
    return stream.looks >= before + 15


def test_regular_work_is_polled_when_it_is_due(loop_factory: Any, alarms: Alarms) -> None:
    clock = alarms.clock

    async def main() -> None:
        stream, watcher = FakeStream(spin_seconds=3e-4), reactor.current()
        for number in range(1, 4):
            begin = clock.now
            alarms.seconds.clear()
            future = watcher.wait(stream, number, "work")
            known = number == 3
            assert await polls_on(stream) is not known
            if not known:
                clock.now += 4e-4  # longer than a wait of which nothing is known is polled
            await turns()
            while alarms.call is not None and clock.now + alarms.seconds[-1] < begin + 0.01:
                alarms.ring()
                await turns()
            assert len(alarms.seconds) <= 3 if known else len(alarms.seconds) > 10
            assert (await polls_on(stream)) is known, "shortly before it is due"
            clock.now = begin + 0.01
            stream.reach(number)
            await future
        assert [number for number, _ in stream.wakers] == [1, 2], "nobody knew"

    run(loop_factory, main())


def test_early_work_is_polled_earlier_next_time(loop_factory: Any, alarms: Alarms) -> None:
    async def main() -> None:
        stream, watcher = FakeStream(spin_seconds=3e-4), reactor.current()
        for number in (1, 2):
            begin = alarms.clock.now
            future = watcher.wait(stream, number, "work")
            await turns()
            alarms.clock.now += 1e-3
            await turns()
            stream.passed = number
            alarms.ring()
            await future
        took = alarms.clock.now - begin
        start, end = watcher.last_waits["work"].window(0.0)
        assert start < took - LATENESS_S < end

    run(loop_factory, main())


def test_work_halved_on_two_devices_is_seen_soon(loop_factory: Any, alarms: Alarms) -> None:
    """The waits for both are of one kind, and two of the first are alike, but too long: what was
    foreseen does not creep towards what is.
    """

    async def lasts(seconds: float, *streams: FakeStream) -> tuple[float, bool]:
        """How late the end of such work is seen, and whether all streams were asked to notify."""
        watcher, begin = reactor.current(), alarms.clock.now
        numbers = [stream.passed + 1 for stream in streams]
        futures = [watcher.wait(s, n, "work") for s, n in zip(streams, numbers, strict=True)]
        await turns()
        alarms.clock.now += 4e-4  # longer than a wait of which nothing is known is polled
        await turns()
        while alarms.call is not None and alarms.clock.now + alarms.seconds[-1] < begin + seconds:
            alarms.ring()
            await turns()
        asked = all(
            stream.wakers and stream.wakers[-1][0] == n
            for stream, n in zip(streams, numbers, strict=True)
        )
        if asked or alarms.call is None:
            alarms.clock.now = begin + seconds
        for stream, number in zip(streams, numbers, strict=True):
            stream.reach(number)
        if not asked and alarms.call is not None:
            alarms.ring()
        await asyncio.gather(*futures)
        return alarms.clock.now - begin - seconds, asked

    async def main() -> None:
        one, other = FakeStream(spin_seconds=3e-4), FakeStream(spin_seconds=3e-4)
        for _ in range(4):
            await lasts(0.023, one)
        late, asked = await lasts(0.0115, one, other)
        assert asked and late < 1e-9, "they notify the loop"
        for _ in range(4):
            await lasts(0.008, one)
        late, asked = await lasts(0.004, one, other)
        assert not asked and late > 5e-4, "once: nobody could foresee it"
        late, asked = await lasts(0.004, one, other)
        assert asked and late < 1e-9

    run(loop_factory, main())


def test_longer_than_foreseen_work_notifies_the_loop(loop_factory: Any, alarms: Alarms) -> None:
    async def main() -> None:
        stream, watcher = FakeStream(spin_seconds=3e-4), reactor.current()
        future = watcher.wait(stream, 1)
        await turns()
        while not stream.wakers:
            alarms.clock.now += 1e-4
            await turns()
            if alarms.call is not None:
                alarms.ring()
        assert RING_S <= alarms.clock.now < 1.2 * RING_S
        stream.reach(1)
        await future

    run(loop_factory, main())


def test_late_timers_make_notifications_early(loop_factory: Any, alarms: Alarms) -> None:
    async def main() -> None:
        stream, watcher = FakeStream(spin_seconds=3e-4), reactor.current()
        alarms.lateness.note(1.0)
        future = watcher.wait(stream, 1)
        assert await polls_on(stream) and not stream.wakers
        alarms.clock.now += 3.1e-4
        await turns()
        assert stream.wakers and alarms.call is not None, "and the timer is set all the same"
        stream.reach(1)
        await future

    run(loop_factory, main())


def test_without_timers_the_loop_is_notified(loop_factory: Any, alarms: Alarms) -> None:
    async def main() -> None:
        stream, watcher = FakeStream(spin_seconds=3e-4), reactor.current()
        alarms.has_timers = False
        future = watcher.wait(stream, 1)
        await turns()
        alarms.clock.now += 3.1e-4
        await turns()
        assert stream.wakers and not alarms.seconds
        stream.reach(1)
        await future

    run(loop_factory, main())


def test_work_that_is_polled_throughout(loop_factory: Any, alarms: Alarms) -> None:
    async def main() -> None:
        stream, watcher = FakeStream(spin_seconds=3e-4), reactor.current()
        future = watcher.wait(stream, 1, None)
        alarms.clock.now += 50.0
        await turns(20)
        assert await polls_on(stream)
        assert not stream.wakers and not alarms.seconds
        stream.passed = 1
        await future

    run(loop_factory, main())


def test_a_second_wait_begins_where_the_first_ends(loop_factory: Any, alarms: Alarms) -> None:
    async def main() -> None:
        stream, watcher = FakeStream(spin_seconds=3e-4), reactor.current()
        futures = [watcher.wait(stream, n, "work") for n in (1, 2)]
        for number, future in enumerate(futures, 1):
            alarms.clock.now += 0.1
            stream.reach(number)
            watcher.look()
            await turns()
            assert future.done()
        assert watcher.last_waits["work"].is_long
        assert watcher.last_waits["work"].window(0.0)[0] < 0.1 < 0.11

    run(loop_factory, main())


def test_two_streams_do_not_wait_for_each_other(loop_factory: Any) -> None:
    async def main() -> None:
        slow, quick, watcher = FakeStream(), FakeStream(), reactor.current()
        first, second = watcher.wait(slow, 1), watcher.wait(quick, 1)
        await turns()
        quick.reach(1)
        await turns()
        assert second.done() and not first.done()
        slow.reach(1)
        await first

    run(loop_factory, main())


def test_a_forgotten_waiter_leaves_nothing_behind(loop_factory: Any) -> None:
    async def main() -> None:
        stream, watcher = FakeStream(), reactor.current()
        future = watcher.wait(stream, 1)
        await turns()
        future.cancel()
        watcher.forget(stream, future)
        assert watcher.statistics().waiting == 0
        looks = stream.looks
        await turns(20)
        assert stream.looks == looks

    run(loop_factory, main())


def test_a_cancelled_future_is_not_set(loop_factory: Any) -> None:
    async def main() -> None:
        stream, watcher = FakeStream(), reactor.current()
        gone, stays = watcher.wait(stream, 1), watcher.wait(stream, 2)
        gone.cancel()
        stream.reach(2)
        await stays
        assert gone.cancelled()

    run(loop_factory, main())


def test_a_reactor_shows_its_state(loop_factory: Any) -> None:
    async def main() -> None:
        watcher = reactor.current()
        stream = FakeStream()
        future = watcher.wait(stream, 1)
        assert "1 waiting on 1 streams" in repr(watcher)
        stream.reach(1)
        await future
        assert "0 waiting" in repr(watcher)
        assert watcher.statistics().completed == 1

    run(loop_factory, main())


def test_a_decision_to_poll_stands_for_a_moment(
    loop_factory: Any, alarms: Alarms, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        stream, watcher = FakeStream(spin_seconds=10.0), reactor.current()
        plans, plan = list[float](), watcher._plan

        def counted(now: float) -> Any:
            plans.append(now)
            return plan(now)

        monkeypatch.setattr(watcher, "_plan", counted)
        first = watcher.wait(stream, 1)
        assert await polls_on(stream) and len(plans) == 1
        alarms.clock.now += reactor.PLANNED_S
        assert await polls_on(stream) and len(plans) == 2
        second = watcher.wait(stream, 2)  # changes what is to be done
        assert await polls_on(stream) and len(plans) == 3
        stream.reach(2)
        await asyncio.gather(first, second)

    run(loop_factory, main())
