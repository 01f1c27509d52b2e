"""Cancelling: what nobody waits for any more, and what has not been enqueued, does not run."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.tensors import parallel_copy
from numbasync.testing import Gate, counters, settle
from tests.common import add_one, copy_to, fresh, used, waited
from tests.holding import HeldCompiler
from tests.waiting import eventually, happens


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancel them, and see that they are."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)


# --- the queue in front of the device --------------------------------------------------------


def by_await(z: na.Tensor, stream: na.Stream) -> Any:
    return waited(add_one(z))


def by_schedule(z: na.Tensor, stream: na.Stream) -> Any:
    return waited(add_one(z).schedule(stream))


def by_brackets(z: na.Tensor, stream: na.Stream) -> Any:
    return waited(add_one[1, 4, stream](z))


def by_gather(z: na.Tensor, stream: na.Stream) -> Any:
    return na.gather(add_one(z), add_one(z).schedule(stream))


def by_chain(z: na.Tensor, stream: na.Stream) -> Any:
    return waited(na.value(z).then(lambda z: add_one(z)))


WAYS: list[Callable[..., Any]] = [by_await, by_schedule, by_brackets, by_gather, by_chain]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_cancelled_waiters_for_room_launch_nothing(
    device: na.Device, stream: na.Stream, gate: Gate, way: Callable[..., Any]
) -> None:
    z, last = await na.zeros(4), await na.zeros(4)
    gate.close()
    with na.limit(ops=1):
        held = asyncio.ensure_future(waited(add_one(z).schedule(stream)))
        await settle(device)
        before = counters()
        tasks = [asyncio.ensure_future(way(z, stream)) for _ in range(100)]
        behind = asyncio.ensure_future(waited(add_one(last).schedule(stream)))
        await settle(device)
        await cancelled(*tasks)
        assert device.in_flight.ops == 1
        gate.open()
        await held
        await behind
    assert (counters() - before).launches == 1, "what is still wanted"
    assert (await z.to_host()).tolist() == [1] * 4
    assert (await last.to_host()).tolist() == [1] * 4
    assert device.in_flight == (0, 0)


async def test_a_cancelled_first_compilation_cancels_those_behind(
    device: na.Device, compiler: HeldCompiler
) -> None:
    new, z = fresh(), await na.zeros(4)
    before = counters()
    tasks = [asyncio.ensure_future(waited(new(z))) for _ in range(50)]
    tasks += [asyncio.ensure_future(waited(add_one(z))) for _ in range(50)]
    await compiler.has_begun()
    await cancelled(*tasks)
    await add_one(z)  # does not wait for a compilation that nobody waits for
    compiler.go_on()
    assert (await z.to_host()).tolist() == [1] * 4
    assert (counters() - before).launches == 1
    await new(z)
    assert (counters() - before).compiles == 1, "it went on"


async def test_leaving_a_block_releases_nobody_at_once(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    z, free = await na.zeros(4), await na.zeros(4)
    gate.close()
    before = counters()
    with na.limit(ops=2):
        futures = [na.spawn(add_one(z), stream) for _ in range(20)]
        abandoned = [asyncio.ensure_future(waited(add_one(z).schedule(stream))) for _ in range(400)]
        await settle(device)
    await settle(device)
    assert (counters() - before).launches == device.in_flight.ops == 2
    await cancelled(*abandoned)
    assert await asyncio.wait_for(waited(add_one(free)), 300), "not under the limit, nor behind it"
    gate.open()
    for future in futures:
        assert device.in_flight.ops <= 2
        await future
    assert (counters() - before).launches == 21
    assert (await z.to_host()).tolist() == [20] * 4
    assert (await free.to_host()).tolist() == [1] * 4


async def test_spawned_work_runs_though_dropped_or_cancelled(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    z = await na.zeros(4)
    gate.close()
    with na.limit(ops=1):
        futures = [na.spawn(add_one(z), stream) for _ in range(4)]
        tasks = [asyncio.ensure_future(waited(futures.pop()))]
        tasks.append(asyncio.ensure_future(na.gather(*futures)))
        await settle(device)
        await cancelled(*tasks)
        futures.clear()
        gate.open()
        await na.spawn(add_one(z), stream)
    assert (await z.to_host()).tolist() == [5] * 4


# --- who waits -------------------------------------------------------------------------------


async def test_who_waits_for_long_piles_up_nothing(
    device: na.Device, stream: na.Stream, gate: Gate, looks: list[Any]
) -> None:
    z = await na.zeros(4)
    gate.close()
    with na.limit(ops=1):
        na.spawn(add_one(z), stream)
        future = add_one(z).schedule(stream)
        tasks = [asyncio.ensure_future(waited(future)) for _ in range(3)]
        await eventually(lambda: len(looks) >= 30)
        turn = future._turn
        assert turn is not None and len(turn._calls) <= len(tasks)
        await cancelled(*tasks)
        await asyncio.sleep(0)
        assert not turn._calls
        gate.open()


async def test_cancel_withdraws_what_has_not_been_enqueued(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    z = await na.zeros(4)
    gate.close()
    never = add_one(z).schedule(stream)
    with na.limit(ops=1):
        enqueued, waits = na.spawn(add_one(z), stream), na.spawn(add_one(z), stream)
        task = asyncio.ensure_future(waited(waits))
        await settle(device)
        assert not enqueued.cancel()
        assert waits.cancel()
        assert never.cancel()
        assert not waits.cancel(), "as asyncio's futures: it is done"
        assert waits.cancelled() and waits.done() and not enqueued.cancelled()
        await asyncio.wait([task])
        assert task.cancelled()
        for future in (waits, never):
            with pytest.raises(asyncio.CancelledError):
                await future
            with pytest.raises(asyncio.CancelledError):
                future.sync()
        gate.open()
        await enqueued
    assert not enqueued.cancel()
    assert (await z.to_host()).tolist() == [1] * 4


async def test_another_thread_may_cancel(device: na.Device, stream: na.Stream, gate: Gate) -> None:
    z = await na.zeros(4)
    gate.close()
    with na.limit(ops=1):
        na.spawn(add_one(z), stream)
        futures = [na.spawn(add_one(z), stream) for _ in range(3)]
        await settle(device)
        assert await asyncio.to_thread(futures[0].cancel)
        assert await asyncio.to_thread(futures[1].cancel)
        gate.open()
        await asyncio.wait_for(waited(futures[2]), 300)
    assert (await z.to_host()).tolist() == [2] * 4


@pytest.mark.parametrize("how", ["wait_for", "timeout", "group", "gather", "asyncio.gather"])
async def test_every_way_of_asyncio_withdraws(
    device: na.Device, stream: na.Stream, gate: Gate, how: str
) -> None:
    z = await na.zeros(4)

    async def fail() -> None:
        await settle(device)  # the others wait for room
        raise LookupError

    async def give_up() -> None:
        count = 1 if how in ("wait_for", "timeout") else 3
        ops = [add_one(z).schedule(stream) for _ in range(count)]
        if how == "wait_for":
            await asyncio.wait_for(ops[0], 0.01)
        elif how == "timeout":
            async with asyncio.timeout(0.01):
                await ops[0]
        elif how == "group":
            async with asyncio.TaskGroup() as group:
                for op in ops:
                    group.create_task(waited(op))
                group.create_task(fail())
        elif how == "gather":
            await asyncio.wait_for(na.gather(*ops), 0.01)
        else:
            await asyncio.wait_for(asyncio.gather(*ops), 0.01)

    gate.close()
    before = counters()
    with na.limit(ops=1):
        na.spawn(add_one(z), stream)
        with pytest.raises((TimeoutError, ExceptionGroup)):
            await give_up()
        gate.open()
    await stream.done()
    assert (counters() - before).launches == 1
    assert (await z.to_host()).tolist() == [1] * 4


# --- what others need ------------------------------------------------------------------------


async def test_a_half_enqueued_chain_stops_freeing_nothing_used(
    device: na.Device, stream: na.Stream, gate: Gate, compiler: HeldCompiler
) -> None:
    seen: list[na.Tensor] = []
    start = used(device)
    gate.close()
    before = counters()
    op = (
        na.zeros(2**16).inspect(seen.append).then(lambda z: add_one(z).output())
        .then(lambda z: fresh()(z).output()).then(lambda z: add_one(z))
    )  # fmt: skip
    task = asyncio.ensure_future(waited(op.schedule(stream)))
    await compiler.has_begun()
    await cancelled(task)
    assert (counters() - before).launches == 1
    compiler.go_on()
    other = na.full(2**16, 9).sync_on(device.new_stream())
    gate.open()
    await stream.done()
    assert set((await seen[0].to_host()).tolist()) == {1}
    assert set((await other.to_host()).tolist()) == {9}
    seen.clear()
    del op, task, other
    assert used(device) == start
    assert device.in_flight == (0, 0)


async def test_memory_of_what_is_withdrawn_is_freed(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    z = await na.zeros(4)
    await add_one(z)  # loaded before the gate is closed, behind which a GPU loads nothing
    await copy_to(na.zeros(8), na.zeros(8))
    start = used(device)
    handed_over = (await na.zeros(2**16)).take()
    gate.close()
    with na.limit(ops=1), warnings.catch_warnings():
        warnings.simplefilter("error")
        na.spawn(add_one(z), stream)
        task = asyncio.ensure_future(waited(add_one(handed_over).schedule(stream)))
        future = na.spawn(copy_to(na.zeros(8), na.zeros(8)).output(), stream)
        await settle(device)
        del handed_over
        assert used(device) > start
        await cancelled(task)
        future.cancel()
        del task, future
        assert used(device) == start
        gate.open()


async def test_an_upload_that_is_withdrawn_reads_no_more(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.ones(20 * 2**20, np.uint8)
    t = await na.zeros(array.shape, np.uint8)
    held, reached, place = threading.Event(), threading.Event(), parallel_copy.place

    def slow(room: Any, piece: Any) -> None:
        reached.set()
        assert held.wait(300)
        assert piece[0] == 1, "read although nobody waits for it"
        place(room, piece)

    monkeypatch.setattr(parallel_copy, "place", slow)
    task = asyncio.ensure_future(waited(na.memcpy(t, array)))
    await happens(reached)
    task.cancel()
    threading.Timer(0.05, held.set).start()
    await asyncio.wait([task])
    array[:] = 7
    assert (await t.to_host()).max() == 0, "all of it or nothing"
