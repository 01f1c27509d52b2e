"""What tests of waiting use: limits on hanging, a ticker, and the machine's own jitter."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, TypeVar

import pytest
import uvloop

import numbasync as na
from numbasync.device import reactor
from numbasync.testing import gate

T = TypeVar("T")

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
loops = pytest.mark.parametrize("loop", LOOPS)


def run(loop: str, main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on the loop of that name."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(main)


def begin(call: Callable[[], T]) -> Callable[[], T]:
    """Start `call` on a thread of its own, with this one's current device; what waits for its
    result. A thread that hangs fails the test, not the whole run.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    variables = copy_context()

    def work() -> None:
        try:
            results.append(variables.run(call))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def result() -> T:
        thread.join(300)
        if thread.is_alive():
            pytest.fail("it hangs")
        if errors:
            raise errors[0]
        return results[0]

    return result


def in_time(call: Callable[[], T]) -> T:
    """`call()`, which must not hang."""
    return begin(call)()


async def happens(event: threading.Event) -> None:
    """Let the loop turn until another thread has set `event`."""
    assert await asyncio.to_thread(event.wait, 300), "it never happens"


async def eventually(condition: Callable[[], object]) -> None:
    """Turn the loop until `condition()` holds, by nothing but what runs meanwhile."""
    end = time.perf_counter() + 300
    while not condition():
        assert time.perf_counter() < end, "it never is"
        await asyncio.sleep(0)


async def timer(seconds: float) -> None:
    """A timer of the loop: for tests that measure timers, not for those that wait for something."""
    await asyncio.sleep(seconds)


async def rung_once(stream: na.Stream) -> None:
    """Wait until a sleeping loop is rung: what rings it may have to be compiled first, which
    takes processor time. Until then the loop looks every millisecond.
    """
    watcher = reactor.current()
    await na.zeros(4).schedule(stream)
    held = gate(stream)
    for attempt in range(200):
        wakeups = watcher.statistics().wakeups
        held.close()
        future = na.spawn(na.zeros(4), stream)
        # Never as long as the last times: what is foreseen is polled.
        threading.Timer(0.03 + 0.01 * (attempt % 5), held.open).start()
        await future
        if watcher.statistics().wakeups > wakeups:
            return
    pytest.fail("nothing rings the loop")
