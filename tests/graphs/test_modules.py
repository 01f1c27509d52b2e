"""Modules: a pass that runs as it is, and replays once it is warm."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import NotAGraphNodeError, OperationError
from tests.common import add_one, copy_to, used
from tests.common import scaled_plus_one as step


class Affine(na.Module):
    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.passes = 0

    def forward(self, x: na.Tensor) -> na.DeviceOp[na.Tensor]:
        self.passes += 1
        return step(x, self.factor)


async def test_a_module_replays_once_it_is_warm(device: na.Device) -> None:
    net, x = Affine(3.0), await na.ones(8)
    assert net.graph is None
    for _ in range(2):
        assert (await (await net(x)).to_host()).tolist() == [4] * 8
    assert net.passes == 2
    graph = await net.warm_up(x)
    assert graph is net.graph
    passes = net.passes
    for value in (5, 6):
        out = await net(await na.full(8, value))
        assert (await out.to_host()).tolist() == [3 * value + 1] * 8
    assert net.passes == passes
    assert [n.name for n in graph.nodes] == ["fill", "saxpy"]
    assert "CudaGraph" in repr(net)
    assert "not captured" in repr(Affine(1.0))


async def test_a_module_that_keeps_its_own_graph(device: na.Device, stream: na.Stream) -> None:
    """Buffers, a graph, and a pass that updates, launches, and returns what it writes."""

    class Step(na.Module):
        def __init__(self) -> None:
            self.x, self.y = na.zeros(8).sync(), na.zeros(8).sync()
            with na.CudaGraph.scope(stream) as s:
                s.record(copy_to(self.y, self.x))
                s.record(add_one(self.y))
            self.step = s.graph

        def forward(self, x: np.ndarray) -> na.DeviceOp[na.Tensor]:
            self.step.update(na.memcpy(self.x, x))
            return self.step.launch().map(lambda _: self.y)

    net = Step()
    for value in (4, 5):
        y = await net(np.full(8, value, np.float32))
        assert (await y.to_host()).tolist() == [value + 1] * 8


async def test_a_pass_may_give_values_and_must_exist(device: na.Device) -> None:
    class Constant(na.Module):
        def forward(self) -> int:
            return 3

    assert await Constant()() == 3
    with pytest.raises(OperationError, match="Module has no forward pass"):
        na.Module()(1)


async def test_a_module_gives_its_memory_back(device: na.Device) -> None:
    x = await na.ones(1000)
    start = used(device)
    net = Affine(3.0)
    await net.warm_up(x)
    await net(x)
    assert used(device) > start
    del net
    gc.collect()
    assert used(device) == start


async def test_a_pass_that_cannot_be_captured_runs_on(device: na.Device) -> None:
    array = np.zeros(4, np.float32)

    class Reads(na.Module):
        def forward(self, x: na.Tensor) -> na.DeviceOp[Any]:
            return na.memcpy(array, x)

    net, x = Reads(), await na.full(4, 7)
    with pytest.raises(NotAGraphNodeError):
        await net.warm_up(x)
    assert net.graph is None
    await net(x)
    assert array.tolist() == [7] * 4


async def test_a_module_replays_once_its_warm_up_ends(device: na.Device) -> None:
    class Step(na.Module):
        passes = 0

        def forward(self, x: na.Tensor) -> na.DeviceOp[na.Tensor]:
            self.passes += 1
            return step(x)

    net, x, y = Step(), await na.ones(4), await na.ones(8)
    warming = net.warm_up(x), net.warm_up(y)
    await net(x)
    await net(x)
    assert net.passes == 2
    graphs = await na.gather(*warming)
    assert graphs[0] is not graphs[1]
    for argument in (x, y):
        await net(argument)
    assert net.passes == 4


async def test_a_coroutine_functions_pass_is_refused(device: na.Device) -> None:
    class Awaits(na.Module):
        async def forward(self, x: na.Tensor) -> na.Tensor:
            return await step(x)

    with pytest.raises(OperationError, match="async def"):
        Awaits()(await na.ones(4))
