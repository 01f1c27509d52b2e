"""`DeviceGroup.map`, and policies over several devices."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import CallerError, DeviceMismatchError, OperationError
from numbasync.testing import Gate, settle
from tests.common import add_one, compiled, fresh

Pair = tuple[na.Device, na.Device]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two CPU devices, the first of them current."""
    near, far = na.devices("cpu")[:2]
    for device in (far, near):
        with na.use_device(device):
            compiled()
    with na.use_device(near):
        yield near, far


def on(device: na.Device, value: float) -> na.Tensor:
    return na.full(4, value).sync_on(device.new_stream())


def where(_: object) -> na.DeviceOp[na.Device]:
    """Gives the device that it runs on."""
    return na.with_context(lambda ctx: ctx.device)


async def asynchronous(values: Any) -> AsyncIterator[Any]:
    for value in values:
        await asyncio.sleep(0)
        yield value


async def quiet(pair: Pair) -> None:
    for device in pair:
        await settle(device)


@pytest.mark.parametrize("through", [iter, list, asynchronous])
async def test_results_are_in_the_order_of_the_parts(pair: Pair, through: Any) -> None:
    group = na.DeviceGroup(pair)

    def work(i: int) -> na.DeviceOp[np.ndarray]:
        return na.full(3, i).then(add_one).output().to_host()

    found = await group.map(work, through(range(20)))
    assert [array.tolist() for array in found] == [[i + 1] * 3 for i in range(20)]
    statistics = group.statistics()
    assert sum(statistics.submitted) == 20 and statistics.submitted == statistics.done
    assert min(statistics.done) > 0
    assert await group.map(work, through([])) == []


async def test_a_tensor_is_worked_on_where_it_is(pair: Pair) -> None:
    near, far = pair
    group = na.DeviceGroup([far, near])
    parts: list[Any] = [on(near, 1), on(far, 2), on(far, 3).shared(), on(near, 4).partition(2)]
    assert await group.map(where, parts) == [near, far, far, near]
    assert na.default_device() is near
    values = [p.to_host() for p in await group.map(lambda t: t.dup(), parts[:2])]
    assert [(await v).tolist() for v in values[:1]] == [[1] * 4]
    values[1].sync_on(far.new_stream())


async def test_other_parts_go_where_the_least_is_pending(pair: Pair) -> None:
    near, far = pair
    group = na.DeviceGroup(pair)
    stream = near.new_stream()
    with Gate(stream):
        for _ in range(30):
            na.zeros(4).async_on(stream)
        assert await group.map(where, range(20), most=2) == [far] * 20
    await stream.done()
    assert set(await group.map(where, range(20))) == set(pair)


async def test_at_most_so_many_are_in_flight(pair: Pair) -> None:
    _near, _far = pair
    group = na.DeviceGroup(pair)
    streams = {device: device.new_stream() for device in pair}
    begun: list[int] = []
    gates = [Gate(stream) for stream in streams.values()]

    def work(i: int) -> na.DeviceOp[Any]:
        begun.append(i)
        return na.with_context(lambda ctx: ctx.stream.wait_for(streams[ctx.device])).then(
            lambda _: na.full(2, i)
        )

    for gate in gates:
        gate.close()
    task = asyncio.ensure_future(group.map(work, range(10), most=3))
    await quiet(pair)
    assert len(begun) == 6 and not task.done()
    assert group.statistics() == na.GroupStatistics((3, 3), (0, 0))
    assert repr(group) == "<DeviceGroup cpu:0, cpu:1, 6 in flight>"
    gates[0].open()
    await quiet(pair)
    assert len(begun) == 10 or group.statistics().submitted[1] == 3
    gates[1].open()
    await task
    assert group.statistics().done == group.statistics().submitted
    assert begun == list(range(10))


async def test_the_first_error_stops_what_has_not_started(pair: Pair) -> None:
    group = na.DeviceGroup(pair)
    begun: list[int] = []

    def work(i: int) -> na.DeviceOp[Any]:
        begun.append(i)
        if i == 5:
            raise KeyError(i)
        return na.full(2, i)

    for through in (iter, asynchronous):
        begun.clear()
        with pytest.raises(KeyError, match="5"):
            await group.map(work, through(range(1000)), most=2)
        assert len(begun) < 20
    assert group.statistics().submitted == group.statistics().done


async def test_an_error_ends_the_wait_for_missing_parts(pair: Pair) -> None:
    closed = []

    async def endless() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    def fails(i: int) -> na.DeviceOp[Any]:
        return na.value(i).map(lambda i: i // 0)

    with pytest.raises(ZeroDivisionError):
        await na.DeviceGroup(pair).map(fails, endless())
    assert closed == [True]


async def test_an_error_of_the_parts_is_raised(pair: Pair) -> None:
    def parts() -> Iterator[int]:
        yield 1
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        await na.DeviceGroup(pair).map(where, parts())


async def test_cancelling_withdraws_what_is_not_enqueued(pair: Pair) -> None:
    near, _ = pair
    group = na.DeviceGroup([near])
    z = on(near, 0)
    begun: list[int] = []
    kernel = fresh()

    def work(i: int) -> na.DeviceOp[Any]:
        begun.append(i)
        return kernel(z)  # waits for its compilation

    task = asyncio.ensure_future(group.map(work, range(100), most=2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(begun) == 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await quiet(pair)
    assert (await z.to_host()).tolist() == [0] * 4 and len(begun) == 2
    assert group.statistics() == na.GroupStatistics((2,), (2,))


async def test_wrong_arguments_are_refused(pair: Pair) -> None:
    near, far = pair
    group = na.DeviceGroup([near])
    with pytest.raises(CallerError, match="takes a list of devices"):
        na.DeviceGroup([])
    with pytest.raises(CallerError, match="name each device once"):
        na.DeviceGroup([near, near])
    with pytest.raises(AttributeError):
        group.devices = ()  # type: ignore[misc]
    for most in (0, True, 1.5):
        with pytest.raises(CallerError, match="write 1 or more"):
            await group.map(where, [1], most=most)  # type: ignore[arg-type]
    with pytest.raises(CallerError, match="takes an iterable of parts, not int"):
        await group.map(where, 3)  # type: ignore[call-overload]
    with pytest.raises(DeviceMismatchError, match=r"which is no device of <DeviceGroup cpu:0"):
        await group.map(where, [on(far, 1)])
    with pytest.raises(OperationError, match="what the function of map returns must be"):
        await group.map(lambda i: i, [1])  # type: ignore[arg-type, return-value]

    async def coroutine(i: int) -> int:
        return i

    with pytest.raises(OperationError, match="async def"):
        await group.map(coroutine, [1])  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        group.statistics().done = ()  # type: ignore[misc]


async def test_least_pending_over_several_devices(pair: Pair) -> None:
    near, far = pair
    policy = na.LeastPending(pair, 2)
    assert repr(policy) == "<LeastPending of 4 streams of 2 devices>"
    assert {stream.device for stream in policy.streams} == {near, far}
    held = [stream for stream in policy.streams if stream.device is near]
    gates = [Gate(stream) for stream in held]
    for gate, stream in zip(gates, held, strict=True):
        gate.close()
        na.zeros(4).async_on(stream)
    for _ in range(5):
        t = await na.zeros(4).schedule(policy)
        assert t.device is far
    for gate in gates:
        gate.open()
    near.synchronize()
    busy = policy.streams[0]
    with Gate(busy):  # of equals, a stream of the device with less to do
        na.zeros(4).async_on(busy)
        assert policy.next_stream().device is not busy.device
    await busy.done()
    for wrong in ([], [near, 3]):
        with pytest.raises(CallerError):
            na.LeastPending(wrong)  # type: ignore[arg-type]


async def test_a_policy_with_foreign_streams_still_gets_copies(pair: Pair) -> None:
    near, far = pair
    t, policy = on(near, 3), far.policy
    far.policy = na.LeastPending([near])
    try:
        u = await na.to_device(t, far)
        assert u.device is far and [p.device for p in await na.scatter(t, [far, near])] == [
            far,
            near,
        ]
    finally:
        far.policy = policy
