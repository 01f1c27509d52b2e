"""Graphs at the edges: what failed halfway, who uses no buffer, odd arguments."""

from __future__ import annotations

from typing import Any

import pytest

import numbasync as na
from numbasync.errors import KernelError, OperationError, StateError
from numbasync.testing import gate, inject
from tests.common import add_one, elements, used

# --- what failed halfway ---


def test_what_is_refused_leaves_no_memory_in_the_graph(
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


def test_a_refused_operation_that_came_after_a_failed_one_leaves_no_failure(
    device: na.Device, stream: na.Stream
) -> None:
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


def test_a_shared_operation_of_a_failed_capture_has_not_given_memory_that_nobody_wrote(
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


# --- wrong arguments ---


def test_streams_in_brackets(device: na.Device, stream: na.Stream) -> None:
    z, other = na.zeros(8).sync(), device.new_stream()

    def here(_: object) -> na.DeviceOp[Any]:
        return add_one[1, 8, stream](z)

    def there(_: object) -> na.DeviceOp[Any]:
        return add_one[1, 8, other](z)

    graph = add_one(z).then(here).graph_on(stream)
    graph.launch().sync()
    assert elements(z) == [2] * 8
    with pytest.raises(OperationError, match="in its brackets"):
        add_one(z).then(there).graph_on(stream)
    with na.CudaGraph.scope(stream) as s:
        s.record(here(None))
        with pytest.raises(OperationError, match="in its brackets"):
            s.record(there(None))
    assert len(s.graph.nodes) == 1
    with pytest.raises(OperationError, match="in its brackets"):
        s.graph.recapture(there(None))
    with pytest.raises(OperationError, match="in its brackets"):
        s.graph.update(there(None).map(lambda r: r))


def test_operations_made_of_a_launch_are_at_home_on_the_graphs_stream(
    device: na.Device, stream: na.Stream
) -> None:
    z = na.zeros(8).sync()
    graph = add_one(z).graph_on(stream)
    launched = graph.launch().shared()
    for op in (
        graph.launch().map(lambda _: 3),
        na.zip(na.fill(z, 0), graph.launch()),
        na.zip(graph.launch(), na.value(3)).unzip()[0],
        launched,
    ):
        future = na.spawn(op)
        assert future.stream is stream
        future.sync()
    assert elements(z) == [3] * 8
