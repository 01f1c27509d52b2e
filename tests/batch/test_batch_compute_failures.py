"""Batches that are run by `compute`, and fail, or cannot be run."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import (
    AlreadySubmittedError,
    BatchStateError,
    CallerError,
    DeviceMismatchError,
    ForeignBufferError,
    KernelError,
    OperationError,
)
from numbasync.testing import gate, inject
from tests.common import used

F32 = np.float32
X = np.random.default_rng(1).normal(0, 2, 1200).astype(F32)
LONG = np.random.default_rng(2).random(120_000).astype(F32) - F32(0.5)


async def test_it_fails_with_its_work(device: na.Device, stream: na.Stream) -> None:
    for _ in range(2):
        b = na.CommandBatch()
        y = b.relu(b.upload(X)) * 2
        np.testing.assert_array_equal(await b.compute(y), np.maximum(X, 0) * 2)
    t = await na.from_host(X)
    for ways in ("await", "sync"):
        b = na.CommandBatch()
        x = b.use(t)
        y = b.relu(x) * 2
        for_later = y + 1
        with inject(device, "kernel"), pytest.raises(KernelError, match="injected"):
            if ways == "await":
                await b.compute_op(y).schedule(stream)
            else:
                b.compute_op(y).sync_on(stream)
        for id in (x, y, for_later):
            with pytest.raises(BatchStateError, match="failed on the device"):
                b.read_op(id)


def test_what_cannot_be_enqueued_has_failed(
    device: na.Device, stream: na.Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recorded() -> tuple[na.CommandBatch, Any]:
        b = na.CommandBatch(fuse=False)
        return b, b.relu(b.upload(LONG)) * 2

    b, y = recorded()
    b.compute_op(y).sync_on(stream)
    del b, y
    gc.collect()
    before = used(device)
    kind = type(stream.backend)

    def download(self: Any, *args: Any) -> Any:
        raise KernelError("the copy back")

    monkeypatch.setattr(kind, "download", download)
    b, y = recorded()
    op = b.compute_op(y)
    with gate(stream):
        with pytest.raises(KernelError, match="copy back"):
            op.async_on(stream)
        gc.collect()
        assert used(device) > before  # the kernels have not run yet
    with pytest.raises(BatchStateError, match="failed, and a batch runs once"):
        b.read_op(y)
    monkeypatch.undo()
    stream.synchronize()
    del op, b, y
    gc.collect()
    assert used(device) == before


@pytest.mark.parametrize("first", ["compute", "execute", "op", "graph", "refused"])
def test_a_batch_runs_once(device: na.Device, first: str) -> None:
    b = na.CommandBatch()
    y = b.upload(X) * 2
    if first == "compute":
        b.compute_sync(y)
    elif first == "execute":
        b.execute_sync()
    elif first == "op":
        b.op().suppress_warning()
    elif first == "graph":
        b.graph()
    else:
        b.compute_op(y).suppress_warning()
    for again in (b.compute, b.compute_sync, b.compute_op):
        with pytest.raises(AlreadySubmittedError, match="runs once"):
            again(y)
    for last in (b.execute, b.op, b.graph):
        with pytest.raises(AlreadySubmittedError):
            last()
    if first in ("compute", "execute"):
        np.testing.assert_array_equal(b.read_sync(y), X * 2)


def test_ids_are_checked_before_anything_happens(device: na.Device) -> None:
    b, other = na.CommandBatch(), na.CommandBatch()
    y, foreign = b.upload(X) * 2, other.upload(X)
    for given, error, match in (
        ((), CallerError, r"b\.compute\(y\)"),
        ((foreign,), ForeignBufferError, "compute: .*is of batch"),
        ((y, foreign), ForeignBufferError, "is of batch"),
        ((X,), OperationError, "compute takes ids"),
        ((y, 1), OperationError, "not int"),
    ):
        with pytest.raises(error, match=match):
            b.compute(*given)  # type: ignore[arg-type]
    z = y + 1  # it is still being recorded
    np.testing.assert_array_equal(b.compute_sync(z), X * 2 + 1)
    assert b.transfers.downloads == 1


def test_a_stream_of_another_device_is_refused(device: na.Device) -> None:
    other = next(d for d in na.devices("cpu") if d is not device)
    for _ in range(2):
        b = na.CommandBatch(other)
        y = b.upload(X) * 3
        np.testing.assert_array_equal(b.compute_op(y).sync_on(other.new_stream()), X * 3)
        b = na.CommandBatch()
        y = b.upload(X) * 3
        with pytest.raises(DeviceMismatchError, match="runs on"):
            b.compute_op(y).sync_on(other.new_stream())
        with pytest.raises(BatchStateError, match="failed"):
            b.read_op(y)
