"""A thread that drives the device, for loops that must not."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

import numbasync as na
from numbasync import runtime
from numbasync.errors import AlreadySubmittedError, StateError
from numbasync.testing import gate
from tests.common import add_one
from tests.waiting import eventually, happens


async def test_operations_run_on_the_thread(device: na.Device) -> None:
    async with na.Runtime(device) as rt:
        threads: list[int] = []
        z = await rt.run(na.zeros(4).inspect(lambda _: threads.append(threading.get_ident())))
        for _ in range(3):
            await rt.run(add_one(z).inspect(lambda _: threads.append(threading.get_ident())))
        assert (await rt.run(z.to_host())).tolist() == [3] * 4
        assert await rt.call(threading.get_ident) == threads[0]
        assert len(set(threads)) == 1 and threading.get_ident() not in threads
        assert await rt.call(na.default_device) is device
        assert "running" in repr(rt)
    assert "not running" in repr(rt)


async def test_calls_keep_their_order(device: na.Device) -> None:
    async with na.Runtime(device) as rt:
        seen: list[int] = []
        await asyncio.gather(*(rt.call(seen.append, i) for i in range(50)))
        assert seen == list(range(50))
        z = await rt.run(na.zeros(4))
        await asyncio.gather(*(rt.run(add_one(z)) for _ in range(50)))
        assert (await rt.run(z.to_host())).tolist() == [50] * 4


async def test_errors_come_back(device: na.Device) -> None:
    async with na.Runtime(device) as rt:
        with pytest.raises(ZeroDivisionError):
            await rt.call(lambda: 1 // 0)
        op = na.value(3)
        assert await rt.run(op) == 3
        with pytest.raises(AlreadySubmittedError):
            await rt.run(op)
        assert await rt.call(lambda a, b: a + b, 1, 2) == 3


async def test_leaving_waits_for_what_was_enqueued(device: na.Device) -> None:
    stream = device.new_stream()
    z = await na.zeros(4)
    add_one(z).sync_on(stream)
    held = gate(stream)
    held.close()
    timer = threading.Timer(0.05, held.open)
    async with na.Runtime(device) as rt:
        await rt.call(lambda: add_one(z).async_on(stream))
        timer.start()
    assert stream.query()
    assert (await z.to_host()).tolist() == [2] * 4


async def test_a_cancelled_call_still_completes(device: na.Device) -> None:
    started, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        assert go_on.wait(300)
        ended.set()

    async with na.Runtime(device) as rt:
        task = asyncio.ensure_future(rt.call(work))
        await happens(started)
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()
        assert await rt.call(lambda: 7) == 7


async def test_a_cancelled_operation_goes_on(device: na.Device) -> None:
    stream = device.new_stream()
    z = await na.zeros(4)
    add_one(z).sync_on(stream)
    held = gate(stream)
    async with na.Runtime(device) as rt:
        held.close()
        task: asyncio.Future[Any] = asyncio.ensure_future(rt.run(add_one(z).schedule(stream)))
        await eventually(lambda: stream.pending)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        held.open()
    assert (await z.to_host()).tolist() == [2] * 4


async def test_outside_of_its_block_it_says_so(device: na.Device) -> None:
    rt = na.Runtime(device)
    with pytest.raises(StateError, match="async with"):
        await rt.call(lambda: 1)
    op = na.value(3)
    with pytest.raises(StateError, match="async with"):
        await rt.run(op)
    assert await op == 3
    async with rt:
        with pytest.raises(StateError, match="already"):
            await rt.__aenter__()
    with pytest.raises(StateError, match="async with"):
        await rt.call(lambda: 1)


async def test_a_runtime_cancelled_while_starting_leaves_no_thread(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for the thread is cancelled, which must not cancel what the thread answers."""
    before, goes_on = set(threading.enumerate()), threading.Event()
    begun = threading.Event()

    def held() -> Any:
        begun.set()
        goes_on.wait(300)

    monkeypatch.setattr(runtime, "_loop_factory", held)

    async def enter() -> None:
        async with na.Runtime(device):
            raise AssertionError

    task = asyncio.ensure_future(enter())
    await eventually(begun.is_set)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    del task
    gc.collect()
    goes_on.set()
    for thread in set(threading.enumerate()) - before:
        if ":" in thread.name:
            thread.join(300)
            assert not thread.is_alive()
