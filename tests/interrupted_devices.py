"""Calls that tests interrupt, of several devices, large copies, page-locked memory and threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

import numbasync as na
from numbasync.device.device import Device
from numbasync.tensors import parallel_copy

Call = Callable[[na.Stream], Any]
BLOCK = 2 * parallel_copy.LARGE  # bytes that several threads copy


def awaiting(make: Callable[[na.Stream], Awaitable[Any]]) -> Call:
    """A call that awaits what `make` makes, on a loop of its own, as `asyncio.run` does."""

    def call(stream: na.Stream) -> Any:
        async def main() -> Any:
            return await make(stream)

        return asyncio.run(main())

    return call


def pair_of(device: Device) -> tuple[Device, Device]:
    """Two devices that copy to each other: the device and another of its kind, if there is one."""
    kind = na.devices(device.kind) if len(na.devices(device.kind)) > 1 else na.devices("cpu")
    first = device if device in kind else kind[0]
    return first, next(d for d in kind if d is not first)


class Lent:
    """A tensor as another library's array."""

    def __init__(self, tensor: na.Tensor) -> None:
        self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__


def runtimes() -> list[threading.Thread]:
    """The threads of runtimes."""
    threads = [t for t in threading.enumerate() if t.is_alive()]  # not all of them have started
    return [t for t in threads if t.name.startswith("numbasync-") and ":" in t.name]


def calls_of(device: Device, z: na.Tensor, add: Any) -> dict[str, Call]:
    """By name: each has returned when its work is done, or its loop closed."""
    near, far = pair_of(device)
    with na.use_device(near):
        here = na.zeros(64, np.int64).sync()
    there = na.to_device(here, far).sync()
    group = na.DeviceGroup([near, far])
    array, large = np.ones(BLOCK, np.uint8), na.zeros(BLOCK, np.uint8).sync()
    buffer = na.pinned(64, np.int64, device)
    buffer[...] = 1
    pool = device.new_pool(2**20)

    @na.graphed
    def step(x: Any) -> Any:
        return add(x, 1).map(lambda r: r.z)

    batch = na.CommandBatch()
    uploaded = batch.upload(np.ones(8, np.float32))
    result = batch.add(uploaded, uploaded)
    graph = batch.graph()

    async def in_a_runtime(stream: na.Stream) -> None:
        async with na.Runtime(device) as runtime:
            await runtime.run(add(z, 1))
            await runtime.call(int)

    async def in_parts(stream: na.Stream) -> Any:
        return await group.map(lambda part: na.zeros(part), [8, 16, 8])

    async def limited(stream: na.Stream) -> None:
        with na.limit(bytes=2**12):
            await na.gather(add(z, 1), na.zeros(300), na.zeros(300))

    def together(stream: na.Stream) -> Any:
        return na.collective.all_reduce([here, there], out=[here, there]).sync()

    return {
        "to_device": lambda s: na.to_device(here, far).sync(),
        "from_device": lambda s: na.to_device(there, near).sync(),
        "memcpy_across": lambda s: na.memcpy(here, there).sync(),
        "replicate": lambda s: na.replicate(here, [near, far]).sync(),
        "scatter": lambda s: na.scatter(here, [near, far]).sync(),
        "gather_parts": lambda s: na.gather_parts([here, there], device=near).sync(),
        "all_reduce": together,
        "all_gather": lambda s: na.collective.all_gather([here, there]).sync(),
        "await_to_device": awaiting(lambda s: na.to_device(here, far)),
        "await_all_reduce": awaiting(lambda s: na.collective.all_reduce([here, there])),
        "map": awaiting(in_parts),
        "pinned_upload": lambda s: na.memcpy(z, buffer).sync_on(s),
        "pinned_download": lambda s: na.memcpy(buffer, z).sync_on(s),
        "pinned": lambda s: na.pinned(64, np.int64, device),
        "large_upload": lambda s: na.from_host(array).sync_on(s),
        "large_async": lambda s: na.memcpy(large, array).async_on(s),
        "large_download": lambda s: na.memcpy(array, large).sync_on(s),
        "await_large_upload": awaiting(lambda s: na.from_host(array)),
        "await_large_download": awaiting(lambda s: na.memcpy(array, large)),
        "limit_bytes": awaiting(limited),
        "pool": lambda s: pool.allocate(100, s.backend) and None,
        "graphed": lambda s: step(z).sync_on(s),
        "replay": lambda s: graph.replay_sync({uploaded: np.ones(8, np.float32)})[result],
        "foreign": lambda s: na.as_tensor(Lent(z)),
        "runtime": awaiting(in_a_runtime),
        "run": lambda s: na.run(add(z, 1)),
        "warm_up": awaiting(lambda s: na.warm_up(add.compile(z, 1))),
    }
