"""Batches: what is refused, with its type, when it is called, before anything is enqueued."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import (
    AlreadySubmittedError,
    BatchStateError,
    CallerError,
    DeviceMismatchError,
    DTypeError,
    ForeignBufferError,
    LauncherError,
    OperationError,
    ShapeError,
)
from numbasync.testing import counters

X = np.arange(6, dtype=np.float32)


@na.elementwise
def double(x: Any) -> Any:
    return x + x


def not_run() -> na.DeviceOp[na.Tensor]:
    op = na.zeros(6)
    op.suppress_warning()
    return op


def refusals() -> dict[str, tuple[type, str, Callable[[na.CommandBatch, na.BufferId], Any]]]:
    other = na.CommandBatch(na.devices("cpu")[0])
    foreign = other.upload(X)
    return {
        "another batch": (
            ForeignBufferError, "is of batch .*not of batch", lambda b, x: x + foreign),
        "another batch, relu": (ForeignBufferError, "relu: .*", lambda b, x: b.relu(foreign)),
        "an array": (OperationError, r"upload it first", lambda b, x: b.add(x, X)),
        "a list": (OperationError, r"b\.upload\(array\)", lambda b, x: b.add(x, [1.0])),
        "an operand on a device": (
            OperationError, r"write b\.use\(tensor\)", lambda b, x: b.relu(na.meta(6).sync())),
        "an operand that is not there yet": (
            OperationError, r"await it, or record b\.use", lambda b, x: x + not_run()),
        "an id to use": (OperationError, "an id already", lambda b, x: b.use(x)),  # type: ignore[arg-type]
        "an operation to use": (
            OperationError, "await it", lambda b, x: b.use(not_run())),  # type: ignore[arg-type]
        "text": (OperationError, "not str", lambda b, x: b.add(x, "2")),
        "sizes": (ShapeError, r"\(6,\), \(5,\).*broadcast", lambda b, x: x + b.upload(X[:5])),
        "rows and columns": (
            ShapeError, r"\(2, 3\), \(2,\)",
            lambda b, x: b.upload(X.reshape(2, 3)) * b.upload(X[:2])),
        "type of an upload": (
            DTypeError, "complex64.*\n.*astype", lambda b, x: b.upload(X.astype(np.complex64))),
        "uint8": (DTypeError, "uint8", lambda b, x: b.upload(X.astype(np.uint8))),
        "text array": (DTypeError, "<U1", lambda b, x: b.upload(np.array(["a"]))),
        "bools have no difference": (DTypeError, "sub of bool", lambda b, x: (x > 0) - (x > 1)),
        "a number that does not fit": (
            DTypeError, "100000000000000 is no int32", lambda b, x: b.cast(x, np.int32) + 10**14),
        "a negative power": (DTypeError, "fraction", lambda b, x: b.cast(x, np.int32) ** -1),
        "no such axis": (ShapeError, "no axis 1", lambda b, x: b.sum(x, axis=1)),
        "two axes": (ShapeError, r"axis=\(0, 1\)", lambda b, x: b.sum(x, axis=(0, 1))),  # type: ignore[arg-type]
        "maximum of nothing": (
            ShapeError, "no elements", lambda b, x: b.max(b.upload(np.zeros((0,), np.float32)))),
        "dot of matrices": (
            ShapeError, "two vectors",
            lambda b, x: b.dot(b.upload(np.eye(2)), b.upload(np.eye(2)))),
        "dot of lengths": (ShapeError, "two vectors", lambda b, x: b.dot(x, b.upload(X[:5]))),
        "softmax of one": (ShapeError, "needs an axis", lambda b, x: b.softmax(b.sum(x))),
        "gelu": (CallerError, "approximate='no'", lambda b, x: b.gelu(x, "no")),  # type: ignore[arg-type]
        "cast": (DTypeError, "int8", lambda b, x: b.cast(x, np.int8)),
        "truth": (DTypeError, r"b\.where", lambda b, x: bool(x > 1)),
        "a tensor": (OperationError, r"b\.use", lambda b, x: b.upload(na.meta(3).sync())),
        "an id to upload": (OperationError, "no elements yet", lambda b, x: b.upload(x)),
        "no array": (OperationError, "not list", lambda b, x: b.upload([[1.0, 2.0], [3.0]])),
        "weights": (
            ShapeError, "keeps its shape",
            lambda b, x: b.layer_norm(x, b.upload(np.ones((2, 6), np.float32)))),
        "eps": (CallerError, "eps='a'", lambda b, x: b.layer_norm(x, eps="a")),  # type: ignore[arg-type]
        "no device": (CallerError, "takes a device", lambda b, x: na.CommandBatch("cpu")),  # type: ignore[arg-type]
        "no extents": (
            CallerError, "Tuning", lambda b, x: na.CommandBatch(tuning=3)),  # type: ignore[arg-type]
        "no kernel": (CallerError, "has 0 kernels", lambda b, x: b.plan().source(0)),
        "no stream": (CallerError, "takes a stream", lambda b, x: b.graph(3)),  # type: ignore[arg-type]
        "an array to use": (OperationError, r"b\.upload", lambda b, x: b.use(X)),  # type: ignore[arg-type]
        "another device": (
            DeviceMismatchError, "cannot be used", lambda b, x: b.use(na.meta(3).sync())),
        "read before": (BatchStateError, r"recording.*\n.*b\.execute", lambda b, x: b.read(x)),
        "tensor before": (BatchStateError, "recording", lambda b, x: b.tensor(x)),
        "operands": (OperationError, "takes 1 operands, not 2", lambda b, x: double(x, x)),
        "no id": (OperationError, "at least one", lambda b, x: double(3.0)),
        "no function": (LauncherError, "function of scalars", lambda b, x: na.elementwise(3)),  # type: ignore[call-overload]
        "keyword": (LauncherError, "by position", lambda b, x: na.elementwise(lambda *, a: a)),
        "no parameter": (LauncherError, "0 parameters", lambda b, x: na.elementwise(lambda: 1)),
    }  # fmt: skip


@pytest.mark.parametrize("name", refusals())
def test_a_wrong_call_is_refused_at_once(device: na.Device, name: str) -> None:
    kind, message, call = refusals()[name]
    b = na.CommandBatch()
    x = b.upload(X)
    before = counters()
    operations = b.num_operations
    with pytest.raises(kind, match=message):
        call(b, x)
    after = counters()
    assert (after.launches, after.copies, after.compiles) == (
        before.launches, before.copies, before.compiles,
    )  # fmt: skip
    assert b.num_operations - operations <= 3  # the operands of some calls are operations
    y = x + 1
    b.execute_sync()
    np.testing.assert_array_equal(b.read_sync(y), X + 1)


async def test_a_batch_runs_once(device: na.Device) -> None:
    b = na.CommandBatch()
    y = b.upload(X) + 1
    await b.execute()
    for again in (b.execute, b.execute_sync, b.op):
        with pytest.raises(AlreadySubmittedError, match="runs once"):
            again()
    for late in (lambda: y + 1, lambda: b.upload(X), lambda: b.sum(y), lambda: b.keep(y)):
        with pytest.raises(BatchStateError, match="has been executed"):
            late()
    np.testing.assert_array_equal(await b.read(y), X + 1)


def test_an_operation_not_run_has_nothing_to_read(device: na.Device) -> None:
    b = na.CommandBatch()
    y = b.upload(X) + 1
    op = b.op()
    with pytest.raises(BatchStateError, match="not executed yet"):
        b.read(y)
    op.sync()
    np.testing.assert_array_equal(b.read_sync(y), X + 1)


def test_a_changed_tensors_value_is_not_guessed(device: na.Device) -> None:
    t = na.ones(5).sync()
    b = na.CommandBatch()
    x = b.use(t) * 2
    y = x + 1
    b.execute_sync()
    with pytest.raises(BatchStateError, match=r"b\.keep"):
        b.read_sync(x)
    assert b.read_sync(y).tolist() == [3] * 5


def test_an_array_resized_since_is_refused(device: na.Device) -> None:
    for size in (5, 7, 1):  # the first batch compiles; 1 would be spread over the others
        array = np.ones(5, np.float32)
        b = na.CommandBatch()
        y = b.upload(array) * 3
        array.resize(size, refcheck=False)
        if size == 5:
            assert b.compute_sync(y).tolist() == [3] * 5
            continue
        with pytest.raises(ShapeError, match=rf"the shape \(5,\), and has \({size},\) now"):
            b.compute_sync(y)


def test_empty_arrays_are_what_numpy_makes_of_them(device: na.Device) -> None:
    empty = np.zeros((0, 3), np.float32)
    b = na.CommandBatch()
    x = b.upload(empty)
    y, rows, total = x * 2 + 1, b.sum(x, axis=0), b.sum(x)
    columns, mean = b.sum(x, axis=1), b.mean(x)
    b.execute_sync()
    assert b.read_sync(y).shape == (0, 3)
    np.testing.assert_array_equal(b.read_sync(rows), np.zeros(3, np.float32))
    assert b.read_sync(total) == 0
    assert b.read_sync(columns).shape == (0,)
    assert np.isnan(b.read_sync(mean))
    assert b.transfers.uploads == 0


def test_kernels_pass_on_what_has_no_elements(device: na.Device) -> None:
    b = na.CommandBatch(fuse=False)
    y = b.sum(b.upload(np.zeros((0, 3), np.float32)) + 1, axis=0)
    rows = b.sum(b.upload(np.zeros((0, 20_000), np.float32)), axis=1)
    b.execute_sync()
    np.testing.assert_array_equal(b.read_sync(y), np.zeros(3, np.float32))
    assert b.read_sync(rows).shape == (0,)


def test_uploads_of_any_layout(device: na.Device) -> None:
    a = np.arange(24, dtype=np.float32).reshape(4, 6)
    for array in (a.T, a[::2, ::-1], np.broadcast_to(a[0], (3, 6)), np.float32(3), [[1.0, 2.0]]):
        b = na.CommandBatch()
        y = b.upload(array) * 2
        b.execute_sync()
        np.testing.assert_array_equal(b.read_sync(y), np.asarray(array) * 2)
