"""Everything may be the first thing that a thread does with the device."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.device.submission import Submission
from numbasync.testing import Gate
from tests.common import add_one, fresh, replace_method
from tests.waiting import begin


class World:
    """Things that another thread has made."""

    def __init__(self, device: na.Device) -> None:
        self.device = device
        self.stream = device.new_stream()
        self.tensor = na.ones(100).sync_on(self.stream)
        self.event = device.new_event().record(self.stream)
        self.later = device.new_event().record(self.stream)
        self.stream.synchronize()
        self.small = device.new_pool(4096)

        @na.launcher
        @cuda.jit
        def fresh(z: na.KernelOutput):
            z[0] = 2

        self.fresh = fresh


FIRST: dict[str, Callable[[World], Any]] = {
    "a stream": lambda w: w.device.new_stream(),
    "an event": lambda w: w.device.new_event(),
    "a pool": lambda w: w.device.new_pool().stats(),
    "a limited pool": lambda w: w.small.stats(),
    "trim": lambda w: w.device.pool.trim(),
    "memory": lambda w: w.device.memory_stats(),
    "synchronize": lambda w: w.device.synchronize(),
    "stream.synchronize": lambda w: w.stream.synchronize(),
    "stream.query": lambda w: w.stream.query(),
    "stream.pending": lambda w: w.stream.pending,
    "repr": lambda w: (repr(w.device), repr(w.stream), repr(w.event), repr(w.tensor)),
    "record": lambda w: w.event.record(w.stream),
    "event.query": lambda w: w.event.query(),
    "event.synchronize": lambda w: w.event.synchronize(),
    "elapsed": lambda w: w.event.elapsed_ms(w.later),
    "event.wait": lambda w: w.event.wait(w.device.new_stream()),
    "upload": lambda w: na.from_host(np.ones(5)).sync_on(w.stream),
    "download": lambda w: w.tensor.to_host().sync_on(w.stream),
    "fill": lambda w: na.fill(w.tensor, 3).sync_on(w.stream),
    "convert": lambda w: na.convert(w.tensor, np.int16).sync_on(w.stream),
    "a kernel": lambda w: w.fresh(w.tensor).sync_on(w.stream),
    "a known kernel": lambda w: add_one(w.tensor).sync_on(w.stream),
    "compile": lambda w: w.fresh.compile(w.tensor).sync(),
    "forget": lambda w: w.__dict__.pop("tensor"),
    "another device": lambda w: w.device.can_access(na.devices("cpu")[0]),
    "await": lambda w: na.run(na.spawn(na.ones(3), w.stream)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", FIRST)
def test_what_a_thread_does_first(device: na.Device, what: str) -> None:
    world = World(device)
    add_one.compile(na.meta(1)).sync()
    errors: list[BaseException] = []

    def first() -> None:
        try:
            with na.use_device(device):
                FIRST[what](world)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    thread.join(300)
    assert not thread.is_alive()
    assert errors == []


@pytest.mark.parametrize("blocks", [True, False])
def test_a_shared_operation_of_an_ended_thread_finishes(device: na.Device, blocks: bool) -> None:
    z = na.zeros(4).sync()
    shared = fresh()(z).output().shared()
    loop = asyncio.new_event_loop()

    async def leave() -> na.DeviceFuture[na.Tensor]:
        return na.spawn(shared)

    future = begin(lambda: loop.run_until_complete(leave()))()

    async def take() -> na.Tensor:
        return await shared

    t = begin(shared.sync if blocks else lambda: asyncio.run(take()))()
    assert t is z
    assert t.to_host().sync().tolist() == [1] * 4
    assert future.sync() is z
    loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(loop)))  # they find nothing left
    loop.close()


@pytest.mark.parametrize("how", ["wait_until_idle", "query"])
def test_an_idle_stream_says_nothing_of_later_order(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Another thread may order the stream after more work, right after it was seen idle."""
    idle, earlier = device.new_stream(), device.new_stream()
    z = na.zeros(4).sync()
    add_one(z).sync_on(earlier)
    idle.wait_for(earlier)
    gate.close()
    values = na.fill(z, 3).then(lambda t: t.to_host()).async_on(stream)
    name = "synchronize" if how == "wait_until_idle" else "query"
    looks = getattr(idle.backend, name)

    def looks_and_then_another_thread_submits() -> Any:
        answer = looks()
        idle.wait_for(stream)
        return answer

    with monkeypatch.context() as patch:
        replace_method(patch, idle.backend, name, looks_and_then_another_thread_submits)
        getattr(idle, how)()
    assert stream.in_flight_count == 1
    gate.open()
    stream.synchronize()
    idle.synchronize()
    assert values.tolist() == [3] * 4


@pytest.mark.parametrize("how", ["suspend", "commit"])
@pytest.mark.parametrize("order", ["before", "after"])
def test_a_forgotten_stream_that_gets_work_is_held(
    device: na.Device, stream: na.Stream, monkeypatch: pytest.MonkeyPatch, how: str, order: str
) -> None:
    """The device holds every stream with work, and with it the memory that the work uses."""
    submission = Submission(stream, "of another thread")

    class Busy(dict[na.Stream, None]):
        def pop(self, *args: Any) -> Any:
            if order == "before":
                another_thread()
            super().pop(args[0], None)
            if order == "after":
                another_thread()

    def another_thread() -> None:
        if submission.sequence or submission in stream._suspended:
            return
        begin(lambda: stream.suspend(submission))() if how == "suspend" else stream.commit(
            submission
        )

    monkeypatch.setattr(device, "busy", Busy())
    na.zeros(4).sync_on(stream)
    assert stream in device.busy
    monkeypatch.undo()
    stream.resume(submission)
    stream.synchronize()
    device.busy.pop(stream, None)
