"""Calls of graphed functions by the fast path: when they take it, and the order that they keep."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.graphs.graphed import Replayed
from numbasync.testing import Gate
from tests.common import saxpy
from tests.common import scaled_plus_one as step

N = 8


@pytest.fixture
def no_steps(monkeypatch: pytest.MonkeyPatch) -> Any:
    """From its call on, a call that is run by its steps is an error."""

    def refuse(self: Replayed, ctx: Any) -> Any:
        raise AssertionError(f"{self} was run by its steps")

    return lambda: monkeypatch.setattr(Replayed, "steps", refuse)


def host(t: na.Tensor, stream: na.Stream) -> list[float]:
    return t.to_host().sync_on(stream).tolist()


def full(value: float, stream: na.Stream) -> na.Tensor:
    return na.full(N, value).sync_on(stream)


@pytest.mark.parametrize("copies", [True, False])
def test_later_calls_take_it(stream: na.Stream, no_steps: Any, copies: bool) -> None:
    replayed: Any = na.graphed(copies=copies)(step)
    a, b = full(1, stream), full(10, stream)
    for _ in range(2):
        kept = replayed(a, factor=2.0).sync_on(stream)
        del kept  # leaves the pool a block for the next result
    other = stream.device.new_stream()
    no_steps()
    for x, want in ((a, 3), (b, 21)):
        for where in (stream, other, other):
            call = replayed.replay(x, factor=2.0)
            assert host(call.sync_on(where), where) == [want] * N
            assert call.graph_used is replayed.graphs[0]


async def test_it_runs_on_the_policys_streams(device: na.Device, no_steps: Any) -> None:
    replayed: Any = na.graphed(copies=False)(step)
    x = await na.ones(N)
    await replayed(x)
    no_steps()
    for _ in range(8):
        await replayed(x)
    first, second = await na.zip(replayed(x), replayed(x).map(lambda t: t))
    assert first is second


def test_calls_that_need_their_steps(stream: na.Stream) -> None:
    replayed: Any = na.graphed(step)
    x, wide = full(1, stream), na.full(2 * N, 5).sync_on(stream)
    replayed(x).sync_on(stream)
    for argument, want in (
        (np.full(N, 2, np.float32), 5), (wide[::2], 11), (x.shared(), 3), (wide[:N], 11), (x, 3),
    ):  # fmt: skip
        assert host(replayed(argument).sync_on(stream), stream) == [want] * N
    moved = x.take()
    with pytest.raises(na.errors.MovedError):
        replayed(x).sync_on(stream)
    with na.limit(ops=1):
        assert host(replayed(moved).sync(), stream) == [3] * N


def test_threads_that_call_with_tensors(device: na.Device) -> None:
    replayed: Any = na.graphed(step)
    wrong = list[Any]()

    def call(base: int) -> None:
        own = device.new_stream()
        try:
            for i in range(base, base + 50):
                got = host(replayed(na.full(N, i).sync_on(own)).sync_on(own), own)
                if got != [2 * i + 1] * N:
                    wrong.append((i, got))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=call, args=(1000 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- the order; each of these has a stream held, and looks at what must have waited for it ---


@pytest.fixture
def weighted(stream: na.Stream) -> tuple[Any, na.Tensor]:
    """A graphed function that adds a tensor `w` of its own, which it does not write, and `w`."""
    w = full(1, stream)

    def function(x: na.Tensor, gives_w: bool) -> na.DeviceOp[Any]:
        added = na.zeros(N).then(lambda z: saxpy(z, 1.0, x)).then(lambda r: saxpy(r.z, 1.0, w))
        return added.map(lambda r: r.x if gives_w else r.z)

    return na.graphed(function), w


def test_a_write_behind_a_call_on_another_stream(
    stream: na.Stream, weighted: tuple[Any, na.Tensor], gate: Gate, no_steps: Any
) -> None:
    """The call has moved from `other` to the held stream, and `other` reads `w` again later."""
    replayed, w = weighted
    x, other = full(10, stream), stream.device.new_stream()
    for _ in range(2):
        replayed(x, False).sync_on(other)
    no_steps()
    gate.close()
    result = replayed(x, False).async_on(stream)
    w.dup().sync_on(other)
    na.fill(w, 100).async_on(other)
    gate.open()
    assert host(result, stream) == [11] * N
    assert host(w, other) == [100] * N


def test_a_write_behind_the_copy_of_a_result(
    stream: na.Stream, weighted: tuple[Any, na.Tensor], gate: Gate, no_steps: Any
) -> None:
    """The result is a tensor that the graph reads."""
    replayed, w = weighted
    x, other = full(10, stream), stream.device.new_stream()
    replayed(x, True).sync_on(stream)
    no_steps()
    gate.close()
    result = replayed(x, True).async_on(stream)
    na.fill(w, 100).async_on(other)
    gate.open()
    assert host(result, stream) == [1] * N


def test_a_write_behind_the_copy_of_an_argument(
    stream: na.Stream, gate: Gate, no_steps: Any
) -> None:
    """The writer is a graph, which has used the argument before, and nothing since."""
    replayed: Any = na.graphed(step)
    x, other = full(1, stream), stream.device.new_stream()
    one = full(1, stream)
    graph = saxpy(x, 1.0, one).graph_on(other)
    for _ in range(2):
        replayed(x).sync_on(stream)
    graph.launch().sync_on(other)
    graph.launch().sync_on(other)
    assert host(x, other) == [3] * N
    graph.launch().sync_on(other)
    no_steps()
    gate.close()
    result = replayed(x).async_on(stream)
    graph.launch().async_on(other)
    gate.open()
    assert host(result, stream) == [9] * N
    assert host(x, other) == [5] * N


@pytest.fixture
def passing() -> Any:
    """A graphed function that gives the graph's own input, which it reads."""

    def function(x: na.Tensor) -> na.DeviceOp[Any]:
        return na.zeros(N).then(lambda z: saxpy(z, 1.0, x)).map(lambda r: r.x)

    return na.graphed(copies=False)(function)


def test_a_read_of_an_input_of_the_graph(
    stream: na.Stream, passing: Any, gate: Gate, no_steps: Any
) -> None:
    a, b, other = full(1, stream), full(2, stream), stream.device.new_stream()
    passing(a).sync_on(stream)
    no_steps()
    gate.close()
    given = passing(b).async_on(stream)
    read = na.spawn(given.to_host(), other)
    gate.open()
    assert read.sync().tolist() == [2] * N


def test_a_call_behind_a_read_of_graph_inputs(stream: na.Stream, passing: Any, gate: Gate) -> None:
    """The graph itself, launched in between, only reads its input, and needs not wait."""
    a, b, other = full(1, stream), full(2, stream), stream.device.new_stream()
    given = passing(a).sync_on(other)
    gate.close()
    read = na.spawn(given.to_host(), stream)
    passing.graphs[0].launch().sync_on(other)
    passing(b).async_on(other)
    gate.open()
    assert read.sync().tolist() == [1] * N
    assert host(given, other) == [2] * N


def test_a_call_behind_a_write_of_its_argument(stream: na.Stream, passing: Any, gate: Gate) -> None:
    x, other = full(1, stream), stream.device.new_stream()
    passing(x).sync_on(other)
    gate.close()
    na.fill(x, 5).async_on(stream)
    given = passing(x).async_on(other)
    gate.open()
    assert host(given, other) == [5] * N


def test_a_read_of_a_copied_result(stream: na.Stream, gate: Gate, no_steps: Any) -> None:
    replayed: Any = na.graphed(step)
    x, y, other = full(1, stream), full(7, stream), stream.device.new_stream()
    replayed(x).sync_on(stream)
    full(0, stream)  # leaves a block with other elements to the result
    no_steps()
    gate.close()
    read = na.spawn(replayed(y).async_on(stream).to_host(), other)
    gate.open()
    assert read.sync().tolist() == [15] * N


def test_a_result_dropped_in_flight_keeps_its_memory(
    device: na.Device, stream: na.Stream, gate: Gate, no_steps: Any
) -> None:
    replayed: Any = na.graphed(step)
    x = full(1, stream)
    replayed(x).sync_on(stream)
    before = device.memory_stats().used_current
    no_steps()
    gate.close()
    replayed(x).async_on(stream)
    assert device.memory_stats().used_current > before
    gate.open()
    stream.synchronize()
    assert device.memory_stats().used_current == before


def test_a_call_behind_reading_the_latest_result(stream: na.Stream, gate: Gate) -> None:
    replayed: Any = na.graphed(copies=False)(step)
    a, b, other = full(1, stream), full(2, stream), stream.device.new_stream()
    given = replayed(a).sync_on(other)
    gate.close()
    read = na.spawn(given.to_host(), stream)
    assert replayed(b).async_on(other) is given
    gate.open()
    assert read.sync().tolist() == [3] * N
    assert host(given, other) == [5] * N


def test_a_write_behind_a_call_and_a_read(
    stream: na.Stream, weighted: tuple[Any, na.Tensor], gate: Gate, no_steps: Any
) -> None:
    """The read, between two calls on one stream, has taken the call's place among the readers."""
    replayed, w = weighted
    x, other = full(10, stream), stream.device.new_stream()
    for _ in range(2):
        replayed(x, False).sync_on(stream)
    w.dup().sync_on(stream)
    no_steps()
    gate.close()
    result = replayed(x, False).async_on(stream)
    na.fill(w, 100).async_on(other)
    gate.open()
    assert host(result, stream) == [11] * N


def test_calls_on_two_streams_run_in_order(stream: na.Stream, gate: Gate) -> None:
    replayed: Any = na.graphed(copies=False)(step)
    a, b, other = full(1, stream), full(2, stream), stream.device.new_stream()
    for _ in range(2):
        replayed(a).sync_on(stream)
    gate.close()
    replayed(a).async_on(stream)
    given = replayed(b).async_on(other)
    gate.open()
    stream.synchronize()
    assert host(given, other) == [5] * N


def test_calls_without_arguments_run_in_order(stream: na.Stream, gate: Gate) -> None:
    z, one, other = full(0, stream), full(1, stream), stream.device.new_stream()
    replayed = na.graphed(copies=False)(lambda: saxpy(z, 1.0, one))
    for _ in range(2):
        replayed().sync_on(stream)
    gate.close()
    replayed().async_on(stream)
    replayed().async_on(other)
    assert not other.query(), "it waits for the held stream"
    gate.open()
    assert host(z, other) == [4] * N


def test_a_graph_reading_results_behind_a_call(
    stream: na.Stream, gate: Gate, no_steps: Any
) -> None:
    replayed: Any = na.graphed(copies=False)(step)
    a, b, other = full(1, stream), full(2, stream), stream.device.new_stream()
    given = replayed(a).sync_on(stream)
    total = full(0, stream)
    graph = saxpy(total, 1.0, given).graph_on(other)
    for _ in range(2):
        graph.launch().sync_on(other)
    no_steps()
    gate.close()
    replayed(b).async_on(stream)
    graph.launch().async_on(other)
    gate.open()
    assert host(total, other) == [3 + 3 + 5] * N
