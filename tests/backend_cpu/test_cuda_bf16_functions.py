"""The functions of `cuda.bf16`, and those of `math`, of bfloat16."""

from __future__ import annotations

import math
import operator
from fractions import Fraction

import numpy as np
import pytest
from numba import cuda, float32
from numba.cuda import bf16

import numbasync as na
from tests.backend_cpu.bfloat16_values import BF16, TENTH, every, number, same
from tests.common import host

# ml_dtypes warns of NaN.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")


@pytest.mark.full
def test_functions_of_bf16(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def functions(z: na.KernelOutput, t: na.KernelOutput, x: na.KernelInput, y: na.KernelInput,
                  w: na.KernelInput):  # fmt: skip
        i = cuda.grid(1)
        a, b, c = x[i], y[i], w[i]
        z[0, i] = bf16.hadd(a, b)
        z[1, i] = bf16.hsub(a, b)
        z[2, i] = cuda.bf16.hmul(a, b)
        z[3, i] = bf16.hneg(a)
        z[4, i] = bf16.hfma(a, b, c)
        z[5, i] = bf16.habs(a)
        z[6, i] = bf16.hmax(a, b)
        z[7, i] = bf16.hmin(a, b)
        z[8, i] = bf16.int16_as_bfloat16(bf16.bfloat16_as_int16(a))
        z[9, i] = bf16.float32_to_bfloat16_rz(bf16.bfloat16_to_float32(a) * float32(1.003))
        t[0, i] = bf16.heq(a, b)
        t[1, i] = bf16.hne(a, b)
        t[2, i] = bf16.hlt(a, b)
        t[3, i] = bf16.hle(a, b)
        t[4, i] = bf16.hgt(a, b)
        t[5, i] = bf16.hge(a, b)
        t[6, i] = bf16.hisnan(a)

    x, y, w = every(), np.roll(every(seed=4), 7), every(seed=12)
    y[:512] = x[:512]
    # In the middle of two, but for a third that is far below the last bit of any float64.
    x[600:602], y[600:602], w[600:602] = 1.5, 3 * 2.0**-8 + 2.0**-13, [2.0**-100, -(2.0**-100)]
    x[602:604], y[602:604], w[602:604] = 257 / 256 * 1, 1, 0
    x[604:606], y[604:606], w[604:606] = 1.0078125 * 2, 129 * 2.0**-8, [2.0**-90, -(2.0**-90)]
    z, t = na.zeros((10, 4096), BF16).sync(), na.zeros((7, 4096), np.bool_).sync()
    functions[16, 256](z, t, x, y, w).sync()
    with np.errstate(all="ignore"):
        cut = x.astype(np.float32) * np.float32(1.003)
        cut = (cut.view(np.uint32) >> 16).astype(np.uint16).view(BF16)
        want = [x + y, x - y, x * y, -x, None, abs(x), np.fmax(x, y), np.fmin(x, y), x, cut]
    zeros = (x == 0) & (y == 0)  # NumPy gives either
    for k, (got, right) in enumerate(zip(host(z), want, strict=True)):
        if right is not None:
            same(got[~zeros], right[~zeros]) if k in (6, 7) else same(got, right)
    fused = host(z)[4]
    for a, b, c, got in zip(x.tolist(), y.tolist(), w.tolist(), fused, strict=True):
        if not all(map(math.isfinite, (a, b, c))):
            continue
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        if abs(exact) >= Fraction(2) ** 127:
            continue
        beside = (np.nextafter(got, number(s)) for s in (-math.inf, math.inf))
        near = [v for v in (got, *beside) if np.isfinite(v)]
        errors = [abs(Fraction(float(v)) - exact) for v in near]
        best = min(errors)
        closest = [v for v, e in zip(near, errors, strict=True) if e == best]
        assert got in closest
        if len(closest) > 1:
            assert not got.view(np.uint16) & 1
    ordered = ~(np.isnan(x) | np.isnan(y))
    names = ("eq", "ne", "lt", "le", "gt", "ge")
    wanted = [getattr(operator, n)(x, y) & ordered for n in names] + [np.isnan(x)]
    np.testing.assert_array_equal(host(t), wanted)


def test_math_of_bfloat16_is_as_on_a_gpu(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def functions(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        third = TENTH
        z[0, i] = math.sqrt(x[i]) * third
        z[1, i] = math.floor(x[i]) * third
        z[2, i] = math.ceil(x[i]) * third
        z[3, i] = math.trunc(x[i]) * third
        z[4, i] = math.fabs(-x[i]) * third
        z[5, i] = max(x[i], third) * third
        z[6, i] = abs(x[i]) * third
        z[7, i] = math.atan(x[i])
        z[8, i] = math.exp(x[i])

    x = np.random.default_rng(14).uniform(0.125, 9, 64).astype(BF16)
    z = na.zeros((9, 64), np.float64).sync()
    functions[1, 64](z, x).sync()
    single, by = x.astype(np.float32), np.float32(TENTH)
    want = [
        np.sqrt(x) * TENTH, np.floor(x) * TENTH, np.ceil(x) * TENTH, np.trunc(x) * TENTH,
        single * by, np.fmax(x, TENTH) * TENTH, single * by,
    ]  # fmt: skip
    for got, right in zip(host(z), want, strict=False):
        np.testing.assert_array_equal(got, right.astype(np.float64))
    np.testing.assert_allclose(host(z)[7], np.arctan(x.astype(np.float64)), rtol=1e-6)
    np.testing.assert_allclose(host(z)[8], np.exp(x.astype(np.float64)), rtol=2**-7)
