"""Graphs at the edges: what failed halfway, who uses no buffer, odd arguments."""

from __future__ import annotations

from typing import Any

import pytest

import numbasync as na
from numbasync.errors import KernelError
from numbasync.testing import Gate, gate, inject, settle
from tests.common import add_one, saxpy, used


def host(tensor: na.Tensor) -> Any:
    return tensor.to_host().sync().tolist()


def compiled() -> None:
    """Compile what a gated test launches: loading a module may wait for a held stream."""
    z = na.zeros(8).sync()
    add_one(z).sync()
    saxpy(z, 1.0, na.ones(8)).sync()
    na.fill(z, 1).sync()
    z.to_host().sync()


# --- whose order ---


async def test_launches_of_a_graph_that_only_reads_follow_each_other(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    compiled()
    two, three = device.new_stream(), device.new_stream()
    x = await na.ones(8)
    graph = x.to_host().graph_on(stream)
    array = graph.take_output()
    assert array is not None
    gate.close()
    graph.launch().async_on(stream)
    second = na.spawn(graph.launch(), two)
    written = na.spawn(na.fill(x, 5), three)
    await settle(device)
    assert not second.done()
    assert not written.done(), "both launches read what it writes"
    gate.open()
    await second
    await written
    assert array.tolist() == [1] * 8


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
    assert host(z) == [1] * 8


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
