"""The completion protocol, with streams that are a number: no device, no sleep."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from numbasync.backend import protocols
from numbasync.device import reactor
from numbasync.device.reactor import Waker
from tests.waiting import eventually


class FakeStream:
    """A stream whose position the test sets."""

    def __init__(self, spin_seconds: float = 0.0) -> None:
        self.spin_seconds = spin_seconds
        self.passed = 0
        self.looks = 0
        self.bells: list[tuple[int, protocols.Waker]] = []
        self.prompt = True
        self.broken = False

    def advance(self) -> int:
        self.looks += 1
        return self.passed

    def wake(self, sequence: int, waker: protocols.Waker) -> bool:
        self.bells.append((sequence, waker))
        return self.prompt

    def query_device(self) -> bool:
        if self.broken:
            self.passed = sys.maxsize
        return self.broken

    def reach(self, sequence: int) -> None:
        """Pass a position and ring, as a device does."""
        self.passed = sequence
        for number, bell in self.bells:
            if number <= sequence:
                bell.notify()


async def turns(n: int = 6) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS, autouse=True)
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return LOOPS[request.param]


def run(factory: Callable[[], Any], main: Any) -> Any:
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


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
        await asyncio.wait_for(future, 5)
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
        await asyncio.wait_for(future, 5)

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
                await asyncio.wait_for(first, 5)
        else:
            await eventually(lambda: failures)
            asked.passed = 1  # nothing rings
            await asyncio.wait_for(first, 5)
        assert not second.done()
        other.passed = 1
        await asyncio.wait_for(second, 5)

    run(loop_factory, main())


class Clock:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now


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


def test_every_loop_has_its_own_and_doorbells_are_handed_on(loop_factory: Any) -> None:
    async def one() -> tuple[int, int]:
        stream, watcher = FakeStream(), reactor.current()
        future = watcher.wait(stream, 1)
        await turns()
        stream.reach(1)
        await future
        assert watcher._bell is not None
        return id(watcher), watcher._bell.fileno

    found = [run(loop_factory, one()) for _ in range(20)]
    # Each loop's bell goes to the next loop, so that native code which still holds the
    # number of an old one rings a bell, not a stranger's file.
    assert len({bell for _, bell in found}) <= 2


def test_a_loop_closed_under_its_waiters_is_cleared_away(loop_factory: Any) -> None:
    async def leave() -> None:
        reactor.current().wait(FakeStream(), 1)
        await turns()

    async def nothing() -> None:
        reactor.current()

    run(loop_factory, leave())
    before = len(reactor._reactors)
    for _ in range(5):
        run(loop_factory, leave())
    run(loop_factory, nothing())
    gc.collect()
    assert len(reactor._reactors) <= before + 1


def test_a_forked_child_does_not_ring_its_parents_bells(
    loop_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parents = Waker.take()
    Waker.hand_on(parents)
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as a child sees it
    own = Waker.take()
    assert own is not parents
    Waker.hand_on(parents)
    assert parents not in Waker._spare


@pytest.mark.parametrize("kind", ["eventfd", "sockets"])
def test_doorbells_never_block_when_nobody_answers(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "sockets":
        monkeypatch.delattr(os, "eventfd", raising=False)
    bell = Waker()
    assert (bell.eventfd >= 0) == (kind == "eventfd")
    for _ in range(100_000):
        bell.notify()
    bell.clear()
    bell.clear()
    close(bell)


def close(bell: Waker) -> None:
    """What no program does: a bell lives as long as the process."""
    if bell.eventfd >= 0:
        os.close(bell.eventfd)
    else:
        for end in (bell._send, bell._receive):
            end.func.__self__.close()  # type: ignore[attr-defined]


def test_a_system_without_eventfd_is_rung_through_sockets(
    loop_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "eventfd", raising=False)
    monkeypatch.setattr(Waker, "_spare", [])

    bells: list[Any] = []

    async def main() -> None:
        stream, watcher = FakeStream(), reactor.current()
        future = watcher.wait(stream, 1)
        await turns()
        assert stream.bells[0][1].eventfd == -1
        bells.append(watcher._bell)
        threading.Thread(target=stream.reach, args=(1,)).start()
        await future

    run(loop_factory, main())
    close(bells[0])


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
