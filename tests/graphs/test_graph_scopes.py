"""Scopes, branches, and changes of graphs."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import (
    AccessConflictError,
    AlreadySubmittedError,
    CallerError,
    GraphUpdateError,
    LauncherError,
    NotAGraphNodeError,
    OperationError,
    ReentrancyError,
    StateError,
)
from numbasync.testing import Gate, counters, seeded, settle
from tests.common import add_one, copy_to, elements, fresh, saxpy


@na.launcher
@cuda.jit
def double(z: na.KernelOutput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = 2 * z[i]


# --- scopes ---


def test_a_scope_as_a_block_and_as_a_closure(device: na.Device, stream: na.Stream) -> None:
    z, x = na.zeros(8).sync(), na.ones(8).sync()

    def body(s: na.Scope) -> None:
        assert s.record(na.fill(z, 5)) is z
        result = s.record(saxpy(z.partition(4), 2.0, x))
        assert result.x is x
        assert s.record(na.value(3)) == 3

    with na.CudaGraph.scope(stream) as s:
        body(s)
    for graph in (s.graph, na.CudaGraph.scope(stream, body)):
        assert [n.name for n in graph.nodes] == ["fill", "saxpy"]
        na.fill(z, 0).sync()
        graph.launch().sync()
        assert elements(z) == [7] * 8
        assert graph.take_output() is None


def test_an_empty_scope(device: na.Device, stream: na.Stream) -> None:
    with na.CudaGraph.scope(stream) as s:
        pass
    s.graph.launch().sync()
    assert s.graph.nodes == ()


def test_the_next_operation_reads_what_the_last_one_wrote(
    device: na.Device, stream: na.Stream
) -> None:
    z = na.ones(8).sync()
    with na.CudaGraph.scope(stream) as s:
        for _ in range(10):
            s.record(double(z))
    s.graph.launch().sync()
    assert elements(z) == [1024] * 8


@pytest.mark.parametrize(
    "make",
    [
        lambda z: na.zeros(8),
        lambda z: z.dup(),
        lambda z: na.from_host(np.ones(8, np.float32)),
        lambda z: copy_to(z, np.ones(8, np.float32)),
        lambda z: copy_to(z, na.ones(8)),
        lambda z: copy_to(z, na.zip(na.ones(8), na.value(1)).first()),
        lambda z: na.zip(na.fill(z, 100), na.ones(8)),
        lambda z: na.fill(z, 100).then(lambda t: t.dup()),
        lambda z: na.defer(lambda: na.empty(8)),
        lambda z: z.to_host().then(lambda a: na.memcpy(np.zeros(8, np.float32), z)),
    ],
    ids=[
        "zeros", "dup", "from_host", "NumPy argument", "lazy argument", "nested lazy argument",
        "one of a zip", "behind then", "deferred", "download",
    ],
)  # fmt: skip
def test_what_allocates_is_refused_and_leaves_nothing(
    device: na.Device, stream: na.Stream, make: Any
) -> None:
    z = na.zeros(8).sync()
    with na.CudaGraph.scope(stream) as s:
        s.record(add_one(z))
        with pytest.raises(NotAGraphNodeError):
            s.record(make(z))
        s.record(add_one(z))
    assert [n.name for n in s.graph.nodes] == ["add_one", "add_one"]
    s.graph.launch().sync()
    assert elements(z) == [2] * 8


def test_an_error_in_a_scope_comes_out_as_itself(device: na.Device, stream: na.Stream) -> None:
    z = na.zeros(8).sync()
    with pytest.raises(KeyError, match="mine"), na.CudaGraph.scope(stream) as s:
        s.record(add_one(z))
        raise KeyError("mine")
    with pytest.raises(StateError, match="ended with an error"):
        _ = s.graph

    def fail(_: na.Scope) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        na.CudaGraph.scope(stream, fail)
    add_one(z).sync_on(stream)
    graph = add_one(z).graph_on(stream)
    graph.launch().sync()
    assert elements(z) == [2] * 8


def test_nothing_else_runs_inside_a_scope(device: na.Device, stream: na.Stream) -> None:
    z = na.zeros(8).sync()
    graph = add_one(z).graph_on(stream)
    with na.CudaGraph.scope(stream) as s:
        for run in (
            lambda: add_one(z).sync(),
            lambda: add_one(z).sync_on(stream),
            lambda: add_one(z).async_on(stream),
            lambda: na.spawn(add_one(z)),
            lambda: add_one(z).graph_on(stream),
            lambda: graph.launch().sync(),
            lambda: na.CudaGraph.scope(stream, lambda s: None),
        ):
            with pytest.raises(ReentrancyError):
                run()
        s.record(na.value(1).then_unchecked(lambda _: na.value(add_one(z).sync())))
        s.record(add_one(z))
    assert elements(z) == [1] * 8
    add_one(z).sync()
    s.graph.launch().sync()
    assert elements(z) == [3] * 8


def test_a_scope_is_opened_once_and_recorded_while_it_is(
    device: na.Device, stream: na.Stream
) -> None:
    z, wrong = na.zeros(8).sync(), list[BaseException]()
    scope = na.CudaGraph.scope(stream)
    for record in (lambda: scope.record(add_one(z)), lambda: scope.fork(), lambda: scope.join()):
        with pytest.raises(StateError, match="not open"):
            record()
    with pytest.raises(StateError, match="no graph"):
        _ = scope.graph
    with scope as s:
        op = add_one(z)
        s.record(op)
        with pytest.raises(AlreadySubmittedError):
            s.record(op)
        with pytest.raises(OperationError, match="what record takes"):
            s.record(z)  # type: ignore[arg-type]

        def elsewhere() -> None:
            try:
                s.record(add_one(z))
            except StateError as error:
                wrong.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert "thread" in str(wrong[0])
    with pytest.raises(StateError, match="not open"):
        s.record(add_one(z))
    with pytest.raises(StateError, match="once"), scope:
        pass
    with pytest.raises(CallerError, match="scope takes a stream"):
        na.CudaGraph.scope(device)  # type: ignore[call-overload]


# --- branches ---


def test_branches_run_beside_each_other_and_meet(device: na.Device, stream: na.Stream) -> None:
    a, b, c = (na.ones(8).sync() for _ in range(3))
    with na.CudaGraph.scope(stream) as s:
        s.record(na.fill(a, 1))
        left, right = s.fork(), s.fork()
        left.record(double(b))
        right.record(double(c))
        s.record(double(a))
        s.join(left, right)
        s.record(saxpy(a, 10.0, b))
        s.record(saxpy(a, 100.0, c))
    assert [n.after for n in s.graph.nodes] == [(), (0,), (0,), (0,), (3, 1, 2), (4,)]
    assert s.graph.topology().on_device == {"kernel": 5, "memset": 1}
    assert s.graph.topology().depth == 4
    for i in (1, 2, 3):
        s.graph.launch().sync()
        assert elements(a) == [2 + 110 * 2**i] * 8


def test_branches_that_share_a_buffer_are_ordered(device: na.Device, stream: na.Stream) -> None:
    a, b, c = (na.ones(8).sync() for _ in range(3))
    with na.CudaGraph.scope(stream) as s:
        other = s.fork()
        s.record(double(a))
        other.record(copy_to(b, a))  # after double: it reads what that writes
        s.record(copy_to(c, a))  # both only read
        s.record(na.fill(a, 7))  # after both readers
    assert [n.after for n in s.graph.nodes] == [(), (0,), (0,), (2, 1)]
    s.graph.launch().sync()
    assert (elements(a), elements(b), elements(c)) == ([7] * 8, [2] * 8, [2] * 8)


def test_strict_ordering_wants_branches_joined(device: na.Device, stream: na.Stream) -> None:
    a, b = na.ones(8).sync(), na.ones(8).sync()
    with na.ordering("strict"), na.CudaGraph.scope(stream) as s:
        other = s.fork()
        s.record(double(a))
        with pytest.raises(AccessConflictError, match="branches"):
            other.record(copy_to(b, a))
        s.record(copy_to(b, a))
    assert [n.name for n in s.graph.nodes] == ["double", "copy_to"]


def test_a_branch_ends_when_it_is_joined(device: na.Device, stream: na.Stream) -> None:
    a = na.ones(8).sync()
    with na.CudaGraph.scope(stream) as s:
        branch = s.fork()
        s.join(branch)
        with pytest.raises(StateError, match="was joined"):
            branch.record(add_one(a))
        for wrong in (s, "branch", na.CudaGraph.scope(stream)):
            with pytest.raises(CallerError):
                s.join(wrong)  # type: ignore[arg-type]


def test_whatever_order_the_seed_draws_branches_give_the_same(
    device: na.Device, stream: na.Stream, seeds: range
) -> None:
    a, b, c, out = (na.ones(8).sync() for _ in range(4))
    with na.CudaGraph.scope(stream) as s:
        left, right = s.fork(), s.fork()
        for _ in range(3):
            left.record(double(b))
            right.record(add_one(c))
        s.record(na.fill(a, 3))
        s.join(left)
        s.record(saxpy(a, 1.0, b))
        right.record(copy_to(out, a))  # another branch reads it: after saxpy
        s.record(na.fill(a, 0))
    for seed in list(seeds)[:8]:
        na.zip(na.fill(b, 1), na.fill(c, 1), na.fill(out, 0)).sync()
        with seeded(device, seed):
            s.graph.launch().sync_on(stream)
            assert (elements(a), elements(b), elements(c), elements(out)) == (
                [0] * 8, [8] * 8, [4] * 8, [11] * 8,
            )  # fmt: skip


# --- update ---


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


async def test_update_is_ordered_before_a_launch_on_another_stream(
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


# --- other arguments, other commands ---


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


def test_a_new_kernel_is_compiled_for_a_changed_graph(device: na.Device, stream: na.Stream) -> None:
    z = na.zeros(8).sync()
    kernel = fresh()
    graph = add_one(z).graph_on(stream)
    graph.recapture(kernel(z))
    assert [n.name for n in graph.nodes] == ["kernel"]
    graph.launch().sync()
    assert elements(z) == [1] * 8
