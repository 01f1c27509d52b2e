"""Command batches of bfloat16: computed in float32 and rounded, as ml_dtypes does in NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numbasync as na
from numbasync.errors import DTypeError
from tests.batch.computing import F32, X, Y, computed, each_computed
from tests.common import full

BF16: Any = np.dtype(ml_dtypes.bfloat16)
number: Any = ml_dtypes.bfloat16


def same(have: np.ndarray, want: np.ndarray) -> None:
    assert have.dtype == want.dtype and have.shape == want.shape
    np.testing.assert_array_equal(have.astype(np.float64), want.astype(np.float64))


def test_elements_are_numpys(device: na.Device) -> None:
    x, y = X.astype(BF16), Y.astype(BF16)
    i = np.arange(x.size, dtype=np.int32).reshape(x.shape) % 1000
    cases: list[tuple[Any, Any]] = [
        (lambda b, p, q, k: p + q, x + y),
        (lambda b, p, q, k: p - q, x - y),
        (lambda b, p, q, k: p * q, x * y),
        (lambda b, p, q, k: p * q + p, x * y + x),
        (lambda b, p, q, k: p * q - q, x * y - y),
        (lambda b, p, q, k: -abs(p), -np.abs(x)),
        (lambda b, p, q, k: b.maximum(p, q), np.maximum(x, y)),
        (lambda b, p, q, k: p < q, x < y),
        (lambda b, p, q, k: b.where(p > 0, p, q), np.where(x > number(0), x, y)),
        (lambda b, p, q, k: b.relu(p), np.maximum(x, number(0))),
        (lambda b, p, q, k: p * 2, x * 2),
        (lambda b, p, q, k: p * 2.5, x * 2.5),  # a float32, as ml_dtypes has it
        (lambda b, p, q, k: p + number(0.1), x + number(0.1)),
        (lambda b, p, q, k: p + k, x + i),
        (lambda b, p, q, k: b.cast(p, np.float32), x.astype(F32)),
        (lambda b, p, q, k: b.cast(p, np.float16), x.astype(np.float16)),
        (lambda b, p, q, k: b.cast(k, "bfloat16"), i.astype(BF16)),
        (lambda b, p, q, k: b.cast(b.cast(p, np.float64) * 1.001, BF16),
         (x.astype(np.float64) * 1.001).astype(BF16)),
        (lambda b, p, q, k: b.cast(p, np.bool_), x.astype(np.bool_)),
        (lambda b, p, q, k: p**2, x * x),
    ]  # fmt: skip
    found = each_computed((record for record, _ in cases), x, y, i)
    for (_, want), have in zip(cases, found, strict=True):
        same(have, want)


def test_functions_round_once(device: na.Device) -> None:
    x = X.astype(BF16)
    wide = x.astype(np.float64)
    cases: list[tuple[Any, Any]] = [
        (lambda b, p: b.exp(p), np.exp(wide)),
        (lambda b, p: b.tanh(p), np.tanh(wide)),
        (lambda b, p: b.sigmoid(p), 1 / (1 + np.exp(-wide))),
        (lambda b, p: b.swish(p), wide / (1 + np.exp(-wide))),
    ]
    found = each_computed((record for record, _ in cases), x)
    for (_, want), have in zip(cases, found, strict=True):
        assert have.dtype == BF16
        np.testing.assert_allclose(have.astype(np.float64), want, rtol=2**-8, atol=1e-30)


# Each of them, and each axis; float16, which takes the same ways, has the rest.
@pytest.mark.parametrize(
    ("axis", "names"),
    [full(None, ["sum", "argmax"]), full(0, ["max", "mean"]), (1, ["min", "sum"])],
)
def test_reductions_accumulate_in_float32(
    device: na.Device, axis: int | None, names: list[str]
) -> None:
    x = np.random.default_rng(3).integers(-3, 4, (70, 300)).astype(BF16)
    wide = x.astype(np.float64)
    found = each_computed((lambda b, p, name=name: getattr(b, name)(p, axis) for name in names), x)
    for name, have in zip(names, found, strict=True):
        want = np.asarray(getattr(np, name)(wide, axis))
        if name == "mean":
            assert have.dtype == BF16
            np.testing.assert_allclose(have.astype(float), want, rtol=2**-8, atol=1e-7)
        else:
            same(have, want if name == "argmax" else want.astype(BF16))


@pytest.mark.full
def test_softmax_dot_and_norm(device: na.Device) -> None:
    x = np.random.default_rng(5).normal(0, 3, (4, 100)).astype(BF16)
    wide = x.astype(np.float64)
    shares, normed = each_computed((lambda b, p: b.softmax(p), lambda b, p: b.layer_norm(p)), x)
    e = np.exp(wide - wide.max(1, keepdims=True))
    assert shares.dtype == BF16
    np.testing.assert_allclose(shares.astype(float), e / e.sum(1, keepdims=True), rtol=2.0**-7)
    want = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    assert normed.dtype == BF16
    np.testing.assert_allclose(normed.astype(float), want, rtol=2.0**-7, atol=1e-3)
    have = computed(lambda b, p: b.dot(p, p), x.reshape(-1))
    assert have.dtype == BF16
    np.testing.assert_allclose(float(have), (wide**2).sum(), rtol=2.0**-7)


def test_a_tensor_reaches_users_functions_as_float32(device: na.Device) -> None:
    t = na.from_host(X.astype(BF16)).sync()
    f = na.elementwise(lambda v: v * v + v)
    b = na.CommandBatch()
    y = f(b.use(t))
    b.execute_sync()
    have = b.read_sync(y)
    single = X.astype(BF16).astype(F32)
    assert have.dtype == BF16
    np.testing.assert_allclose(have.astype(F32), single * single + single, rtol=2**-7, atol=1e-6)


def test_other_types_of_ml_dtypes_are_refused() -> None:
    b = na.CommandBatch()
    with pytest.raises(DTypeError, match="a batch has float16, bfloat16"):
        b.upload(np.ones(3, ml_dtypes.float8_e4m3fn))
