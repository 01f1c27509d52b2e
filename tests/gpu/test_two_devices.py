"""Two GPUs in one process."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import DeviceMismatchError
from tests.common import add_one

pytestmark = pytest.mark.cuda(devices=2)


def both() -> tuple[na.Device, na.Device]:
    first, second = na.devices("cuda")[:2]
    return first, second


async def test_they_work_side_by_side(device: na.Device) -> None:
    async def work(own: na.Device, start: int) -> np.ndarray:
        with na.use_device(own):
            z = await na.full(10_000, start, np.int32)
            assert z.device is own
            for _ in range(20):
                await add_one(z)
            large = await na.from_host(np.full(3_000_000, start, np.float32))
            assert (await large.to_host()).sum() == 3_000_000 * start
            return await z.to_host()

    found = await asyncio.gather(*(work(own, k) for k, own in enumerate(both() * 3)))
    for k, host in enumerate(found):
        np.testing.assert_array_equal(host, np.full(10_000, k + 20, np.int32))


def test_one_devices_things_are_refused_by_the_other(device: na.Device) -> None:
    first, second = both()
    z = na.zeros(10, np.int32).sync_on(first.new_stream())
    with pytest.raises(DeviceMismatchError):
        add_one(z).sync_on(second.new_stream())
    with pytest.raises(DeviceMismatchError):
        na.CommandBatch(second).use(z)
    add_one(z).sync_on(first.new_stream())
    assert z.to_host().sync_on(first.new_stream()).sum() == 10


def test_an_array_without_dlpack_tells_its_gpu(device: na.Device) -> None:
    for gpu in (*both(), *both()):
        with na.use_device(gpu):
            cuda.select_device(gpu.ordinal)
            array = cuda.to_device(np.ones(100, np.float32))
            for default in both():
                with na.use_device(default):
                    assert na.as_tensor(array).device is gpu
            tensor = na.as_tensor(array)
            add_one(tensor).sync()
            assert (tensor.to_host().sync() == 2).all()


def test_batches_and_graphs_run_on_the_second(device: na.Device) -> None:
    _, second = both()
    x = np.arange(5000, dtype=np.float32)
    with na.use_device(second):
        b = na.CommandBatch()
        total = b.sum(b.upload(x) * 2)
        b.execute_sync()
        assert b.read_sync(total) == x.sum() * 2
        stream = second.new_stream()
        z = na.zeros(10, np.int32).sync_on(stream)
        graph = add_one(z).graph_on(stream)
        before = z.to_host().sync_on(stream)[0]
        for _ in range(5):
            graph.launch().sync_on(stream)
        assert z.to_host().sync_on(stream)[0] == before + 5
