"""The order of what is submitted while a kernel compiles."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import KernelCompileError, MovedError
from tests.common import add_one, fresh, used, waited
from tests.holding import HeldCompiler
from tests.waiting import begin, eventually


def ten_times() -> na.Launcher:
    """A kernel that has not been compiled."""

    @na.launcher
    @cuda.jit
    def fresh(z: na.KernelOutput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = z[i] * 10

    return fresh


def first(tensor: na.Tensor) -> float:
    return float(tensor.to_host().sync()[0])


async def test_submissions_behind_a_compilation_come_after_it(
    device: na.Device, compiler: HeldCompiler
) -> None:
    z, other = await na.ones(1), await na.ones(1)
    slow = na.spawn(ten_times()(z))
    behind = na.spawn(add_one(z))
    further = asyncio.ensure_future(waited(add_one(other)))
    await compiler.has_begun()
    assert not behind.done()
    assert not further.done()
    compiler.go_on()
    await behind
    assert slow.done()
    await further
    assert (first(z), first(other)) == (11, 2)


async def test_another_thread_does_not_wait_for_it(
    device: na.Device, compiler: HeldCompiler
) -> None:
    z, other = await na.ones(1), await na.ones(1)
    slow = na.spawn(ten_times()(z))
    await compiler.has_begun()

    def elsewhere() -> None:
        with na.use_device(device):
            add_one(other).sync()

    with ThreadPoolExecutor(1) as pool:
        await asyncio.get_running_loop().run_in_executor(pool, elsewhere)
    assert not slow.done()
    compiler.go_on()
    await slow
    assert (first(z), first(other)) == (10, 2)


async def test_compiling_ahead_holds_nobody_up(device: na.Device, compiler: HeldCompiler) -> None:
    z = await na.ones(1)
    ahead = na.spawn(ten_times().compile(na.meta(1)))
    await compiler.has_begun()
    await add_one(z)
    assert not ahead.done()
    compiler.go_on()
    assert await ahead is None


async def test_a_failed_compilation_stops_nobody_else(
    device: na.Device, compiler: HeldCompiler
) -> None:
    z = await na.ones(1)
    compiler.fail = True
    fresh = ten_times()
    slow = na.spawn(fresh(z))
    behind = na.spawn(add_one(z))
    compiler.go_on()
    await behind
    with pytest.raises(KernelCompileError, match="planted"):
        await slow
    compiler.fail = False
    await fresh(z)  # a new attempt
    assert first(z) == 20


VARIABLE = contextvars.ContextVar("VARIABLE", default=0)


async def test_who_stands_in_line_keeps_its_context_variables(
    device: na.Device, compiler: HeldCompiler
) -> None:
    z = await na.ones(1)
    slow = na.spawn(ten_times()(z))
    VARIABLE.set(1)
    behind = na.spawn(na.value(None).map(lambda _: VARIABLE.get()))
    VARIABLE.set(2)
    compiler.go_on()
    await slow
    assert await behind == 1


async def test_a_shared_operation_that_compiles_is_waited_for(
    device: na.Device, compiler: HeldCompiler
) -> None:
    z = await na.ones(1)
    shared = ten_times()(z).output().shared()
    one = asyncio.ensure_future(waited(shared))
    two = asyncio.ensure_future(waited(shared))
    await compiler.has_begun()

    def elsewhere() -> na.Tensor:
        with na.use_device(device):
            return shared.sync()

    with ThreadPoolExecutor(1) as pool:
        three = asyncio.get_running_loop().run_in_executor(pool, elsewhere)
        compiler.go_on()
        assert await asyncio.gather(one, two, three) == [z, z, z]
    assert first(z) == 10


def test_what_was_spawned_runs_although_the_loop_ends(
    device: na.Device, compiler: HeldCompiler
) -> None:
    before = used(device)

    async def main() -> na.Tensor:
        z = await na.ones(1)
        na.spawn(ten_times()(z))
        na.spawn(add_one(z))
        await compiler.has_begun()
        return z

    with asyncio.Runner() as runner:
        z = runner.run(main())
        compiler.go_on()

    def elsewhere(z: na.Tensor) -> float:
        with na.use_device(device):
            return first(z)

    # By another thread, which knows nothing of this one's line.
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(elsewhere, z).result(20) == 11
    del z
    gc.collect()
    assert used(device) == before


@pytest.mark.may_leave("a thread keeps the line of a loop that was never ended until its next loop")
@pytest.mark.parametrize(
    "where", ["the same thread", "another thread", "another loop", "a loop of another thread"]
)
@pytest.mark.filterwarnings("ignore:coroutine 'SubmissionQueue._work_off' was never awaited")
def test_an_abruptly_closed_loop_strands_nobody(
    device: na.Device, compiler: HeldCompiler, where: str
) -> None:
    z = na.ones(1).sync()

    async def main() -> list[na.DeviceFuture[Any]]:
        return [na.spawn(f) for f in (ten_times()(z), add_one(z), add_one.compile(z))]

    loop = asyncio.new_event_loop()
    futures = loop.run_until_complete(main())
    loop.close()
    compiler.go_on()

    def wait() -> None:
        for future in reversed(futures):
            future.sync()

    async def wait_for_all() -> None:
        await asyncio.gather(*map(waited, futures))

    if where == "the same thread":
        wait()
    elif where == "another thread":
        with ThreadPoolExecutor(1) as pool:
            pool.submit(wait).result(20)
    elif where == "a loop of another thread":
        begin(lambda: asyncio.run(wait_for_all()))()
    else:
        asyncio.run(wait_for_all())
    assert first(z) == 11


async def test_waiters_for_another_threads_shared_operation_wait(
    device: na.Device, compiler: HeldCompiler, looks: list[Any]
) -> None:
    """It looks up now and then, whether that thread is still there."""
    z = await na.ones(1)
    shared = ten_times()(z).output().shared()

    def elsewhere() -> na.Tensor:
        with na.use_device(device):
            return shared.sync()

    with ThreadPoolExecutor(1) as pool:
        runner = asyncio.get_running_loop().run_in_executor(pool, elsewhere)
        await compiler.has_begun()
        holder = asyncio.ensure_future(waited(shared))
        await eventually(lambda: len(looks) >= 10)
        assert not holder.done()
        compiler.go_on()
        assert await holder is await runner is z


async def test_a_compilation_stopped_on_its_thread_strands_nobody(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(BaseException):
        pass

    def stop(*args: Any) -> Any:
        raise Stop

    z = await na.ones(1)
    with monkeypatch.context() as patch:
        patch.setattr(type(device.backend), "compile", stop)
        slow = na.spawn(ten_times()(z))
        behind = na.spawn(z.to_host())
        assert (await asyncio.wait_for(waited(behind), 300)).tolist() == [1]
    with pytest.raises(na.errors.StateError, match="stopped: Stop"):
        await slow


async def test_a_move_does_not_delay_the_queue(device: na.Device) -> None:
    z = await na.zeros(4)
    first = na.spawn(fresh()(z))
    second = na.spawn(add_one(z))
    moved = z.take()
    with pytest.raises(MovedError):
        await z.to_host()
    with pytest.raises(MovedError):
        await add_one(z)
    await first
    await second
    assert (await moved.to_host()).tolist() == [2] * 4
    with pytest.raises(MovedError):
        await z.to_host()


async def test_a_move_elsewhere_comes_after_the_queue(device: na.Device) -> None:
    z = await na.zeros(4)
    first = na.spawn(fresh()(z))
    second = na.spawn(add_one(z))
    moved = begin(z.take)()
    await first
    await second
    assert (await moved.to_host()).tolist() == [2] * 4


async def test_a_handle_that_was_moved_keeps_no_memory(device: na.Device) -> None:
    before = used(device)
    z = await na.zeros(1 << 16)
    behind = na.spawn(fresh()(await na.zeros(4)))
    moved = z.take()
    await behind
    del moved, behind
    assert used(device) == before
    with pytest.raises(MovedError):
        await z.to_host()
