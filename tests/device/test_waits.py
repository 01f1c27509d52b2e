"""How a task waits for a point of a stream: polls of its own, the reactor, and the setting."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import numbasync as na
from numbasync.device import reactor, waits
from numbasync.errors import CallerError
from numbasync.testing import Gate
from tests.common import add_one, waited
from tests.device.fake_streams import Clock, turns
from tests.waiting import eventually


@pytest.fixture
def clock(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time that passes when the test says so; the device's work is polled for 0.3 ms at first."""
    clock = Clock()
    for module in (waits, reactor):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(type(device.backend), "spin_seconds", 3e-4)
    # Another task is ready all the time, so that a turn is one poll.
    monkeypatch.setattr(waits, "CROWDED_S", -1.0)
    return clock


def held_wait(stream: na.Stream, z: na.Tensor) -> asyncio.Task[Any]:
    return asyncio.ensure_future(waited(add_one(z).schedule(stream)))


async def is_polled_by_its_task(stream: na.Stream) -> bool:
    """Whether turns of the loop poll, and the reactor watches nothing."""
    watcher = reactor.current()
    before = watcher.statistics()
    await turns(20)
    return watcher.statistics().turns >= before.turns + 15 and not watcher._queues


async def test_a_task_polls_first_and_is_woken_then(
    stream: na.Stream, gate: Gate, clock: Clock
) -> None:
    z = await na.zeros(4)
    await add_one(z).schedule(stream)
    gate.close()
    task = held_wait(stream, z)
    await eventually(lambda: reactor.current().spinning)
    assert await is_polled_by_its_task(stream)
    assert reactor.current().statistics().waiting == 1
    clock.now += 2.9e-4
    assert await is_polled_by_its_task(stream)
    clock.now += 0.2e-4
    await turns()
    watcher = reactor.current()
    assert (len(watcher.spinning), watcher.statistics().waiting, len(watcher._queues)) == (0, 1, 1)
    gate.open()
    await task


async def test_a_task_that_polls_is_cancelled(stream: na.Stream, gate: Gate, clock: Clock) -> None:
    z = await na.zeros(4)
    await add_one(z).schedule(stream)
    gate.close()
    task = held_wait(stream, z)
    await eventually(lambda: reactor.current().spinning)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reactor.current().statistics().waiting == 0
    gate.open()
    await stream.done()
    assert (await z.to_host()).tolist() == [2] * 4


async def test_few_tasks_poll_for_themselves_at_a_time(
    stream: na.Stream, gate: Gate, clock: Clock
) -> None:
    z = await na.zeros(4)
    await add_one(z).schedule(stream)
    gate.close()
    count = reactor.MOST_SPINNING + 3
    tasks = [held_wait(stream, z) for _ in range(count)]
    watcher = reactor.current()
    await eventually(lambda: watcher.statistics().waiting == count)
    assert len(watcher.spinning) == reactor.MOST_SPINNING
    gate.open()
    await asyncio.gather(*tasks)
    assert watcher.statistics().waiting == 0


async def test_long_work_is_left_to_the_reactor(
    stream: na.Stream, gate: Gate, clock: Clock
) -> None:
    z, watcher = await na.zeros(4), reactor.current()
    for last in (False, False, True):
        gate.close()
        task = held_wait(stream, z)
        await eventually(lambda: watcher.statistics().waiting)
        assert (not watcher.spinning) is last
        clock.now += 0.25
        await eventually(lambda: watcher._queues)
        gate.open()
        await task


# --- na.waiting ---


async def test_with_low_latency_a_wait_is_polled_throughout(
    device: na.Device, stream: na.Stream, gate: Gate, clock: Clock
) -> None:
    z, watcher = await na.zeros(4), reactor.current()
    for setting in ("block", "device"):
        for _ in range(3):  # however long it is known to take
            gate.close()
            if setting == "block":
                with na.waiting(latency="low"):
                    task = held_wait(stream, z)
            else:
                device.latency = "low"
                task = held_wait(stream, z)
            try:
                await eventually(lambda: watcher.spinning)
                clock.now += 0.01
                assert await is_polled_by_its_task(stream)
                clock.now += 10.0  # from here on the reactor polls, which finds faults
                before = watcher.statistics()
                await turns(30)
                after = watcher.statistics()
                assert after.turns >= before.turns + 15 and after.sleeps == before.sleeps
            finally:
                device.latency = "normal"
                gate.open()
            await task


async def test_the_innermost_setting_holds_within_its_block(device: na.Device) -> None:
    assert not has_low(device)
    with na.waiting(latency="low"):
        assert has_low(device)
        with na.waiting(latency="normal"):
            assert not has_low(device)
        assert has_low(device)
        assert await asyncio.create_task(later(device)), "a task inherits it"
    assert not has_low(device)
    device.latency = "low"
    try:
        assert device.latency == "low" and has_low(device)
        with na.waiting(latency="normal"):
            assert not has_low(device)
    finally:
        device.latency = "normal"


def has_low(device: na.Device) -> bool:
    return waits.has_low_latency(device)


async def later(device: na.Device) -> bool:
    return has_low(device)


@pytest.mark.parametrize("latency", ["lowest", "", None, 1, True])
def test_a_latency_is_low_or_normal(device: na.Device, latency: Any) -> None:
    with pytest.raises(CallerError, match='latency is "low" or "normal"'):
        na.waiting(latency=latency)
    with pytest.raises(CallerError, match='latency is "low" or "normal"'):
        device.latency = latency
    assert device.latency == "normal"
