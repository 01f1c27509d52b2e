"""Cancelling: what nobody waits for any more, and what has not been enqueued, does not run."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numba import cuda

import numbasync as na
from numbasync.ops import backpressure, reentrancy
from numbasync.tensors import parallel_copy
from numbasync.testing import Gate, counters, settle
from tests.common import add_one, compiled, copy_to, fresh, used, waited
from tests.waiting import LOOPS, loops


@pytest.fixture(autouse=True)
def ready(device: na.Device) -> Iterator[None]:
    compiled()
    yield
    assert not device.is_limited


@pytest.fixture
def gate(stream: na.Stream) -> Iterator[Gate]:
    """One that opens by itself, so that a test that fails does not hang at the end of its loop."""
    gate = Gate(stream)
    opening = threading.Timer(15, gate.open)
    opening.daemon = True
    opening.start()
    yield gate
    opening.cancel()
    gate.open()


class Compiler:
    """Holds compilations until it is told to go on."""

    def __init__(self, device: na.Device, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self._go_on = threading.Event(), threading.Event()
        compile_ = type(device.backend).compile

        def slow(backend: Any, dispatcher: Any, keys: Any) -> Any:
            self.begun.set()
            assert self._go_on.wait(20)
            return compile_(backend, dispatcher, keys)

        monkeypatch.setattr(type(device.backend), "compile", slow)

    async def has_begun(self) -> None:
        while not self.begun.is_set():
            await asyncio.sleep(0.001)

    def go_on(self) -> None:
        self._go_on.set()


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancel them, and see that they are."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)


# --- the queue in front of the device --------------------------------------------------------


def by_await(z: na.Tensor, stream: na.Stream) -> Any:
    return waited(add_one(z))


def by_schedule(z: na.Tensor, stream: na.Stream) -> Any:
    return waited(add_one(z).schedule(stream))


def by_brackets(z: na.Tensor, stream: na.Stream) -> Any:
    return waited(add_one[1, 4, stream](z))


def by_gather(z: na.Tensor, stream: na.Stream) -> Any:
    return na.gather(add_one(z), add_one(z).schedule(stream))


def by_chain(z: na.Tensor, stream: na.Stream) -> Any:
    return waited(na.value(z).then(lambda z: add_one(z)))


WAYS: list[Callable[..., Any]] = [by_await, by_schedule, by_brackets, by_gather, by_chain]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_a_hundred_that_wait_for_room_are_cancelled_and_launch_nothing(
    device: na.Device, stream: na.Stream, gate: Gate, way: Callable[..., Any]
) -> None:
    z, last = await na.zeros(4), await na.zeros(4)
    gate.close()
    with na.limit(ops=1):
        held = asyncio.ensure_future(waited(add_one(z).schedule(stream)))
        await settle(device)
        before = counters()
        tasks = [asyncio.ensure_future(way(z, stream)) for _ in range(100)]
        behind = asyncio.ensure_future(waited(add_one(last).schedule(stream)))
        await settle(device)
        await cancelled(*tasks)
        assert device.in_flight.ops == 1
        gate.open()
        await held
        await behind
    assert (counters() - before).launches == 1, "what is still wanted"
    assert (await z.to_host()).tolist() == [1] * 4
    assert (await last.to_host()).tolist() == [1] * 4
    assert device.in_flight == (0, 0)


async def test_a_hundred_behind_a_first_compilation_are_cancelled_with_it(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(device, monkeypatch)
    new, z = fresh(), await na.zeros(4)
    before = counters()
    tasks = [asyncio.ensure_future(waited(new(z))) for _ in range(50)]
    tasks += [asyncio.ensure_future(waited(add_one(z))) for _ in range(50)]
    await compiler.has_begun()
    await cancelled(*tasks)
    await add_one(z)  # does not wait for a compilation that nobody waits for
    compiler.go_on()
    assert (await z.to_host()).tolist() == [1] * 4
    assert (counters() - before).launches == 1
    await new(z)
    assert (counters() - before).compiles == 1, "it went on"


async def test_whoever_leaves_a_block_lets_nobody_go_at_once(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    z, free = await na.zeros(4), await na.zeros(4)
    gate.close()
    before = counters()
    with na.limit(ops=2):
        futures = [na.spawn(add_one(z), stream) for _ in range(20)]
        abandoned = [asyncio.ensure_future(waited(add_one(z).schedule(stream))) for _ in range(400)]
        await settle(device)
    await settle(device)
    assert (counters() - before).launches == device.in_flight.ops == 2
    await cancelled(*abandoned)
    assert await asyncio.wait_for(waited(add_one(free)), 10), "not under the limit, nor behind it"
    gate.open()
    for future in futures:
        assert device.in_flight.ops <= 2
        await future
    assert (counters() - before).launches == 21
    assert (await z.to_host()).tolist() == [20] * 4
    assert (await free.to_host()).tolist() == [1] * 4


async def test_what_is_spawned_runs_though_its_future_is_dropped_or_its_await_cancelled(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    z = await na.zeros(4)
    gate.close()
    with na.limit(ops=1):
        futures = [na.spawn(add_one(z), stream) for _ in range(4)]
        tasks = [asyncio.ensure_future(waited(futures.pop()))]
        tasks.append(asyncio.ensure_future(na.gather(*futures)))
        await settle(device)
        await cancelled(*tasks)
        futures.clear()
        gate.open()
        await na.spawn(add_one(z), stream)
    assert (await z.to_host()).tolist() == [5] * 4


# --- who waits -------------------------------------------------------------------------------


async def test_of_two_who_wait_one_may_go(device: na.Device, stream: na.Stream, gate: Gate) -> None:
    z = await na.zeros(4)
    gate.close()
    with na.limit(ops=1):
        na.spawn(add_one(z), stream)
        one, two = add_one(z).schedule(stream), add_one(z).schedule(stream)
        tasks = [asyncio.ensure_future(waited(one)) for _ in range(2)]
        together = [asyncio.ensure_future(na.gather(two)) for _ in range(2)]
        await settle(device)
        await cancelled(tasks[0], together[0])
        assert not one.cancelled()
        gate.open()
        await asyncio.gather(tasks[1], together[1])
    assert (await z.to_host()).tolist() == [3] * 4


async def test_a_thread_that_blocks_for_it_waits_as_well(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, run = threading.Event(), reentrancy.OneShotEvent.run

    def noted(turn: reentrancy.OneShotEvent) -> None:
        blocks.set()
        run(turn)

    monkeypatch.setattr(reentrancy.OneShotEvent, "run", noted)
    z = await na.zeros(4)
    gate.close()
    with na.limit(ops=1):
        na.spawn(add_one(z), stream)
        future = add_one(z).schedule(stream)
        task = asyncio.ensure_future(waited(future))
        await settle(device)
        other = asyncio.ensure_future(asyncio.to_thread(future.sync))
        assert await asyncio.to_thread(blocks.wait, 10)
        await cancelled(task)
        gate.open()
        await asyncio.wait_for(other, 10)
    assert (await z.to_host()).tolist() == [2] * 4


@pytest.mark.may_leave("a thread keeps the line of a loop that was never ended until its next loop")
@pytest.mark.parametrize("held", [True, False], ids=["tasks held", "tasks dropped"])
@pytest.mark.parametrize("then", ["another loop", "blocking", "another thread"])
def test_of_a_loop_that_is_closed_only_what_was_spawned_runs(
    device: na.Device, stream: na.Stream, gate: Gate, held: bool, then: str
) -> None:
    z, spawned, both = (na.zeros(4).sync() for _ in range(3))
    tasks: list[asyncio.Future[Any]] = []

    async def main() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # tasks were pending
        gate.close()
        na.spawn(add_one(spawned), stream)
        future = add_one(spawned).then(lambda r: add_one(r.z)).schedule(stream)
        ops = (
            add_one(z),
            na.value(z).then(lambda z: add_one(z)),
            add_one(z).schedule(stream),
            future,
        )
        tasks.extend(asyncio.ensure_future(waited(op)) for op in ops)
        tasks.append(asyncio.ensure_future(na.gather(add_one(z), add_one(z).schedule(stream))))
        last = na.spawn(add_one(spawned), stream)
        await settle(device)
        if not held:
            tasks.clear()
        return future, last

    na.limit(ops=1)
    try:
        loop = asyncio.new_event_loop()
        future, last = loop.run_until_complete(main())
        loop.close()
        gate.open()
        if then == "another loop":
            asyncio.run(waited(na.fill(both, 1)))
        elif then == "another thread":
            with ThreadPoolExecutor(1) as threads:
                threads.submit(future.sync).result(20)
        last.sync()
        if then == "another thread":
            assert future.done() and not future.cancelled(), "somebody else waits for it"
    finally:
        na.limit()
    assert z.to_host().sync().tolist() == [0] * 4
    expected = 4 if then == "another thread" else 2
    assert spawned.to_host().sync().tolist() == [expected] * 4
    tasks.clear()
    gc.collect()


@pytest.mark.may_leave("a thread keeps the line of a loop that was stopped until its next loop")
@loops
def test_ctrl_c_at_the_end_of_a_loop_stops_all_that_it_waits_for(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    z = na.zeros(4).sync()
    blocked: list[Any] = []

    def run(room: backpressure.Capacity) -> None:
        blocked.append(room)
        gate.open()
        raise KeyboardInterrupt

    monkeypatch.setattr(backpressure.Capacity, "run", run)

    async def main() -> None:
        gate.close()
        na.limit(ops=1)
        futures.extend(na.spawn(add_one(z), stream) for _ in range(10))
        futures.append(na.spawn(na.value(z).then(lambda z: add_one(z)), stream))
        await settle(device)

    futures: list[Any] = []
    try:
        with pytest.raises(KeyboardInterrupt), asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(main())
    finally:
        na.limit()
    assert len(blocked) == 1
    assert [future.cancelled() for future in futures] == [False] * 2 + [True] * 9
    assert z.to_host().sync().tolist() == [1] * 4
    assert device.in_flight == (0, 0)


async def test_who_waits_for_long_piles_up_nothing(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Callable[[], None]] = []
    when_settled = reentrancy.OneShotEvent.when_settled

    def noted(turn: reentrancy.OneShotEvent, call: Callable[[], None]) -> None:
        looks.append(call)
        when_settled(turn, call)

    monkeypatch.setattr(reentrancy.OneShotEvent, "when_settled", noted)
    monkeypatch.setattr(reentrancy, "LOOK_AGAIN", 0.001)
    z = await na.zeros(4)
    gate.close()
    with na.limit(ops=1):
        na.spawn(add_one(z), stream)
        future = add_one(z).schedule(stream)
        tasks = [asyncio.ensure_future(waited(future)) for _ in range(3)]
        while len(looks) < 30:
            await asyncio.sleep(0.001)
        turn = future._turn
        assert turn is not None and len(turn._calls) <= len(tasks)
        await cancelled(*tasks)
        await asyncio.sleep(0)
        assert not turn._calls
        gate.open()


async def test_cancel_withdraws_what_has_not_been_enqueued(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    z = await na.zeros(4)
    gate.close()
    never = add_one(z).schedule(stream)
    with na.limit(ops=1):
        enqueued, waits = na.spawn(add_one(z), stream), na.spawn(add_one(z), stream)
        task = asyncio.ensure_future(waited(waits))
        await settle(device)
        assert not enqueued.cancel()
        assert waits.cancel()
        assert never.cancel()
        assert not waits.cancel(), "as asyncio's futures: it is done"
        assert waits.cancelled() and waits.done() and not enqueued.cancelled()
        await asyncio.wait([task])
        assert task.cancelled()
        for future in (waits, never):
            with pytest.raises(asyncio.CancelledError):
                await future
            with pytest.raises(asyncio.CancelledError):
                future.sync()
        gate.open()
        await enqueued
    assert not enqueued.cancel()
    assert (await z.to_host()).tolist() == [1] * 4


async def test_another_thread_may_cancel(device: na.Device, stream: na.Stream, gate: Gate) -> None:
    z = await na.zeros(4)
    gate.close()
    with na.limit(ops=1):
        na.spawn(add_one(z), stream)
        futures = [na.spawn(add_one(z), stream) for _ in range(3)]
        await settle(device)
        assert await asyncio.to_thread(futures[0].cancel)
        assert await asyncio.to_thread(futures[1].cancel)
        gate.open()
        await asyncio.wait_for(waited(futures[2]), 10)
    assert (await z.to_host()).tolist() == [2] * 4


@pytest.mark.parametrize("how", ["wait_for", "timeout", "group", "gather", "asyncio.gather"])
async def test_every_way_of_asyncio_withdraws(
    device: na.Device, stream: na.Stream, gate: Gate, how: str
) -> None:
    z = await na.zeros(4)

    async def fail() -> None:
        await asyncio.sleep(0.01)
        raise LookupError

    async def give_up() -> None:
        count = 1 if how in ("wait_for", "timeout") else 3
        ops = [add_one(z).schedule(stream) for _ in range(count)]
        if how == "wait_for":
            await asyncio.wait_for(ops[0], 0.01)
        elif how == "timeout":
            async with asyncio.timeout(0.01):
                await ops[0]
        elif how == "group":
            async with asyncio.TaskGroup() as group:
                for op in ops:
                    group.create_task(waited(op))
                group.create_task(fail())
        elif how == "gather":
            await asyncio.wait_for(na.gather(*ops), 0.01)
        else:
            await asyncio.wait_for(asyncio.gather(*ops), 0.01)

    gate.close()
    before = counters()
    with na.limit(ops=1):
        na.spawn(add_one(z), stream)
        with pytest.raises((TimeoutError, ExceptionGroup)):
            await give_up()
        gate.open()
    await stream.done()
    assert (counters() - before).launches == 1
    assert (await z.to_host()).tolist() == [1] * 4


async def test_what_a_runtime_was_to_run_is_withdrawn(device: na.Device) -> None:
    z = await na.zeros(4)
    stream = device.new_stream()
    gate = Gate(stream)
    gate.close()
    async with na.Runtime(device) as rt:
        na.limit(ops=1)
        add_one(z).async_on(stream)
        before = counters()
        tasks = [asyncio.ensure_future(rt.run(add_one(z))) for _ in range(10)]
        await asyncio.sleep(0.05)
        await cancelled(*tasks)
        too_early = [asyncio.ensure_future(rt.run(add_one(z))) for _ in range(10)]
        await asyncio.sleep(0)
        await cancelled(*too_early)
        await rt.call(lambda: None)
        gate.open()
        na.limit()
    assert (counters() - before).launches == 0
    assert (await z.to_host()).tolist() == [1] * 4


async def test_what_a_runtime_has_not_come_to_does_not_begin(device: na.Device) -> None:
    z, begun = await na.zeros(4), threading.Event()
    other = add_one(z).schedule(device.policy)

    async def coroutine() -> None:
        begun.set()
        await add_one(z)

    async with na.Runtime(device) as rt:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            busy, go_on = threading.Event(), threading.Event()
            held = asyncio.ensure_future(rt.call(lambda: busy.set() or go_on.wait(20)))
            await asyncio.to_thread(busy.wait)
            future, shared = add_one(z).schedule(device.policy), add_one(z).shared()
            ops = [add_one(z), future, other, shared, coroutine()]
            tasks = [asyncio.ensure_future(rt.run(op)) for op in ops]
            wanted = asyncio.ensure_future(rt.run(other))
            await asyncio.sleep(0)
            await cancelled(*tasks[:2], *tasks[3:])
            go_on.set()
            await asyncio.gather(held, tasks[2], wanted)
            assert future.cancelled() and not begun.is_set()
            assert (await rt.run(z.to_host())).tolist() == [1] * 4
            await rt.run(shared)
            assert (await rt.run(z.to_host())).tolist() == [2] * 4, "others may run it"
            del ops, tasks, future


# --- what others need ------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["while it compiles", "behind it", "later"])
async def test_a_shared_operation_goes_on_for_those_who_need_it(
    device: na.Device, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    compiler = Compiler(device, monkeypatch)
    await na.zeros(4)
    start = used(device)
    z, calls = await na.zeros(4), []
    shared = add_one(z).then(lambda r: calls.append(1) or fresh()(r.z)).output().shared()
    before = counters()
    first = asyncio.ensure_future(waited(shared.then(lambda z: add_one(z))))
    await compiler.has_begun()
    other: Any = None
    if asked == "while it compiles":  # on another thread

        def run(op: Any = shared) -> Any:
            with na.use_device(device):
                return op.sync()

        other = asyncio.get_running_loop().run_in_executor(None, run)
        del run
    elif asked == "behind it":
        other = asyncio.ensure_future(waited(shared))
    await asyncio.sleep(0.01)
    await cancelled(first)
    compiler.go_on()
    assert (await (shared if other is None else other)) is z
    assert (await z.to_host()).tolist() == [2] * 4, "once, without what was to follow"
    assert calls == [1]
    assert (counters() - before).launches == 2
    del z, shared, other, first
    await asyncio.sleep(0)  # this step of the loop holds the result
    assert used(device) == start


@pytest.mark.parametrize("asked", ["by nobody", "on this loop", "on another"])
async def test_nobody_waits_behind_what_nobody_goes_on_with(
    device: na.Device, stream: na.Stream, gate: Gate, asked: str
) -> None:
    await na.zeros(4)
    gate.close()
    with na.limit(bytes=4000):
        held = na.spawn(na.zeros(700), stream)
        shared = na.value(800).then(lambda n: na.zeros(n)).shared()
        first = asyncio.ensure_future(waited(shared))
        await settle(device)
        await cancelled(first)  # it waits for room, half enqueued
        gate.open()
        await held
        await asyncio.wait_for(waited(na.zeros(4)), 10)
        if asked == "on this loop":
            assert (await asyncio.wait_for(waited(shared), 10)).size == 800
        elif asked == "on another":
            there = asyncio.to_thread(asyncio.run, waited(shared))
            assert (await asyncio.wait_for(there, 10)).size == 800
        await asyncio.wait_for(waited(na.zeros(4)), 10)


@pytest.mark.may_leave("a thread keeps the line of a loop that was never ended until its next loop")
def test_who_goes_on_with_it_on_another_loop_waits_for_nobody_of_the_first(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    na.zeros(4).sync()

    async def main() -> tuple[Any, Any]:
        gate.close()
        na.spawn(na.zeros(700), stream)
        shared = na.value(800).then(lambda n: na.zeros(n)).shared()
        first = asyncio.ensure_future(waited(shared))
        await settle(device)
        with na.limit(priority=1):
            other = na.spawn(na.zeros(850), stream)
        await settle(device)
        await cancelled(first)
        await settle(device)
        return shared, other

    def work() -> tuple[Any, Any]:
        with na.use_device(device):
            loop = asyncio.new_event_loop()
            loop.set_exception_handler(lambda *_: None)  # tasks were pending
            found = loop.run_until_complete(main())
            held.append(loop)
            loop.close()  # what was spawned waits for room until somebody asks for it
            return found

    held: list[asyncio.AbstractEventLoop] = []
    na.limit(bytes=4000)
    try:
        with ThreadPoolExecutor(1) as threads:
            shared, other = threads.submit(work).result(20)
            gate.open()
            assert asyncio.run(asyncio.wait_for(waited(shared), 10)).size == 800
            assert other.sync().size == 850
    finally:
        na.limit()


async def test_a_chain_that_is_half_enqueued_stops_there_and_frees_nothing_in_use(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(device, monkeypatch)
    seen: list[na.Tensor] = []
    start = used(device)
    gate.close()
    before = counters()
    op = (
        na.zeros(2**16).inspect(seen.append).then(lambda z: add_one(z).output())
        .then(lambda z: fresh()(z).output()).then(lambda z: add_one(z))
    )  # fmt: skip
    task = asyncio.ensure_future(waited(op.schedule(stream)))
    await compiler.has_begun()
    await cancelled(task)
    assert (counters() - before).launches == 1
    compiler.go_on()
    other = na.full(2**16, 9).sync_on(device.new_stream())
    gate.open()
    await stream.done()
    assert set((await seen[0].to_host()).tolist()) == {1}
    assert set((await other.to_host()).tolist()) == {9}
    seen.clear()
    del op, task, other
    assert used(device) == start
    assert device.in_flight == (0, 0)


async def test_memory_of_what_is_withdrawn_is_freed(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    z = await na.zeros(4)
    start = used(device)
    handed_over = (await na.zeros(2**16)).take()
    gate.close()
    with na.limit(ops=1), warnings.catch_warnings():
        warnings.simplefilter("error")
        na.spawn(add_one(z), stream)
        task = asyncio.ensure_future(waited(add_one(handed_over).schedule(stream)))
        future = na.spawn(copy_to(na.zeros(8), na.zeros(8)).output(), stream)
        await settle(device)
        del handed_over
        assert used(device) > start
        await cancelled(task)
        future.cancel()
        del task, future
        assert used(device) == start
        gate.open()


async def test_an_upload_that_is_withdrawn_reads_no_more(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.ones(20 * 2**20, np.uint8)
    t = await na.zeros(array.shape, np.uint8)
    held, reached, place = threading.Event(), threading.Event(), parallel_copy.place

    def slow(room: Any, piece: Any) -> None:
        reached.set()
        assert held.wait(20)
        assert piece[0] == 1, "read although nobody waits for it"
        place(room, piece)

    monkeypatch.setattr(parallel_copy, "place", slow)
    task = asyncio.ensure_future(waited(na.memcpy(t, array)))
    while not reached.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    threading.Timer(0.05, held.set).start()
    await asyncio.wait([task])
    array[:] = 7
    assert (await t.to_host()).max() == 0, "all of it or nothing"


# --- limits of blocks ------------------------------------------------------------------------


async def test_a_block_is_its_tasks_own_and_holds_up_nobody_else(
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


@pytest.mark.parametrize("loop", ["turns", "stalled"])
async def test_higher_priority_goes_first_and_equals_in_their_order(
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


# --- gather ----------------------------------------------------------------------------------


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


# --- random programs -------------------------------------------------------------------------


@na.launcher
@cuda.jit
def step(z: na.KernelOutput, a):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = z[i] * 3 + a


WAYS_TO_SUBMIT = ["await", "spawn", "chain", "shared"]
_op = st.tuples(
    st.just("op"), st.integers(0, 2), st.integers(0, 3), st.sampled_from(WAYS_TO_SUBMIT),
    st.integers(0, 1),
)  # fmt: skip
_events = st.one_of(
    _op, _op, _op,
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("gate"), st.integers(0, 1)),
    st.tuples(st.just("turn"), st.integers(1, 4)),
)  # fmt: skip


@settings(
    max_examples=25, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(st.lists(_events, min_size=4, max_size=24))
def test_random_programs_run_what_is_wanted_in_its_order(
    device: na.Device, events: list[tuple[Any, ...]]
) -> None:
    na.run(_random_program(device, events))


async def _random_program(device: na.Device, events: list[tuple[Any, ...]]) -> None:
    tensors = [await na.zeros(1, np.int64) for _ in range(3)]
    await step(await na.zeros(1, np.int64), 1)
    streams = [device.new_stream() for _ in range(2)]
    gates = [Gate(stream) for stream in streams]
    limits: list[Any] = [None, *(na.limit(ops=n, priority=n) for n in (1, 2, 1))]
    for limit in limits[1:]:
        limit.__enter__()
        limit.__exit__(None, None, None)
    done: list[tuple[int, na.DeviceFuture[Any], Any]] = []
    before = counters()

    async def submit(i: int, lane: int, way: str, s: int) -> None:
        a = len(done) + 1
        op: Any = (
            na.value(tensors[i]).then(lambda t: step(t, a)) if way == "chain"
            else step(tensors[i], a).shared() if way == "shared"
            else step(tensors[i], a)
        )  # fmt: skip
        future = op.schedule(streams[s])
        if way == "spawn":
            future.start()
            done.append((i, future, None))
        else:
            done.append((i, future, asyncio.ensure_future(waited(future))))
            await asyncio.sleep(0)

    for event, *args in events:
        if event == "op":
            limit = limits[args[1]]
            with contextlib.nullcontext() if limit is None else limit:
                await submit(*args)
        elif event == "cancel" and done:
            _, future, task = done[args[0] % len(done)]
            waits = future._submission is None and not future.done()
            (task or future).cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert future.cancelled() or not waits, "it was not enqueued, and not withdrawn"
        elif event == "gate":
            gate = gates[args[0]]
            gate.close() if gate.is_open else gate.open()
        elif event == "turn":
            for _ in range(args[0]):
                await asyncio.sleep(0)
        await settle(device)
    for gate in gates:
        gate.open()
    await asyncio.gather(*(waited(f) for _, f, _ in done if not f.cancelled()))
    expected = [0, 0, 0]
    ran = 0
    for number, (i, future, _) in enumerate(done, 1):
        if not future.cancelled():
            expected[i] = (expected[i] * 3 + number) % 2**64
            ran += 1
    assert (counters() - before).launches == ran
    got = [int((await t.to_host())[0]) % 2**64 for t in tensors]
    assert got == expected, "in the order of submission"
    await asyncio.gather(*(t for *_, t in done if t is not None), return_exceptions=True)
    assert device.in_flight == (0, 0)
    for limit in limits[1:]:
        with limit:
            await step(tensors[0], 1)  # there is room again
