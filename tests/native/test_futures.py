"""Futures of `schedule`, which the core starts and awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
import numbasync.backend.cuda.fill_patterns  # which the core calls
from numbasync import native
from numbasync.device.storage import MemoryPool
from numbasync.errors import (
    AlreadySubmittedError,
    DeviceLostError,
    NumbasyncError,
    OperationError,
    StateError,
)
from numbasync.ops import future as futures
from numbasync.ops.future import DeviceFuture
from numbasync.ops.reentrancy import OneShotEvent
from tests.common import add_one, waited
from tests.device.fake_streams import turns
from tests.native.null_device import CudaStream, launches, library

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")


@pytest.fixture
def stream(null: na.Device) -> na.Stream:
    return null.new_stream()


@pytest.fixture
def z(null: na.Device, stream: na.Stream) -> na.Tensor:
    z = na.zeros(8).sync()
    add_one(z).sync_on(stream)
    return z


class Lock:
    """In the place of the lock of futures' states: calls something when it is taken."""

    def __init__(self, *calls: Callable[[], object]) -> None:
        self.calls = list(calls)

    def __enter__(self) -> None:
        futures.starting.acquire()
        if self.calls:
            self.calls.pop(0)()

    def __exit__(self, *error: object) -> None:
        futures.starting.release()


def with_lock(lock: Lock, future: Any) -> Any:
    """The value of a future, awaited with that lock in the core."""
    native.core.know_futures(DeviceFuture, futures.State, lock)
    try:
        return na.run(waited(future))
    finally:
        native.core.know_futures(DeviceFuture, futures.State, futures.starting)


def test_a_future_that_another_thread_starts_runs_once(stream: na.Stream, z: na.Tensor) -> None:
    future, first = add_one(z).schedule(stream), len(launches())
    assert with_lock(Lock(future.start), future).z is z
    assert len(launches()) == first + 1


def test_waiters_for_a_futures_start_are_woken(stream: na.Stream, z: na.Tensor) -> None:
    future: Any = add_one(z).schedule(stream)
    event = OneShotEvent()

    def wait() -> None:
        future._turn = event

    with_lock(Lock(lambda: None, wait), future)
    assert event.is_settled


def test_an_enqueuing_error_is_raised_at_each_await(
    stream: na.Stream, z: na.Tensor, on: bool
) -> None:
    async def main() -> None:
        future = add_one(z).schedule(stream)
        library().null_fail_once(1, 0)
        for _ in range(2):
            with pytest.raises(NumbasyncError, match="cuLaunchKernel"):
                await future
        assert future.done() and not future.cancelled()

    na.run(main())


def test_a_future_whose_start_is_stopped_says_so(
    stream: na.Stream, z: na.Tensor, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        future = add_one(z).schedule(stream)
        with monkeypatch.context() as patch:
            patch.setattr(CudaStream, "launch", stop)
            with pytest.raises(KeyboardInterrupt):
                next(future.__await__())
        with pytest.raises(StateError, match="was stopped"):
            await future

    na.run(main())


def test_an_error_of_the_work_is_raised(stream: na.Stream, z: na.Tensor, on: bool) -> None:
    async def main() -> None:
        backend: Any = stream.backend
        release = backend.hold()
        future = add_one(z).schedule(stream)
        task = asyncio.ensure_future(waited(future))
        await turns()
        z.storage.writer.error = ValueError("of the work")
        release()
        for each in (task, future):
            with pytest.raises(ValueError, match="of the work"):
                await each

    na.run(main())


def test_a_counter_alone_is_not_believed(
    stream: na.Stream, z: na.Tensor, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        fault = DeviceLostError("a fault")
        monkeypatch.setattr(CudaStream, "fault", lambda self: fault)
        monkeypatch.setattr(CudaStream, "spin_poll", lambda self: False)
        with pytest.raises(DeviceLostError, match="a fault"):
            await add_one(z).schedule(stream)

    na.run(main())


def test_a_future_keeps_its_pool(null: na.Device, stream: na.Stream, on: bool) -> None:
    na.zeros(8).sync()
    before, other = null.pool, MemoryPool(null.backend)
    future = na.zeros(8).schedule(stream)
    null._pool = other
    assert na.run(waited(future)).storage.pool is before


def test_a_value_is_made_when_work_ends(stream: na.Stream, z: na.Tensor, on: bool) -> None:
    future = z.to_host().schedule(stream)
    for _ in range(2):
        assert isinstance(na.run(waited(future)), np.ndarray)


def test_a_cancelled_await_leaves_the_work(stream: na.Stream, z: na.Tensor, on: bool) -> None:
    async def main() -> None:
        backend: Any = stream.backend
        release = backend.hold()
        future: Any = add_one(z).schedule(stream)
        task = asyncio.ensure_future(waited(future))
        await turns()
        assert future._awaited
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not future._awaited and future._seen
        release()
        assert (await future).z is z

    na.run(main())


def test_what_is_scheduled_is_scheduled_once(
    null: na.Device, stream: na.Stream, z: na.Tensor, on: bool
) -> None:
    for op in (add_one(z), z.to_host(), na.zeros(8)):
        first: Any = op.schedule(stream)
        with pytest.raises(AlreadySubmittedError):
            op.schedule(stream)
        na.run(waited(first))
    own = add_one[(1,), (8,), null.new_stream()](z)
    with pytest.raises(OperationError, match="names"):
        own.schedule(stream)
