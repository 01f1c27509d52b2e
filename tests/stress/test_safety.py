"""Interleavings of streams, threads, closures, interruptions and failures that once went wrong."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import ReentrancyError, StateError
from numbasync.launch import call as launch
from numbasync.launch import variants
from numbasync.testing import Gate, seeded, settle
from tests.common import add_one, copy_to, fresh, used, waited
from tests.holding import HeldCompiler


def elsewhere(device: na.Device, call: Any) -> Any:
    """`call()` on another thread."""

    def on_device() -> Any:
        with na.use_device(device):
            return call()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(on_device).result(30)


@pytest.fixture(autouse=True)
def compiled(device: na.Device) -> None:
    """What is loaded while a gate is shut may wait for the gate."""
    add_one.compile(na.meta(1)).sync()
    for size in (4, 1000, 1 << 16):
        t = na.zeros(size).sync()
        na.memcpy(np.zeros(size, np.float32), t).sync()
        na.ones(size).then(lambda t: t.dup()).to_host().sync()


# --- streams that need each other ---


async def test_two_streams_holding_each_others_cause(device: na.Device) -> None:
    a, b = device.new_stream(), device.new_stream()
    gates = Gate(a), Gate(b)
    for gate in gates:
        gate.close()
    first = na.zeros(4).shared()
    second = first.then(lambda t: t.dup()).shared()
    futures = [
        na.spawn(first, a),
        na.spawn(second, b),
        na.spawn(second.then(lambda t: t.to_host()), a),
    ]
    for gate in gates:
        gate.open()
    device.backend.quiesce()  # all is done before anyone looks
    assert (await futures[2]).tolist() == [0] * 4
    assert all(f.done() for f in futures)


async def test_a_long_zigzag_of_shared_operations(device: na.Device) -> None:
    streams = [device.new_stream() for _ in range(2)]
    gates = [Gate(s) for s in streams]
    for gate in gates:
        gate.close()
    op = na.zeros(4).shared()
    for i in range(300):
        na.spawn(op, streams[i % 2])
        op = op.then(lambda t: add_one(t)).output().shared()
    last = na.spawn(op.then(lambda t: t.to_host()), streams[0])
    for gate in gates:
        gate.open()
    assert (await last).tolist() == [300] * 4


# --- closures that come back to the line ---


async def test_then_unchecked_behind_a_compilation(device: na.Device) -> None:
    z = await na.zeros(4)
    op = fresh()(z).then_unchecked(lambda r: na.value(r.z.to_host().sync()))
    assert (await op).tolist() == [1] * 4


async def test_a_blocking_closure_holds_back_later_ones(device: na.Device) -> None:
    w, z = await na.zeros(4), await na.zeros(4)
    na.spawn(fresh()(w))
    one = na.spawn(na.value(0).then_unchecked(lambda _: (w.to_host().sync(), add_one(z))[1]))
    two = na.spawn(z.to_host())
    assert (await two).tolist() == [1] * 4
    await one


async def test_a_closure_may_ask_a_finished_future(device: na.Device) -> None:
    known = na.spawn(na.value(7))
    await known
    z = await na.zeros(4)
    assert await fresh()(z).map(lambda _: known.sync()) == 7


# --- a future that two threads want, or that is interrupted ---


def test_two_threads_block_on_one_future(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = HeldCompiler(device, monkeypatch)
    future = fresh()(na.zeros(4)).output().to_host().schedule(device.policy)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(future.sync)
        assert compiler.has_begun_sync()
        two = pool.submit(future.sync)
        compiler.go_on()
        assert one.result(20).tolist() == two.result(20).tolist() == [1] * 4


@pytest.mark.parametrize("shared", [False, True])
def test_ctrl_c_while_compiling(
    device: na.Device, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    def interrupted(*args: Any) -> Any:
        raise KeyboardInterrupt

    op = fresh()(na.zeros(4)).output()
    op = op.shared() if shared else op
    future = op.schedule(device.policy)
    with monkeypatch.context() as patch:
        patch.setattr(type(device.backend), "compile", interrupted)
        with pytest.raises(KeyboardInterrupt):
            future.sync()
    with pytest.raises(StateError, match="stopped: KeyboardInterrupt"):
        (op if shared else future).sync()


def test_an_interrupted_compilation_is_taken_over(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go_on = threading.Event(), threading.Event()
    compile_ = type(device.backend).compile
    calls = []

    def first_fails(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            started.set()
            assert go_on.wait(300)
            raise KeyboardInterrupt
        return compile_(*args)

    asks, ask = threading.Semaphore(0), variants.Kernel.compilation

    def asking(self: variants.Kernel, *args: Any) -> variants.Compilation:
        asked = ask(self, *args)
        asks.release()
        return asked

    monkeypatch.setattr(type(device.backend), "compile", first_fails)
    monkeypatch.setattr(variants.Kernel, "compilation", asking)
    kernel = fresh()

    def use() -> Any:
        with na.use_device(device):
            return kernel(na.zeros(4)).output().to_host().sync()

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(use)
        assert started.wait(300)
        two = pool.submit(use)
        assert asks.acquire(timeout=300) and asks.acquire(timeout=300)
        go_on.set()
        with pytest.raises(KeyboardInterrupt):
            one.result(20)
        assert two.result(20).tolist() == [1] * 4


# --- whatever ends the line ---


class Stop(BaseException):
    pass


async def test_a_closure_that_stops_everything_strands_nobody(device: na.Device) -> None:
    w, z = await na.zeros(4), await na.zeros(4)

    def stop(_: Any) -> Any:
        raise Stop

    one = na.spawn(fresh()(w).map(stop))
    two = na.spawn(z.to_host())
    assert (await asyncio.wait_for(waited(two), 300)).tolist() == [0] * 4
    with pytest.raises((Stop, StateError)):
        await one


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_cancelling_every_task_of_the_loop(device: na.Device) -> None:
    z = await na.zeros(4)
    future = na.spawn(fresh()(z).output().to_host())
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()
    assert (await asyncio.wait_for(waited(future), 300)).tolist() == [1] * 4


async def test_no_thread_can_be_started(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    from numbasync.ops import prerequisites

    class Nobody:
        def submit(self, *args: Any) -> Any:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(prerequisites, "_executor", Nobody)
    z = await na.zeros(4)
    assert (await fresh()(z).output().to_host()).tolist() == [1] * 4


def test_a_thread_ending_in_line_keeps_used_memory(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numbasync.ops import prerequisites

    class Nobody:
        def submit(self, *args: Any) -> Any:
            return Future()

    monkeypatch.setattr(prerequisites, "_executor", Nobody)
    before = used(device)
    gate.close()
    futures: list[Any] = []

    def thread() -> None:
        async def main() -> None:
            futures.append(na.spawn(fresh()(na.zeros(1 << 16)).output(), stream))

        with na.use_device(device):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(main())
            loop.close()

    worker = threading.Thread(target=thread)
    worker.start()
    worker.join(300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        futures.clear()
        gc.collect()
    # Nobody holds it any more, but a fill of its tensor is still to come.
    assert device.memory_stats().used_current == before + 4 * (1 << 16)
    gate.open()
    stream.synchronize()
    assert used(device) == before


# --- marks come after what stands in line ---


@pytest.mark.parametrize("how", ["event", "done", "device", "stream"])
async def test_marks_are_set_behind_the_line(
    device: na.Device, stream: na.Stream, how: str
) -> None:
    z = await na.zeros(4)
    target = np.zeros(4, np.float32)
    na.spawn(fresh()(z).then(lambda r: na.memcpy(target, r.z)), stream)
    assert not stream.query()
    if how == "event":
        await device.new_event().record(stream)
    elif how == "done":
        await stream.done()
    elif how == "device":
        device.synchronize()
    else:
        stream.synchronize()
    assert target.tolist() == [1] * 4


# --- leases ---


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_leases_and_their_work_are_seen_in_order(
    device: na.Device, monkeypatch: pytest.MonkeyPatch, seed: int, at_once: bool
) -> None:
    """A thread that is stopped between the lease and the launch, in whatever order they come,
    holds others up.
    """
    z = na.zeros(4).sync()
    add_one(z).sync()
    leased, go_on = threading.Event(), threading.Event()
    slow = threading.local()

    def pausing(original: Any) -> Any:
        def paused(*args: Any) -> Any:
            found = original(*args)
            if getattr(slow, "here", False):
                leased.set()
                go_on.wait(0.05)  # not for ever: the other thread waits for this one
                for _ in range(40):  # so that the launch comes late
                    one.backend.record(device.backend.new_event(False))
            return found

        return paused

    if at_once:
        backend = type(device.new_stream().backend)
        monkeypatch.setattr(backend, "launch", pausing(backend.launch))
    else:
        monkeypatch.setattr(na.Launcher, "form", lambda *_: None)
        monkeypatch.setattr(add_one, "_forms", {})  # where forms that were asked for are found
        monkeypatch.setattr(add_one, "_latest", None)
        monkeypatch.setattr(launch, "_lease", pausing(launch._lease))

    def first(stream: na.Stream) -> None:
        slow.here = True
        with na.use_device(device):
            add_one(z).async_on(stream)

    with seeded(device, seed):
        one, two, three = (device.new_stream() for _ in range(3))
        thread = threading.Thread(target=first, args=(one,))
        thread.start()
        assert leased.wait(300)
        add_one(z).async_on(two)
        go_on.set()
        thread.join(300)
        assert z.to_host().sync_on(three).tolist() == [3] * 4


async def test_forgotten_waiters_do_not_pile_up(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    z = await na.zeros(4)
    gate.close()
    future = na.spawn(add_one(z), stream)
    await settle(device)
    for _ in range(50):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(waited(future), 0)
    wakeups = getattr(stream.backend, "_wakeups", [])
    assert len(wakeups) <= 1
    gate.open()
    await future


def test_labels_of_shared_operations_stay_short() -> None:
    op: Any = na.value(1).shared()
    for _ in range(200):
        op = op.then(na.value).shared()
    assert len(str(op)) < 400
    assert op.sync() == 1


async def test_a_compilation_ahead_does_not_fail_mere_awaiters(device: na.Device) -> None:
    z = await na.zeros(4)
    shared = fresh()(z).output().shared()
    ahead = na.spawn(fresh().compile(shared))
    reader = na.spawn(shared.then(lambda t: t.to_host()))
    assert na.value(3).sync() == 3  # blocks the thread that both stand in line of
    assert (await reader).tolist() == [1] * 4
    await ahead
    await copy_to(await na.zeros(4), z)


def test_mutually_dependent_shared_operations_are_refused_anywhere(
    device: na.Device,
) -> None:
    """Each is run by one thread, which then wants the other's."""
    both_run = threading.Barrier(2, timeout=300)
    ops: list[Any] = []

    def wants(other: int) -> Any:
        def closure(_: Any) -> Any:
            both_run.wait()
            return ops[other]

        return na.zeros(4).then(closure).shared()

    ops += [wants(1), wants(0)]
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(elsewhere, device, op.sync) for op in ops]
        errors = [job.exception(30) for job in jobs]
    assert all(isinstance(error, ReentrancyError) for error in errors)
    assert any("by way of" in str(error) for error in errors)
