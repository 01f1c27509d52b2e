"""Batches whose plan has been run before: recorded from what is known, and enqueued at once."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.batch.run.read import Read
from numbasync.batch.run.replay import BatchGraph
from numbasync.batch.run.run import BatchOp
from numbasync.errors import BatchStateError, KernelError
from numbasync.testing import counters, gate, inject
from tests.common import add_one, full, only_fast_path, used

F32 = np.float32
X = np.random.default_rng(1).normal(0, 2, 1200).astype(F32)
LONG = np.random.default_rng(2).random(120_000).astype(F32) - F32(0.5)

RECORDS: dict[str, Callable[[na.CommandBatch], Any]] = {
    "a chain": lambda b: b.relu(b.upload(X)) * 2 + 1,
    "two axes": lambda b: b.upload(X.reshape(30, 40)) + b.upload(X[:40]),
    "no axes": lambda b: b.upload(np.array(3.0)) * 2,
    "booleans and halves": lambda b: b.where(
        b.upload(X > 0), b.upload(X.astype(np.float16)), F32(0.1)
    ),
    "softmax": lambda b: b.softmax(b.upload(X.reshape(30, 40))),
    "layer_norm": lambda b: b.layer_norm(b.upload(X.reshape(30, 40)), b.upload(X[:40]), 0.5),
    "blocks that are counted": lambda b: b.sum(b.upload(LONG) * 2),
    "what lies between kernels": lambda b: b.sum(b.upload(LONG)) + b.upload(LONG),
}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    only_fast_path(monkeypatch, (BatchOp, "steps"), (Read, "steps"), (BatchGraph, "enqueue"))
    return monkeypatch


def run(record: Callable[[na.CommandBatch], Any], stream: na.Stream) -> Any:
    b = na.CommandBatch()
    id = record(b)
    b.op().async_on(stream)
    return b.read_op(id).sync_on(stream)


@pytest.mark.parametrize("fuse", [True, full(False)], ids=["fused", "apart"])
@pytest.mark.parametrize("name", RECORDS)
def test_the_second_run_has_the_firsts_bits(
    device: na.Device, stream: na.Stream, monkeypatch: pytest.MonkeyPatch, name: str, fuse: bool
) -> None:
    found, made = [], []
    for turn in range(3):
        b = na.CommandBatch(fuse=fuse)
        id = RECORDS[name](b)
        before = counters()
        b.op().sync_on(stream)
        after = counters()
        found.append(b.read_op(id).sync_on(stream))
        launches, copies = after.launches - before.launches, after.copies - before.copies
        made.append((b.transfers.uploads, b.kernels_launched, launches, copies))
        if turn == 0:
            del b
            gc.collect()  # see `at_once`
            monkeypatch.setattr(BatchOp, "steps", None)
    assert made[0] == made[1] == made[2]
    for again in found[1:]:
        np.testing.assert_array_equal(again, found[0])


def chain(factor: float, x: Any = X) -> Callable[[na.CommandBatch], Any]:
    return lambda b: b.scale(b.relu(b.upload(x)), factor)


def test_other_arrays_and_numbers_take_the_same_way(
    device: na.Device, stream: na.Stream, request: pytest.FixtureRequest
) -> None:
    run(chain(3.0), stream)
    request.getfixturevalue("at_once")
    for k in range(2, 30):
        have = run(chain(k + 0.5, X - k), stream)
        np.testing.assert_array_equal(have, np.maximum(X - k, 0) * F32(k + 0.5))


def test_a_tensor_in_use_elsewhere_is_waited_for(device: na.Device) -> None:
    one, two = device.new_stream(), device.new_stream()
    start = np.arange(1000, dtype=F32)
    t = na.from_host(start).sync_on(one)

    def record(b: na.CommandBatch) -> Any:
        return b.use(t) * 2

    run(record, two)  # what loads kernels on a GPU would wait for the gate
    add_one(na.zeros(1000).sync_on(one).partition(256)).sync_on(one)
    for want in (start, start + 1, start + 2, start + 3):
        b = na.CommandBatch()
        id = record(b)
        with gate(one):
            if want is not start:
                add_one(t.partition(256)).async_on(one)
            b.op().async_on(two)
        np.testing.assert_array_equal(b.read_op(id).sync_on(two), want * 2)
    # And those who write it wait for the batch.
    b = na.CommandBatch()
    id = record(b)
    with gate(two):
        b.op().async_on(two)
        add_one(t.partition(256)).async_on(one)
    np.testing.assert_array_equal(b.read_op(id).sync_on(two), (start + 3) * 2)
    one.synchronize()


def test_a_graph_captured_meanwhile_waits_for_the_batch(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = device.new_stream(), device.new_stream()
    start = np.arange(1000, dtype=F32)
    t = na.from_host(start).sync_on(one)
    run(lambda b: b.use(t) * 2, two)
    add_one(na.zeros(1000).sync_on(one).partition(256)).sync_on(one)
    reuse, graphs = na.MemoryPool.reuse, list[Any]()

    def capture(self: na.MemoryPool, nbytes: int) -> Any:  # as another thread may
        monkeypatch.undo()
        graphs.append(na.CudaGraph.capture(one, add_one(t.partition(256))))
        graphs[0].launch().sync_on(one)
        return reuse(self, nbytes)

    b = na.CommandBatch()
    id = b.use(t) * 2
    op = b.op()
    monkeypatch.setattr(na.MemoryPool, "reuse", capture)
    with gate(two):
        op.async_on(two)
        graphs[0].launch().async_on(one)
    np.testing.assert_array_equal(b.read_op(id).sync_on(two), (start + 1) * 2)
    one.synchronize()


async def test_a_read_behind_its_batch_fails_with_it(
    device: na.Device, stream: na.Stream, request: pytest.FixtureRequest
) -> None:
    run(chain(2.0), stream)
    request.getfixturevalue("at_once")
    b = na.CommandBatch()
    id = chain(2.0)(b)
    with inject(device, "kernel"), gate(stream):
        b.op().async_on(stream)
        reading = na.spawn(b.read_op(id), stream)
    with pytest.raises(KernelError, match="injected"):
        await reading
    with pytest.raises(KernelError, match="injected"):
        stream.synchronize()
    with pytest.raises(BatchStateError, match="failed on the device"):
        b.read_op(id)
    assert b.transfers.downloads == 1


def test_a_batch_failing_while_enqueued_has_failed(
    device: na.Device, stream: na.Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(b: na.CommandBatch) -> Any:
        return b.relu(b.upload(X)) * 2

    def recorded() -> tuple[na.CommandBatch, Any]:
        b = na.CommandBatch(fuse=False)
        return b, twice(b)

    b, id = recorded()
    b.op().sync_on(stream)
    np.testing.assert_array_equal(b.read_op(id).sync_on(stream), np.maximum(X, 0) * 2)
    del b, id
    gc.collect()
    before = used(device)
    kind = type(stream.backend)
    launch, calls = kind.launch, list[int]()

    def second(self: Any, *args: Any) -> Any:
        calls.append(1)
        if not len(calls) % 2:
            raise KernelError("the second of two launches")
        return launch(self, *args)

    monkeypatch.setattr(kind, "launch", second)
    for chained in (False, True):
        b, id = recorded()
        op: Any = b.op()
        if chained:  # as a part of another operation
            op = op.map(lambda results: results)
        with gate(stream), pytest.raises(KernelError, match="second of two"):
            op.async_on(stream)
        with pytest.raises(BatchStateError, match="failed, and a batch runs once"):
            b.read_op(id)
        del op, b, id
    monkeypatch.undo()
    stream.synchronize()
    gc.collect()
    assert used(device) == before


def test_a_failed_parts_memory_is_kept_until_passed(
    device: na.Device, stream: na.Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recorded() -> na.CommandBatch:
        b = na.CommandBatch(fuse=False)
        b.keep(b.relu(b.upload(X)) * 2)
        return b

    recorded().op().sync_on(stream)
    kind = type(stream.backend)
    launch, calls = kind.launch, list[int]()

    def second(self: Any, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KernelError("the second of two launches")
        return launch(self, *args)

    monkeypatch.setattr(kind, "launch", second)
    gc.collect()
    stream.synchronize()
    before = used(device)
    with gate(stream):
        with pytest.raises(KernelError):
            recorded().op().map(lambda results: results).async_on(stream)
        gc.collect()
        assert used(device) > before  # the first kernel has not run yet
    stream.synchronize()
    gc.collect()
    assert used(device) == before


def test_replays_are_enqueued_at_once(device: na.Device, request: pytest.FixtureRequest) -> None:
    b = na.CommandBatch()
    x = b.upload(X)
    y = b.relu(x) * 2
    g = b.graph()
    first = g.replay_sync()[y]
    request.getfixturevalue("at_once")
    for k in range(3):
        np.testing.assert_array_equal(g.replay_sync({x: X + k})[y], np.maximum(X + k, 0) * 2)
    np.testing.assert_array_equal(first, np.maximum(X, 0) * 2)
    assert (b.transfers.uploads, b.transfers.downloads, b.kernels_launched) == (4, 4, 4)
