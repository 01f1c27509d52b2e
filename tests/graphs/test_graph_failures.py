"""Graphs that fail: while they are captured, halfway, and when they are launched."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import (
    KernelError,
    StateError,
)
from numbasync.testing import Gate, gate, inject
from tests.common import add_one, compiled, elements, used


def test_refused_operations_leave_no_memory_in_the_graph(
    device: na.Device, stream: na.Stream
) -> None:
    z, square = na.zeros(8).sync(), na.zeros((8, 8)).sync()

    def fail(_: object) -> na.DeviceOp[Any]:
        raise KeyError("mine")

    start = used(device)
    with na.CudaGraph.scope(stream) as s:
        for _ in range(3):
            # Its halves overlap, so it goes through memory of the graph's.
            op = na.memcpy(square[:, 1:], square[:, :-1])
            with pytest.raises(KeyError, match="mine"):
                s.record(op.then(fail))
        s.record(add_one(z))
    assert s.graph.statistics() == na.GraphStatistics(1, 0, 0, 1, 0)
    assert used(device) == start


def test_a_refusal_after_a_failure_leaves_no_failure(device: na.Device, stream: na.Stream) -> None:
    z, x = na.zeros(8).sync(), na.ones(8).sync()

    def fail(_: object) -> na.DeviceOp[Any]:
        raise KeyError("mine")

    with gate(stream) as shut:
        with inject(device, "kernel"):
            failing = na.memcpy(x, z).then(lambda _: add_one(x)).output().shared()
            failing.async_on(stream)
        with na.CudaGraph.scope(device.new_stream()) as s:
            with pytest.raises(KeyError, match="mine"):
                s.record(failing.then(fail))
            s.record(add_one(z))
        shut.open()
    with pytest.raises(KernelError):
        stream.synchronize()
    s.graph.launch().sync()
    assert elements(z) == [1] * 8


def test_a_capture_collects_garbage_before_memory_is_out(
    device: na.Device, stream: na.Stream
) -> None:
    class Cycle:
        def __init__(self, tensor: na.Tensor) -> None:
            self.tensor, self.itself = tensor, self

    before, device.pool = device.pool, device.new_pool(max_bytes=2**20)
    try:
        Cycle(na.zeros(2**17 + 2**16).sync())
        graph = na.ones(2**17).graph_on(stream)
        assert graph.statistics().nbytes == 2**19
        graph.launch().sync()
        del graph
    finally:
        device.pool = before


def test_a_failed_captures_shared_operation_gave_no_memory(
    device: na.Device, stream: na.Stream
) -> None:
    def fail(_: object) -> na.DeviceOp[Any]:
        raise KeyError("mine")

    shared = na.full(8, 7).shared()
    with pytest.raises(KeyError, match="mine"):
        shared.then(fail).graph_on(stream)
    with pytest.raises(StateError, match="was not captured"):
        shared.sync()
    second, third = na.full(8, 7).shared(), add_one(na.zeros(8).sync()).shared()
    with pytest.raises(KeyError), na.CudaGraph.scope(stream) as s:
        s.record(third)
        raise KeyError
    with pytest.raises(StateError, match="was not captured"):
        third.sync()
    graph = second.graph_on(stream)
    graph.launch().sync()
    assert elements(second.sync()) == [7] * 8
    ran = na.full(8, 7).shared()
    x = ran.sync()
    with pytest.raises(KeyError, match="mine"):
        ran.then(fail).graph_on(stream)
    assert ran.sync() is x


def test_an_error_leaves_as_itself_and_streams_work(device: na.Device, stream: na.Stream) -> None:
    z = na.zeros(8).sync()
    before = used(device)

    def fail(_: object) -> na.DeviceOp[Any]:
        raise KeyError("mine")

    for _ in range(3):
        with pytest.raises(KeyError, match="mine"):
            add_one(z).then(lambda _: na.zeros(1000)).then(fail).graph_on(stream)
    assert used(device) == before, "what was allocated for it is given back"
    add_one(z).sync_on(stream)
    graph = add_one(z).graph_on(stream)
    graph.launch().sync_on(stream)
    assert elements(z) == [2] * 8


def raising() -> na.Launcher:
    @na.launcher
    @cuda.jit(debug=True, opt=False)
    def picky(z: na.KernelOutput, limit: na.KernelInput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] += 1
            if z[i] > limit[0]:
                raise ValueError("too much")

    return picky


async def test_a_debug_kernels_exception_reaches_its_launchs_await(
    device: na.Device, stream: na.Stream
) -> None:
    z, limit = await na.zeros(4), await na.full(1, 2)
    graph = raising()(z, limit).graph_on(stream)
    await graph.launch()
    await graph.launch()
    with pytest.raises(KernelError, match="too much"):
        await graph.launch()
    await na.fill(z, 0)
    await graph.launch()
    graph.launch().async_on(stream)
    failing = na.spawn(graph.launch(), stream)
    reset = na.spawn(na.fill(z, 0), stream)
    well = na.spawn(graph.launch(), stream)
    with pytest.raises(KernelError, match="too much"):
        await failing
    await reset
    await well


async def test_a_launch_that_times_out_runs_on(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    compiled()
    z = await na.zeros(8)
    graph = add_one(z).graph_on(stream)
    gate.close()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(graph.launch(), 0.01)
    gate.open()
    await stream.done()
    assert elements(z) == [1] * 8
