"""Graphs that are changed: by operations before a launch, other arguments, other commands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import (
    CallerError,
    GraphUpdateError,
    LauncherError,
    NotAGraphNodeError,
    OperationError,
)
from numbasync.testing import Gate, counters, settle
from tests.common import add_one, elements, fresh, saxpy


async def test_update_comes_before_the_next_launch(device: na.Device, stream: na.Stream) -> None:
    """The token loop: new input, replay, read."""
    ids, z = await na.zeros(8), await na.zeros(8)
    graph = saxpy(z, 1.0, ids).graph_on(stream)
    total = 0
    for token in range(1, 30):
        graph.update(na.memcpy(ids, np.full(8, token, np.float32)))
        await graph.launch()
        total += token
        assert (await z.to_host()).tolist() == [total] * 8
    assert graph.statistics().updates == 29


async def test_update_is_ordered_before_launches_elsewhere(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    other, array = device.new_stream(), np.full(8, 5, np.float32)
    ids, z, apart = await na.zeros(8), await na.zeros(8), await na.zeros(8)
    graph = saxpy(z, 1.0, ids).graph_on(stream)
    await graph.launch().schedule(other)
    na.fill(apart, 1).sync()
    gate.close()
    graph.update(na.memcpy(ids, array))
    array[:] = 0
    launched = na.spawn(graph.launch(), other)
    await settle(device)
    assert not launched.done()
    gate.open()
    await launched
    assert elements(z) == [5] * 8
    # What is updated need not be a buffer of the graph.
    gate.close()
    graph.update(na.fill(apart, 2))
    launched = na.spawn(graph.launch(), other)
    await settle(device)
    assert not launched.done()
    gate.open()
    await launched


def test_update_takes_graph_nodes_alone(device: na.Device, stream: na.Stream) -> None:
    z, x = na.zeros(8).sync(), na.ones(8).sync()
    graph = saxpy(z, 1.0, x).graph_on(stream)
    with pytest.raises(NotAGraphNodeError):
        graph.update(na.zip(na.fill(x, 100), na.ones(8)))
    with pytest.raises(NotAGraphNodeError):
        graph.update(na.memcpy(np.zeros(8, np.float32), x))
    with pytest.raises(OperationError, match="what update takes"):
        graph.update(x)  # type: ignore[arg-type]
    assert elements(x) == [1] * 8, "nothing of what was refused is enqueued"
    graph.update(na.zip(na.fill(x, 3), na.value(1), add_one(x)))
    graph.update(add_one(x))
    graph.update(na.fill(x, 3).then(add_one))
    graph.update(add_one(x))
    graph.launch().sync()
    assert elements(z) == [5] * 8


def test_other_arguments_for_a_kernel(device: na.Device, stream: na.Stream) -> None:
    z, x, y = na.zeros(8).sync(), na.ones(8).sync(), na.full(8, 10).sync()
    graph = na.zip(na.fill(z, 0), saxpy(z.partition(4), 2.0, x), add_one(z)).graph_on(stream)
    graph.launch().sync()
    assert elements(z) == [3] * 8
    node = graph.nodes[1]
    assert node.name == "saxpy"
    before = counters()
    graph.set_args(node, z.partition(4), 2.0, y)
    assert (counters() - before).compiles == 0
    graph.launch().sync()
    assert elements(z) == [21] * 8
    graph.set_args(1, z.partition(8), a=5.0, x=y)
    graph.launch().sync()
    assert elements(z) == [51] * 8
    assert [n.after for n in graph.nodes] == [(), (0,), (1,)]
    na.fill(y, 1).sync_on(device.new_stream())
    graph.launch().sync()
    assert elements(z) == [6] * 8, "the new buffer's leases are the graph's"


async def test_enqueued_launches_keep_their_arguments(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    z, x, y = await na.zeros(8), await na.ones(8), await na.full(8, 10)
    graph = saxpy(z, 1.0, x).graph_on(stream)
    await graph.launch()
    gate.close()
    first = na.spawn(graph.launch())
    graph.set_args(0, z, 1.0, y)
    del x
    second = na.spawn(graph.launch())
    gate.open()
    await first
    await second
    assert elements(z) == [12] * 8


def test_arguments_that_do_not_fit_change_nothing(device: na.Device, stream: na.Stream) -> None:
    z, x = na.zeros(8).sync(), na.ones(8).sync()
    graph = na.zip(na.fill(z, 0), saxpy(z, 1.0, x)).graph_on(stream)
    with pytest.raises(GraphUpdateError, match=r"memset \(fill\)"):
        graph.set_args(0, z, 1.0, x)
    for position in (2, -1, "saxpy"):
        with pytest.raises(CallerError, match="has 2 nodes"):
            graph.set_args(position, z, 1.0, x)  # type: ignore[arg-type]
    with pytest.raises(LauncherError, match="missing"):
        graph.set_args(1, z)
    with pytest.raises(NotAGraphNodeError):
        graph.set_args(1, z, 1.0, na.ones(8))
    with pytest.raises(LauncherError, match="cannot be"):
        graph.set_args(1, z, object(), x)
    with pytest.raises(GraphUpdateError, match="0 nodes"):
        graph.set_args(1, na.zeros(0).sync(), 1.0, x)
    graph.launch().sync()
    assert elements(z) == [1] * 8
    assert graph.statistics().updates == 0


def test_arguments_by_which_branches_would_conflict(device: na.Device, stream: na.Stream) -> None:
    a, b, x = (na.ones(8).sync() for _ in range(3))
    with na.CudaGraph.scope(stream) as s:
        other = s.fork()
        s.record(saxpy(a, 1.0, x))
        other.record(saxpy(b, 1.0, x))
    with pytest.raises(GraphUpdateError, match="node 1 must start after node 0"):
        s.graph.set_args(1, b, 1.0, a)
    s.graph.set_args(1, b, 3.0, x)
    s.graph.launch().sync()
    assert (elements(a), elements(b)) == ([2] * 8, [4] * 8)


def test_the_whole_graph_from_a_new_capture(device: na.Device, stream: na.Stream) -> None:
    z, x, y = na.zeros(8).sync(), na.ones(8).sync(), na.full(8, 10).sync()

    def op(x: na.Tensor, factor: float) -> na.DeviceOp[Any]:
        return na.zeros(8).then(lambda t: saxpy(t, factor, x)).output()

    graph = op(x, 2.0).graph_on(stream)
    first = graph.take_output()
    graph.launch().sync()
    graph.recapture(op(y, 3.0))
    second = graph.take_output()
    graph.launch().sync()
    assert first is not None
    assert second is not None
    assert (elements(first), elements(second)) == ([2] * 8, [30] * 8)
    with pytest.raises(GraphUpdateError, match="another topology"):
        graph.recapture(na.fill(z, 1))
    with pytest.raises(GraphUpdateError, match=r"2 kernel.*1 kernel, 1 memset"):
        graph.recapture(add_one(z).then(lambda _: add_one(z)))
    na.fill(y, 20).sync()
    graph.launch().sync()
    assert elements(second) == [60] * 8


def test_a_changed_graph_compiles_a_new_kernel(device: na.Device, stream: na.Stream) -> None:
    z = na.zeros(8).sync()
    kernel = fresh()
    graph = add_one(z).graph_on(stream)
    graph.recapture(kernel(z))
    assert [n.name for n in graph.nodes] == ["kernel"]
    graph.launch().sync()
    assert elements(z) == [1] * 8


def test_a_node_of_another_graph(device: na.Device, stream: na.Stream) -> None:
    z, x = na.zeros(8).sync(), na.ones(8).sync()
    one, two = add_one(z).graph_on(stream), saxpy(z, 1.0, x).graph_on(stream)
    with pytest.raises(CallerError, match="another graph"):
        two.set_args(one.nodes[0], z, 2.0, x)
    two.set_args(two.nodes[0], z, 2.0, x)
    two.launch().sync()
    assert elements(z) == [2] * 8


def test_positions_of_nodes(device: na.Device, stream: na.Stream) -> None:
    z, x = na.zeros(8).sync(), na.ones(8).sync()
    graph = na.zip(saxpy(z, 1.0, x), saxpy(z, 1.0, x)).graph_on(stream)
    for i in np.arange(2):
        graph.set_args(i, z, 3.0, x)  # type: ignore[arg-type]  # what NumPy counts with
    graph.launch().sync()
    assert elements(z) == [6] * 8
    for wrong in (2, -1, True, "0", None):
        with pytest.raises(CallerError, match="has 2 nodes"):
            graph.set_args(wrong, z, 1.0, x)  # type: ignore[arg-type]
    with pytest.raises(CallerError, match="has 0 nodes"):
        na.value(1).graph_on(stream).set_args(0, z)
    # Refused with what it was to be made of, which needs no warning beside the error.
    with pytest.raises(CallerError, match="takes a stream"):
        add_one(z).graph_on(None)  # type: ignore[arg-type]
