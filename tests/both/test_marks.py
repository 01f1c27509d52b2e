"""Marks: who makes the device write a number, and who does without; nobody waits for others."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

import numbasync as na
from numbasync.testing import Gate, gate, settle
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


def test_what_nobody_waits_for_is_marked_now_and_then(
    device: na.Device, stream: na.Stream, written: list[int]
) -> None:
    z = na.zeros(4).sync_on(stream)
    with gate(stream):
        for _ in range(40):
            add_one(z).async_on(stream)
        assert 1 <= len(written) <= 5
    stream.synchronize()
    assert z.to_host().sync_on(stream).tolist() == [40] * 4


def test_what_has_no_mark_is_let_go_by_a_look(
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


def test_one_look_is_enough_for_what_the_device_has_done(
    device: na.Device, stream: na.Stream
) -> None:
    """Where marks take the device a while, a mark alone would be seen by the next look only."""
    start = used(device)
    z = na.zeros(1000).sync_on(stream)
    add_one(z).async_on(stream)
    del z
    device.backend.quiesce()
    assert device.memory_stats().used_current == start


def test_who_is_awaited_later_does_not_wait_for_what_came_behind(
    device: na.Device, stream: na.Stream
) -> None:
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
    device: na.Device, stream: na.Stream, written: list[int]
) -> None:
    z = await na.zeros(4)
    for _ in range(3):  # what is new here: the loop, the kernel, the compiled calls
        await add_one(z)
    await settle(device)
    before = len(written)
    for _ in range(50):
        await add_one(z)
    assert len(written) - before <= 25, "most of them were seen to be done"
    assert (await z.to_host()).tolist() == [53] * 4


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
