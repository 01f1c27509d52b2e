"""What must hold of awaiting: data, time, processor, descriptors, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.device import reactor
from numbasync.testing import Gate, settle
from tests.common import add_one, used, waited
from tests.waiting import LOOPS, begin, eventually, in_time, loops, run

# --- data ---


async def test_large_data_is_visible_when_the_await_returns(
    device: na.Device, policy: na.SchedulingPolicy
) -> None:
    rng = np.random.default_rng(7)
    target = np.zeros(2**24, np.uint8)
    for round_ in range(8):
        want = rng.integers(0, 256, 2**24, np.uint8)
        tensor = await na.from_host(want).dup().schedule(policy)
        got, copied = await na.gather(
            tensor.to_host().schedule(policy), na.memcpy(target, tensor).schedule(policy)
        )
        assert got.tobytes() == copied.tobytes() == want.tobytes(), f"round {round_}"


@pytest.mark.parametrize("seconds", [0.0, 60.0], ids=["none", "without end"])
async def test_any_spin_budget_works(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch,
    seconds: float,
) -> None:  # fmt: skip
    z = await na.zeros(8)
    await add_one(z)
    await z.to_host()
    monkeypatch.setattr(type(device.backend), "spin_seconds", seconds)
    before = reactor.current().statistics()
    gate.close()
    held = asyncio.ensure_future(waited(add_one(z).schedule(stream)))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not held.done()
    gate.open()
    await held
    for _ in range(50):
        await add_one(z)
    values = await na.gather(*(na.full(4, i).to_host() for i in range(50)))
    assert [int(v[3]) for v in values] == list(range(50))
    assert (await z.to_host()).tolist() == [52] * 8
    slept = reactor.current().statistics().sleeps - before.sleeps
    assert slept == 0 if seconds else slept > 0


# --- many ---


async def test_three_thousand_futures_at_once(
    device: na.Device, policy: na.SchedulingPolicy
) -> None:
    values = await na.gather(*(na.full(2, i).to_host().schedule(policy) for i in range(3000)))
    assert [int(v[0]) for v in values] == list(range(3000))
    assert reactor.current().statistics().waiting == 0


async def test_after_each_of_fifty_waits_nothing_is_watched(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    z = await na.zeros(4)
    watcher = reactor.current()
    before = watcher.statistics().completed
    for _ in range(50):
        gate.close()
        task = asyncio.ensure_future(waited(add_one(z).schedule(stream)))
        await eventually(lambda: watcher.statistics().waiting)
        gate.open()
        await task
        assert watcher.statistics().waiting == 0
        assert watcher._next is None, "it is to look although nobody waits"
    assert watcher.statistics().completed - before == 50
    assert (await z.to_host()).tolist() == [50] * 4


def test_eight_threads_with_loops_see_their_own_values(device: na.Device) -> None:
    async def main(n: int) -> list[list[float]]:
        return [(await na.full(4, 100 * n + i).to_host()).tolist() for i in range(40)]

    results = [begin(lambda n=n: na.run(main(n))) for n in range(8)]
    for n, result in enumerate(results):
        assert result() == [[100 * n + i] * 4 for i in range(40)]


def test_ten_thousand_short_awaits_leave_nothing_behind(device: na.Device) -> None:
    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        z = await na.zeros(4)
        for _ in range(500):
            await na.fill(z, 1)
        threads = threading.active_count()
        grown: list[tuple[int, int]] = []  # objects and blocks of memory, by rounds
        for _ in range(5):
            gc.collect()
            objects, blocks = len(gc.get_objects()), sys.getallocatedblocks()
            for i in range(2_000):
                await na.fill(z, i)
            assert (await z.to_host()).tolist() == [1999] * 4
            await settle(device)  # the wake-up of a wait that a poll ended may still be to come
            gc.collect()
            grown.append((len(gc.get_objects()) - objects, sys.getallocatedblocks() - blocks))
        # What is kept for each await grows in every round; lists that Python keeps, and asyncio's
        # cancelled timers, in some.
        found = reactor.current().statistics()
        assert min(o for o, _ in grown) < 100 and min(b for _, b in grown) < 200, grown
        assert threading.active_count() <= threads
        assert found.waiting == 0
        assert len(loop._ready) == 0
        assert [t for t in loop._scheduled if not t.cancelled()] == []

    run("asyncio", main())


# --- cancelling, other loops, timeouts ---


@loops
def test_cancelled_tasks_call_nothing_in_vain(
    device: na.Device, stream: na.Stream, loop: str
) -> None:
    async def main() -> None:
        errors: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: errors.append(what))
        z = await na.zeros(4)
        ended = set()
        for i in range(300):
            future = na.spawn(na.fill(z, i), stream)
            tasks = [asyncio.ensure_future(waited(future)) for _ in range(2)]
            for _ in range(i % 6):
                await asyncio.sleep(0)
            if i % 6 == 5:
                await asyncio.wait(tasks)  # too late
            if i % 12 >= 6:
                stream.synchronize()  # it is passed; the reactor has not looked yet
            tasks[0].cancel()
            await asyncio.wait(tasks)
            ended.add(tasks[0].cancelled())
            await tasks[1]
        assert ended == {False, True}, "cancelled before the end, and too late"
        assert (await z.to_host()).tolist() == [299] * 4
        assert errors == []
        assert reactor.current().statistics().waiting == 0

    in_time(lambda: run(loop, main()))


@loops
def test_a_future_outlives_its_loop_to_another(
    device: na.Device, stream: na.Stream, gate: Gate, loop: str
) -> None:
    na.full(3, 8).to_host().sync()
    gate.close()

    async def make() -> na.DeviceFuture[Any]:
        future = na.spawn(na.full(3, 8).to_host(), stream)
        task = asyncio.ensure_future(waited(future))
        await settle(device)
        assert not task.done()
        return future

    future = run(loop, make())

    async def use() -> Any:
        task = asyncio.ensure_future(waited(future))
        await settle(device)
        assert not task.done()
        gate.open()
        return await task

    (other,) = set(LOOPS) - {loop}
    assert run(other, use()).tolist() == [8, 8, 8]
    assert run(loop, waited(future)).tolist() == [8, 8, 8]


def test_one_future_is_awaited_on_two_loops(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    na.full(3, 8).to_host().sync()
    gate.close()
    future = na.spawn(na.full(3, 8).to_host(), stream)
    waiting = [threading.Event() for _ in LOOPS]

    async def use(at: threading.Event) -> Any:
        task = asyncio.ensure_future(waited(future))
        await eventually(lambda: reactor.current().statistics().waiting)
        at.set()
        return await task

    results = [
        begin(lambda loop=loop, at=at: run(loop, use(at)))
        for loop, at in zip(LOOPS, waiting, strict=True)
    ]
    assert all(at.wait(300) for at in waiting)
    gate.open()
    one, two = (result() for result in results)
    assert one is two and one.tolist() == [8, 8, 8]


async def test_memory_outlives_a_timeout_until_the_work_ends(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    await na.full(2**20, 4)
    await na.zeros(4)
    start = used(device)
    gate.close()
    with pytest.raises(TimeoutError):  # while the gate is shut: it does not wait for the work
        async with asyncio.timeout(0.05):
            await na.full(2**20, 4).schedule(stream)
    await settle(device)  # the loop's step that was cancelled holds the future
    assert used(device) == start + 2**22
    other = na.full(2**20, 9).sync_on(device.new_stream())
    gate.open()
    await stream.done()
    assert (await other.to_host() == 9).all()
    del other
    assert used(device) == start
