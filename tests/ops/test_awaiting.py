"""Awaiting: operations and futures as citizens of asyncio, and what cancelling does."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.device import reactor
from numbasync.errors import AlreadySubmittedError, LaunchError
from numbasync.testing import Gate, settle
from tests.common import add_one, copy_to, fresh, saxpy, used, waited
from tests.holding import HeldCompiler


async def test_an_await_waits_for_the_gate(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    gate.close()
    future = na.ones(8).to_host().schedule(stream)
    task = asyncio.ensure_future(waited(future))
    await settle(device)
    assert not task.done() and not future.done()
    assert stream.pending == 1
    gate.open()
    np.testing.assert_array_equal(await task, np.ones(8))
    assert future.done()
    assert stream.pending == 0


async def test_spawn_starts_now_and_schedule_when_awaited(
    device: na.Device, stream: na.Stream
) -> None:
    ran: list[str] = []
    spawned = na.spawn(na.value(1).inspect(lambda _: ran.append("spawned")), stream)
    scheduled = na.value(2).inspect(lambda _: ran.append("scheduled")).schedule(stream)
    assert ran == ["spawned"]
    assert await scheduled == 2
    assert ran == ["spawned", "scheduled"]
    assert await spawned == 1


async def test_schedule_freezes_stream_and_pool(device: na.Device, policy: Any) -> None:
    streams = [device.new_stream() for _ in range(2)]
    pool, other = device.pool, device.new_pool()
    future = na.with_context(lambda ctx: (ctx.stream, ctx.pool)).schedule(streams[0])
    before = device.policy
    device.policy, device.pool = streams[1], other
    try:
        assert await future == (streams[0], pool)
        assert await na.with_context(lambda ctx: (ctx.stream, ctx.pool)) == (streams[1], other)
    finally:
        device.policy, device.pool = before, pool


async def test_a_policy_that_raises(device: na.Device) -> None:
    class Broken:
        def next_stream(self) -> na.Stream:
            raise LookupError("no stream today")

    with pytest.raises(LookupError):
        na.value(1).schedule(Broken())
    with pytest.raises(LookupError):
        na.spawn(na.value(1), Broken())
    x = await na.zeros(4)
    await add_one(x)
    before, device.policy = device.policy, Broken()
    try:
        for make in (lambda: na.value(1), lambda: na.zeros(4), lambda: add_one(x)):
            with pytest.raises(LookupError):
                await make()
            with pytest.raises(LookupError):
                make().sync()
            with pytest.raises(LookupError):
                await na.gather(make())
            with pytest.raises(LookupError):
                await asyncio.gather(make())
    finally:
        device.policy = before


def test_a_policy_that_gives_no_stream(device: na.Device) -> None:
    class Empty:
        def next_stream(self) -> Any:
            return None

    before, device.policy = device.policy, Empty()
    try:
        for op in (na.value(1), na.zeros(4)):
            with pytest.raises(AttributeError, match="NoneType"):
                op.sync()
            with pytest.raises(AlreadySubmittedError):
                op.sync()
    finally:
        device.policy = before


async def test_an_operation_that_ran_takes_no_stream(device: na.Device) -> None:
    def turns() -> list[na.Stream]:
        return [device.policy.next_stream() for _ in range(4)]

    x = await na.zeros(4)
    await add_one(x)
    ops: list[Any] = [na.value(1), na.zeros(4), add_one(x)]
    for op in ops:
        await op
        before = turns()
        for run in (op.sync, lambda op=op: na.gather(op), lambda op=op: asyncio.gather(op)):
            with pytest.raises(AlreadySubmittedError):
                await run()
        with pytest.raises(AlreadySubmittedError):
            await op
        assert turns() == before


async def test_a_future_is_awaited_repeatedly_and_by_two(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    gate.close()
    future = na.spawn(na.ones(4), stream)
    tasks = [asyncio.ensure_future(waited(future)) for _ in range(2)]
    await settle(device)
    gate.open()
    a, b = await asyncio.gather(*tasks)
    assert a is b is await future


async def test_asyncios_own_tools(device: na.Device) -> None:
    assert await asyncio.gather(na.value(1), na.spawn(na.value(2))) == [1, 2]
    assert await asyncio.wait_for(na.value(3), 300) == 3
    async with asyncio.timeout(300):
        assert await asyncio.shield(waited(na.value(4))) == 4
    async with asyncio.TaskGroup() as group:
        task = group.create_task(waited(na.zeros(3).to_host()))
    assert task.result().tolist() == [0, 0, 0]


async def test_a_cancelled_await_leaves_no_waiter(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    gate.close()
    task = asyncio.ensure_future(waited(na.zeros(4).schedule(stream)))
    await settle(device)
    task.cancel()
    await settle(device)
    assert reactor.current().statistics().waiting == 0
    gate.open()
    await stream.done()
    assert errors == []
    assert (await na.ones(2).to_host()).tolist() == [1, 1]


def test_a_loop_closed_early_returns_memory_later(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    start = used(device)
    gate.close()

    async def leave() -> None:
        na.spawn(na.zeros(2**18), stream)
        task = asyncio.ensure_future(waited(na.zeros(2**18).schedule(stream)))
        await settle(device)
        task.cancel()

    na.run(leave())
    assert used(device) > start
    gate.open()
    stream.synchronize()
    assert used(device) == start


async def test_an_error_at_enqueue_arrives_at_the_await(device: na.Device) -> None:
    z = await na.zeros(4)
    future = na.spawn(saxpy[1, 5000](z, 1.0, np.ones(4, np.float32)))
    with pytest.raises(LaunchError):
        await future
    assert future.done()


async def test_a_failed_future_that_nobody_awaits_is_named(device: na.Device) -> None:
    future = na.spawn(na.value(1).map(lambda _: 1 // 0))
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError"):
        del future
        gc.collect()


def test_a_future_is_waited_for_without_a_loop(device: na.Device) -> None:
    future = na.spawn(na.full(3, 2).to_host())
    assert future.sync().tolist() == [2, 2, 2]
    assert future.done()
    assert na.value(4).schedule(device.policy).sync() == 4


async def test_the_loop_turns_during_a_kernels_first_compilation(
    device: na.Device, compiler: HeldCompiler
) -> None:
    kernel, z = fresh(), await na.zeros(1)
    before = na.compile_count()
    tasks = [asyncio.ensure_future(waited(kernel(z))) for _ in range(3)]
    await compiler.has_begun()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not any(t.done() for t in tasks)
    future = na.spawn(kernel(z))
    threading.Timer(0.05, compiler.go_on).start()
    future.sync()  # submits all who stand in line before it, and blocks
    assert not any(t.done() for t in tasks)  # their loop has not turned since
    await asyncio.gather(*tasks)
    assert (await future).z is z
    assert na.compile_count() - before == 1
    assert (await z.to_host())[0] == 4


def test_copies_keep_their_sources(device: na.Device, stream: na.Stream, gate: Gate) -> None:
    copy_to.compile(na.meta(64), na.meta(64)).sync()
    na.ones(4).to_host().sync()
    gate.close()
    source = np.arange(64, dtype=np.float32)
    host = na.from_host(source).then(lambda t: t.to_host()).async_on(stream)
    first = na.zip(na.full(64, 3), na.full(64, 4)).first().async_on(stream)
    source[:] = -1
    del source
    gc.collect()
    trash = [na.full(64, -7).sync_on(device.new_stream()) for _ in range(4)]
    gate.open()
    stream.synchronize()
    np.testing.assert_array_equal(host, np.arange(64))
    assert (first.to_host().sync() == 3).all()
    del trash
