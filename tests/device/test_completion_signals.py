"""Marks: who makes the device write a number, and who does without; nobody waits for others."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.device.in_flight import LOOK_EVERY
from numbasync.testing import Gate, gate, inject, seeded, settle
from tests.common import add_one, used, waited


@pytest.fixture
def written(stream: na.Stream, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers that the device is told to write, on all streams of its kind."""
    kind, found = type(stream.backend), list[int]()
    write = kind.write

    def note(self: Any, number: int) -> None:
        found.append(number)
        write(self, number)

    monkeypatch.setattr(kind, "write", note)
    return found


def test_a_blocking_form_needs_no_mark(
    device: na.Device, stream: na.Stream, written: list[int]
) -> None:
    z = na.zeros(4).sync_on(stream)
    for _ in range(5):
        add_one(z).sync_on(stream)
    assert z.to_host().sync_on(stream).tolist() == [5] * 4
    assert written == []
    assert stream.pending == 0


def test_unawaited_work_is_marked_now_and_then(
    device: na.Device, stream: na.Stream, written: list[int]
) -> None:
    z = na.zeros(4).sync_on(stream)
    with gate(stream):
        for _ in range(3 * LOOK_EVERY):
            add_one(z).async_on(stream)
        assert 1 <= len(written) <= 5
    stream.synchronize()
    assert z.to_host().sync_on(stream).tolist() == [3 * LOOK_EVERY] * 4


def test_unmarked_work_is_released_by_a_look(
    device: na.Device, stream: na.Stream, written: list[int]
) -> None:
    start = used(device)
    z = na.zeros(1000).sync_on(stream)
    held = gate(stream)
    held.close()
    add_one(z).async_on(stream)
    del z
    gc.collect()
    assert written == []
    assert device.memory_stats().used_current > start, "the device has yet to use it"
    assert len(written) == 1, "the look could not let go, so it asked to be told"
    held.open()
    device.backend.quiesce()
    assert used(device) == start


def test_one_look_suffices_for_what_is_done(device: na.Device, stream: na.Stream) -> None:
    """Where marks take the device a while, a mark alone would be seen by the next look only."""
    start = used(device)
    z = na.zeros(1000).sync_on(stream)
    add_one(z).async_on(stream)
    del z
    device.backend.quiesce()
    assert device.memory_stats().used_current == start


def test_a_later_awaiter_does_not_wait_for_more(device: na.Device, stream: na.Stream) -> None:
    y, z = na.zeros(4).sync_on(stream), na.zeros(4).sync_on(stream)
    add_one(y).sync_on(stream)  # compiles

    async def main() -> None:
        first = na.spawn(add_one(y), stream)
        with gate(stream):
            second = na.spawn(add_one(z), stream)
            task = asyncio.ensure_future(waited(first))
            await settle(device)
            assert task.done() and not second.done()
        await second

    na.run(main())


async def test_one_who_awaits_alone_needs_no_mark(
    device: na.Device, stream: na.Stream, written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def patient(self: Any) -> bool:  # however busy the device is with other processes
        self.synchronize()
        return True

    monkeypatch.setattr(type(stream.backend), "spin_poll", patient)
    z = await na.zeros(4).schedule(stream)  # which nobody has looked at in vain
    await add_one(z).schedule(stream)  # what is compiled is waited for by its preparation
    await settle(device)
    written.clear()
    for _ in range(50):
        await add_one(z).schedule(stream)
    assert written == []
    assert (await z.to_host()).tolist() == [51] * 4


@pytest.mark.parametrize("how", ["spawned", "awaited by a task", "gathered"])
async def test_nobody_waits_for_what_others_enqueue_behind(
    device: na.Device, stream: na.Stream, how: str
) -> None:
    """On the same stream, and before the loop has turned once."""
    y, z = await na.zeros(4).schedule(stream), await na.zeros(4).schedule(stream)
    first, second = add_one(y).schedule(stream), add_one(z).schedule(stream)
    held: Gate = gate(stream)

    async def behind() -> Any:
        held.close()
        return await second

    if how == "spawned":
        first.start()
        one = asyncio.ensure_future(waited(first))
    elif how == "gathered":
        one = asyncio.ensure_future(na.gather(first))
    else:
        one = asyncio.ensure_future(waited(first))
    two = asyncio.ensure_future(behind())
    await settle(device)
    assert one.done() and not two.done()
    held.open()
    await asyncio.gather(one, two)
    assert (await z.to_host()).tolist() == [1] * 4


# --- what others conclude from a mark, or from none ---


@pytest.mark.parametrize("seed", range(20))
def test_a_passed_event_settles_what_came_before(device: na.Device, seed: int) -> None:
    with seeded(device, seed):
        stream, other = device.new_stream(), device.new_stream()
        x, y = na.full(3, 7).sync_on(stream), na.zeros(3).sync_on(other)
        out, event = np.zeros(3, np.float32), device.new_event()
        add_one(y).async_on(other)  # so that there is something else to step
        na.memcpy(out, x).async_on(stream)
        event.record(stream)
        event.synchronize()
        assert out.tolist() == [7] * 3
        device.synchronize()


def test_a_gathered_future_tells_when_it_is_done(device: na.Device, stream: na.Stream) -> None:
    y, z = na.zeros(4).sync_on(stream), na.zeros(4).sync_on(stream)
    other = device.new_stream()
    add_one(y).sync_on(stream)  # compiles

    async def main() -> None:
        first, second = add_one(y).schedule(other), add_one(z).schedule(stream)
        with gate(other):
            task = asyncio.ensure_future(na.gather(first, second))
            await asyncio.sleep(0)
            device.backend.quiesce()
            assert second.done() and not first.done()
        await task

    na.run(main())


def test_finished_work_without_a_mark_is_no_conflict(device: na.Device, stream: na.Stream) -> None:
    z = na.zeros(4).sync_on(stream)
    add_one(z).sync_on(stream)
    other = device.new_stream()  # not later: it looks at all streams
    add_one(z).async_on(stream)
    device.backend.quiesce()
    with na.ordering("strict"):
        add_one(z).async_on(other)
    device.synchronize()
    assert z.to_host().sync_on(stream).tolist() == [3] * 4


@pytest.mark.parametrize("how", ["await", "gather"])
async def test_operations_without_a_device_let_loops_turn(device: na.Device, how: str) -> None:
    turned = []
    asyncio.get_running_loop().call_soon(turned.append, True)
    await na.empty(16)
    for _ in range(40):
        if how == "await":
            await na.empty(16)
        else:
            await na.gather(na.empty(16), na.empty(16))
    assert turned


@pytest.mark.parametrize("how", ["async_on", "spawn"])
def test_an_interrupt_after_a_launch_keeps_its_memory(
    device: na.Device, stream: na.Stream, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    z = na.zeros(1 << 16).sync_on(stream)
    add_one(z).sync_on(stream)
    before, backend = used(device), type(stream.backend)
    launch = backend.launch

    def interrupted(self: Any, *args: Any) -> Any:
        launch(self, *args)
        raise KeyboardInterrupt

    held = gate(stream)
    held.close()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(backend, "launch", interrupted)
        if how == "async_on":
            add_one(z).async_on(stream)
        else:
            na.spawn(add_one(z), stream)
    del z
    gc.collect()
    assert used(device) == before, "the device has yet to use it"
    held.open()
    device.backend.quiesce()
    assert used(device) < before


async def test_a_cancelled_gather_hears_of_later_failures(
    device: na.Device, stream: na.Stream
) -> None:
    z = await na.zeros(4).schedule(stream)
    await add_one(z).schedule(stream)
    other = device.new_stream()
    y = await na.zeros(4).schedule(other)
    with inject(device, "kernel", after=1), gate(stream), gate(other):
        ops = [add_one(z), add_one(y)]
        with na.use_device(device):
            device_policy, device.policy = device.policy, _InTurn(stream, other)
            task = asyncio.ensure_future(na.gather(*ops))
            await settle(device)
            device.policy = device_policy
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    with pytest.warns(RuntimeWarning, match="failed and was never awaited"):
        device.synchronize()
        gc.collect()


class _InTurn:
    def __init__(self, *streams: na.Stream) -> None:
        self._streams = list(streams)

    def next_stream(self) -> na.Stream:
        return self._streams.pop(0)
