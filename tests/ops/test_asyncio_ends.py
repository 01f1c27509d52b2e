"""Futures of operations that are cancelled, or whose loop is closed or has eager tasks; and how
promptly they end.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

import numbasync as na
from numbasync.device import reactor
from numbasync.device.in_flight import LOOK_EVERY
from numbasync.errors import CallerError
from numbasync.testing import Gate, settle
from tests.common import add_one, replace_method, used, waited
from tests.waiting import LOOPS, loops

pytestmark = pytest.mark.usefixtures("core")

# --- cancelling, and the ends of loops ---


async def test_what_is_enqueued_runs_and_keeps_its_memory(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    z = await na.zeros(4)
    start = used(device)
    gate.close()
    futures = [
        asyncio.ensure_future(add_one[1, 4, stream](z)),
        asyncio.ensure_future(na.zeros(2**18).schedule(stream)),
    ]
    together = asyncio.gather(*futures, add_one[1, 4, stream](z))
    await settle(device)
    assert not any(future.done() for future in futures)
    assert reactor.current().statistics().waiting == 3
    together.cancel("enough")
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await together
    assert reactor.current().statistics().waiting == 0
    del together, futures
    assert used(device) > start
    gate.open()
    await stream.done()
    assert used(device) == start
    assert (await z.to_host()).tolist() == [2] * 4


async def test_what_waits_for_room_is_withdrawn(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    z = await na.zeros(4)
    gate.close()
    with na.limit(ops=1):
        na.spawn(add_one(z), stream)
        spawned = na.spawn(add_one(z), stream)
        for turns in range(4):
            futures = [asyncio.ensure_future(add_one[1, 4, stream](z)) for _ in range(3)]
            futures.append(asyncio.ensure_future(spawned))
            for _ in range(turns):
                await asyncio.sleep(0)
            for future in futures:
                assert future.cancel()
            await asyncio.wait(futures)
            assert all(future.cancelled() and not future.cancel() for future in futures)
        gate.open()
        await spawned  # nobody awaited it any more, and it was spawned
    await stream.done()
    assert (await z.to_host()).tolist() == [2] * 4


@loops
def test_a_loop_closed_first(device: na.Device, stream: na.Stream, gate: Gate, loop: str) -> None:
    start = used(device)
    gate.close()
    events = LOOPS[loop]()
    events.set_task_factory(na.task_factory)

    async def leave() -> None:
        futures.append(asyncio.ensure_future(na.zeros(2**18).schedule(stream)))
        await settle(device)
        futures.append(asyncio.ensure_future(na.zeros(2**18).schedule(stream)))

    futures: list[Any] = []
    events.run_until_complete(leave())
    events.close()
    assert not any(future.done() for future in futures)
    del futures[:], events
    assert used(device) > start
    gate.open()
    stream.synchronize()
    assert used(device) == start
    assert na.run(waited(na.ones(2).to_host())).tolist() == [1, 1]


# --- signals ---


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch, stream: na.Stream) -> list[int]:
    """The numbers of the signals that are enqueued on `stream`."""
    written, write = list[int](), stream.backend.write

    def noted(sequence: int) -> None:
        written.append(sequence)
        write(sequence)

    # The backend's method: the core calls it too, once it is replaced.
    replace_method(monkeypatch, stream.backend, "write", noted)
    return written


async def test_gather_needs_few_signals(
    device: na.Device, stream: na.Stream, gate: Gate, signals: list[int]
) -> None:
    z = await na.zeros(4)
    await add_one[1, 4, stream](await na.zeros(4))  # compiled
    signals.clear()
    gate.close()
    together = asyncio.gather(*(add_one[1, 4, stream](z) for _ in range(50)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 1 <= len(signals) <= 50 // LOOK_EVERY + 1 and signals[-1] == stream._sequence
    alone = [asyncio.ensure_future(add_one[1, 4, stream](z)) for _ in range(50)]
    signals.clear()
    await settle(device)
    assert len(signals) == 50
    gate.open()
    await asyncio.gather(together, *alone)
    assert (await z.to_host()).tolist() == [100] * 4


async def test_an_operation_ends_before_those_behind_it(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    z = await na.zeros(4)
    before = asyncio.ensure_future(add_one[1, 4, stream](z))
    hold = asyncio.ensure_future(na.value(0).map(lambda _: gate.close()))
    behind = asyncio.ensure_future(add_one[1, 4, stream](z))
    await asyncio.wait_for(before, 300)
    await hold
    assert not behind.done()
    gate.open()
    await behind


# --- eager tasks ---


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
@pytest.mark.parametrize("own", [False, True], ids="asyncio's={}".format)
def test_eager_tasks(device: na.Device, own: bool) -> None:
    async def main() -> None:
        if own:
            asyncio.get_running_loop().set_task_factory(vars(asyncio)["eager_task_factory"])
        seen: list[int] = []
        z = await na.zeros(4)

        async def work(i: int) -> None:
            await add_one(z).inspect(lambda _: seen.append(i))
            await add_one(z)

        async with asyncio.TaskGroup() as group:
            group.create_task(work(0))
            assert seen == [0]
            group.create_task(work(1))
            assert seen == [0, 1]
        await asyncio.gather(*(add_one(z) for _ in range(100)))
        await asyncio.gather(*(waited(add_one(z)) for _ in range(100)))
        assert (await z.to_host()).tolist() == [204] * 4

    na.run(main(), eager_tasks=not own)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this Python has eager tasks")
def test_eager_tasks_need_a_later_python() -> None:
    with pytest.raises(CallerError, match=r"came with Python 3\.12, and this is 3\.11"):
        na.run(asyncio.sleep(0), eager_tasks=True)
