"""Graphs: what is captured, what a launch does, and whom it waits for."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import (
    AccessConflictError,
    AlreadySubmittedError,
    CallerError,
    DeviceMismatchError,
    KernelError,
    NotAGraphNodeError,
    OperationError,
    ReentrancyError,
    SharedStorageError,
)
from numbasync.testing import Gate, counters, settle
from tests.common import add_one, compiled, copy_to, elements, fresh, saxpy, used

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


def test_a_launch_is_at_home_on_the_graphs_stream(device: na.Device, stream: na.Stream) -> None:
    z = na.zeros(8).sync()
    graph = add_one(z).graph_on(stream)
    with na.use_device(na.devices("cpu")[0]):
        na.spawn(graph.launch()).sync()
        na.spawn(graph.launch().map(lambda _: 3)).sync()
    assert elements(z) == [2] * 8
    policy = na.SingleStream(device)
    chosen = graph.launch().schedule(policy)
    assert chosen.stream is policy.next_stream()
    chosen.sync()
    assert elements(z) == [3] * 8


def test_a_graph_on_a_stream_of_the_policy(device: na.Device) -> None:
    z = na.zeros(8).sync()
    graph = add_one(z).graph()
    assert graph.stream.device is device
    graph.launch().sync()
    assert elements(z) == [1] * 8


def test_output_is_given_once_and_written_by_each_launch(
    device: na.Device, stream: na.Stream
) -> None:
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


def test_a_host_array_is_read_when_captured_and_a_pinned_one_at_each_launch(
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


def test_the_array_of_to_host_is_written_by_each_launch(
    device: na.Device, stream: na.Stream
) -> None:
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


def test_an_error_comes_out_as_itself_and_the_stream_works_on(
    device: na.Device, stream: na.Stream
) -> None:
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


def test_a_shared_operation_that_ran_before_and_one_that_did_not(
    device: na.Device, stream: na.Stream
) -> None:
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


# --- whose order ---


async def test_a_replay_waits_for_who_writes_its_input_and_they_for_it(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    compiled()
    other = device.new_stream()
    z, x = await na.zeros(8), await na.ones(8)
    graph = saxpy(z, 1.0, x).graph_on(other)
    await graph.launch()
    gate.close()
    na.fill(x, 5).async_on(stream)
    launched = na.spawn(graph.launch())
    await settle(device)
    assert not launched.done()
    gate.open()
    await launched
    assert elements(z) == [6] * 8

    gate.close()
    graph.launch().async_on(stream)
    written = na.spawn(na.fill(x, 100), other)
    read = na.spawn(z.to_host(), device.new_stream())
    await settle(device)
    assert not written.done()
    assert not read.done()
    gate.open()
    await written
    assert (await read).tolist() == [11] * 8


async def test_a_replay_behind_a_quick_one_still_waits(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    """Leases stand from launch to launch; others must be seen all the same."""
    compiled()
    home, other = device.new_stream(), device.new_stream()
    z, x = await na.zeros(8), await na.ones(8)
    graph = saxpy(z, 1.0, x).graph_on(home)
    for _ in range(3):
        await graph.launch()
    gate.close()
    copy_to(x, z).async_on(stream)  # reads z, writes x
    third = na.spawn(graph.launch())
    await settle(device)
    assert not third.done()
    gate.open()
    await third
    assert elements(z) == [6] * 8, "x had become 3"
    # And the other way round, behind launches that took no lease.
    for _ in range(3):
        graph.launch().async_on(home)
    assert z.to_host().sync_on(other).tolist() == [15] * 8


async def test_launches_on_two_streams_follow_each_other(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    compiled()
    other = device.new_stream()
    z = await na.zeros(8)
    graph = add_one(z).graph_on(stream)
    gate.close()
    graph.launch().async_on(stream)
    second = na.spawn(graph.launch(), other)
    await settle(device)
    assert not second.done()
    gate.open()
    await second
    assert elements(z) == [2] * 8
    streams = [device.new_stream() for _ in range(4)]
    for i in range(200):
        graph.launch().async_on(streams[i % 4])
    assert elements(z) == [202] * 8


async def test_strict_ordering_refuses_a_conflict_with_a_replay(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    compiled()
    other = device.new_stream()
    z, x = await na.zeros(8), await na.ones(8)
    graph = saxpy(z, 1.0, x).graph_on(stream)
    with na.ordering("strict"):
        gate.close()
        graph.launch().async_on(stream)
        with pytest.raises(AccessConflictError, match=r"graph\.launch\(\)"):
            na.fill(x, 5).async_on(other)
        gate.open()
        stream.synchronize()
        gate.close()
        na.fill(x, 5).async_on(stream)
        with pytest.raises(AccessConflictError):
            graph.launch().async_on(other)
        gate.open()
        stream.synchronize()
    await graph.launch()
    assert elements(z) == [6] * 8


async def test_a_refused_launch_forgets_nobody(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    """It had taken some leases when it was refused: who comes later still waits."""
    compiled()
    one, two = device.new_stream(), device.new_stream()
    z, x, out = await na.zeros(8), await na.ones(8), await na.zeros(8)
    graph = saxpy(z, 1.0, x).graph_on(one)
    gate.close()
    copy_to(out, z).async_on(stream)
    with na.ordering("strict"), pytest.raises(AccessConflictError):
        graph.launch().async_on(one)
    late = na.spawn(na.fill(z, -1), two)
    await settle(device)
    assert not late.done()
    gate.open()
    await late
    assert elements(out) == [0] * 8


# --- who is kept alive ---


def test_a_graph_keeps_what_it_captured(device: na.Device, stream: na.Stream) -> None:
    z, x = na.zeros(1000).sync(), na.from_host(np.arange(1000, dtype=np.float32)).sync()
    out = na.empty(1000).sync()
    graph = na.zip(
        na.fill(z, 1), saxpy(z, 2.0, x), copy_to(out, z)
    ).graph_on(stream)  # fmt: skip
    freed = weakref.ref(z.storage), weakref.ref(x.storage)
    del z, x
    for _ in range(100):
        gc.collect(0)
        poison = [na.full(1000, np.nan).sync() for _ in range(3)]
        graph.launch().sync()
        np.testing.assert_array_equal(out.to_host().sync(), 2 * np.arange(1000) + 1)
        del poison
    assert all(ref() is not None for ref in freed)
    del graph
    gc.collect()
    device.synchronize()
    assert all(ref() is None for ref in freed)


async def test_a_pending_launch_keeps_the_graph(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    compiled()
    out = await na.zeros(1000)
    start = used(device)

    async def made() -> na.CudaGraph[Any]:
        z, x = await na.zeros(1000), await na.ones(1000)
        return na.zip(saxpy(z, 2.0, x), copy_to(out, z)).graph_on(stream)

    graph = await made()
    gone = weakref.ref(graph)
    op = graph.launch()
    gate.close()
    graph.launch().async_on(stream)
    future = na.spawn(op, stream)
    del graph, op
    gc.collect()
    assert gone() is not None
    poison = [na.full(1000, np.nan).sync_on(device.new_stream()) for _ in range(4)]
    gate.open()
    await future
    assert (await out.to_host()).tolist() == [4] * 1000
    del future, poison
    assert used(device) == start
    assert gone() is None


def test_a_graph_counts_as_a_holder(device: na.Device, stream: na.Stream) -> None:
    z, x = na.zeros(8).sync(), na.ones(8).sync()
    shared = x.take().shared()
    graph = saxpy(z, 1.0, shared).graph_on(stream)
    with pytest.raises(SharedStorageError):
        shared.partition(4)
    del graph
    gc.collect()
    assert shared.partition(4).tensor.shape == (8,)


def test_memory_comes_back_when_the_graph_goes(device: na.Device, stream: na.Stream) -> None:
    start = used(device)
    graph = na.zeros(2**18).then(lambda z: na.zip(add_one(z), na.ones(2**18))).graph_on(stream)
    assert graph.statistics().nbytes == 2 * 2**20
    graph.launch().sync()
    del graph
    assert used(device) == start


def test_quick_launches_again_after_the_graph_has_gone(
    device: na.Device, stream: na.Stream
) -> None:
    """A buffer that a graph used is an ordinary one afterwards."""
    z = na.zeros(8).sync()
    graph = add_one(z).graph_on(stream)
    graph.launch().sync()
    assert z.storage.fast_path_device is None
    del graph
    gc.collect()
    for _ in range(3):
        add_one(z).sync()
    assert z.storage.fast_path_device is device.backend
    assert elements(z) == [4] * 8


# --- other devices, other threads ---


def test_a_graph_of_one_device_is_not_launched_on_another(
    device: na.Device, stream: na.Stream
) -> None:
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


def test_two_threads_launch_one_graph(device: na.Device, stream: na.Stream) -> None:
    z = na.zeros(8).sync()
    graph = add_one(z).graph_on(stream)
    own = [stream, device.new_stream(), device.new_stream()]

    def launch(where: na.Stream) -> None:
        for _ in range(300):
            graph.launch().async_on(where)
        where.synchronize()

    threads = [threading.Thread(target=launch, args=(s,)) for s in own]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert elements(z) == [900] * 8


# --- failures of the device ---


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


async def test_what_a_debug_kernel_raises_reaches_the_await_of_that_launch(
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
