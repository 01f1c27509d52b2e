"""Operations in a batch that have kernels of their own: cumsum, sort, matmul."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import CallerError, DTypeError, NumbasyncError, ShapeError

X = np.random.default_rng(5).integers(-9, 9, (3, 50)).astype(np.float32)


def test_whole_operations_between_kernels(device: na.Device) -> None:
    b = na.CommandBatch(device)
    x = b.upload(X)
    in_order = b.sort(x * 2, axis=1)
    running = b.cumsum(in_order + 1, axis=1)
    last = b.max(running, axis=1)
    forms = [row[1] for row in b.plan().rows()]
    assert forms == ["elementwise", "operation", "elementwise", "operation", "row"]
    assert "sort is an operation with kernels of its own" in b.plan().reasons()[0]
    got, most = b.compute_sync(running, last)
    expected = np.cumsum(np.sort(X * 2) + 1, 1)
    np.testing.assert_array_equal(got, expected)  # whole numbers, which are exact
    np.testing.assert_array_equal(most, expected.max(1))
    np.testing.assert_array_equal(b.read_sync(in_order), np.sort(X * 2))


def test_replayed_with_new_uploads(device: na.Device) -> None:
    b = na.CommandBatch(device)
    x = b.upload(X)
    y = b.sort(x, axis=None, descending=True) + 1
    graph = b.graph()
    for k in (0, 1):
        results = graph.replay_sync({x: X * (1 - k)})
        np.testing.assert_array_equal(results[y], np.sort(X * (1 - k), None)[::-1] + 1)


@pytest.mark.full
def test_products_are_those_of_matrices(device: na.Device) -> None:
    b = na.CommandBatch(device)
    x = b.upload(X)
    y = b.relu(b.matmul(x, b.upload(X.T)))
    np.testing.assert_array_equal(b.compute_sync(y), np.maximum(X @ X.T, 0))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda b, x: b.cumsum(x, axis=2), ShapeError, "cumsum: shape .* no axis 2"),
        (lambda b, x: b.sort(x, descending=2), CallerError, "descending of sort"),
        (lambda b, x: b.matmul(x, x), ShapeError, r"\(m, k\) and \(k, n\)"),
        (lambda b, x: b.matmul(x, b.upload(np.ones((50, 2)))), DTypeError, "as b.cast gives"),
    ],
)
def test_refused_when_recorded(call: Any, error: type[NumbasyncError], words: str) -> None:
    b = na.CommandBatch()
    x = b.upload(X)
    with pytest.raises(error, match=words):
        call(b, x)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "bool"])
def test_results_have_the_recorded_dtypes(device: na.Device, dtype: str) -> None:
    x = (X > 0).astype(dtype)
    b = na.CommandBatch(device)
    y, z = b.cumsum(b.upload(x)), b.sort(b.upload(x))
    got = b.compute_sync(y, z)
    assert [a.dtype for a in got] == [y.dtype, z.dtype]
    np.testing.assert_array_equal(got[0], np.cumsum(x))
