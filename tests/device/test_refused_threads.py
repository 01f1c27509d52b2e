"""Threads that the system does not start: the operation is refused, and later ones work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import threads
from numbasync.backend.cpu.kernel import compiled, scheduling
from numbasync.backend.cpu.runtime import workers
from numbasync.backend.cpu.runtime.device import CpuDevice
from numbasync.backend.cpu.runtime.seeded import stepping
from numbasync.backend.cpu.runtime.workers import Engine, run_here
from numbasync.device import copy_threads
from numbasync.device.device import Device
from numbasync.errors import DeviceError
from numbasync.ops import prerequisites
from tests.common import add_one, fresh
from tests.interrupting import Interrupt, Places
from tests.waiting import eventually, happens, in_time

LARGE = 200_000  # elements whose copy is no short work


class Refusing:
    """Threads of a name are not started, so many times; `count` are left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._name, self.count = "", 0
        original = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if self.count and thread.name.startswith(self._name):
                self.count -= 1
                raise RuntimeError("can't start new thread")
            original(thread)

        monkeypatch.setattr(threading.Thread, "start", start)

    def __call__(self, name: str, count: int = 1000) -> None:
        self._name, self.count = name, count


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refusing:
    return Refusing(monkeypatch)


@pytest.fixture
def new(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A virtual device without threads, as the current one; its threads end as soon as idle."""
    monkeypatch.setattr(workers, "IDLE_SECONDS", 0)
    backend = CpuDevice(97)
    try:
        with na.use_device(Device(backend)) as device:
            yield device
    finally:
        backend._engine.stop()


def engine_of(device: Any) -> Engine:
    engine: Engine = device.backend._engine
    return engine


def is_counted(device: Any) -> bool:
    """Whether the engine's threads are those that are alive."""
    noted = list(engine_of(device)._threads)
    return all(thread.is_alive() for thread in noted)


def end_threads(device: Any) -> None:
    """Wait until the idle threads of an engine have ended."""
    for thread in list(engine_of(device)._threads):
        thread.join(300)
    assert not engine_of(device)._threads


OPERATIONS: dict[str, Callable[[], Any]] = {
    "upload": lambda: na.from_host(np.ones(LARGE, np.int64)),
    "fill": lambda: na.full(LARGE, 1),
    "launch": lambda: add_one(na.zeros(LARGE)).output(),
    "zip": lambda: na.zip(na.full(LARGE, 1), na.full(LARGE, 1)).then(
        lambda pair: na.value(pair[0])
    ),
}


@pytest.mark.parametrize("kind", OPERATIONS)
def test_after_a_refused_operation_the_next_works(new: Any, refuse: Refusing, kind: str) -> None:
    stream = new.new_stream()
    refuse("numbasync-cpu97", 3)
    for _ in range(3):
        if refuse.count:
            with pytest.raises(DeviceError, match=r"no thread can be started for .*cpu97"):
                OPERATIONS[kind]().sync_on(stream)
        assert not stream.backend._owned
        assert not engine_of(new)._ready
        assert is_counted(new)
    assert not refuse.count
    assert OPERATIONS[kind]().sync_on(stream).to_host().sync_on(stream).sum() == LARGE
    new.synchronize()
    assert not new.busy
    assert is_counted(new)


def test_the_error_says_what_to_do(new: Any, refuse: Refusing) -> None:
    refuse("numbasync-cpu97")
    with pytest.raises(
        DeviceError, match=r"can't start new thread[\s\S]*ulimit -u[\s\S]*container"
    ):
        na.full(LARGE, 1).sync()


def test_earlier_work_goes_on_with_fewer_threads(new: Any, refuse: Refusing) -> None:
    first, second = new.new_stream(), new.new_stream()
    engine_of(new)._most = 2
    entered, gate = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert gate.wait(300)

    first.backend.push(hold)
    assert entered.wait(300)
    refuse("numbasync-cpu97")
    ran: list[int] = []
    second.backend.push(lambda: ran.append(1))  # which the thread that there is will run
    assert len(engine_of(new)._threads) == 1
    gate.set()
    second.backend.synchronize()
    assert ran == [1]


def test_gated_work_runs_where_the_gate_is_opened(new: Any, refuse: Refusing) -> None:
    stream = new.new_stream()
    go_on = stream.backend.hold()
    z = na.full(LARGE, 1).async_on(stream)
    end_threads(new)
    refuse("numbasync-cpu97")
    go_on()
    stream.synchronize()
    refuse.count = 0
    assert z.to_host().sync_on(stream).sum() == LARGE


def test_only_work_enqueued_during_short_work_is_refused(new: Any, refuse: Refusing) -> None:
    stream, ran = new.new_stream().backend, list[str]()

    def short() -> None:
        with pytest.raises(DeviceError, match="no thread can be started"):
            stream.push(lambda: ran.append("behind"))
        ran.append("short")

    refuse("numbasync-cpu97")
    stream.push(short, is_short=True)
    stream.synchronize()
    assert ran == ["short"]
    assert not stream._owned
    assert not engine_of(new).is_at_work


def test_work_left_by_a_seed_runs_there(new: Any, refuse: Refusing) -> None:
    stream, ran = new.new_stream().backend, list[int]()
    refuse("numbasync-cpu97")
    with stepping(engine_of(new), 1):
        stream.push(lambda: ran.append(1))
    stream.synchronize()
    assert ran == [1]


def test_a_short_launch_that_cannot_run_is_refused(
    new: Any, refuse: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = new.new_stream()
    z = na.zeros(8).sync_on(stream)
    for _ in range(2):
        add_one(z).sync_on(stream)
    end_threads(new)
    refuse("numbasync-cpu97")
    with monkeypatch.context() as during:
        during.setattr(Engine, "is_forking", True)
        with pytest.raises(DeviceError, match="no thread can be started"):
            add_one(z).async_on(stream)
    assert not stream.backend._owned
    assert not engine_of(new)._ready
    add_one(z).sync_on(stream)
    assert z.to_host().sync_on(stream).tolist() == [3] * 8


def test_an_interrupted_start_is_not_counted(new: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        original(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as during, pytest.raises(KeyboardInterrupt):
        during.setattr(threading.Thread, "start", start)
        na.full(LARGE, 1).sync()
    assert is_counted(new)
    assert na.full(LARGE, 1).sync_on(new.new_stream()).shape == (LARGE,)


# --- the other threads ---


def test_a_refused_call_does_not_run_later(refuse: Refusing) -> None:
    ran: list[str] = []
    refuse("numbasync-refused", 1)
    with ThreadPoolExecutor(1, thread_name_prefix="numbasync-refused") as executor:
        with pytest.raises(RuntimeError, match="can't start"):
            threads.submit(executor, lambda: ran.append("refused"))
        threads.submit(executor, lambda: ran.append("later")).result(20)
    assert ran == ["later"]


def test_large_copies_are_made_by_the_caller(device: na.Device, refuse: Refusing) -> None:
    copy_threads.start_over()
    refuse("numbasync-copy")
    array = np.arange(LARGE, dtype=np.int64)

    async def main() -> None:
        z = await na.from_host(array)
        np.testing.assert_array_equal(await z.to_host(), array)

    asyncio.run(main())
    assert not copy_threads._started
    refuse.count = 0
    asyncio.run(main())
    assert copy_threads._started == copy_threads.THREADS


def test_a_kernel_is_compiled_by_the_caller(device: na.Device, refuse: Refusing) -> None:
    prerequisites._forget_workers()
    refuse("numbasync-prepare")
    z, other = na.zeros(8).sync(), na.zeros(8).sync()

    async def main(tensor: na.Tensor) -> None:
        await fresh()(tensor)

    asyncio.run(main(z))
    refuse.count = 0
    asyncio.run(main(other))
    assert z.to_host().sync().tolist() == other.to_host().sync().tolist() == [1] * 8


def test_blocks_that_have_begun_elsewhere_are_waited_for(
    refuse: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four threads that share the blocks of a launch, the second helper is refused."""
    monkeypatch.setattr(scheduling, "workers", lambda: 4)
    monkeypatch.setattr(compiled, "workers", lambda: 4)
    scheduling.after_fork()
    (device, *_) = na.devices("cpu")
    n = 2 * scheduling.SPREAD_THREADS
    helped: list[Any] = []

    def submit(executor: Any, call: Callable[[], None]) -> Any:
        if helped:
            raise RuntimeError("can't start new thread")
        helped.append(threads.submit(executor, call))
        return helped[0]

    monkeypatch.setattr(compiled, "submit", submit)
    with na.use_device(device):
        z = na.zeros(n, np.int32).sync()
        fresh()(z).sync()
        assert helped
        assert helped[0].done()
        assert (z.to_host().sync() == 1).all()
    scheduling.after_fork()


def test_a_runtime_is_enterable_once_its_thread_starts(device: na.Device, refuse: Refusing) -> None:
    async def main() -> list[float]:
        runtime = na.Runtime(device)
        refuse("numbasync-", 1)
        with pytest.raises(DeviceError, match=f"a runtime of {device.label}"):
            await runtime.__aenter__()
        async with runtime:
            z = await runtime.run(na.zeros(4))
            refuse("asyncio")  # the loop's own executor has no thread either
            return (await runtime.run(z.to_host())).tolist()  # type: ignore[no-any-return]

    assert asyncio.run(main()) == [0.0] * 4


def test_a_runtime_without_a_loop_is_no_hang(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numbasync import runtime

    def no_loop() -> Any:
        raise OSError("too many open files")

    monkeypatch.setattr(runtime, "_loop_factory", lambda: no_loop)

    async def main() -> None:
        await na.Runtime(device).__aenter__()

    with pytest.raises(OSError, match="open files"):
        asyncio.run(asyncio.wait_for(main(), 300))


def test_a_group_of_one_goes_on(device: na.Device, refuse: Refusing) -> None:
    key = na.collective.new_key(1)
    with na.use_device(device), na.collective.Communicator(key, 0, device) as comm:
        x = na.full(4, 2.0, np.float32).sync()
        refuse("numbasync-rank", 1)
        with pytest.raises(DeviceError, match="no thread can be started"):
            na.collective.all_reduce(x, comm=comm).sync()
        assert na.collective.all_reduce(x, comm=comm).sync().to_host().sync().tolist() == [2] * 4


def test_work_left_by_two_interrupts_is_run(new: Any) -> None:
    engine, stream, done = engine_of(new), new.new_stream().backend, threading.Event()
    with workers.state:  # as `push` does until the thread would start
        stream._queue.append(done.set)
        stream._pushed += 1
        engine._ready.append(stream)
    in_time(new.backend.quiesce)
    assert done.is_set()


async def test_a_worker_keeps_work_that_forks_hold(
    new: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, wait = [0], workers._Changed.wait

    def counted(changed: Any, timeout: float | None = None) -> bool:
        waits[0] += 1
        return wait(changed, timeout)

    engine, stream, done = engine_of(new), new.new_stream().backend, threading.Event()
    monkeypatch.setattr(workers._Changed, "wait", counted)
    monkeypatch.setattr(Engine, "is_forking", True)
    stream.push(done.set)
    (thread,) = engine._threads
    await eventually(lambda: waits[0] > 1 or not thread.is_alive())
    assert thread.is_alive()
    monkeypatch.setattr(Engine, "is_forking", False)
    await happens(done)


def test_an_interrupt_without_threads_leaves_nothing_running(new: Any, refuse: Refusing) -> None:
    """^C at each place of the calling thread's run of a stream: the rest of its work is done."""
    engine, stream, ran = engine_of(new), new.new_stream().backend, list[int]()

    def submit() -> None:
        """Leave the stream ready, and without a thread."""
        ran.clear()
        refuse.count = 0
        go_on = stream.hold()
        for i in range(3):
            stream.push(partial(ran.append, i))
        end_threads(new)
        refuse("numbasync-cpu97")
        with pytest.MonkeyPatch.context() as during:
            during.setattr(workers, "run_here", lambda _: None)
            go_on()

    def run() -> None:
        run_here([stream])

    submit()
    places = Places()
    places.run(run)
    assert ran == [0, 1, 2]
    own = {run_here.__code__, Engine.run_here.__code__, Engine._leave.__code__}
    followed = {place: hits for place, hits in places.hits.items() if place.code in own}
    assert {place.code for place in followed} == own
    for place, hits in followed.items():
        for hit in {1, hits}:
            submit()
            interrupt = Interrupt(place, hit)
            with suppress(KeyboardInterrupt):
                interrupt.run(run)
            assert interrupt.came, place
            assert not engine._running, str(place)
            stream.synchronize()
            assert set(ran) == {0, 1, 2}, place
            assert engine.is_quiet(), place
