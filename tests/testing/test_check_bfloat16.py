"""Kernels of bfloat16 are checked as those of other floats."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from numba import cuda

import numbasync as na
from numbasync import testing
from numbasync.testing import check_kernel, find_race
from numbasync.testing.check.closeness import Tolerance, compare, wider
from numbasync.testing.check.poison import poisoned, told_apart
from numbasync.testing.strategies import arrays
from numbasync.tuning.answers import difference

BF16: Any = np.dtype(ml_dtypes.bfloat16)
X = np.random.default_rng(0).random(100).astype(BF16)


@na.launcher
@cuda.jit
def saxpy(z: na.KernelOutput, a, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = a * x[i] + z[i]


def test_a_right_kernel_passes_a_wrong_fails(device: na.Device) -> None:
    a = ml_dtypes.bfloat16(2.5)
    check_kernel(saxpy, [X.copy(), a, X], lambda z, a, x: a * x + z, tile=32)
    check_kernel(saxpy, [X.copy(), a, X], lambda z, a, x: (a * x + z).astype(np.float64))
    with pytest.raises(testing.KernelMismatch, match=r"got 2\.\d+, want 4"):
        check_kernel(saxpy, [X + X, a, X], lambda z, a, x: np.full_like(x, 4))


def test_orders_of_threads_are_compared() -> None:
    @na.launcher
    @cuda.jit
    def first(z: na.KernelOutput, x: na.KernelInput):
        z[0] = x[cuda.grid(1)]

    assert find_race(first[1, 32], [np.zeros(1, BF16), X]) is not None
    assert find_race(saxpy, [X.copy(), ml_dtypes.bfloat16(2), X]) is None


def test_what_counts_as_close() -> None:
    got = np.array([1, 1.0078125, 2, np.nan], BF16)
    want = np.array([1, 1, 3, np.nan])
    for each in (want, want.astype(BF16)):
        found = compare(got, each, Tolerance(ulp=1))
        assert found is not None and found.bad.tolist() == [False, False, True, False]
        assert str(found).startswith("got 2, want 3")
        assert found.off == (1, 64)
        found = compare(got, each, Tolerance())
        assert found is not None and found.count == 1
    assert wider(got).dtype == np.float64


def test_what_outputs_are_filled_with() -> None:
    filled = poisoned(X, np.random.default_rng(1))
    assert filled.dtype == BF16 and np.isnan(filled).all()
    apart = told_apart(filled, np.full(100, np.nan))
    assert apart is not None and apart.dtype == BF16 and (apart.astype(float) > 1e38).all()


def test_answers_of_configurations() -> None:
    assert not difference(["z"], [X], [X * ml_dtypes.bfloat16(1.01)], None)
    assert "elements of z differ" in difference(["z"], [X], [X.astype(float) + 1], None)


@settings(max_examples=10)
@given(array=arrays(5, BF16))
def test_arrays_are_drawn(array: Any) -> None:
    assert array.dtype == BF16 and (np.abs(array.astype(float)) <= 100).all()
