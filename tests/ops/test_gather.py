"""`na.gather`: starts everything, keeps the order, and waits for all that it has started."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import numbasync as na
from numbasync.testing import Gate, settle
from tests.common import add_one


async def test_gather_returns_exceptions(device: na.Device, stream: na.Stream, gate: Gate) -> None:
    z = await na.zeros(4)
    used_up = na.value(1)
    await used_up

    def fails(_: Any) -> Any:
        raise LookupError("planted")

    gate.close()
    with na.limit(ops=1):
        na.spawn(add_one(z), stream)
        withdrawn = na.spawn(add_one(z), stream)
    withdrawn.cancel()
    got = await na.gather(
        na.value(1), used_up, na.value(2).map(fails), withdrawn, na.value(3), return_exceptions=True
    )
    assert got[0] == 1 and got[4] == 3
    assert [type(e) for e in got[1:4]] == [
        na.errors.AlreadySubmittedError, LookupError, asyncio.CancelledError,
    ]  # fmt: skip
    with pytest.raises(asyncio.CancelledError):
        await na.gather(withdrawn)
    gate.open()
    await settle(device)


async def test_gather_starts_all_and_keeps_the_order(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    other = device.new_stream()
    started: list[str] = []
    gate.close()
    slow = na.value("slow").inspect(started.append).then(lambda v: na.ones(2).map(lambda _: v))
    quick = na.value("quick").inspect(started.append).then(lambda v: na.ones(2).map(lambda _: v))
    task = asyncio.ensure_future(
        na.gather(slow.schedule(stream), quick.schedule(other), na.value(3), coroutine())
    )
    await settle(device)
    assert started == ["slow", "quick"] and not task.done()
    gate.open()
    assert await task == ["slow", "quick", 3, "coroutine"]


async def test_gather_starts_coroutines_too(device: na.Device) -> None:
    arrived = asyncio.Barrier(3)

    async def meet(i: int) -> int:
        async with asyncio.timeout(300):
            await arrived.wait()  # would wait for ever if one was begun after the other
        return i

    assert await na.gather(meet(1), na.value(2), meet(3), meet(4)) == [1, 2, 3, 4]


async def test_gather_says_what_cannot_be_awaited(device: na.Device) -> None:
    for wrong in (3, [3]):
        with pytest.raises(na.errors.OperationError, match="gather takes operations"):
            await na.gather(na.value(2), wrong)  # type: ignore[call-overload]


async def test_a_cancelled_gather_cancels_what_it_started(device: na.Device) -> None:
    ended: list[str] = []

    async def stay() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    task = asyncio.ensure_future(na.gather(stay(), stay()))
    await settle(device)
    task.cancel()
    await asyncio.wait([task])
    await settle(device)
    assert ended == ["cancelled", "cancelled"]


async def test_gather_raises_its_first_error_after_settling(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:

    def fails(name: str) -> Any:
        def change(_: Any) -> Any:
            raise LookupError(name)

        return na.value(0).map(change)

    gate.close()
    last = na.spawn(na.ones(2), stream)
    task = asyncio.ensure_future(na.gather(fails("first"), fails("second"), last))
    await settle(device)
    assert not task.done(), "an operation is still in flight"
    gate.open()
    with pytest.raises(LookupError, match="first"):
        await task


async def coroutine() -> str:
    return "coroutine"


async def test_gather_starts_others_when_one_cannot_start(device: na.Device) -> None:
    z = await na.ones(1)
    used_up = na.value(1)
    used_up.sync()
    with pytest.raises(na.errors.AlreadySubmittedError):
        await na.gather(used_up, add_one(z))
    assert (await z.to_host()).tolist() == [2]
