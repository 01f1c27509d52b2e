"""Batches as graphs: replays with new uploads."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import (
    AlreadySubmittedError,
    BatchStateError,
    DTypeError,
    NotAGraphNodeError,
    OperationError,
    ShapeError,
)
from numbasync.testing import counters

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


async def test_a_replay_reads_tensors_of_the_program_as_they_are(device: na.Device) -> None:
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


def test_what_is_computed_on_reading_is_of_the_latest_replay(device: na.Device) -> None:
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
