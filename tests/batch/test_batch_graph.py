"""Batches as graphs: replays with new uploads."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.batch.run.plan import SMALL
from numbasync.device.submission import Submission
from numbasync.errors import (
    AlreadySubmittedError,
    BatchStateError,
    DTypeError,
    NotAGraphNodeError,
    OperationError,
    ShapeError,
)
from numbasync.testing import counters, gate, settle
from tests.waiting import begin

X = np.random.default_rng(1).normal(0, 2, 1000).astype(np.float32)


def test_a_replay_computes_with_new_uploads(device: na.Device) -> None:
    b = na.CommandBatch()
    x, other = b.upload(X), b.upload(X + 1)
    y, total = b.relu(x) * 2 + other, b.sum(b.upload(np.ones(20_000, np.float32)) * 2)
    g = b.graph()
    before = counters()
    first = g.replay_sync()
    np.testing.assert_array_equal(first[y], np.maximum(X, 0) * 2 + (X + 1))
    for k in range(3):
        again = g.replay_sync({x: X - k})
        np.testing.assert_array_equal(again[y], np.maximum(X - k, 0) * 2 + (X + 1))
        assert again[total] == 40_000  # the blocks are counted anew each time
    np.testing.assert_array_equal(first[y], np.maximum(X, 0) * 2 + (X + 1))  # an array of its own
    assert counters().allocations == before.allocations
    assert (b.transfers.uploads, b.transfers.downloads, b.kernels_launched) == (12, 8, 8)


async def test_replays_are_awaited_one_after_the_other(device: na.Device) -> None:
    b = na.CommandBatch()
    x = b.upload(X)
    y = b.softmax(x * 2)
    g = b.graph()

    async def one(k: int) -> Any:
        found = await g.replay({x: np.full(1000, k, np.float32)})
        return found[y]

    for k, found in enumerate(await asyncio.gather(*map(one, range(6)))):
        np.testing.assert_allclose(found, 1e-3, rtol=1e-6, err_msg=str(k))
    doubled = na.CommandBatch()
    z = doubled.upload(X)
    w = z * 2
    h = doubled.graph()
    found = await asyncio.gather(*(waited(h, z, k) for k in range(6)))
    assert [float(r[w][0]) for r in found] == [2.0 * k for k in range(6)]


async def waited(g: na.BatchGraph, id: na.BufferId, k: int) -> Any:
    return await g.replay({id: np.full(1000, k, np.float32)})


@pytest.mark.parametrize("size", [1000, 9000], ids=["reached", "copied"])
def test_small_inputs_of_a_replay_are_the_hosts(device: na.Device, size: int) -> None:
    b = na.CommandBatch()
    start = np.arange(size, dtype=np.float32)
    x, empty = b.upload(start), b.upload(start[:0])
    y, total, nothing = b.relu(x) * 2, b.sum(x > 3), empty + 1
    g = b.graph()
    small = start.nbytes <= SMALL
    # Those of the upload and of two results.
    assert g.graph.topology().counts.get("memcpy", 0) == (0 if small else 3)
    first = g.replay_sync()
    again = g.replay_sync({x: start - 5})
    np.testing.assert_array_equal(first[y], start * 2)
    np.testing.assert_array_equal(again[y], np.maximum(start - 5, 0) * 2)
    assert (first[total], again[total]) == (size - 4, size - 9)
    assert again[nothing].shape == (0,)
    # Tensors of the same memory.
    np.testing.assert_array_equal(b.read_sync(x), start - 5)
    np.testing.assert_array_equal(b.tensor(y).to_host().sync(), again[y])
    assert (b.transfers.uploads, b.transfers.downloads) == (2, 5)


@pytest.mark.parametrize("size", [1000, 9000], ids=["reached", "copied"])
@pytest.mark.parametrize("how", ["read elsewhere", "read by the same operation"])
async def test_new_uploads_come_behind_users_of_former_ones(
    device: na.Device, stream: na.Stream, size: int, how: str
) -> None:
    b = na.CommandBatch()
    start = np.arange(size, dtype=np.float32)
    x = b.upload(start)
    y = b.relu(x) * 2
    g = b.graph(stream)
    for _ in range(2):  # at once, too
        await g.replay({x: start})
    if how == "read by the same operation":
        former, again = await na.zip(b.read_op(x), g.replay({x: start + 1})).schedule(stream)
    else:
        other = device.new_stream()
        with gate(other):
            reading = na.spawn(b.read_op(x), other)
            replaying = na.spawn(g.replay({x: start + 1}), stream)
            await settle(device)
            assert not replaying.done()
        former, again = await reading, await replaying
    np.testing.assert_array_equal(former, start)
    np.testing.assert_array_equal(again[y], (start + 1) * 2)
    np.testing.assert_array_equal((await g.replay())[y], (start + 1) * 2)
    np.testing.assert_array_equal((await g.replay({x: start}))[y], start * 2)


@pytest.mark.parametrize("size", [1000, 9000], ids=["reached", "copied"])
def test_a_replay_uploads_what_it_was_given_last(device: na.Device, size: int) -> None:
    """Whatever becomes of the tensor that a program has had of an upload."""
    b = na.CommandBatch()
    start = np.arange(size, dtype=np.float32)
    x = b.upload(start)
    y = x * 2
    g = b.graph()
    g.replay_sync()
    t = b.tensor(x)
    np.testing.assert_array_equal(t.to_host().sync(), start)
    na.fill(t, 7.0).sync()
    np.testing.assert_array_equal(g.replay_sync()[y], start * 2)
    np.testing.assert_array_equal(g.replay_sync({x: start + 1})[y], start * 2 + 2)
    np.testing.assert_array_equal(b.tensor(x).to_host().sync(), start + 1)
    assert (t.to_host().sync() == 7).all()


def test_many_small_results_are_one_kernel(device: na.Device) -> None:
    b = na.CommandBatch()
    x = b.upload(X)
    ys = [x + float(k) for k in range(16)]
    g = b.graph()
    found = g.replay_sync()
    assert b.kernels_launched == 1
    for k, y in enumerate(ys):
        np.testing.assert_array_equal(found[y], X + np.float32(k))


async def test_a_replay_reads_the_programs_tensors_in_place(device: na.Device) -> None:
    t = await na.ones(5)
    b = na.CommandBatch()
    y = b.use(t) + 1
    g = b.graph()
    assert (await g.replay())[y].tolist() == [2] * 5
    await na.fill(t, 7)
    assert (await g.replay())[y].tolist() == [8] * 5
    assert (await b.read(y)).tolist() == [8] * 5


def test_nothing_is_read_before_the_first_replay(device: na.Device) -> None:
    b = na.CommandBatch()
    y = b.upload(X) + 1
    g = b.graph()
    with pytest.raises(BatchStateError, match=r"not replayed yet.*\n.*replay\(\)"):
        b.read(y)
    with pytest.raises(BatchStateError, match="not replayed yet"):
        b.tensor(y)
    g.replay_sync()
    np.testing.assert_array_equal(b.read_sync(y), X + 1)


def test_values_computed_on_reading_are_of_latest_replays(device: na.Device) -> None:
    b = na.CommandBatch()
    x = b.upload(X)
    between = b.relu(x)
    y = between * 2
    g = b.graph()
    for k in range(2):
        g.replay_sync({x: X + k})
        np.testing.assert_array_equal(b.read_sync(between), np.maximum(X + k, 0))
        np.testing.assert_array_equal(b.read_sync(y), np.maximum(X + k, 0) * 2)


def test_one_operation_replays_a_batch_once(device: na.Device) -> None:
    b = na.CommandBatch()
    x = b.upload(X)
    y = x + 1
    g = b.graph()
    with pytest.raises(OperationError, match=r"twice by one operation[^$]*one after the other"):
        na.zip(g.replay({x: X}), g.replay({x: X + 1})).sync()
    with pytest.raises(NotAGraphNodeError):
        na.CudaGraph.capture(g.stream, g.replay({x: X - 1}))
    np.testing.assert_array_equal(g.replay_sync({x: X * 2})[y], X * 2 + 1)


@pytest.mark.parametrize("way", ["at once", "step by step"])
def test_no_other_replay_comes_between_uploads_and_launch(
    device: na.Device, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    b = na.CommandBatch()
    x = b.upload(X)
    y = x + 1
    g = b.graph()
    g.replay_sync()
    write = g._put
    another = list[bool]()

    def may_another_thread_begin() -> bool:
        if not device.submit_lock.acquire(blocking=False):
            return False
        device.submit_lock.release()
        return g._claim(Submission(g.stream, "another replay"))

    def writes(given: Any, submission: Submission) -> Any:
        another.append(begin(may_another_thread_begin)())
        return write(given, submission)

    monkeypatch.setattr(g, "_put", writes)
    if way == "step by step":
        monkeypatch.setattr(g, "enqueue_at_once", lambda *_: None)
    np.testing.assert_array_equal(g.replay_sync({x: X * 2})[y], X * 2 + 1)
    assert another == [False]


def test_wrong_replays_are_refused(device: na.Device) -> None:
    b = na.CommandBatch()
    x = b.upload(X)
    y = x + 1
    g = b.graph()
    with pytest.raises(ShapeError, match=r"\(3,\)"):
        g.replay({x: X[:3]})
    with pytest.raises(DTypeError, match="float64"):
        g.replay({x: X.astype(np.float64)})
    with pytest.raises(OperationError, match="not list"):
        g.replay([X])  # type: ignore[arg-type]
    with pytest.raises(BatchStateError, match="no upload"):
        g.replay({y: X})
    for again in (b.execute, b.graph):
        with pytest.raises(AlreadySubmittedError):
            again()
    np.testing.assert_array_equal(g.replay_sync()[y], X + 1)
