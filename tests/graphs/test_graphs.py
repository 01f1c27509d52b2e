"""Graphs: what is captured, what a launch does, on which devices and threads."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import (
    AlreadySubmittedError,
    CallerError,
    DeviceMismatchError,
    NotAGraphNodeError,
    OperationError,
    ReentrancyError,
)
from numbasync.testing import counters
from tests.common import add_one, elements, fresh, saxpy

# --- capturing ---


def test_capturing_computes_nothing_and_launches_do(device: na.Device, stream: na.Stream) -> None:
    z, x = na.zeros(8).sync(), na.ones(8).sync()
    graph = saxpy(z.partition(4), 2.0, x).then(lambda r: add_one(r.z)).graph_on(stream)
    stream.synchronize()
    assert elements(z) == [0] * 8
    for _ in range(10):
        graph.launch().sync_on(stream)
    assert elements(z) == [30] * 8
    assert graph.stream is stream
    assert graph.statistics() == na.GraphStatistics(2, 10, 0, 2, 0)


async def test_every_way_to_run_a_launch(device: na.Device, stream: na.Stream) -> None:
    z = await na.zeros(8)
    graph = na.CudaGraph.capture(stream, add_one(z))
    await graph.launch()
    graph.launch().sync()
    graph.launch().sync_on(stream)
    graph.launch().async_on(stream)
    await graph.launch().schedule(na.SingleStream(device))
    await na.spawn(graph.launch())
    await na.gather(*(graph.launch() for _ in range(100)))
    await na.zip(graph.launch(), graph.launch(), add_one(z))
    done = await graph.launch().then(lambda _: z.to_host())
    assert done.tolist() == [110] * 8


def test_a_graph_on_a_stream_of_the_policy(device: na.Device) -> None:
    z = na.zeros(8).sync()
    graph = add_one(z).graph()
    assert graph.stream.device is device
    graph.launch().sync()
    assert elements(z) == [1] * 8


def test_output_is_given_once_and_written_each_launch(device: na.Device, stream: na.Stream) -> None:
    x = na.ones(8).sync()
    graph = na.zeros(8).then(lambda z: saxpy(z, 3.0, x)).output().graph_on(stream)
    out = graph.take_output()
    assert isinstance(out, na.Tensor)
    assert graph.take_output() is None
    for factor in (1, 2):
        na.fill(x, factor).sync()
        graph.launch().sync()
        assert elements(out) == [3 * factor] * 8, "each launch begins with zeros"
    assert graph.statistics().nbytes == 32


def test_output_holds_nothing_new_before_the_first_launch(
    device: na.Device, stream: na.Stream
) -> None:
    z = na.full(8, 7).sync()
    graph = na.fill(z, 1).then(add_one).output().graph_on(stream)
    assert elements(z) == [7] * 8
    out = graph.take_output()
    assert out is z
    graph.launch().sync()
    assert elements(z) == [2] * 8


def test_host_arrays_are_read_once_pinned_ones_repeatedly(
    device: na.Device, stream: na.Stream
) -> None:
    plain, locked = np.ones(8, np.float32), na.pinned(8)
    a, b, back = na.zeros(8).sync(), na.zeros(8).sync(), na.pinned(8)
    op = na.zip(na.memcpy(a, plain), na.memcpy(b, locked), na.memcpy(back, b))
    graph = op.graph_on(stream)
    plain[:] = 100
    for value in (4, 5):
        locked[:] = value
        graph.launch().sync()
        assert elements(a) == [1] * 8
        assert elements(b) == [value] * 8
        assert back.tolist() == [value] * 8


def test_a_large_array_is_read_when_captured(device: na.Device, stream: na.Stream) -> None:
    array = np.arange(2**21, dtype=np.float32)
    t = na.zeros(2**21).sync()
    graph = na.memcpy(t, array).graph_on(stream)
    made = na.from_host(array).graph_on(stream)
    array[:] = 0
    graph.launch().sync()
    made.launch().sync()
    out = made.take_output()
    assert out is not None
    for tensor in (t, out):
        np.testing.assert_array_equal(tensor.to_host().sync(), np.arange(2**21, dtype=np.float32))


def test_every_launch_writes_the_array_of_to_host(device: na.Device, stream: na.Stream) -> None:
    z = na.zeros(8).sync()
    graph = add_one(z).output().to_host().graph_on(stream)
    array = graph.take_output()
    assert array is not None
    for i in (1, 2, 3):
        graph.launch().sync()
        assert array.tolist() == [i] * 8


def test_what_no_graph_can_repeat_is_refused(device: na.Device, stream: na.Stream) -> None:
    z, array = na.zeros(8).sync(), np.zeros(8, np.float32)
    with pytest.raises(NotAGraphNodeError, match=r"na\.pinned"):
        na.memcpy(array, z).graph_on(stream)
    with pytest.raises(NotAGraphNodeError, match="cannot be recorded"):
        na.with_context(lambda ctx: ctx.stream.synchronize()).graph_on(stream)
    with pytest.raises(NotAGraphNodeError, match="another library"):
        na.with_context(lambda ctx: ctx.stream.__cuda_stream__()).graph_on(stream)
    with pytest.raises(OperationError, match="what capture takes"):
        na.CudaGraph.capture(stream, z)  # type: ignore[arg-type]
    with pytest.raises(CallerError, match=r"with int: write CudaGraph\.capture\(stream, op\)"):
        na.CudaGraph(stream, 3)  # type: ignore[arg-type]
    assert elements(z) == [0] * 8


def test_an_operation_is_captured_once(device: na.Device, stream: na.Stream) -> None:
    op = add_one(na.zeros(8).sync())
    op.graph_on(stream)
    with pytest.raises(AlreadySubmittedError):
        op.graph_on(stream)
    with pytest.raises(AlreadySubmittedError):
        op.sync()


def test_inside_a_closure_nothing_is_captured(device: na.Device, stream: na.Stream) -> None:
    z = na.zeros(8).sync()

    def nested(_: object) -> Any:
        return add_one(z).graph_on(stream)

    with pytest.raises(ReentrancyError):
        na.value(1).map(nested).sync()
    graph = add_one(z).graph_on(stream)
    with pytest.raises(ReentrancyError):
        na.value(1).map(lambda _: graph.launch().sync()).sync()
    with pytest.raises(ReentrancyError):
        na.value(1).map(lambda _: graph.launch().sync()).graph_on(stream)


def test_a_kernel_is_compiled_before_the_device_captures(
    device: na.Device, stream: na.Stream
) -> None:
    kernel, z = fresh(), na.zeros(8).sync()
    before = counters()
    graph = kernel(z).graph_on(stream)
    assert (counters() - before).compiles == 1
    assert (counters() - before).launches == 0
    graph.launch().sync()
    graph.launch().sync()
    after = counters() - before
    assert (after.compiles, after.launches, after.replays) == (1, 0, 2)
    assert elements(z) == [2] * 8


def test_shared_operations_that_ran_or_did_not(device: na.Device, stream: na.Stream) -> None:
    z = na.zeros(8).sync()
    ran, not_yet = na.ones(8).shared(), na.full(8, 5).shared()
    other = device.new_stream()
    x = ran.async_on(other)
    graph = na.zip(ran, not_yet).then(lambda v: saxpy(z, 2.0, v[0])).graph_on(stream)
    graph.launch().sync()
    assert elements(z) == [2] * 8
    assert elements(x) == [1] * 8
    assert elements(not_yet.sync()) == [5] * 8, "the launch has written it"


def twice(z: na.Tensor, x: na.Tensor, stream: na.Stream) -> na.CudaGraph[Any]:
    """A graph that holds two launches of another one, which nobody else holds."""
    inner = saxpy(z, 2.0, x).graph_on(stream)
    op = add_one(z).then(lambda _: inner.launch()).then(lambda _: inner.launch())
    return op.graph_on(stream)


def test_a_graph_inside_a_graph(device: na.Device, stream: na.Stream) -> None:
    z, x = na.zeros(8).sync(), na.ones(8).sync()
    outer = twice(z, x, stream)
    gc.collect()
    outer.launch().sync()
    assert elements(z) == [5] * 8
    assert [n.after for n in outer.nodes] == [(), (0,), (1,)]


def test_an_empty_graph(device: na.Device, stream: na.Stream) -> None:
    graph = na.value(3).graph_on(stream)
    assert graph.take_output() == 3
    other = device.new_stream()
    for where in (stream, other, stream):
        graph.launch().sync_on(where)
    assert graph.statistics().launches == 3
    assert graph.topology().counts == {}


def test_topology_names_nodes_by_their_kernels(device: na.Device, stream: na.Stream) -> None:
    z, x = na.zeros(8).sync(), na.ones(8).sync()
    graph = na.zip(na.fill(z, 2), saxpy(z, 1.0, x), na.memcpy(x, z)).graph_on(stream)
    shape = graph.topology()
    assert [(n.kind, n.name, n.after) for n in shape.nodes] == [
        ("memset", "fill", ()), ("kernel", "saxpy", (0,)), ("memcpy", "copy", (1,)),
    ]  # fmt: skip
    assert shape.counts == {"kernel": 1, "memcpy": 1, "memset": 1}
    assert shape.on_device == shape.counts, "nothing of numbasync's own is in it"
    assert shape.edges == ((0, 1), (1, 2))
    assert [n.name for n in shape.roots] == ["fill"]
    assert shape.depth == 3
    dot = graph.to_dot()
    assert dot.startswith("digraph")
    assert "n0 -> n1;" in dot
    assert 'label="saxpy"' in dot
    assert "1 kernel, 1 memcpy, 1 memset" in repr(graph)


# --- other devices, other threads ---


def test_a_graph_does_not_launch_on_another_device(device: na.Device, stream: na.Stream) -> None:
    other = next(d for d in na.devices() if d is not device)
    graph = add_one(na.zeros(8).sync()).graph_on(stream)
    with pytest.raises(DeviceMismatchError):
        graph.launch().sync_on(other.new_stream())
    with pytest.raises(DeviceMismatchError):
        add_one(na.zeros(8).sync()).graph_on(other.new_stream())
    graph.launch().sync()


def test_two_threads_capture_at_once(device: na.Device) -> None:
    """Beside two that make streams, allocate and free."""
    rounds, wrong, stop = 1000, list[Any](), threading.Event()
    z = na.zeros(8).sync()
    add_one(z).sync()

    def capture() -> None:
        try:
            with na.use_device(device):
                own, mine = device.new_stream(), na.zeros(8).sync()
                for i in range(rounds):
                    graph = add_one(mine).then(lambda r: add_one(r.z)).graph_on(own)
                    if i % 10 == 0:
                        graph.launch().sync_on(own)
                    if graph.topology().on_device != {"kernel": 2}:
                        wrong.append(graph.topology())
                if elements(mine) != [2 * rounds / 10] * 8:
                    wrong.append(elements(mine))
        except BaseException as error:
            wrong.append(error)

    def disturb() -> None:
        try:
            with na.use_device(device):
                while not stop.is_set():
                    made = na.ones(1000).sync_on(device.new_stream())
                    add_one(made).sync()
                    gc.collect(0)
        except BaseException as error:
            wrong.append(error)

    capturing = [threading.Thread(target=capture) for _ in range(2)]
    disturbing = [threading.Thread(target=disturb) for _ in range(2)]
    for thread in (*capturing, *disturbing):
        thread.start()
    for thread in capturing:
        thread.join()
    stop.set()
    for thread in disturbing:
        thread.join()
    assert not wrong
