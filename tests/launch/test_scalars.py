"""Numbers and tuples of numbers as arguments of kernels."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import DTypeError
from tests.common import host


@pytest.mark.parametrize(
    "value", [3, -3, 2.5, True, 2**40, np.int8(-5), np.uint16(9), np.float32(0.5), np.float16(2),
              np.bool_(True), ml_dtypes.bfloat16(-0.1)],
    ids=lambda v: f"{type(v).__name__}",
)  # fmt: skip
def test_scalars_of_every_kind(device: na.Device, value: Any) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, a, b):
        z[0] = a
        z[1] = b

    z = na.zeros(2, np.float64).sync()
    result = put[1, 1](z, value, 7).sync()
    assert host(z).tolist() == [float(value), 7.0]
    assert result.a is value


def test_complex_scalars_and_tuples(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, c, pair):
        z[0] = c.real
        z[1] = c.imag
        z[2] = pair[0] + pair[1]

    z = na.zeros(3, np.float64).sync()
    put[1, 1](z, 1 - 2j, (3, 0.5)).sync()
    put[1, 1](z, np.complex64(1 - 2j), (3, 0.5)).sync()
    assert host(z).tolist() == [1, -2, 3.5]


def test_tuples_of_numbers_of_every_kind(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, t):
        z[0] = t[0] + t[1][0] + t[1][1]

    z = na.zeros(1, np.float64).sync()
    put[1, 1](z, (np.float32(0.5), (np.int8(2), True))).sync()
    assert host(z).tolist() == [3.5]


def test_a_bfloat16_in_a_tuple_is_refused(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, t):
        z[0] = t[0] + t[1][0]

    z, number = na.zeros(1, np.float64).sync(), ml_dtypes.bfloat16(2)
    for values in ((1, (number, 2)), (number, (2.0, 3))):
        with pytest.raises(DTypeError, match=r"tuple with a number of bfloat16.*\n.*np\.float32"):
            put[1, 1](z, values).sync()


def test_a_counted_down_number_is_no_output(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def down(z, n):
        while n > 0:
            z[0] += n
            n -= 1

    z = na.zeros(1).sync()
    assert down[1, 1](z, 3).output().sync() is z
    assert z.to_host().sync()[0] == 6
