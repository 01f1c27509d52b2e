"""What wakes a sleeping event loop: one doorbell a loop, handed on from loop to loop."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from numbasync.device import reactor
from numbasync.device.reactor import Waker
from tests.device.fake_streams import FakeStream, run, turns
from tests.waiting import LOOPS


@pytest.fixture(params=LOOPS, autouse=True)
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return LOOPS[request.param]


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
