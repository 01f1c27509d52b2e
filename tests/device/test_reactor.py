"""The completion protocol, with streams that are a number: no device, no sleep."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from numbasync.device import reactor
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
        assert not stream.bells
        stream.passed = 1  # it does not ring: looking is enough
        await turns()
        assert future.done()

    run(loop_factory, main())


def test_past_the_budget_it_sleeps_until_it_is_rung(loop_factory: Any) -> None:
    async def main() -> None:
        stream, watcher = FakeStream(spin_seconds=0.0), reactor.current()
        future = watcher.wait(stream, 7)
        await turns()
        assert [number for number, _ in stream.bells] == [7]
        looks = stream.looks
        await turns(50)
        assert stream.looks == looks, "asleep, yet looking"
        threading.Thread(target=stream.reach, args=(7,)).start()
        await future
        assert watcher.statistics().rings >= 1

    run(loop_factory, main())


def test_one_who_comes_late_and_waits_for_less_is_rung_too(loop_factory: Any) -> None:
    async def main() -> None:
        stream, watcher = FakeStream(spin_seconds=0.0), reactor.current()
        late = watcher.wait(stream, 9)
        await turns()
        early = watcher.wait(stream, 3)
        await turns()
        assert [number for number, _ in stream.bells] == [9, 3]
        threading.Thread(target=stream.reach, args=(3,)).start()
        await early
        assert not late.done()
        stream.reach(9)
        await late

    run(loop_factory, main())


def test_a_bell_that_may_be_late_is_not_trusted(loop_factory: Any) -> None:
    async def main() -> None:
        stream, watcher = FakeStream(spin_seconds=0.0), reactor.current()
        stream.prompt = False
        future = watcher.wait(stream, 1)
        await turns()
        stream.passed = 1  # and nobody rings
        await asyncio.wait_for(future, 300)
        assert len(stream.bells) == 1, "asked once, not at every look"

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


@pytest.mark.parametrize(
    ("took", "patient"),
    [((0.0004, 0.0004), True), ((0.0004, 0.003), False), ((0.003, 0.0004), False),
     ((0.002, 0.002), False)],
    ids=str,
)  # fmt: skip
def test_what_was_short_twice_is_looked_through(
    loop_factory: Any, monkeypatch: pytest.MonkeyPatch, took: tuple[float, ...], patient: bool
) -> None:
    """To sleep and to be woken would take a third as long again."""
    clock = Clock()
    monkeypatch.setattr(reactor, "time", clock)

    async def main() -> None:
        stream, watcher = FakeStream(spin_seconds=1e-6), reactor.current()
        for number, seconds in enumerate(took, 1):
            clock.now = float(number)
            future = watcher.wait(stream, number)
            await turns()
            clock.now += seconds
            stream.reach(number)
            await future
        clock.now = 10.0
        future = watcher.wait(stream, 3)
        looked = []
        for at in (0.0003, 0.00049, 0.00051):
            clock.now = 10.0 + at
            await turns()
            before = stream.looks
            await turns(20)
            looked.append(stream.looks >= before + 15)
        assert looked == [patient, patient, False]
        stream.reach(3)
        await future

    run(loop_factory, main())


def test_what_takes_as_long_every_time_is_looked_for_when_it_is_due(
    loop_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(reactor, "time", clock)

    async def looks_on(stream: FakeStream, at: float) -> bool:
        clock.now = at
        reactor.current().look()
        await turns()
        before = stream.looks
        await turns(20)
        return stream.looks >= before + 15

    async def main() -> None:
        stream, watcher = FakeStream(spin_seconds=1e-6), reactor.current()
        found = []
        for number in range(1, 5):
            begin = clock.now = 10.0 * number
            future = watcher.wait(stream, number)
            await turns()
            due = [begin + s for s in (0.4900, 0.4990, 0.5010, 0.5020)]
            found.append([await looks_on(stream, at) for at in due])
            clock.now = begin + 0.5
            stream.reach(number)
            await future
        assert found[0] == found[1] == [False] * 4, "one is no rule"
        assert found[2] == found[3] == [False, True, True, False]
        clock.now = 100.0
        watcher.wait(stream, 5)
        clock.now = 100.7
        stream.reach(5)
        await turns(20)
        watcher.wait(stream, 6)
        clock.now = 101.4
        await turns(20)
        assert not await looks_on(stream, 101.2), "the last two were not alike"
        stream.reach(6)
        await turns(20)

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
