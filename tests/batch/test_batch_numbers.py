"""Numbers that command batches compute: those of NumPy, at the ends of their types, too."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import numbasync as na
from tests.batch.computing import F32, X, Y, computed, each_computed
from tests.common import full
from tests.stress.random_batches import expressions
from tests.stress.trees import check


@pytest.mark.full
def test_nan_and_infinities_propagate_as_in_numpy(device: na.Device) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1, -1, 0], F32)
    y = np.array([1, np.nan, np.inf, -np.inf, 0, np.nan], F32)
    with np.errstate(all="ignore"):
        elements: dict[str, tuple[Any, Any]] = {
            "maximum": (lambda b, p, q: b.maximum(p, q), np.maximum(x, y)),
            "minimum": (lambda b, p, q: b.minimum(p, q), np.minimum(x, y)),
            "relu": (lambda b, p, q: b.relu(p), np.maximum(x, 0)),
            "leaky_relu": (lambda b, p, q: b.leaky_relu(p, 0.5), np.where(x >= 0, x, x / 2)),
            "elu": (lambda b, p, q: b.elu(p * 30), np.where(x > 0, x * 30, np.expm1(x * 30))),
            "clamp": (lambda b, p, q: b.clamp(p, -1, 2), np.clip(x, -1, 2)),
            "div": (lambda b, p, q: p / q, x / y),
            "log": (lambda b, p, q: b.log(b.abs(p)), np.log(np.abs(x))),
            "sqrt": (lambda b, p, q: b.sqrt(p), np.sqrt(x)),
            "cast": (lambda b, p, q: b.cast(p, np.bool_), x.astype(np.bool_)),
        }
        reductions: dict[str, tuple[Any, Any]] = {
            "of both": (lambda b, p, q: b.min(b.maximum(p, q)), np.min(np.maximum(x, y))),
            "max": (lambda b, p, q: b.max(p), np.max(x)),
            "argmax": (lambda b, p, q: b.argmax(p), np.argmax(x)),
            "argmin": (lambda b, p, q: b.argmin(p), np.argmin(x)),
            "least": (lambda b, p, q: b.argmin(b.abs(p - 1)), np.argmin(abs(x - F32(1)))),
            "later NaN": (lambda b, p, q: b.argmax(q), np.argmax(y)),
        }
    for cases in (elements, reductions):
        found = each_computed((record for record, _ in cases.values()), x, y)
        for (name, (_, want)), have in zip(cases.items(), found, strict=True):
            np.testing.assert_array_equal(have, want, name)


def test_integers_wrap_and_divide_as_in_numpy(device: na.Device) -> None:
    for dtype in (np.int32, np.int64):
        ends = np.iinfo(dtype)
        x = np.array([ends.max, ends.min, 7, -7, 0, 5], dtype)
        y = np.array([ends.max, ends.min, 2, 2, 3, 0], dtype)
        with np.errstate(all="ignore"):
            elements: list[tuple[Any, Any]] = [
                (lambda b, p, q: p + q, x + y),
                (lambda b, p, q: p - q, x - y),
                (lambda b, p, q: p * q, x * y),
                (lambda b, p, q: p / q, x / y),
                (lambda b, p, q: -p, -x),
                (lambda b, p, q: abs(p), abs(x)),
                (lambda b, p, q: p**3, x**3),
                (lambda b, p, q: p ** b.abs(b.clamp(q, -9, 9)), x ** np.abs(np.clip(y, -9, 9))),
                # A compiler that takes it that nothing overflows computes these as if.
                (lambda b, p, q: p < p + q, x < x + y),
                (lambda b, p, q: p > p - q, x > x - y),
                (lambda b, p, q: p * 2 > p, x * dtype(2) > x),
            ]  # fmt: skip
            sums: list[tuple[Any, Any]] = [(lambda b, p, q: b.sum(p), np.sum(x))]
        for cases in (elements, sums):
            found = each_computed((record for record, _ in cases), x, y)
            for k, ((_, want), have) in enumerate(zip(cases, found, strict=True)):
                np.testing.assert_array_equal(have, want, f"{np.dtype(dtype)}, {k}")
                assert have.dtype == want.dtype


@pytest.mark.full
@pytest.mark.parametrize("dtype", [full(np.float16), np.float32, full(np.float64)])
def test_powers_and_dot_products(device: na.Device, dtype: Any) -> None:
    x = np.abs(X).astype(dtype)[:200] / dtype(2) + dtype(0.25)
    y = Y.astype(dtype)[:200] / dtype(2)
    # CUDA bounds pow of float32 at 9 units, of float64 at 2; NumPy's own is within 4.
    cases: list[tuple[Any, Any]] = [
        (lambda b, p, q: p**q, x**y),
        (lambda b, p, q: p**0.5, np.power(x, dtype(0.5))),
        (lambda b, p, q: p**3 - 1, x ** dtype(3) - dtype(1)),
        (lambda b, p, q: 2.0**q, dtype(2) ** y),
    ]
    *found, squares = each_computed([*(record for record, _ in cases), lambda b, p, q: q**2], x, y)
    np.testing.assert_array_equal(squares, y * y)
    for (_, want), have in zip(cases, found, strict=True):
        assert have.dtype == want.dtype
        ulps = 14 * np.spacing(np.maximum(np.abs(want), np.power(x, dtype(3)))).astype(np.float64)
        assert (np.abs(have.astype(np.float64) - want) <= ulps).all()
    wide = x.astype(np.float64) * y.astype(np.float64)
    have = computed(lambda b, p, q: b.dot(p, q), x, y)
    assert have.dtype == dtype and have.shape == ()
    # A product is rounded to its type (of float16, to float32), then the sum.
    eps = float(np.finfo(np.float32 if dtype == np.float16 else dtype).eps)
    bound = (200 * eps) * np.abs(wide).sum() + np.spacing(np.abs(dtype(wide.sum())))
    assert abs(float(have) - wide.sum()) <= bound


def test_numbers_of_python_take_the_other_operands_type(device: na.Device) -> None:
    half = X.astype(np.float16)
    cases: list[tuple[Any, Any]] = [
        (lambda b, x: 2 * x + 1.5, 2 * half + 1.5),
        (lambda b, x: x * np.float32(2), half * np.float32(2)),
        (lambda b, x: np.float64(2) * x, np.float64(2) * half),
        (lambda b, x: b.where(x > 0, x, 0), np.where(half > 0, half, 0)),
        (lambda b, x: 1 / (x * x + 1), 1 / (half * half + 1)),
    ]
    found = each_computed((record for record, _ in cases), half)
    for (_, want), have in zip(cases, found, strict=True):
        assert have.dtype == want.dtype
        np.testing.assert_array_equal(have, want)


# An example compiles some kernels, which takes the CPU device two seconds. Many programs,
# and every broadcast, are run by test_batch_broadcasts.py, which compiles none, and by a soak.
@settings(
    max_examples=int(os.environ.get("NUMBASYNC_TREES", "1")), derandomize=True
)  # fmt: skip
@given(record=expressions(most=5))
def test_random_expressions_are_what_numpy_computes(device: na.Device, record: Any) -> None:
    found: list[list[np.ndarray[Any, Any]]] = []
    for fuse in (True, True, False):  # the second of two is recorded and enqueued at once
        b = na.CommandBatch(fuse=fuse)
        values = record(b)
        b.execute_sync()
        found.append([b.read_sync(v.id) for v in values])
        parts = [check(value, have) for value, have in zip(values, found[-1], strict=True)]
        assert np.mean(parts) > 0.5, "most elements can be compared"
    for fused, again, apart in zip(*found, strict=True):
        np.testing.assert_array_equal(fused, again)
        np.testing.assert_array_equal(fused, apart)
