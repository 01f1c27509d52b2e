"""Scopes, in which operations are recorded one by one, and their branches."""

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
    NotAGraphNodeError,
    OperationError,
    ReentrancyError,
    StateError,
)
from numbasync.testing import seeded
from tests.common import add_one, copy_to, elements, saxpy


@na.launcher
@cuda.jit
def double(z: na.KernelOutput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = 2 * z[i]


# --- scopes ---


def test_a_scope_as_block_and_as_closure(device: na.Device, stream: na.Stream) -> None:
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


def test_the_next_operation_reads_what_was_written(device: na.Device, stream: na.Stream) -> None:
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


def test_an_error_in_a_scope_leaves_as_itself(device: na.Device, stream: na.Stream) -> None:
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


def test_a_scope_opens_once_to_be_recorded(device: na.Device, stream: na.Stream) -> None:
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
        with pytest.raises(
            AccessConflictError, match=r"branches of a graph both use <Tensor \(8,\)"
        ):
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


def test_branches_give_the_same_in_any_order(
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


def test_a_scope_refuses_what_would_record_nothing(device: na.Device, stream: na.Stream) -> None:
    z = na.zeros(8).sync()

    async def awaits(s: Any) -> None:
        s.record(add_one(z))

    def yields(s: Any) -> Any:
        yield s.record(add_one(z))

    for wrong, text in ((awaits, "is an `async def`"), (yields, "records nothing")):
        with pytest.raises(CallerError, match=text):
            na.CudaGraph.scope(stream, wrong)
    with pytest.raises(OperationError, match="takes a function"):
        na.CudaGraph.scope(stream, 3)  # type: ignore[call-overload]
    add_one(z).sync()
