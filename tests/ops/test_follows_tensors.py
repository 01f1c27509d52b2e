"""Operations run where their tensors are, whatever device is current, however they are run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import DeviceMismatchError
from numbasync.testing import counters
from tests.common import add_one, saxpy

N = 8
Op = na.DeviceOp[Any]
Build = Callable[[na.Tensor], Op]


@pytest.fixture
def far(device: na.Device) -> na.Device:
    """Another device than the current one: of the same kind if there is one, else a CPU device."""
    kind = na.devices(device.kind) if len(na.devices(device.kind)) > 1 else na.devices("cpu")
    return next(d for d in kind if d is not device)


def ones(far: na.Device, n: int = N) -> na.Tensor:
    return na.ones(n).sync_on(far.new_stream())


class Layer(na.Module):
    def forward(self, x: na.Tensor) -> Op:  # type: ignore[override]
        return na.dup(x).then(lambda y: add_one(y)).output()


def graph_of(t: na.Tensor) -> Op:
    graph = add_one(t).graph()
    assert graph.stream.device is t.device
    return graph.launch()


def batch_of(t: na.Tensor) -> na.CommandBatch:
    batch = na.CommandBatch(t.device)
    batch.relu(batch.use(t))
    return batch


def computed(t: na.Tensor) -> Any:
    batch = na.CommandBatch(t.device)
    return batch.compute(batch.relu(batch.use(t)))


def read(t: na.Tensor) -> Any:
    batch = na.CommandBatch(t.device)
    result = batch.relu(batch.use(t))
    batch.execute_sync()
    return batch.read(result)


tuned = na.autotune(saxpy, [{"threads": 64}])

# Each is made of a tensor of eight ones on another device than the current one.
OPERATIONS: dict[str, Build] = {
    "launch": lambda t: add_one(t),
    "of tiles": lambda t: add_one(t.partition(4)),
    "of an array": lambda t: saxpy(t, 2.0, np.ones(N, np.float32)),
    "of an operation": lambda t: saxpy(t, 2.0, na.ones(N)),
    "of an operation on it": lambda t: saxpy(na.zeros(N), 2.0, t.dup()),
    "input alone": lambda t: saxpy(na.zeros(N), 2.0, t),
    "shared input": lambda t: saxpy(na.zeros(N), 2.0, t.shared()),
    "of a grid": lambda t: add_one[1, N](t),
    "prepared": lambda t: add_one[1, N].prepare(t)(),
    "tuned": lambda t: tuned(t, 2.0, np.ones(N, np.float32)),
    "compile": lambda t: add_one.compile(t),
    "to_host": lambda t: t.to_host(),
    "of a view": lambda t: t[::2].to_host(),
    "dup": lambda t: t.dup(),
    "convert": lambda t: na.convert(t, np.int32),
    "item": lambda t: t[:1].item(),
    "fill": lambda t: na.fill(t, 3),
    "memcpy": lambda t: na.memcpy(t, t.dup().sync()),
    "copy in": lambda t: na.memcpy(t, np.zeros(N, np.float32)),
    "copy out": lambda t: na.memcpy(np.zeros(N, np.float32), t),
    "copy_from": lambda t: t.copy_from(np.zeros(N, np.float32)),
    "copy_to": lambda t: t.copy_to(np.zeros(N, np.float32)),
    "concatenate": lambda t: na.concatenate([t, np.zeros(3, np.float32)]),
    "of lazy ones": lambda t: na.concatenate([na.zeros(3), t.dup()]),
    "stack": lambda t: na.stack([t, t]),
    "reshape": lambda t: t.dup().reshape(2, 4).to_host(),
    "then": lambda t: t.dup().then(lambda u: add_one(u)).output().to_host(),
    "of a value": lambda t: na.value(t).then(lambda u: add_one(u)),
    "of a tuple": lambda t: na.value((3, t)).last().then(lambda u: add_one(u)),
    "of a shared one": lambda t: na.shared(t).then(lambda u: add_one(u)),
    "shared": lambda t: add_one(t).shared(),
    "unzip": lambda t: add_one(t).unzip()[0].then(lambda u: add_one(u)),
    "defer": lambda t: na.defer(lambda: add_one(t)),
    "map": lambda t: add_one(t).map(lambda r: r.z).inspect(lambda _: None),
    "zip": lambda t: na.zip(na.zeros(3), add_one(t), t.to_host()),
    "of a zip": lambda t: na.zip(na.value(1), add_one(t)).last().then(lambda r: add_one(r.z)),
    "graph": graph_of,
    "graphed": lambda t: na.graphed(lambda x: add_one(x).output())(t),
    "module": lambda t: Layer()(t),
    "batch": lambda t: batch_of(t).op(),
    "execute": lambda t: batch_of(t).execute(),  # type: ignore[return-value]
    "compute": computed,
    "read": read,
}


async def group(op: Op) -> Any:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(op.coroutine())
    return task.result()


async def on_thread(op: Op) -> Any:
    return await asyncio.to_thread(op.sync)


async def in_runtime(op: Op) -> Any:
    async with na.Runtime(na.default_device()) as runtime:
        return await runtime.run(op)


async def among_others(op: Op) -> Any:
    return (await na.zip(na.zeros(3), add_one(na.zeros(3).sync()), op))[2]


RUNS: dict[str, Callable[[Op], Awaitable[Any]]] = {
    "await": group,
    "sync": on_thread,
    "gather": lambda op: na.gather(na.zeros(3), op),
    "asyncio.gather": lambda op: asyncio.gather(na.zeros(3), op),
    "wait_for": lambda op: asyncio.wait_for(op, None),
    "spawn": lambda op: na.spawn(op),
    "chain": lambda op: op.then(lambda v: na.value(v)),
    "shared": lambda op: op.shared(),
    "zip": among_others,
    "runtime": in_runtime,
}


@pytest.mark.parametrize("name", OPERATIONS)
async def test_operations_follow_their_tensors(
    device: na.Device, far: na.Device, name: str, core: bool
) -> None:
    t = ones(far)
    runs = [run for what, run in RUNS.items() if (name, what) != ("item", "chain")]
    for run in (lambda op: op, *runs):
        for _ in range(2):  # with the plan of the first, the second is enqueued at once
            await run(OPERATIONS[name](t))  # type: ignore[no-untyped-call]
        await asyncio.sleep(0)
    assert OPERATIONS[name](t).sync() is not NotImplemented


async def test_operations_without_tensors_use_the_current_device(
    device: na.Device, far: na.Device, core: bool
) -> None:
    for current in (device, far):
        with na.use_device(current):
            three = await na.gather(na.zeros(3), na.from_host(np.zeros(3)), na.arange(3))
            made = [*three, await na.defer(lambda: na.ones(2)), na.ones(2).sync()]
            assert [t.device for t in made] == [current] * 5


async def test_a_spread_tuple_is_of_several_devices(device: na.Device, far: na.Device) -> None:
    t = ones(far)
    here, there = na.replicate(t, [device, far]).unzip()
    await na.gather(here.then(lambda u: add_one(u)), there.then(lambda u: add_one(u)))
    assert (await t.to_host()).tolist() == [2] * N
    both = na.zip(na.ones(N), add_one(t)).shared()
    assert (await both.last().then(lambda r: add_one(r.z))).z is t
    assert (await both.last().then(lambda r: add_one(r.z))).z is t  # of the value, now
    with na.use_device(far):
        first = na.ones(N).shared()
        await first
    await first.then(lambda u: add_one(u))  # made there, used from here


async def test_another_devices_argument_is_to_be_awaited(device: na.Device, far: na.Device) -> None:
    t, u = ones(far), await na.zeros(N)
    for make in (
        lambda: saxpy(u, 1.0, t.to_host()),
        lambda: na.concatenate([u, t.dup()]),
        lambda: add_one(u).then(lambda r: saxpy(u, 1.0, t)),
        lambda: add_one(u).then(lambda r: add_one(t)),
    ):
        with pytest.raises(DeviceMismatchError, match=r"await that one first|na.to_device\("):
            await make()  # type: ignore[no-untyped-call]
    await saxpy(u, 1.0, await t.to_host())


async def test_another_devices_streams_and_policies_are_refused(
    device: na.Device, far: na.Device, core: bool
) -> None:
    t, here = ones(far), device.new_stream()
    await add_one(t)
    before = counters()
    makers: list[Callable[[], na.DeviceOp[Any]]] = [
        lambda: add_one(t), lambda: t.to_host(), lambda: na.fill(t, 1),
    ]  # fmt: skip
    for make in makers:
        advice = f"Name no stream, and it runs on {far.label}"
        with pytest.raises(DeviceMismatchError, match=advice):
            make().sync_on(here)
        with pytest.raises(DeviceMismatchError, match=advice):
            await make().schedule(device.policy)
        with pytest.raises(DeviceMismatchError, match=advice):
            await na.spawn(make(), here)
        with pytest.raises(DeviceMismatchError, match=f"which runs on {device.label}, await that"):
            await na.zeros(3).then(lambda _, make=make: make())
        with pytest.raises(DeviceMismatchError, match=repr(t).split("(")[0]):
            make().async_on(here)
    assert (counters() - before).launches <= 3  # the zeros
    assert (await t.to_host()).tolist() == [2] * N


async def test_another_devices_policy_serves_operations_without_tensors(
    device: na.Device, far: na.Device, core: bool
) -> None:
    t = await na.ones(N)
    device.policy = na.StreamPoolRoundRobin(far)
    try:
        for _ in range(3):
            assert (await na.zeros(3)).device is far
            await add_one(t)
            assert len(t.to_host().sync()) == N
    finally:
        device.policy = na.StreamPoolRoundRobin(device)


def test_the_output_decides_and_messages_name_the_input(
    device: na.Device, far: na.Device, core: bool
) -> None:
    for here, there in ((device, far), (far, device)):
        z, x = ones(here), ones(there)
        message = rf"x is .*{there.label}.*goes to {here.label}(?s:.)*x = await na.to_device"
        for _ in range(2):
            with pytest.raises(DeviceMismatchError, match=message):
                saxpy(z, 1.0, x).sync()
            saxpy(z, 1.0, z.dup().sync()).sync()
        taken = backwards(x, z)
        with pytest.raises(DeviceMismatchError, match=message):
            taken.sync()


@na.launcher
def backwards(x: na.KernelInput, z: na.KernelOutput) -> None:  # type: ignore[valid-type]
    z[0] = x[0]


def test_threads_have_the_default_device_and_still_follow(far: na.Device) -> None:
    t, found = ones(far), list[Any]()
    thread = threading.Thread(target=lambda: found.append(add_one(t).sync()))
    thread.start()
    thread.join()
    assert found[0].z is t
