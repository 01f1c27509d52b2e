"""What wakes a sleeping event loop: one waker a loop, handed on from loop to loop."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from numbasync.device import reactor
from numbasync.device.loop_alarm import Alarm
from numbasync.device.loop_wakeup import Timer
from numbasync.device.reactor import Waker
from tests.device.fake_streams import FakeStream, run, turns
from tests.waiting import LOOPS, eventually


@pytest.fixture(params=LOOPS, autouse=True)
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return LOOPS[request.param]


def test_every_loop_has_its_own_waker(loop_factory: Any) -> None:
    async def one() -> tuple[int, int]:
        stream, watcher = FakeStream(), reactor.current()
        future = watcher.wait(stream, 1)
        await turns()
        stream.reach(1)
        await future
        assert watcher._waker is not None
        return id(watcher), watcher._waker.fileno

    found = [run(loop_factory, one()) for _ in range(20)]
    # Each loop's waker goes to the next loop, so that native code which still holds the
    # number of an old one notifies a waker, not a stranger's file.
    assert len({waker for _, waker in found}) <= 2


def test_a_closed_loop_with_waiters_is_cleared(loop_factory: Any) -> None:
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


def test_a_child_does_not_notify_parents_wakers(
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
def test_wakers_never_block_when_nobody_answers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "sockets":
        monkeypatch.delattr(os, "eventfd", raising=False)
    waker = Waker()
    assert (waker.eventfd >= 0) == (kind == "eventfd")
    for _ in range(100_000):
        waker.notify()
    waker.clear()
    waker.clear()
    close(waker)


def close(waker: Waker) -> None:
    """What no program does: a waker lives as long as the process."""
    if waker.eventfd >= 0:
        os.close(waker.eventfd)
    else:
        for end in (waker._send, waker._receive):
            end.func.__self__.close()  # type: ignore[attr-defined]


def test_a_system_without_eventfd_is_rung_through_sockets(
    loop_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "eventfd", raising=False)
    monkeypatch.setattr(Waker, "_spare", [])

    wakers: list[Any] = []

    async def main() -> None:
        stream, watcher = FakeStream(), reactor.current()
        future = watcher.wait(stream, 1)
        await turns()
        assert stream.wakers[0][1].eventfd == -1
        wakers.append(watcher._waker)
        threading.Thread(target=stream.reach, args=(1,)).start()
        await future

    run(loop_factory, main())
    close(wakers[0])


# --- timers ---


def test_a_timer_wakes_the_loop_once(loop_factory: Any) -> None:
    async def main() -> None:
        loop, alarm = asyncio.get_running_loop(), Alarm()
        rung: list[float] = []
        begin = time.perf_counter()
        for seconds in (0.0, 1e-7, 0.0004, 0.0123):
            rung.clear()
            begin = time.perf_counter()
            assert alarm.start(loop, seconds, lambda: rung.append(time.perf_counter()))
            await eventually(lambda: rung)
            assert rung[0] >= begin + seconds
            await turns(50)
            assert len(rung) == 1
        alarm.start(loop, 0.001, lambda: rung.append(0.0))
        alarm.start(loop, 0.002, lambda: rung.append(1.0))  # in the place of the first
        await eventually(lambda: len(rung) > 1)
        assert rung[1:] == [1.0]
        alarm.start(loop, 0.001, lambda: rung.append(0.0))
        time_is_over(alarm)
        alarm.stop()
        await turns(50)
        assert rung[1:] == [1.0]
        alarm.close()

    run(loop_factory, main())


def time_is_over(alarm: Alarm) -> None:
    """Wait until the timer of the alarm has run out, while the loop does not turn."""
    assert alarm._timer is not None
    assert select.select([alarm._timer.fileno], [], [], 300)[0]


def test_timers_are_handed_on_stopped(loop_factory: Any) -> None:
    numbers = set()

    async def main() -> None:
        alarm = Alarm()
        assert alarm.start(asyncio.get_running_loop(), 0.0001, lambda: None)
        time_is_over(alarm)
        timer = alarm._timer
        assert timer is not None
        numbers.add(timer.fileno)
        alarm.close()
        assert not select.select([timer.fileno], [], [], 0)[0]

    for _ in range(20):
        run(loop_factory, main())
    assert len(numbers) == 1


def test_a_child_does_not_set_parents_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = Timer.take()
    Timer.hand_on(parents)
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as a child sees it
    own = Timer.take()
    assert own is not parents
    parents.start(0.0)
    Timer.hand_on(parents)
    assert parents not in Timer._spare
    assert select.select([parents.fileno], [], [], 300)[0], "it would be stopped for the parent"
    parents.stop()
    os.close(own.fileno)


def test_where_there_are_no_timers(loop_factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Timer:
        raise OSError("no timer can be made")

    monkeypatch.setattr(Timer, "take", fail)

    async def main() -> None:
        alarm = Alarm()
        assert not alarm.start(asyncio.get_running_loop(), 0.1, lambda: None)
        assert not alarm.has_timers
        alarm.stop()
        alarm.close()

    run(loop_factory, main())
