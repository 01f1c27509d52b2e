"""Blocks of `na.limit`: whose they are, blocks in blocks, priorities, and how they end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import numbasync as na
from numbasync.errors import CallerError
from numbasync.ops import backpressure
from numbasync.testing import Gate, settle
from tests.common import add_one, copy_to, waited
from tests.waiting import eventually


async def test_a_limit_block_is_its_tasks_own(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    z, mine, both = await na.zeros(4), await na.zeros(4), await na.zeros(4)
    gate.close()
    entered = asyncio.Event()

    async def bounded() -> list[Any]:
        with na.limit(ops=1):
            futures = [na.spawn(add_one(z), stream) for _ in range(5)]
            futures.append(na.spawn(add_one(both), stream))
            entered.set()
            return [await future for future in futures]

    task = asyncio.ensure_future(bounded())
    await entered.wait()
    assert device.limit is None
    for _ in range(3):
        await add_one(mine)
    behind = asyncio.ensure_future(waited(copy_to(mine, both)))  # needs what waits
    any_operands = asyncio.ensure_future(waited(na.value(mine).then(lambda t: add_one(t))))
    await settle(device)
    assert not behind.done() and not any_operands.done()
    gate.open()
    await asyncio.gather(task, behind, any_operands)
    assert (await z.to_host()).tolist() == [5] * 4
    assert (await mine.to_host()).tolist() == [2] * 4, "in the order of submission"


async def test_blocks_in_blocks_all_hold(device: na.Device, stream: na.Stream, gate: Gate) -> None:
    z = await na.zeros(4)
    gate.close()
    with na.limit(ops=2):
        with na.limit(ops=5):
            inner = [na.spawn(add_one(z), stream) for _ in range(4)]
        await settle(device)
        assert device.in_flight.ops == 2
    with na.limit(ops=5), na.limit(ops=1):
        one = [na.spawn(add_one(z), stream) for _ in range(2)]
    await settle(device)
    assert device.in_flight.ops == 2, "behind the others, whose tensor they use"
    gate.open()
    await na.gather(*inner, *one)
    assert (await z.to_host()).tolist() == [6] * 4


@pytest.mark.parametrize("way", ["operations", "chains"])
async def test_work_submitted_in_a_block_obeys_it_afterwards(
    device: na.Device, stream: na.Stream, gate: Gate, way: str
) -> None:
    other = device.new_stream()
    z = [await na.zeros(4) for _ in range(8)]

    def submitted(t: na.Tensor, on: na.Stream) -> Any:
        return na.spawn(add_one(t) if way == "operations" else na.value(t).then(add_one), on)

    gate.close()
    with Gate(other):
        with na.limit(ops=2):
            futures = [submitted(z[0], stream), *(submitted(t, other) for t in z[1:])]
            await settle(device)
        await settle(device)
        assert device.in_flight.ops == 2
        gate.open()
        await futures[0]
        await eventually(lambda: device.in_flight.ops == 2)  # the third is admitted
        await settle(device)
        assert device.in_flight.ops == 2, "the others wait"
    await na.gather(*futures)


async def test_bytes_submitted_in_a_block_count_afterwards(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    other, most = device.new_stream(), 3 << 17
    tensors = [await na.zeros(4) for _ in range(3)]
    unused = [await na.zeros(1 << 16) for _ in range(3)]
    unused.clear()  # memory of 1 << 18 bytes each, which a fast path may use again

    def chain(t: na.Tensor) -> Any:
        return add_one(t).then(lambda _: na.zeros(1 << 16))

    gate.close()
    with Gate(other):
        with na.limit(bytes=most):
            futures = [na.spawn(chain(tensors[0]), stream)]
            futures += [na.spawn(chain(t), other) for t in tensors[1:]]
            await settle(device)
        await settle(device)
        assert device.in_flight.bytes == 1 << 18
        gate.open()
        await futures[0]
        await eventually(lambda: device.in_flight.bytes == 1 << 18)  # the second's memory
        await settle(device)
        assert device.in_flight.bytes == 1 << 18, "the third waits"
    await na.gather(*futures)


@pytest.mark.parametrize("loop", ["turns", "stalled"])
async def test_higher_priority_goes_first_equals_in_order(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    admitted: list[Any] = []  # tasks may be resumed in another order than their work ran in
    admit = backpressure.Admission.admit

    def noted(self: backpressure.Admission, submission: Any) -> None:
        admitted.append(self)
        admit(self, submission)

    tensors = [await na.zeros(4) for _ in range(6)]
    gate.close()
    na.limit(ops=1)
    try:
        held = na.spawn(add_one(await na.zeros(4)), stream)
        monkeypatch.setattr(backpressure.Admission, "admit", noted)
        if loop == "stalled":  # so long that nobody's last look was lately
            monkeypatch.setattr(backpressure, "GONE", 0.0)

        async def one(i: int, priority: int) -> None:
            with na.limit(priority=priority):
                await add_one(tensors[i]).schedule(stream)

        tasks = []
        for i, priority in enumerate([0, 0, 1, 0, 1, 2]):
            tasks.append(asyncio.ensure_future(one(i, priority)))
            await settle(device)
        gate.open()
        await asyncio.gather(held_by(held), *tasks)
    finally:
        na.limit()
    submitted = sorted(admitted, key=lambda admission: admission.rank[1])
    assert [submitted.index(each) for each in admitted] == [5, 2, 4, 0, 1, 3]


async def held_by(future: Any) -> None:
    await future


def test_a_priority_is_a_whole_number() -> None:
    with pytest.raises(na.errors.CallerError, match="whole number"):
        na.limit(priority=1.5)  # type: ignore[arg-type]


def test_a_limit_ends_with_its_block_or_lifting(device: na.Device) -> None:
    assert device.limit is None
    with na.limit(ops=4):
        assert device.limit == (4, None)
        with na.limit(bytes=100) as inner:
            assert inner == (None, 100)
            assert device.limit == (4, 100), "both hold"
        assert device.limit == (4, None)
    assert device.limit is None
    assert "(ops=4, bytes=None)" in repr(na.limit(ops=4))
    na.limit()
    assert device.limit is None
    other = next(d for d in na.devices("cpu") if d is not device)
    with na.limit(ops=1, device=other):
        assert device.limit is None


async def test_waiters_for_room_go_when_limits_are_lifted(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    z = await na.zeros(4)
    other = device.new_stream()
    gate.close()
    na.limit(ops=1)
    first = na.spawn(na.zeros(4), stream)
    second = na.spawn(add_one(z), other)
    await settle(device)
    assert not second.done()
    na.limit()
    await asyncio.wait_for(waited(second), 300)
    assert not first.done()
    gate.open()
    await first


def test_blocks_of_several_tasks_may_overlap(device: na.Device) -> None:
    first, second = na.limit(ops=5), None
    with first:
        second = na.limit(ops=7)
        second.__enter__()
    assert device.limit == (7, None), "the later block goes on"
    second.__exit__(None, None, None)
    assert device.limit is None
    assert not device.is_limited


def test_a_priority_block_brings_back_no_limit(device: na.Device) -> None:
    na.limit(ops=1)
    block = na.limit(priority=1)
    assert device.limit == (1, None), "of a block only"
    na.limit()
    with block:
        assert device.limit is None
    assert device.limit is None
    assert not device.is_limited


def test_a_plain_block_brings_back_no_lifted_limit(
    device: na.Device,
) -> None:
    na.limit(ops=1)
    block = na.limit()
    assert device.limit is None and not device.is_limited
    na.limit()
    with block:
        assert device.limit is None
    assert device.limit is None and not device.is_limited
    na.limit(ops=3)
    with na.limit():  # as if it had never held for all
        assert device.limit == (3, None)
    assert device.limit == (3, None)
    na.limit()
    assert not device.is_limited


@pytest.mark.parametrize("wrong", [{"ops": 0}, {"bytes": -1}, {"ops": 1.5}, {"bytes": "1 GB"}])
def test_a_limit_of_nothing_is_refused(device: na.Device, wrong: dict[str, Any]) -> None:
    with pytest.raises(CallerError, match="nothing could ever be submitted"):
        na.limit(**wrong)
