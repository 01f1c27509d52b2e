"""Downloads of large tensors into NumPy arrays: the last copy is not the loop's."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.device import copy_threads
from numbasync.tensors import parallel_copy, staging
from numbasync.testing import Gate, settle
from tests.common import add_one, used, waited
from tests.holding import HeldCopies
from tests.tensors.large_arrays import CHUNK, LARGE, assert_equal, numbers

SIZES = [0, 1, LARGE, LARGE + 1, CHUNK - 1, CHUNK + 1, 5 * CHUNK + 4097]


@pytest.fixture(autouse=True)
def several_threads(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine with more processors than this one may have."""
    monkeypatch.setattr(copy_threads, "THREADS", 4)
    copy_threads.start_over()
    # Kept for whoever asks next: to lock pages may wait for a stream that a test holds.
    blocks = [device.backend.host_buffer(n * CHUNK) for n in (3, 3, 4, 4)]
    del blocks
    yield
    copy_threads.settle()
    copy_threads.start_over()


@pytest.mark.parametrize("size", SIZES)
async def test_every_byte_arrives(device: na.Device, size: int) -> None:
    array, out = numbers(size), np.zeros(size, np.uint8)
    t = await na.from_host(array)
    assert await na.memcpy(out, t) is out
    assert_equal(out, array)
    out[:] = 0
    na.memcpy(out, t).sync()
    assert_equal(out, array)


LAYOUTS: dict[str, Callable[[], Any]] = {
    "F order": lambda: np.zeros((1200, 1500), order="F"),
    "every second row": lambda: np.zeros((2400, 1500))[::2],
    "columns": lambda: np.zeros((1200, 3001))[:, 1::2],
    "backwards": lambda: np.zeros((1200, 1500))[::-1, ::-1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_layouts(device: na.Device, layout: str) -> None:
    array = np.random.default_rng(1).random((1200, 1500))
    out = LAYOUTS[layout]()
    t = await na.from_host(array)
    await t.copy_to(out)
    assert_equal(out, array)
    if out.base is not None:
        assert np.count_nonzero(out.base) == np.count_nonzero(array)
    p = await na.empty_pitched((1200, 1500), np.float64)
    await p.copy_from(t)
    out[:] = 0
    await p.copy_to(out)
    assert_equal(out, array)


async def test_the_loop_turns_while_the_array_is_written(
    device: na.Device, stream: na.Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    array, out = numbers(4 * CHUNK), np.zeros(4 * CHUNK, np.uint8)
    t = await na.from_host(array)
    held = HeldCopies(monkeypatch)
    future = na.memcpy(out, t).schedule(stream)
    task = asyncio.ensure_future(waited(future))
    await held.is_reached(threads=2)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not task.done() and not future.done()
    # Nobody else waits for it: what is on the stream behind it, say.
    assert (await na.ones(4).to_host().schedule(stream)).tolist() == [1] * 4
    assert not task.done()
    held.open()
    await task
    assert future.done()
    assert_equal(out, array)
    assert threading.get_ident() not in held.threads


async def test_gather_waits_for_the_arrays(device: na.Device) -> None:
    arrays = [numbers(3 * CHUNK, i) for i in range(4)]
    tensors = [await na.from_host(a) for a in arrays]
    outs = [np.zeros(3 * CHUNK, np.uint8) for _ in arrays]
    await na.gather(*(na.memcpy(o, t) for o, t in zip(outs, tensors, strict=True)))
    for out, array in zip(outs, arrays, strict=True):
        assert_equal(out, array)


@pytest.mark.parametrize("wait", ["device", "stream", "sync", "await", "done"])
async def test_whoever_waits_finds_the_array_written(
    device: na.Device, stream: na.Stream, wait: str
) -> None:
    array, out = numbers(3 * CHUNK), np.zeros(3 * CHUNK, np.uint8)
    t = await na.from_host(array)
    future = na.spawn(na.memcpy(out, t), stream)
    if wait == "device":
        device.synchronize()
    elif wait == "stream":
        stream.synchronize()
    elif wait == "sync":
        future.sync()
    elif wait == "done":
        device.backend.quiesce()
        while not future.done():
            await asyncio.sleep(0)
    else:
        await future
    assert_equal(out, array)
    await future


async def test_a_shared_download_is_there_for_everyone(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    array, out = numbers(3 * CHUNK), np.zeros(3 * CHUNK, np.uint8)
    t = await na.from_host(array)
    copied = na.memcpy(out, t).shared()
    made, copy_back = [], staging.StagedCopyBack

    def noting(dst: Any, src: Any, awaited: bool) -> Any:
        made.append(awaited)
        return copy_back(dst, src, awaited)

    monkeypatch.setattr("numbasync.tensors.copies.StagedCopyBack", noting)
    await na.gather(*(copied.schedule(device.new_stream()) for _ in range(3)))
    assert_equal(out, array)
    assert made == [False]  # not left to one of the three


@pytest.mark.parametrize("at", ["the device", "the threads"])
async def test_who_stops_waiting_does_not_stop_the_work(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    array, out = numbers(3 * CHUNK), np.zeros(3 * CHUNK, np.uint8)
    t = await na.from_host(array)
    held = HeldCopies(monkeypatch)
    if at == "the device":
        gate.close()
    task = asyncio.ensure_future(waited(na.memcpy(out, t).schedule(stream)))
    if at == "the device":
        await settle(device)
    else:
        await held.is_reached()
    task.cancel()
    opening = threading.Timer(0.05, held.open)  # only then is the array written
    opening.start()
    with pytest.raises(asyncio.CancelledError):
        await task
    if at == "the device":
        assert not out.any()
        gate.open()
        stream.synchronize()
    # Nobody writes it behind the back of who goes on.
    assert_equal(out, array)
    opening.join()


async def test_a_later_failure_does_not_undo_the_download(device: na.Device) -> None:
    array, out = numbers(3 * CHUNK), np.zeros(3 * CHUNK, np.uint8)
    t = await na.from_host(array)

    def fails(_: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        await na.memcpy(out, t).map(fails)
    device.synchronize()
    assert_equal(out, array)


async def test_what_fails_at_the_end_is_the_awaiters(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(room: Any, piece: Any) -> None:
        raise MemoryError("no more")

    t, out = await na.zeros(3 * CHUNK, np.uint8), np.zeros(3 * CHUNK, np.uint8)
    monkeypatch.setattr(parallel_copy, "place", fails)
    with pytest.raises(MemoryError, match="no more"):
        await na.memcpy(out, t)
    with pytest.raises(MemoryError, match="no more"):
        na.memcpy(out, t).sync()
    with pytest.raises(MemoryError, match="no more"):
        await na.spawn(na.memcpy(out, t))


async def test_nothing_stays_behind(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[weakref.ref[Any]] = []
    copy_back = staging.StagedCopyBack

    def noting(dst: Any, src: Any, awaited: bool) -> Any:
        assert awaited
        memory = src
        while getattr(memory, "base", None) is not None:
            memory = memory.base
        blocks.append(weakref.ref(memory))
        return copy_back(dst, src, awaited)

    monkeypatch.setattr("numbasync.tensors.copies.StagedCopyBack", noting)
    before, device.pool = device.pool, device.new_pool()
    try:
        t, out = await na.ones(3 * CHUNK, np.uint8), np.zeros(6 * CHUNK, np.uint8)[::2]
        future = na.memcpy(out, t).schedule(device.new_stream())
        await future
        del t
        assert out.all()
        assert used(device) == 0
        copy_threads.settle()  # the last one to copy may not have returned yet
        assert len(blocks) == 1 and blocks[0]() is None  # though the future is there
        assert device.in_flight == (0, 0)
        assert future.done()
    finally:
        device.pool = before


async def test_later_work_does_not_change_a_download(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    array, out = np.zeros(CHUNK, np.float32), np.ones(CHUNK, np.float32)
    t = await na.from_host(array)
    await add_one(await na.zeros(4))
    gate.close()
    task = asyncio.ensure_future(waited(na.memcpy(out, t).schedule(stream)))
    await asyncio.sleep(0)
    after = na.spawn(add_one(t), device.new_stream())
    gate.open()
    await task
    assert not out.any()
    await after
