"""What must hold of the event loop meanwhile: it turns, sleeps, and has one descriptor more."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import numbasync as na
from numbasync.device import reactor
from numbasync.device.loop_turns import MOST_FINISHED
from numbasync.device.reactor import Waker
from numbasync.testing import Gate, settle
from numbasync.tools import cli
from tests.common import waited
from tests.device.fake_streams import turns
from tests.waiting import eventually, loops, run, rung_once, timer

# --- the loop turns ---


@loops
def test_the_loop_turns_while_the_device_works(
    device: na.Device, stream: na.Stream, gate: Gate, loop: str
) -> None:
    async def main() -> None:
        await rung_once(stream)
        watcher = reactor.current()
        gate.close()
        before = watcher.statistics()
        future = asyncio.ensure_future(waited(na.spawn(na.zeros(1000), stream)))
        await eventually(lambda: watcher.statistics().sleeps > before.sleeps)
        asleep = watcher.statistics()
        await turns(5000)
        awake = watcher.statistics()
        # It polls once in 0.1 s; while it does not sleep, once in each turn of the loop.
        assert awake.turns - asleep.turns < 500
        assert not future.done()
        gate.open()
        await future

    run(loop, main())


@contextmanager
def busy_thread(interval: float) -> Iterator[Callable[[float, Callable[[], None]], None]]:
    """A thread that computes in Python, and gives the interpreter away after `interval`. It
    calls what it is given, that many seconds later: one more thread would want its turn, too.
    """
    usual, stop = sys.getswitchinterval(), threading.Event()
    calls: deque[tuple[float, Callable[[], None]]] = deque()

    def compute() -> None:
        while not stop.is_set():
            if calls and time.perf_counter() >= calls[0][0]:
                calls.popleft()[1]()

    def call_later(seconds: float, call: Callable[[], None]) -> None:
        calls.append((time.perf_counter() + seconds, call))

    thread = threading.Thread(target=compute, daemon=True)
    sys.setswitchinterval(interval)
    thread.start()
    try:
        yield call_later
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(usual)


@loops
def test_a_computing_thread_delays_wakeups_by_one_interval(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    interval = 0.02
    began = [0.0]
    notify = Waker.notify

    def note(waker: Waker) -> None:
        began[0] = time.perf_counter()  # a device made of Python waits for the interpreter, too
        notify(waker)

    monkeypatch.setattr(Waker, "notify", note)

    async def wake_up_by_the_device(call_later: Callable[..., None]) -> float:
        def open_gate() -> None:
            began[0] = time.perf_counter()
            gate.open()

        async def woken() -> tuple[float, na.Tensor]:
            # Held: dropping it is a call of the driver, and so takes an interval.
            tensor = await na.zeros(4).schedule(stream)
            return time.perf_counter(), tensor

        gate.close()
        watcher = reactor.current()
        sleeps = watcher.statistics().sleeps
        task = asyncio.ensure_future(woken())
        # What it does before takes intervals, too.
        await eventually(lambda: watcher.statistics().sleeps > sleeps)
        call_later(0.005, open_gate)
        return (await task)[0] - began[0]

    async def wake_up_by_a_timer() -> float:
        due = time.perf_counter() + 0.005
        await timer(0.005)
        return time.perf_counter() - due

    async def main() -> None:
        await rung_once(stream)
        seen = []
        for _ in range(3):  # this machine has other work, too
            with busy_thread(interval) as later:
                plain = statistics.mean([await wake_up_by_a_timer() for _ in range(9)])
                late = statistics.mean([await wake_up_by_the_device(later) for _ in range(15)])
            seen.append((late, plain))
            if late < 1.5 * max(interval, plain):
                return
        pytest.fail(f"woken late (by the device, by a timer): {seen}")

    run(loop, main())


def test_doctor_says_what_the_switch_interval_is(
    device: na.Device, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(0.0075)
    try:
        assert cli.main(["doctor", "--device", device.kind]) == 0
    finally:
        sys.setswitchinterval(usual)
    assert re.search(r"^switch interval +7\.5 ms$", capsys.readouterr().out, re.MULTILINE)


# --- descriptors ---


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


needs_proc = pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="this system does not list descriptors"
)


async def wait_for_the_gate(device: na.Device, stream: na.Stream) -> None:
    """An await that makes the reactor sleep."""
    gate = Gate(stream)
    gate.close()
    task = asyncio.ensure_future(waited(na.zeros(4).schedule(stream)))
    await eventually(lambda: reactor.current().statistics().sleeps)
    await settle(device)
    gate.open()
    await task


@needs_proc
@loops
def test_a_loops_descriptor_is_made_at_first_sleep(
    device: na.Device, stream: na.Stream, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [device.new_stream() for _ in range(4)]
    run(loop, rung_once(stream))
    monkeypatch.setattr(Waker, "_spare", [])  # those of loops before
    monkeypatch.setattr(type(device.backend), "spin_seconds", 60.0)

    async def main() -> None:
        await asyncio.sleep(0)
        start = descriptors()
        await na.value(1)
        while not reactor.current().statistics().turns:  # what is quick may be done at once
            await na.zeros(1 << 16)
        assert descriptors() == start, "made although the loop has not slept"
        monkeypatch.setattr(type(device.backend), "spin_seconds", 0.0)
        for each in streams:
            await wait_for_the_gate(device, each)
        await na.gather(*(na.zeros(4).schedule(s) for s in streams))
        assert descriptors() == start + 1

    run(loop, main())


@loops
def test_short_operations_let_other_tasks_run(
    device: na.Device, stream: na.Stream, loop: str
) -> None:
    async def ticker(ticks: list[int]) -> None:
        while True:
            ticks.append(len(ticks))
            await asyncio.sleep(0)

    async def main() -> None:
        ticks: list[int] = []
        task = asyncio.ensure_future(ticker(ticks))
        t = await na.zeros(4)
        for _ in range(100):
            await na.fill(t, 1)
        assert len(ticks) >= 100 // MOST_FINISHED
        task.cancel()

    run(loop, main())


@needs_proc
@loops
@pytest.mark.parametrize("pending", [False, True], ids=["idle", "with a task that waits"])
def test_fifty_loops_use_the_descriptor_of_the_first(
    device: na.Device, stream: na.Stream, gate: Gate, loop: str, pending: bool
) -> None:
    async def leave() -> None:
        if pending:
            gate.close()
            task = asyncio.ensure_future(waited(na.zeros(4).schedule(stream)))
            await eventually(lambda: reactor.current().statistics().sleeps)
            del task
        else:
            await wait_for_the_gate(device, stream)

    def one_loop() -> None:
        run(loop, leave())
        gate.open()
        stream.synchronize()

    run(loop, rung_once(stream))
    one_loop()
    start = descriptors()
    for _ in range(50):
        one_loop()
    assert descriptors() <= start + 1
