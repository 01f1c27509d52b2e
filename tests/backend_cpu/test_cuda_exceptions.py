"""Exceptions that a kernel raises, in kernels made with `debug=True`."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda, int32

import numbasync as na
from numbasync.errors import KernelError
from tests.common import host

# Numba warns of debug kernels that are slow.
pytestmark = pytest.mark.filterwarnings(
    "ignore::numba.cuda.core.errors.NumbaPerformanceWarning"
)  # fmt: skip


class OutOfReach(Exception):
    """What a user's kernel raises."""


def test_exceptions_name_thread_and_cause(device: na.Device) -> None:
    @na.launcher(debug=True, opt=False)
    def check(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        if i < x.shape[0]:
            if x[i] < 0:
                raise ValueError("a negative number")
            if x[i] > 100:
                raise OutOfReach
            z[i] = x[i] * 2

    x = np.arange(40)
    z = na.zeros(40, np.int64).sync()
    check[2, 32](z, x).sync()
    np.testing.assert_array_equal(host(z), 2 * x)
    x[35] = -1
    with pytest.raises(
        KernelError,
        match=r"kernel check, block \(1, 0, 0\), thread \(3, 0, 0\): ValueError: .*negative number",
    ) as seen:
        check[2, 32](z, x).sync()
    assert isinstance(seen.value.__cause__, ValueError)
    x[35] = 101
    with pytest.raises(KernelError, match=r"block \(1, 0, 0\), thread \(3, 0, 0\)") as seen:
        check[2, 32](z, x).sync()
    assert isinstance(seen.value.__cause__, OutOfReach)


@pytest.mark.parametrize("operator", ["//", "%", "/"])
def test_division_by_zero(device: na.Device, operator: str) -> None:
    @na.launcher(debug=True, opt=False)
    def floor(z: na.KernelOutput, by: na.KernelInput):
        i = cuda.grid(1)
        z[i] = 60 // by[i]

    @na.launcher(debug=True, opt=False)
    def remainder(z: na.KernelOutput, by: na.KernelInput):
        i = cuda.grid(1)
        z[i] = 60 % by[i]

    @na.launcher(debug=True, opt=False)
    def quotient(z: na.KernelOutput, by: na.KernelInput):
        i = cuda.grid(1)
        z[i] = 60 / by[i]

    kernel = {"//": floor, "%": remainder, "/": quotient}[operator]
    by = np.array([1, 7, -8, 5])
    z = na.zeros(4, np.float64).sync()
    kernel[1, 4](z, by).sync()
    with_floats = {"//": 60 // by, "%": 60 % by, "/": 60 / by}[operator]
    np.testing.assert_array_equal(host(z), with_floats)
    by[2] = 0
    with pytest.raises(KernelError, match=r"thread \(2, 0, 0\): ZeroDivisionError") as seen:
        kernel[1, 4](z, by).sync()
    assert isinstance(seen.value.__cause__, ZeroDivisionError)


def test_an_exception_in_a_device_function(device: na.Device) -> None:
    @cuda.jit(device=True, debug=True, opt=False)
    def positive(v):
        if v < 0:
            raise OutOfReach("below zero")
        return v

    @na.launcher(debug=True, opt=False)
    def total(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        sum_ = 0
        for k in range(x.shape[1]):
            sum_ += positive(x[i, k])
        z[i] = sum_

    x = np.arange(12).reshape(4, 3)
    z = na.zeros(4, np.int64).sync()
    total[1, 4](z, x).sync()
    np.testing.assert_array_equal(host(z), x.sum(1))
    x[2, 1] = -5
    # Which exception it was, Numba does not know on a GPU: numba issue 8036.
    with pytest.raises(KernelError, match=r"kernel total, block \(0, 0, 0\), thread \(2, 0, 0\)"):
        total[1, 4](z, x).sync()


def test_barriers_in_a_debug_kernel(device: na.Device) -> None:
    @na.launcher(debug=True, opt=False)
    def reverse(z: na.KernelOutput, limit):
        own = cuda.shared.array(32, int32)
        t = cuda.threadIdx.x
        own[t] = z[cuda.grid(1)]
        cuda.syncthreads()
        v = own[31 - t]
        if v > limit:
            raise ValueError("too large")
        z[cuda.grid(1)] = v

    z = na.arange(64, dtype=np.int32).sync()
    reverse[2, 32](z, 63).sync()
    np.testing.assert_array_equal(host(z), np.arange(64).reshape(2, 32)[:, ::-1].ravel())
    with pytest.raises(KernelError, match=r"block \(1, 0, 0\), thread \(\d+, 0, 0\): ValueError"):
        reverse[2, 32](z, 60).sync()
