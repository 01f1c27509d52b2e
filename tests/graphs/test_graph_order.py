"""Order of the launches of a graph: behind other work, before it, behind each other; streams."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import numbasync as na
from numbasync.errors import (
    AccessConflictError,
    OperationError,
)
from numbasync.testing import Gate, settle
from tests.common import add_one, compiled, copy_to, elements, saxpy


async def test_replays_and_writers_of_their_inputs_are_ordered(
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
        with pytest.raises(
            AccessConflictError, match=r"graph\.launch\(\).*both use <Tensor \(8,\)"
        ):
            na.fill(x, 5).async_on(other)
        gate.open()
        stream.synchronize()
        gate.close()
        na.fill(x, 5).async_on(stream)
        with pytest.raises(AccessConflictError, match=r"both use <Tensor \(8,\) float32 on"):
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


async def test_launches_of_a_reading_graph_follow_each_other(
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


def test_derived_operations_are_at_home_on_graph_streams(
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


def test_a_launch_is_at_home_on_graph_streams(device: na.Device, stream: na.Stream) -> None:
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
