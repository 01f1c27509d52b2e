"""The page-locked ring that large uploads go through: bounded, shared, and locked once."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.device import staging_ring
from numbasync.device.staging_ring import Ring
from numbasync.testing import Gate, settle
from tests.common import waited
from tests.tensors.large_arrays import CHUNK, LARGE, assert_equal, numbers
from tests.waiting import begin, eventually

pytestmark = pytest.mark.usefixtures("several_threads")


async def test_pinned_memory_is_bounded_without_blocking_the_loop(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_ring, "WAIT_S", 1e9)
    array = numbers(device.ring.nbytes + 5 * CHUNK)
    await settle(device)
    gc.collect()  # copies and threads of tests before this one may have chunks of the same ring
    await eventually(lambda: device.ring.statistics().in_use == 0)
    before = device.ring.statistics()
    gate.close()
    task = asyncio.ensure_future(waited(na.from_host(array).schedule(stream)))
    await eventually(lambda: device.ring.statistics().waits > before.waits)
    for _ in range(100):
        await asyncio.sleep(0)
    found = device.ring.statistics()
    assert found.in_use == found.chunks == found.most == Ring.MOST
    assert found.taken - before.taken == Ring.MOST
    assert not task.done()
    assert f"{found.most} of {found.most} chunks" in repr(device.ring)
    gate.open()
    assert_equal(await (await task).to_host(), array)
    await settle(device)
    found = device.ring.statistics()
    assert found.refusals == before.refusals
    assert found.in_use == 0 and found.chunks == found.most


async def test_a_stuck_stream_holds_up_nobody_for_long(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    array = numbers(device.ring.nbytes + 5 * CHUNK)
    gate.close()
    held = asyncio.ensure_future(waited(na.from_host(array).schedule(stream)))
    await asyncio.sleep(0)
    other = await na.from_host(array).schedule(device.new_stream())
    assert not held.done()
    assert_equal(await other.to_host(), array)
    gate.open()
    assert_equal(await (await held).to_host(), array)


async def test_the_first_large_upload_locks_all_needed_pages(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Ring(device.backend)
    monkeypatch.setattr(device, "ring", made)
    assert made.statistics().chunks == 0
    kind, asked = type(device.backend), list[int]()
    lock = kind.host_buffer

    def counted(self: Any, nbytes: int) -> Any:
        asked.append(nbytes)
        return lock(self, nbytes)

    monkeypatch.setattr(kind, "host_buffer", counted)
    await na.from_host(numbers(LARGE + 1))
    assert asked == [made.nbytes] and made.statistics().chunks == Ring.MOST
    gate.close()
    array = numbers(made.nbytes - CHUNK)
    held = na.spawn(na.from_host(array), stream)
    assert asked == [made.nbytes]
    gate.open()
    assert_equal(await (await held).to_host(), array)


def test_threads_that_need_the_ring_share_one(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, kind = Ring(device.backend), type(device.backend)
    lock, at_once, calls = kind.host_buffer, threading.Barrier(4), itertools.count()
    second = threading.Event()

    def slow(self: Any, nbytes: int) -> Any:
        if next(calls):
            second.set()
        second.wait(0.05)
        return lock(self, nbytes)

    monkeypatch.setattr(kind, "host_buffer", slow)

    def take() -> Any:
        at_once.wait()
        return made.take(staging_ring.Deadline())

    taken = [result() for result in [begin(take) for _ in range(4)]]
    assert next(calls) == 1
    assert len({chunk.memory.ctypes.data for chunk in taken}) == 4


async def test_small_arrays_avoid_the_ring(device: na.Device) -> None:
    before = device.ring.statistics()
    t = await na.from_host(numbers(LARGE))
    await t.copy_from(numbers(LARGE, 1))
    assert device.ring.statistics().taken == before.taken
    await t.copy_from(na.HostBuffer.from_array(numbers(LARGE)))
    big = await na.from_host(na.HostBuffer.from_array(numbers(3 * CHUNK)))
    assert device.ring.statistics().taken == before.taken
    await big.copy_from(numbers(3 * CHUNK, 1))
    assert device.ring.statistics().taken > before.taken


async def test_what_an_upload_holds_counts(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    array = numbers(3 * CHUNK)
    t = await na.empty(array.shape, np.uint8)
    for make in (lambda: na.from_host(array), lambda: na.memcpy(t, array)):
        gate.close()
        with na.limit(bytes=2 * 6 * CHUNK):
            futures = [na.spawn(make(), stream) for _ in range(4)]
            await settle(device)
            assert device.in_flight == (2, 2 * 6 * CHUNK)
            gate.open()
            await na.gather(*futures)
