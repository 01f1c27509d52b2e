"""Cancelling one of several who wait for an operation: it goes on for the others."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import numbasync as na
from numbasync.testing import Gate, counters, settle
from tests.common import add_one, fresh, used, waited
from tests.holding import HeldCompiler
from tests.waiting import happens


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancel them, and see that they are."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)


async def test_of_two_who_wait_one_may_go(device: na.Device, stream: na.Stream, gate: Gate) -> None:
    z = await na.zeros(4)
    gate.close()
    with na.limit(ops=1):
        na.spawn(add_one(z), stream)
        one, two = add_one(z).schedule(stream), add_one(z).schedule(stream)
        tasks = [asyncio.ensure_future(waited(one)) for _ in range(2)]
        together = [asyncio.ensure_future(na.gather(two)) for _ in range(2)]
        await settle(device)
        await cancelled(tasks[0], together[0])
        assert not one.cancelled()
        gate.open()
        await asyncio.gather(tasks[1], together[1])
    assert (await z.to_host()).tolist() == [3] * 4


async def test_a_blocking_thread_waits_as_well(
    device: na.Device, stream: na.Stream, gate: Gate, blocks: threading.Event
) -> None:
    z = await na.zeros(4)
    gate.close()
    with na.limit(ops=1):
        na.spawn(add_one(z), stream)
        future = add_one(z).schedule(stream)
        task = asyncio.ensure_future(waited(future))
        await settle(device)
        other = asyncio.ensure_future(asyncio.to_thread(future.sync))
        await happens(blocks)
        await cancelled(task)
        gate.open()
        await asyncio.wait_for(other, 300)
    assert (await z.to_host()).tolist() == [2] * 4


@pytest.mark.parametrize("asked", ["while it compiles", "behind it", "later"])
async def test_a_shared_operation_continues_for_its_holders(
    device: na.Device, compiler: HeldCompiler, blocks: threading.Event, asked: str
) -> None:
    await na.zeros(4)
    start = used(device)
    z, calls = await na.zeros(4), []
    shared = add_one(z).then(lambda r: calls.append(1) or fresh()(r.z)).output().shared()
    before = counters()
    first = asyncio.ensure_future(waited(shared.then(lambda z: add_one(z))))
    await compiler.has_begun()
    other: Any = None
    pool = ThreadPoolExecutor(1)
    if asked == "while it compiles":  # on another thread

        def run(op: Any = shared) -> Any:
            with na.use_device(device):
                return op.sync()

        other = asyncio.get_running_loop().run_in_executor(pool, run)
        del run
        await happens(blocks)
    elif asked == "behind it":
        other = asyncio.ensure_future(waited(shared))
        await settle(device)
    await cancelled(first)
    compiler.go_on()
    assert (await (shared if other is None else other)) is z
    assert (await z.to_host()).tolist() == [2] * 4, "once, without what was to follow"
    assert calls == [1]
    assert (counters() - before).launches == 2
    del z, shared, other, first
    pool.shutdown()  # its thread holds what it has called for a moment longer than who waits
    await asyncio.sleep(0)  # this step of the loop holds the result
    assert used(device) == start


@pytest.mark.parametrize("asked", ["by nobody", "on this loop", "on another"])
async def test_nobody_waits_behind_what_nobody_goes_on_with(
    device: na.Device, stream: na.Stream, gate: Gate, asked: str
) -> None:
    await na.zeros(4)
    gate.close()
    with na.limit(bytes=4000):
        held = na.spawn(na.zeros(700), stream)
        shared = na.value(800).then(lambda n: na.zeros(n)).shared()
        first = asyncio.ensure_future(waited(shared))
        await settle(device)
        await cancelled(first)  # it waits for room, half enqueued
        gate.open()
        await held
        await asyncio.wait_for(waited(na.zeros(4)), 300)
        if asked == "on this loop":
            assert (await asyncio.wait_for(waited(shared), 300)).size == 800
        elif asked == "on another":
            there = asyncio.to_thread(asyncio.run, waited(shared))
            assert (await asyncio.wait_for(there, 300)).size == 800
        await asyncio.wait_for(waited(na.zeros(4)), 300)


@pytest.mark.may_leave("a thread keeps the line of a loop that was never ended until its next loop")
def test_a_holder_on_another_loop_waits_for_nobody(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    na.zeros(4).sync()

    async def main() -> tuple[Any, Any]:
        gate.close()
        na.spawn(na.zeros(700), stream)
        shared = na.value(800).then(lambda n: na.zeros(n)).shared()
        first = asyncio.ensure_future(waited(shared))
        await settle(device)
        with na.limit(priority=1):
            other = na.spawn(na.zeros(850), stream)
        await settle(device)
        await cancelled(first)
        await settle(device)
        return shared, other

    def work() -> tuple[Any, Any]:
        with na.use_device(device):
            loop = asyncio.new_event_loop()
            loop.set_exception_handler(lambda *_: None)  # tasks were pending
            found = loop.run_until_complete(main())
            held.append(loop)
            loop.close()  # what was spawned waits for room until somebody asks for it
            return found

    held: list[asyncio.AbstractEventLoop] = []
    na.limit(bytes=4000)
    try:
        with ThreadPoolExecutor(1) as threads:
            shared, other = threads.submit(work).result(20)
            gate.open()
            assert asyncio.run(asyncio.wait_for(waited(shared), 300)).size == 800
            assert other.sync().size == 850
    finally:
        na.limit()
