"""Reductions of command batches, and what is made of them: softmax, layer_norm."""

from __future__ import annotations

import numpy as np
import pytest

import numbasync as na
from tests.batch.computing import F32, X, Y, computed
from tests.common import full, mostly_full


@pytest.mark.full
def test_a_sum_of_products_is_one_kernel(device: na.Device) -> None:
    for n in (1000, 9000, 300_001):
        a, c = (np.random.default_rng([n, k]).normal(0, 1, n).astype(F32) for k in (0, 1))
        b = na.CommandBatch()
        x, y = b.upload(a), b.upload(c)
        total = b.sum(x * y + x)
        twice = total * 2
        b.keep(total)
        b.execute_sync()
        assert b.kernels_launched == 1
        terms = (a * c + a).astype(np.float64)
        bound = n * 2.0**-53 * np.abs(terms).sum() + np.spacing(F32(abs(terms.sum())))
        assert abs(b.read_sync(total) - terms.sum()) <= bound
        assert b.read_sync(twice) == b.read_sync(total) * F32(2)
        assert b.kernels_launched == 1


# A warp has a row, or several; a block; a larger one; several blocks.
@pytest.mark.parametrize(
    ("shape", "names"),
    [full((1, 5), "layer_norm"), ((7, 33), "softmax, layer_norm"), full((3, 600), "softmax"),
     full((2, 5000), "layer_norm"), full((2, 20000), "softmax")],
    ids=str,
)  # fmt: skip
def test_softmax_and_layer_norm(device: na.Device, shape: tuple[int, int], names: str) -> None:
    a = np.random.default_rng(5).normal(0, 3, shape).astype(F32)
    b = na.CommandBatch()
    x = b.upload(a)
    shares = b.softmax(x) if "softmax" in names else None
    normed = b.layer_norm(x, 3.0, 1.0) if "layer_norm" in names else None
    b.execute_sync()
    if shape[1] <= 16384:
        assert b.kernels_launched == 1, b.plan()
    wide = a.astype(np.float64)
    if shares is not None:
        e = np.exp(wide - wide.max(1, keepdims=True))
        # exp: 2 units, its argument one rounding of at most 16, the quotient one.
        np.testing.assert_allclose(
            b.read_sync(shares), e / e.sum(1, keepdims=True), rtol=24 * 2.0**-24, atol=1e-40
        )
    if normed is not None:
        d = wide - wide.mean(1, keepdims=True)
        want = d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5) * 3 + 1
        # The mean is rounded, then the difference; five more operations on values of at most 20.
        np.testing.assert_allclose(b.read_sync(normed), want, rtol=0, atol=60 * 2.0**-23)


@pytest.mark.parametrize("columns", mostly_full([5, 600, 20_000], 5))
def test_log_softmax(device: na.Device, columns: int) -> None:
    a = np.random.default_rng(5).normal(0, 30, (3, columns)).astype(F32)
    have = computed(lambda b, x: b.log_softmax(x), a)
    wide = a.astype(np.float64) - a.max(1, keepdims=True)
    want = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    # The distance and the difference are rounded once each; the logarithm is of a sum of 1 or more,
    # whose summands have an exponential's 2 units and a rounded distance of at most 16.
    bound = 2.0**-24 * (2 * np.abs(want) + 2 * 16 + 40)
    assert (np.abs(have - want) <= bound).all()


@pytest.mark.full
def test_composites_of_float16_are_computed_in_float32(device: na.Device) -> None:
    a = np.random.default_rng(5).normal(0, 3, (4, 100)).astype(np.float16)
    wide = a.astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    want = e / e.sum(1, keepdims=True)
    have = computed(lambda b, x: b.softmax(x), a)
    assert have.dtype == np.float16
    np.testing.assert_allclose(have, want, rtol=2.0**-10, atol=2.0**-24)


# Every one with every axis, with every type, and every axis with every type. All together, and with
# all broadcasts, are run as plain Python, in test_batch_broadcasts.py, and by the soak of batches.
TYPES = [np.float32, np.int32, np.bool_, np.float16]
REDUCTIONS = [
    (name, (None, 0, 1, -1 if name == "sum" else 2)[(n + d) % 4], dtype)
    for n, name in enumerate(["sum", "mean", "max", "min", "argmax", "argmin"])
    for d, dtype in enumerate(TYPES)
]


@pytest.mark.parametrize("axes", mostly_full([(None,), (0,), (1,), (2, -1)], (None,), (2, -1)))
def test_reductions(device: na.Device, axes: tuple[int | None, ...]) -> None:
    b = na.CommandBatch()
    whole = np.random.default_rng(3).integers(-3, 4, (5, 70, 40))
    arrays = {dtype: whole.astype(dtype) for dtype in TYPES}
    x, i, flags, half = map(b.upload, arrays.values())
    uploaded = dict(zip(TYPES, (x, i, flags, half), strict=True))
    met = b.where(flags, x + i, half)  # by which they are of one kernel
    cases = [case for case in REDUCTIONS if case[1] in axes]
    assert len(cases) == 6
    ids = [getattr(b, name)(uploaded[dtype], axis) for name, axis, dtype in cases]
    b.execute_sync()
    assert b.kernels_launched == 1
    np.testing.assert_array_equal(
        b.read_sync(met), np.where(whole != 0, whole + whole, whole).astype(np.float64)
    )
    for (name, axis, dtype), id in zip(cases, ids, strict=True):
        want, have = np.asarray(getattr(np, name)(arrays[dtype], axis=axis)), b.read_sync(id)
        shown = f"{name} along {axis} of {np.dtype(dtype)}"
        assert (have.dtype, have.shape) == (want.dtype, want.shape), shown
        if name == "mean" and dtype in (np.float32, np.float16):
            rtol = 2 * float(np.finfo(dtype).eps)
            np.testing.assert_allclose(have, want, rtol=rtol, atol=1e-7, err_msg=shown)
        else:
            np.testing.assert_array_equal(have, want, shown)


def test_results_meet_values_of_more_axes(device: na.Device) -> None:
    a, more = X[:60].reshape(3, 20), Y[:3].reshape(1, 1, 3)
    b = na.CommandBatch()
    y = b.max(b.upload(a), axis=1) + b.upload(more)
    b.execute_sync()
    assert b.kernels_launched == 1
    np.testing.assert_array_equal(b.read_sync(y), a.max(1) + more)


@pytest.mark.full
def test_long_reductions_of_every_form(device: na.Device) -> None:
    a = np.random.default_rng(3).integers(-9, 10, (3, 40_000)).astype(np.int64)
    b = na.CommandBatch()
    x = b.upload(a)
    ids = {
        (name, axis): getattr(b, name)(x, axis)
        for name in ("sum", "max", "argmax", "argmin") for axis in (None, 0, 1)
        if (name, axis) not in (("max", None), ("max", 1))  # others are in test_reductions
    }  # fmt: skip
    b.execute_sync()
    for (name, axis), id in ids.items():
        np.testing.assert_array_equal(b.read_sync(id), getattr(np, name)(a, axis=axis), str(name))


@pytest.mark.full
def test_a_reduction_gives_the_same_bits_each_time(device: na.Device) -> None:
    a = np.random.default_rng(3).normal(0, 1, 500_000).astype(np.float64)
    found = {computed(lambda b, x: b.sum(x), a).tobytes() for _ in range(4)}
    assert len(found) == 1
