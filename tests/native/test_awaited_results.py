"""What an await and a gather give: a result once it is there, or an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from numba import cuda

import numbasync as na
from numbasync import native
from numbasync.device import reactor
from numbasync.errors import DeviceLostError, KernelError
from numbasync.testing import inject
from tests.common import add_one, waited
from tests.native.null_device import CudaStream, launches

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")

WAYS: dict[str, Callable[[na.Tensor], Any]] = {
    "await": lambda z: waited(add_one(z)),
    "gather": lambda z: waited(na.gather(add_one(z), add_one(z))),
    "tasks": lambda z: asyncio.gather(waited(add_one(z)), waited(add_one(z))),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_error(device: na.Device, on: bool, way: str) -> None:
    async def main() -> None:
        z = await na.zeros(8)
        for after in range(1 if way == "await" else 2):
            with inject(device, "kernel", after), pytest.raises(KernelError):
                await WAYS[way](z)
        await WAYS[way](z)

    na.run(main())


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_given_before_it_is_done(null: na.Device, on: bool, way: str) -> None:
    null.policy = na.StreamPoolRoundRobin(null, 1)
    stream, z = null.policy.next_stream(), na.zeros(8).sync()
    add_one(z).sync()

    async def main() -> None:
        for _ in range(3):
            release = stream.backend.hold()
            task = asyncio.ensure_future(WAYS[way](z))
            for _ in range(8):
                await asyncio.sleep(0)
            assert not task.done()
            release()
            await task

    na.run(main())


@pytest.mark.parametrize("way", ["gather", "tasks"])
def test_a_counter_alone_is_not_believed(
    null: na.Device, on: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    z = na.zeros(8).sync()
    add_one(z).sync()
    fault = DeviceLostError("a fault")

    async def main() -> None:
        monkeypatch.setattr(CudaStream, "fault", lambda self: fault)
        monkeypatch.setattr(CudaStream, "spin_poll", lambda self: False)
        with pytest.raises(DeviceLostError, match="a fault"):
            await WAYS[way](z)

    na.run(main())


@pytest.mark.parametrize("by", ["task", "reactor"])
def test_short_work_is_looked_for_beside_polls(
    null: na.Device, on: bool, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever polls has a turn after each look; a third one would have to wait for two."""
    monkeypatch.setattr(type(null.backend), "spin_seconds", 60.0)
    monkeypatch.setattr(reactor, "MOST_SPINNING", 4 if by == "task" else 0)
    held, *streams = [null.new_stream() for _ in range(3)]
    tensors = [na.zeros(8).sync() for _ in range(3)]
    add_one(tensors[0]).sync()

    async def awaits(number: int) -> tuple[bool, int]:
        """Whether work of a stream is signalled, and how many polls are made meanwhile."""
        stream, z = streams[number], tensors[number]
        for _ in range(40):  # until both have called
            await add_one(z).schedule(stream)
        signalled, turns = stream._signalled, reactor.current().statistics().turns
        for _ in range(20):
            await add_one(z).schedule(stream)
        turns = reactor.current().statistics().turns - turns
        return stream._signalled > signalled, turns

    async def main() -> None:
        release = held.backend.hold()
        task = asyncio.ensure_future(waited(add_one(tensors[2]).schedule(held)))
        is_signalled, turns = await awaits(0)
        assert not is_signalled and turns >= 18
        every = await asyncio.gather(awaits(0), awaits(1))
        assert any(is_signalled for is_signalled, _ in every)
        release()
        await task

    na.run(main())


def test_threads_enter_the_device_to_launch_and_wait(null: na.Device) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    backend: Any = null.backend
    calls: list[Callable[[], object]] = [
        lambda: add_one(z).async_on(stream),
        lambda: na.zip(add_one(z), add_one(z)).async_on(stream),
        stream.synchronize,
    ]
    for call in calls:
        entered = backend.entered
        native.core.forget_current()
        call()
        assert backend.entered == entered + 1


@na.launcher
@cuda.jit
def of_many(z: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, c: na.KernelInput):
    z[0, 0, 0, 0] = 1


def test_launches_together_with_more_arguments_than_fit(null: na.Device, on: bool) -> None:
    stream, shape = null.new_stream(), (2, 2, 2, 2)
    z, *inputs = (na.zeros(shape).sync_on(stream) for _ in range(4))
    call = of_many[(1,), (1,)]
    call(z, *inputs).sync_on(stream)
    first = len(launches())
    rolled = [inputs[i % 3 :] + inputs[: i % 3] for i in range(60)]
    na.zip(*(call(z, *arrays) for arrays in rolled)).async_on(stream)
    backend: Any = null.backend
    names = {t.storage.memory.address: i for i, t in enumerate([z, *inputs])}
    got = [
        [array[4] for array in launch.described(backend.kernels, names)[3:]]
        for launch in launches(first)
    ]
    assert got == [[0, *([1, 2, 3][i % 3 :] + [1, 2, 3][: i % 3])] for i in range(60)]
