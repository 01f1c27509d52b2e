"""What an event loop or a runtime that ends, or is interrupted, was still to run."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import numbasync as na
from numbasync.ops import backpressure
from numbasync.testing import Gate, counters, settle
from tests.common import add_one, waited
from tests.waiting import LOOPS, happens, loops


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancel them, and see that they are."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)


@pytest.mark.may_leave("a thread keeps the line of a loop that was never ended until its next loop")
@pytest.mark.parametrize("held", [True, False], ids=["tasks held", "tasks dropped"])
@pytest.mark.parametrize("then", ["another loop", "blocking", "another thread"])
def test_a_closed_loop_runs_only_spawned_work(
    device: na.Device, stream: na.Stream, gate: Gate, held: bool, then: str
) -> None:
    z, spawned, both = (na.zeros(4).sync() for _ in range(3))
    tasks: list[asyncio.Future[Any]] = []

    async def main() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # tasks were pending
        gate.close()
        na.spawn(add_one(spawned), stream)
        future = add_one(spawned).then(lambda r: add_one(r.z)).schedule(stream)
        ops = (
            add_one(z),
            na.value(z).then(lambda z: add_one(z)),
            add_one(z).schedule(stream),
            future,
        )
        tasks.extend(asyncio.ensure_future(waited(op)) for op in ops)
        tasks.append(asyncio.ensure_future(na.gather(add_one(z), add_one(z).schedule(stream))))
        last = na.spawn(add_one(spawned), stream)
        await settle(device)
        if not held:
            tasks.clear()
        return future, last

    na.limit(ops=1)
    try:
        loop = asyncio.new_event_loop()
        future, last = loop.run_until_complete(main())
        loop.close()
        gate.open()
        if then == "another loop":
            asyncio.run(waited(na.fill(both, 1)))
        elif then == "another thread":
            with ThreadPoolExecutor(1) as threads:
                threads.submit(future.sync).result(20)
        last.sync()
        if then == "another thread":
            assert future.done() and not future.cancelled(), "somebody else waits for it"
    finally:
        na.limit()
    assert z.to_host().sync().tolist() == [0] * 4
    expected = 4 if then == "another thread" else 2
    assert spawned.to_host().sync().tolist() == [expected] * 4
    tasks.clear()
    gc.collect()


@pytest.mark.may_leave("a thread keeps the line of a loop that was stopped until its next loop")
@loops
def test_ctrl_c_ends_all_that_a_loop_awaits(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    z = na.zeros(4).sync()
    blocked: list[Any] = []

    def run(room: backpressure.Capacity) -> None:
        blocked.append(room)
        gate.open()
        raise KeyboardInterrupt

    monkeypatch.setattr(backpressure.Capacity, "run", run)

    async def main() -> None:
        gate.close()
        na.limit(ops=1)
        futures.extend(na.spawn(add_one(z), stream) for _ in range(10))
        futures.append(na.spawn(na.value(z).then(lambda z: add_one(z)), stream))
        await settle(device)

    futures: list[Any] = []
    try:
        with pytest.raises(KeyboardInterrupt), asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(main())
    finally:
        na.limit()
    assert len(blocked) == 1
    assert [future.cancelled() for future in futures] == [False] * 2 + [True] * 9
    assert z.to_host().sync().tolist() == [1] * 4
    assert device.in_flight == (0, 0)


async def test_what_a_runtime_was_to_run_is_withdrawn(device: na.Device) -> None:
    z = await na.zeros(4)
    stream = device.new_stream()
    gate = Gate(stream)
    gate.close()
    async with na.Runtime(device) as rt:
        na.limit(ops=1)
        add_one(z).async_on(stream)
        before = counters()
        tasks = [asyncio.ensure_future(rt.run(add_one(z))) for _ in range(10)]
        await asyncio.sleep(0)
        await rt.run(settle(device))  # there they wait for room
        await cancelled(*tasks)
        too_early = [asyncio.ensure_future(rt.run(add_one(z))) for _ in range(10)]
        await asyncio.sleep(0)
        await cancelled(*too_early)
        await rt.call(lambda: None)
        gate.open()
        na.limit()
    assert (counters() - before).launches == 0
    assert (await z.to_host()).tolist() == [1] * 4


async def test_a_runtime_does_not_begin_what_is_left(device: na.Device) -> None:
    z, begun = await na.zeros(4), threading.Event()
    other = add_one(z).schedule(device.policy)

    async def coroutine() -> None:
        begun.set()
        await add_one(z)

    async with na.Runtime(device) as rt:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            busy, go_on = threading.Event(), threading.Event()
            held = asyncio.ensure_future(rt.call(lambda: busy.set() or go_on.wait(300)))
            await happens(busy)
            future, shared = add_one(z).schedule(device.policy), add_one(z).shared()
            ops = [add_one(z), future, other, shared, coroutine()]
            tasks = [asyncio.ensure_future(rt.run(op)) for op in ops]
            wanted = asyncio.ensure_future(rt.run(other))
            await asyncio.sleep(0)
            await cancelled(*tasks[:2], *tasks[3:])
            go_on.set()
            await asyncio.gather(held, tasks[2], wanted)
            assert future.cancelled() and not begun.is_set()
            assert (await rt.run(z.to_host())).tolist() == [1] * 4
            await rt.run(shared)
            assert (await rt.run(z.to_host())).tolist() == [2] * 4, "others may run it"
            del ops, tasks, future
