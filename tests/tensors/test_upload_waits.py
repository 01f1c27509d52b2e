"""Uploads of large NumPy arrays: who waits while they are read, and who may change them when."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import numbasync as na
from numbasync.device import copy_threads, staging_ring
from numbasync.testing import Gate, settle
from tests.common import add_one, used, waited
from tests.holding import HeldCopies
from tests.tensors.large_arrays import CHUNK, assert_equal, numbers
from tests.waiting import eventually, in_time

pytestmark = pytest.mark.usefixtures("several_threads")


@pytest.mark.parametrize("into", ["new", "a tensor", "rows at a pitch"])
async def test_the_loop_turns_while_reading_large_arrays(
    device: na.Device, monkeypatch: pytest.MonkeyPatch, into: str
) -> None:
    array = numbers(4 * CHUNK).reshape(-1, 512 * 4)
    t = await (na.empty_pitched if into == "rows at a pitch" else na.empty)(array.shape, np.uint8)
    held = HeldCopies(monkeypatch)
    op = na.from_host(array) if into == "new" else na.memcpy(t, array)
    task = asyncio.ensure_future(waited(op))
    await held.is_reached(threads=2)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not task.done()
    held.open()
    assert_equal(await (await task).to_host(), array)
    assert threading.get_ident() not in held.threads


async def test_gather_waits_while_the_loop_turns(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = [numbers(2 * CHUNK, i) for i in range(3)]
    held = HeldCopies(monkeypatch)
    task = asyncio.ensure_future(na.gather(*(na.from_host(a) for a in arrays)))
    await held.is_reached()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not task.done()
    held.open()
    for t, a in zip(await task, arrays, strict=True):
        assert_equal(await t.to_host(), a)


async def test_an_asyncio_future_waits_for_the_copy(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = numbers(4 * CHUNK)
    t, array = await na.from_host(want), np.zeros_like(want)
    held = HeldCopies(monkeypatch)
    future = asyncio.ensure_future(na.memcpy(array, t))
    await held.is_reached()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not future.done()
    held.open()
    await future
    assert_equal(array, want)
    assert threading.get_ident() not in held.threads


@pytest.mark.parametrize("start", ["spawn", "async_on"])
@pytest.mark.parametrize("into", ["new", "a tensor", "rows at a pitch"])
async def test_an_awaiter_may_change_the_array_at_once(
    device: na.Device, stream: na.Stream, gate: Gate, start: str, into: str
) -> None:
    # More than the ring holds, on a stream that does not move.
    array = numbers(device.ring.nbytes + 3 * CHUNK + 512).reshape(-1, 512)
    want = array.copy()
    t = await (na.empty_pitched if into == "rows at a pitch" else na.empty)(array.shape, np.uint8)
    op = na.from_host(array) if into == "new" else na.memcpy(t, array)
    gate.close()
    started = na.spawn(op, stream) if start == "spawn" else op.async_on(stream)
    array[:] = 7
    gate.open()
    t = await started if isinstance(started, na.DeviceFuture) else started
    assert_equal(await t.to_host().schedule(stream), want)


async def test_a_cancelled_waiter_may_change_the_array(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = numbers(5 * CHUNK)
    t = await na.zeros(array.shape, np.uint8)
    gate.close()
    held = HeldCopies(monkeypatch, after=3)

    async def upload() -> None:
        try:
            await na.memcpy(t, array).schedule(stream)
        finally:
            array[:] = 7

    task = asyncio.ensure_future(upload())
    await held.is_reached()
    task.cancel()
    opening = threading.Timer(0.05, held.open)  # only then is it read no more
    opening.start()
    with pytest.raises(asyncio.CancelledError):
        await task
    opening.join()
    gate.open()
    assert next(held.count) < 3 + 1 + copy_threads.THREADS, "pieces are copied that nobody wants"
    assert not (await t.to_host()).any(), "all of it, or nothing"


async def test_an_upload_cancelled_half_way_leaves_nothing(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = numbers(20 * CHUNK)
    start = used(device)
    for after in (0, 1, 10):
        with monkeypatch.context() as patch:
            held = HeldCopies(patch, after)
            task = asyncio.ensure_future(waited(na.from_host(array)))
            await held.is_reached()
            task.cancel()
            held.open()
            with pytest.raises(asyncio.CancelledError):
                await task
        z = await na.zeros(4)
        assert (await (await add_one(z)).z.to_host()).tolist() == [1] * 4
        del z
    del task
    await settle(device)
    # A thread that was copying ends its piece, and the submission goes after that.
    await eventually(lambda: used(device) == start)
    found = device.ring.statistics()
    assert found.in_use == 0 and found.chunks <= found.most


async def test_a_cancelled_gather_reads_no_more_arrays(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = numbers(5 * CHUNK)
    t = await na.zeros(array.shape, np.uint8)
    held = HeldCopies(monkeypatch, after=3)
    gate.close()

    async def upload() -> None:
        try:
            await na.gather(na.ones(4).schedule(stream), na.memcpy(t, array))
        finally:
            array[:] = 7

    task = asyncio.ensure_future(upload())
    await held.is_reached()
    opening = threading.Timer(0.05, held.open)  # only then is it read no more
    opening.start()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    opening.join()
    gate.open()
    assert next(held.count) < 3 + 1 + copy_threads.THREADS, "pieces are copied that nobody wants"
    assert not (await t.to_host()).any(), "all of it, or nothing"


@pytest.mark.parametrize("turns", range(7))
async def test_an_upload_after_a_cancelled_one_is_copied(
    device: na.Device, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    array = numbers(20 * CHUNK)
    held = HeldCopies(monkeypatch)

    async def behind() -> na.Tensor:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await na.from_host(array)

    first = asyncio.ensure_future(waited(na.from_host(array)))
    await held.is_reached()
    first.cancel()
    second = asyncio.ensure_future(behind())
    held.open()
    await second
    assert threading.get_ident() not in held.threads


def test_a_loop_that_is_closed_half_way(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    array = numbers(5 * CHUNK)
    t = na.zeros(array.shape, np.uint8).sync()
    held = HeldCopies(monkeypatch, after=2)

    async def main() -> None:
        task = asyncio.ensure_future(waited(na.memcpy(t, array)))
        await held.is_reached()
        threading.Timer(0.05, held.open).start()
        del task

    in_time(lambda: asyncio.run(main()))
    assert not t.to_host().sync().any(), "its task was cancelled with the loop"


async def test_a_blocking_thread_ignores_a_held_stream(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_ring, "WAIT_S", 1e9)
    array = numbers(device.ring.nbytes + 5 * CHUNK)
    gate.close()
    task = asyncio.ensure_future(waited(na.from_host(array).schedule(stream)))
    await eventually(lambda: device.ring.statistics().waits > 0)
    assert na.ones(4).to_host().sync().tolist() == [1] * 4  # behind it in line
    assert device.ring.statistics().refusals > 0
    gate.open()
    assert_equal(await (await task).to_host(), array)
