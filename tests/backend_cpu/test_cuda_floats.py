"""Floats of every width, complex numbers and bools in kernels."""

from __future__ import annotations

import cmath
import itertools
import math
from typing import Any

import numpy as np
import pytest
from numba import complex64, cuda, float32

import numbasync as na
from tests.common import full, host

# --- floats ---


def test_float32_meets_other_types(device: na.Device) -> None:
    """With float64 and with integers of 32 bits and more it gives a float64."""

    @na.launcher
    @cuda.jit
    def mix(z: na.KernelOutput, x: na.KernelInput, small: na.KernelInput, n: na.KernelInput, a):
        i = cuda.grid(1)
        z[i, 0] = x[i] * 2.1
        z[i, 1] = x[i] * 3
        z[i, 2] = x[i] * n[i]
        z[i, 3] = x[i] * i
        z[i, 4] = x[i] * cuda.threadIdx.x
        z[i, 5] = x[i] * a
        z[i, 6] = x[i] * small[i]
        z[i, 7] = x[i] * x[i]
        z[i, 8] = x[i] * float32(2.1)
        z[i, 9] = x[i] * True
        z[i, 10] = x[i] / 3
        z[i, 11] = n[i] / 3

    x = np.random.default_rng(3).standard_normal(30).astype(np.float32)
    small, n = np.arange(30, dtype=np.int16), np.arange(30, dtype=np.int32) * 1000003
    z = na.zeros((30, 12), np.float64).sync()
    mix[1, 30](z, x, small, n, 0.1).sync()
    w, i = x.astype(np.float64), np.arange(30)
    want = [w * 2.1, w * 3, w * n, w * i, w * i, w * 0.1, x * small.astype(np.float32), x * x,
            x * np.float32(2.1), x, w / 3, n / 3]  # fmt: skip
    for got, expected in zip(host(z).T, want, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_variables_of_two_types_take_the_wider(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def unify(z: na.KernelOutput, x: na.KernelInput, n: na.KernelInput):
        i = cuda.grid(1)
        v = n[i] if i % 2 else x[i]
        total = 0
        for k in range(3):
            total += x[i] * k
        z[i, 0] = v / 3
        z[i, 1] = total
        z[i, 2] = max(x[i], n[i]) / 3
        z[i, 3] = min(n[i], 2**40)

    x = np.random.default_rng(4).standard_normal(20).astype(np.float32)
    n = np.arange(-10, 10, dtype=np.int32)
    z = na.zeros((20, 4), np.float64).sync()
    unify[1, 20](z, x, n).sync()
    w = x.astype(np.float64)
    want = [np.where(np.arange(20) % 2, n, w) / 3, w + w * 2, np.maximum(w, n) / 3, n]
    np.testing.assert_array_equal(host(z).T, want)


def of_three(z, a, b, c):
    i = cuda.grid(1)
    z[i, 0] = min(a[i], b[i], c[i])
    z[i, 1] = max(a[i], b[i], c[i])
    z[i, 2] = min((a[i], b[i], c[i]))
    z[i, 3] = max((a[i], b[i], c[i]))


@pytest.mark.parametrize("dtypes", [full("f4 f4 f4"), "f4 i4 f8", full("u1 i4 i8")])
def test_the_least_and_the_largest_of_three(device: na.Device, dtypes: str) -> None:
    """They are compared one after the other, as Python does: the first stays where nothing is
    smaller, so a NaN stays if it comes first, and loses otherwise. The type is the widest.
    """
    cases = list(itertools.product([-2.0, 0.0, 3.0, math.nan], repeat=3))
    columns = np.array(cases).T
    given = [
        c.astype(t) if t[0] == "f" else np.abs(np.nan_to_num(c, nan=1)).astype(t)
        for c, t in zip(columns, dtypes.split(), strict=True)
    ]
    z = na.zeros((len(cases), 4), np.float64).sync()
    na.launcher(cuda.jit(of_three))[1, len(cases)](z, *given).sync()
    rows = [[c[i].item() for c in given] for i in range(len(cases))]
    want = [[min(row), max(row)] * 2 for row in rows]
    np.testing.assert_array_equal(host(z), want)


def test_special_values(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def special(z: na.KernelOutput, x: na.KernelInput):
        z[0] = x[0] / x[1]
        z[1] = -x[0] / x[1]
        z[2] = x[1] / x[1]
        z[3] = math.inf - x[0]
        z[4] = math.nan
        z[5] = math.sqrt(-x[0])
        z[6] = math.log(x[1])
        z[7] = np.inf > x[0]
        z[8] = x[2] != x[2]
        z[9] = x[2] < x[0] or x[2] >= x[0]
        z[10] = math.copysign(1.0, -x[1])

    z = na.zeros(11, np.float64).sync()
    special[1, 1](z, np.array([1.0, 0.0, np.nan])).sync()
    nan, inf = math.nan, math.inf
    np.testing.assert_array_equal(host(z), [inf, -inf, nan, inf, nan, nan, -inf, 1, 1, 0, -1])


def test_float16_is_loaded_converted_and_stored(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def half(h: na.KernelOutput, z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput):
        i = cuda.grid(1)
        own = cuda.shared.array(32, np.float16)
        own[cuda.threadIdx.x] = x[i]
        cuda.syncthreads()
        h[i, 0] = own[31 - cuda.threadIdx.x]
        h[i, 1] = y[i]
        h[i, 2] = np.float16(y[i] * float32(3))
        z[i, 0] = x[i]
        z[i, 1] = float32(x[i]) * y[i]
        z[i, 2] = np.float64(x[i]) + 1

    rng = np.random.default_rng(5)
    x, y = rng.standard_normal(64).astype(np.float16), rng.standard_normal(64).astype(np.float32)
    h, z = na.zeros((64, 3), np.float16).sync(), na.zeros((64, 3), np.float64).sync()
    half[2, 32](h, z, x, y).sync()
    got = host(h).T
    np.testing.assert_array_equal(got[0], x.reshape(2, 32)[:, ::-1].ravel())
    np.testing.assert_array_equal(got[1], y.astype(np.float16))
    np.testing.assert_array_equal(got[2], (y * np.float32(3)).astype(np.float16))
    want = [x, x.astype(np.float32) * y, x.astype(np.float64) + 1]
    np.testing.assert_array_equal(host(z).T, np.stack([w.astype(np.float64) for w in want]))


def test_float16_arithmetic(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def half(h: na.KernelOutput, z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput):
        i = cuda.grid(1)
        h[i, 0] = x[i] + y[i]
        h[i, 1] = x[i] * y[i]
        h[i, 2] = -x[i]
        z[i, 0] = x[i] - y[i]
        z[i, 1] = x[i] > y[i]
        z[i, 2] = x[i] * np.float32(3)

    rng = np.random.default_rng(15)
    x, y = rng.standard_normal((2, 64)).astype(np.float16)
    h, z = na.zeros((64, 3), np.float16).sync(), na.zeros((64, 3), np.float64).sync()
    half[2, 32](h, z, x, y).sync()
    np.testing.assert_array_equal(host(h).T, [x + y, x * y, -x])
    want = [(x - y).astype(np.float64), x > y, x.astype(np.float64) * 3]
    np.testing.assert_array_equal(host(z).T, want)


# --- complex and bool ---


@pytest.mark.parametrize("dtype", [np.complex64, full(np.complex128)])
def test_complex_numbers(device: na.Device, dtype: Any) -> None:
    @na.launcher
    @cuda.jit
    def compute(z: na.KernelOutput, r: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
        i = cuda.grid(1)
        z[i, 0] = a[i] + b[i] * 2
        z[i, 1] = a[i] * b[i]
        z[i, 2] = a[i] / b[i]
        z[i, 3] = a[i].conjugate() - 1j
        z[i, 4] = complex(a[i].imag, b[i].real)
        z[i, 5] = a[i] ** 2
        z[i, 6] = -a[i] if a[i] != b[i] else b[i]
        z[i, 7] = complex64(a[i]) + i
        r[i, 0] = abs(a[i])
        r[i, 1] = a[i].real * b[i].imag

    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal((2, 40)) + 1j * rng.standard_normal((2, 40))).astype(dtype)
    z, r = na.zeros((40, 8), dtype).sync(), na.zeros((40, 2), np.float64).sync()
    compute[2, 20](z, r, a, b).sync()
    p, q = a.astype(np.complex128), b.astype(np.complex128)
    want = [p + 2 * q, p * q, p / q, p.conj() - 1j, p.imag + 1j * q.real, p**2, -p,
            a.astype(np.complex64) + np.arange(40)]  # fmt: skip
    rtol, atol = (4e-6, 1e-6) if dtype is np.complex64 else (1e-14, 1e-15)
    np.testing.assert_allclose(host(z).T[:7], want[:7], rtol=rtol, atol=atol)
    np.testing.assert_allclose(host(z).T[7], want[7], rtol=4e-6)
    np.testing.assert_allclose(host(r).T, [abs(p), p.real * q.imag], rtol=rtol, atol=atol)


def test_functions_of_complex_numbers(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def compute(z: na.KernelOutput, r: na.KernelOutput, a: na.KernelInput):
        i = cuda.grid(1)
        z[i, 0] = cmath.exp(a[i])
        z[i, 1] = cmath.sqrt(a[i])
        z[i, 2] = cmath.log(a[i])
        z[i, 3] = cmath.sin(a[i])
        r[i], phase = cmath.polar(a[i])
        z[i, 4] = cmath.rect(r[i], phase)

    rng = np.random.default_rng(7)
    a = rng.standard_normal(32) + 1j * rng.standard_normal(32)
    z, r = na.zeros((32, 5), np.complex128).sync(), na.zeros(32, np.float64).sync()
    compute[1, 32](z, r, a).sync()
    want = [np.exp(a), np.sqrt(a), np.log(a), np.sin(a), a]
    np.testing.assert_allclose(host(z).T, want, rtol=1e-13)
    np.testing.assert_allclose(host(r), abs(a), rtol=1e-14)


def test_a_fractal(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def escape(z: na.KernelOutput, most):
        x, y = cuda.grid(2)
        if x >= z.shape[1] or y >= z.shape[0]:
            return
        c = complex(x / 16 - 2, y / 16 - 1)
        v = 0j
        for i in range(most):
            v = v * v + c
            if v.real * v.real + v.imag * v.imag >= 4:
                z[y, x] = i
                return
        z[y, x] = most

    z = na.full((33, 48), -1, np.int32).sync()
    # Few rounds of numbers with few bits: exact, whether multiply and add are fused or not.
    escape[(6, 5), (8, 8)](z, 4).sync()
    want = np.full((33, 48), 4)
    for y, x in np.ndindex(33, 48):
        c, v = complex(x / 16 - 2, y / 16 - 1), 0j
        for i in range(4):
            v = v * v + c
            if v.real * v.real + v.imag * v.imag >= 4:
                want[y, x] = i
                break
    np.testing.assert_array_equal(host(z), want)


def test_bools(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def logic(b: na.KernelOutput, z: na.KernelOutput, p: na.KernelInput, q: na.KernelInput):
        i = cuda.grid(1)
        b[i, 0] = p[i] and not q[i]
        b[i, 1] = p[i] & q[i]
        b[i, 2] = p[i] | q[i]
        b[i, 3] = p[i] ^ q[i]
        b[i, 4] = ~p[i]
        b[i, 5] = i
        b[i, 6] = 0.5 * i
        b[i, 7] = p[i] == q[i]
        z[i, 0] = p[i] + q[i] + True
        z[i, 1] = p[i] * 2.5 - q[i]
        z[i, 2] = p[i] < q[i]
        z[i, 3] = 10 if p[i] else 20

    p, q = np.array([False, False, True, True]), np.array([False, True, False, True])
    b, z = na.zeros((4, 8), np.bool_).sync(), na.zeros((4, 4), np.float64).sync()
    logic[1, 4](b, z, p, q).sync()
    some = np.arange(4) > 0
    want = [p & ~q, p & q, p | q, p ^ q, ~p, some, some, p == q]
    np.testing.assert_array_equal(host(b).T, want)
    numbers = [p * 1 + q + 1, p * 2.5 - q, (~p & q) * 1, np.where(p, 10, 20)]
    np.testing.assert_array_equal(host(z).T, numbers)
