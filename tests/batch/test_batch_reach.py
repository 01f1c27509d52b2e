"""Small batches: kernels reach what the host has, and nobody can tell from large ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import AccessConflictError
from numbasync.testing import counters, gate
from tests.common import add_one

F32 = np.float32
X = np.random.default_rng(1).normal(0, 2, 1200).astype(F32)


def computed(
    stream: na.Stream, count: int, times: int = 3
) -> tuple[na.CommandBatch, na.BufferId, na.BufferId]:
    """A batch that has run, where it can at once, with its input and its result."""
    b = na.CommandBatch()
    x = b.upload(np.arange(count, dtype=F32))
    y = x * 2
    b.compute_op(y).sync_on(stream)
    return (b, x, y) if times == 1 else computed(stream, count, times - 1)


SIZES = pytest.mark.parametrize("count", [1000, 9000], ids=["reached", "copied"])


@SIZES
async def test_finished_results_are_read_whatever_streams_do(
    device: na.Device, stream: na.Stream, count: int
) -> None:
    other, start = device.new_stream(), np.arange(count, dtype=F32)
    b, x, y = computed(stream, count)
    before = counters()
    ops = [b.read_op(y), b.read_op(x)]
    assert counters() == before  # building an operation enqueues nothing
    with gate(stream), na.ordering("strict"):
        for op, want in zip(ops, (start * 2, start), strict=True):
            np.testing.assert_array_equal(op.sync_on(other), want)
        np.testing.assert_array_equal(b.tensor(y).to_host().sync_on(other), start * 2)
        np.testing.assert_array_equal(b.read_op(y).sync_on(other), start * 2)


def test_strict_ordering_allows_the_copy_of_a_tensor(
    device: na.Device, stream: na.Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    b, _, y = computed(stream, 1000)
    held, readers = device.new_stream(), [device.new_stream() for _ in range(2)]
    other = na.zeros(1000, F32).sync_on(stream)
    with gate(held), na.ordering("strict"):
        with monkeypatch.context() as patch:
            patch.setattr(na.Device, "new_stream", lambda _: held)
            t = b.tensor(y)
        copied = t.storage.writer
        assert copied is not None and copied.stream is held, (copied, b.transfers, b.tensors[1])
        found = [na.spawn(t.to_host(), s) for s in readers]
        assert not [f for f in found if f.done()]
        with pytest.raises(AccessConflictError, match="both use"):
            na.memcpy(t, other).async_on(stream)  # its readers are the program's
    for f in found:
        np.testing.assert_array_equal(f.sync(), np.arange(1000, dtype=F32) * 2)


@SIZES
def test_what_is_enqueued_is_read_in_order(
    device: na.Device, stream: na.Stream, count: int
) -> None:
    start = np.arange(count, dtype=F32)
    computed(stream, count)
    with gate(stream):
        b = na.CommandBatch()
        x = b.upload(start)
        y = x * 2
        b.compute_op(y).async_on(stream)
        one, two = b.tensor(y), b.read_op(x)
        two_read = na.spawn(two, device.new_stream())
        one_read = na.spawn(one.to_host(), device.new_stream())
    np.testing.assert_array_equal(one_read.sync(), start * 2)
    np.testing.assert_array_equal(two_read.sync(), start)


@SIZES
@pytest.mark.parametrize("how", ["wait_for", "event"])
def test_results_are_there_when_a_later_stream_is(
    device: na.Device, stream: na.Stream, count: int, how: str
) -> None:
    other, want = device.new_stream(), np.arange(count, dtype=F32) * 2
    computed(stream, count)
    through = other.synchronize
    with gate(stream):
        b = na.CommandBatch()
        found = b.compute_op(b.upload(want / 2) * 2).async_on(stream)
        if how == "wait_for":
            other.wait_for(stream)
        else:
            device.new_event().record(stream).wait(other)
            through = device.new_event().record(other).synchronize
    through()
    np.testing.assert_array_equal(found, want)


@SIZES
def test_a_batchs_tensor_is_of_its_runs_pool(
    device: na.Device, stream: na.Stream, count: int
) -> None:
    before, mine = device.pool, device.new_pool()
    device.pool = mine
    try:
        b, _, y = computed(stream, count)
    finally:
        device.pool = before
    assert b.tensor(y).storage.pool is mine
    assert b.tensor(y) is b.tensor(y)


async def test_tensors_are_asked_for_in_closures(device: na.Device, stream: na.Stream) -> None:
    computed(stream, 1000)
    b = na.CommandBatch()
    x = b.upload(X)
    y = x * 2
    found = await b.compute_op(y).then(lambda _: add_one(b.tensor(y))).schedule(stream)
    np.testing.assert_array_equal(await b.tensor(y).to_host(), X * 2 + 1)
    del found


def test_a_tensor_of_a_batch_outlives_it(device: na.Device, stream: na.Stream) -> None:
    def compute(start: Any) -> tuple[Any, na.Tensor]:
        b = na.CommandBatch()
        y = b.upload(start) * 2
        return b.compute_op(y).sync_on(stream), b.tensor(y)

    compute(X)
    kept = [compute(X + k) for k in range(5)]
    for _ in range(20):
        compute(X * 0)
    for k, (found, tensor) in enumerate(kept):
        found += 1
        np.testing.assert_array_equal(tensor.to_host().sync_on(stream), (X + F32(k)) * 2)
