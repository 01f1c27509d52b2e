"""Copies between two devices: what waits for what, and what is kept alive."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import AccessConflictError
from numbasync.testing import Gate, settle
from tests.common import add_one, compiled, copy_to
from tests.waiting import begin

Pair = tuple[na.Device, na.Device]
WAYS: dict[str, Any] = {
    "to_device": lambda t, far: na.to_device(t, far),
    "copy_from": lambda t, far: on(far, na.empty(t.shape, t.dtype)).copy_from(t),
    "replicate": lambda t, far: na.replicate(t, [far]).first(),
    "scatter": lambda t, far: na.scatter(t, [far]).first(),
    "gather_parts": lambda t, far: na.gather_parts([t], device=far),
}


def on(device: na.Device, op: na.DeviceOp[Any]) -> Any:
    """The value of an operation that is run on the device."""
    return op.sync_on(device.new_stream())


def ready(pair: Pair) -> None:
    """Compile what gated tests launch."""
    for device in pair:
        with na.use_device(device):
            compiled()
    _near, far = pair
    t = na.ones(8).sync()
    for way in WAYS.values():
        way(t, far).sync()
        on(far, way(t[::2], far))


def host(t: na.Tensor) -> Any:
    assert t.device is not None
    return on(t.device, t.to_host()).tolist()


async def quiet(pair: Pair) -> None:
    mixed = len({device.kind for device in pair}) > 1
    for device in pair:
        if not mixed or device.kind == "cuda":  # the CPU device may be waiting for a held GPU
            await settle(device)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("step", [1, 2])
async def test_a_copy_waits_for_the_last_writer(pair: Pair, way: str, step: int) -> None:
    ready(pair)
    near, far = pair
    t = na.zeros(16).sync()
    stream = near.new_stream()
    with Gate(stream):
        na.fill(t, 3).async_on(stream)
        task = asyncio.ensure_future(WAYS[way](t[::step], far))
        await quiet(pair)
        assert not task.done()
    assert host(await task) == [3] * (16 // step)


@pytest.mark.parametrize("step", [1, 2])
async def test_a_later_write_waits_for_the_copy(pair: Pair, step: int) -> None:
    ready(pair)
    near, far = pair
    t, u = na.full(16, 1).sync(), on(far, na.zeros(16 // step))
    stream = far.new_stream()
    with Gate(stream):
        u.copy_from(t[::step]).async_on(stream)
        later = asyncio.ensure_future(na.fill(t, 2))
        await quiet(pair)
        # Packed on its own device, or in page-locked memory, the source is read already.
        assert later.done() == (step > 1 or not far.backend.copies_from(near.backend))
        assert host(na.full(1, 5).sync()) == [5]  # other work of the device goes on
    await later
    await stream.done()
    assert host(u) == [1] * (16 // step) and host(t) == [2] * 16


async def test_a_launch_on_the_source_waits_too(pair: Pair) -> None:
    """The fast path of launches, whose checks the compiled core makes, sees the other device."""
    ready(pair)
    near, far = pair
    t = na.full(16, 1).sync()
    add_one(t).sync()
    stream = far.new_stream()
    with Gate(stream):
        op = na.to_device(t, far)
        op.async_on(stream)
        launch = asyncio.ensure_future(add_one(t))
        await quiet(pair)
        assert launch.done() == (not far.backend.copies_from(near.backend))
    await launch
    await stream.done()
    assert host(t) == [3] * 16


async def test_a_write_waits_for_readers_of_the_destination(pair: Pair) -> None:
    ready(pair)
    _near, far = pair
    t, u = na.full(8, 7).sync(), on(far, na.full(8, 1))
    v, stream = on(far, na.zeros(8)), far.new_stream()
    with Gate(stream):
        copy_to(v, u).async_on(stream)
        task = asyncio.ensure_future(t.copy_to(u))
        await quiet(pair)
        assert not task.done()
    assert host(await task) == [7] * 8 and host(v) == [1] * 8


async def test_there_and_back_in_order_of_submission(pair: Pair) -> None:
    near, far = pair
    t, u = na.zeros(1000).sync(), on(far, na.zeros(1000))
    streams = near.new_stream(), far.new_stream()
    for _ in range(50):
        add_one(t).async_on(streams[0])
        u.copy_from(t).async_on(streams[1])
        add_one(u).async_on(streams[1])
        t.copy_from(u).async_on(streams[0])
    for stream in streams:
        await stream.done()
    assert host(t) == [100] * 1000


def test_threads_that_copy_both_ways_do_not_deadlock(pair: Pair) -> None:
    _near, far = pair
    t, u = na.ones(64).sync(), on(far, na.ones(64))

    def copies(dst: na.Tensor, src: na.Tensor) -> None:
        for _ in range(200):
            dst.copy_from(src).sync()

    for result in [begin(lambda: copies(t, u)), begin(lambda: copies(u, t))]:
        result()
    assert host(t) == host(u) == [1] * 64


@pytest.mark.parametrize("step", [1, 2])
async def test_a_dropped_source_lives_until_it_is_copied(pair: Pair, step: int) -> None:
    ready(pair)
    _near, far = pair
    before = used(pair)
    stream = far.new_stream()
    with Gate(stream):
        t = na.full(2**16, 4).sync()
        future = na.spawn(na.to_device(t[::step], far), stream)
        del t
        gc.collect()
        await quiet(pair)
        for _ in range(8):  # memory that was freed too early would be written here
            await na.full(2**16, 9)
    u = await future
    assert set(host(u)) == {4}
    del u, future
    assert used(pair) == before


def used(pair: Pair) -> tuple[int, ...]:
    gc.collect()
    for device in pair:
        device.synchronize()
    return tuple(device.memory_stats().used_current for device in pair)


async def test_only_its_awaiter_hears_of_a_failed_producer(pair: Pair) -> None:
    near, far = pair
    target = np.zeros(8, np.float32)
    t = na.ones(8).sync()
    stream = near.new_stream()
    with Gate(stream):
        bad = na.spawn(na.zip(na.fill(t, 2), na.memcpy(target, t)), stream)
        copy = na.spawn(na.to_device(t, far))
        target.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        await bad
    assert host(await copy) == [2] * 8


async def test_a_cancelled_copy_that_is_enqueued_still_runs(pair: Pair) -> None:
    ready(pair)
    near, far = pair
    before = used(pair)
    t, u = na.full(8, 3).sync(), on(far, na.zeros(8))
    stream = near.new_stream()
    with Gate(stream):
        na.fill(t, 6).async_on(stream)
        task = asyncio.ensure_future(u.copy_from(t))
        await quiet(pair)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert host(na.ones(1).sync()) == [1]
    for device in pair:
        device.synchronize()
    assert host(u) == [6] * 8
    del t, u, task
    assert used(pair) == before


async def test_strict_ordering_refuses_a_source_in_writing(pair: Pair) -> None:
    ready(pair)
    near, far = pair
    t = na.zeros(8).sync()
    stream = near.new_stream()
    with na.ordering("strict"):
        with Gate(stream):
            na.fill(t, 3).async_on(stream)
            with pytest.raises(AccessConflictError, match=r"na\.set_ordering"):
                await na.to_device(t, far)
        await stream.done()
        u = await na.to_device(t, far)
        parts = await na.scatter(t, [far, near, far])
        assert host(u) == host(await na.gather_parts(parts, device=far)) == [3] * 8
        held = far.new_stream()
        if far.backend.copies_from(near.backend):
            with Gate(held):
                na.to_device(t, far).async_on(held)
                with pytest.raises(AccessConflictError, match="both use"):
                    await na.fill(t, 1)
            await held.done()


async def test_a_limit_of_the_destination_delays_the_copy(pair: Pair) -> None:
    ready(pair)
    _near, far = pair
    t = na.ones(8).sync()
    stream = far.new_stream()
    with na.limit(1, device=far):
        with Gate(stream):
            na.spawn(na.value(1).then(lambda _: na.zeros(4)), stream)
            task = asyncio.ensure_future(na.to_device(t, far))
            await quiet(pair)
            assert far.in_flight.ops == 1 and not task.done()
        assert host(await task) == [1] * 8
