"""Arithmetic functions: fused and rounded arithmetic, `math`."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numba import cuda, int32

import numbasync as na
from tests.common import full, host

FLOATS = [np.float32, full(np.float64)]


def nearest(exact: Fraction, dtype: Any) -> Any:
    """The float that is nearest to a number, the even one of two."""
    if np.dtype(dtype) == np.float64:
        return np.float64(float(exact))  # which Python rounds correctly
    near = np.float32(float(exact))
    around = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
    return min(
        around, key=lambda f: (abs(Fraction(float(f)) - exact), int(f.view(np.int32)) & 1)
    )  # fmt: skip


# --- arithmetic ---


@pytest.mark.parametrize("dtype", FLOATS)
def test_fused_multiply_add_rounds_once(device: na.Device, dtype: Any) -> None:
    @na.launcher
    @cuda.jit
    def fused(z: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, c: na.KernelInput):
        i = cuda.grid(1)
        z[i] = cuda.fma(a[i], b[i], c[i])

    a, b, c = np.random.default_rng(2).standard_normal((3, 500)).astype(dtype)
    c[::2] = -(a * b)[::2]  # what is left is the product's own rounding
    c[1::4] *= dtype(2**-20)
    z = na.zeros(500, dtype).sync()
    fused[4, 125](z, a, b, c).sync()
    exact = [Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r))
             for p, q, r in zip(a, b, c, strict=True)]  # fmt: skip
    np.testing.assert_array_equal(host(z), np.array([nearest(e, dtype) for e in exact]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_quotients_and_roots_are_rounded_correctly(device: na.Device, dtype: Any) -> None:
    @na.launcher
    @cuda.jit
    def divide(z: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
        i = cuda.grid(1)
        z[i, 0] = a[i] / b[i]
        z[i, 1] = math.sqrt(a[i])
        z[i, 2] = 1 / b[i]
        z[i, 3] = a[i] * b[i]
        z[i, 4] = a[i] - b[i]

    a, b = np.random.default_rng(3).uniform(0.001, 9, (2, 300)).astype(dtype)
    b[0], a[1], b[1], a[2], b[2] = 0, 0, 0, np.inf, np.inf
    z = na.zeros((300, 5), dtype).sync()
    divide[3, 100](z, a, b).sync()
    with np.errstate(all="ignore"):
        # The literal 1 is an int64, so that quotient is a float64 until it is stored.
        inverse = (1 / b.astype(np.float64)).astype(dtype)
        np.testing.assert_array_equal(host(z).T, [a / b, np.sqrt(a), inverse, a * b, a - b])


@pytest.mark.parametrize("dtype", FLOATS)
def test_floor_quotients_and_remainders(device: na.Device, dtype: Any) -> None:
    @na.launcher
    @cuda.jit
    def divide(z: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
        i = cuda.grid(1)
        z[i, 0] = a[i] // b[i]
        z[i, 1] = a[i] % b[i]
        z[i, 2] = math.fmod(a[i], b[i])
        z[i, 3] = math.remainder(a[i], b[i])

    a = np.array([7, -7, 7, -7, 6, -6, 0.75, 2.5, -2.5, 1.5], dtype)
    b = np.array([2, 2, -2, -2, 3, 3, 0.25, 1, 1, -1], dtype)
    z = na.zeros((10, 4), dtype).sync()
    divide[1, 10](z, a, b).sync()
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    want = [[p // q, p % q, math.fmod(p, q), math.remainder(p, q)] for p, q in pairs]
    assert host(z).tolist() == want


def test_integer_quotients_powers_and_shifts(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def integers(z: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
        i = cuda.grid(1)
        z[i, 0] = a[i] // b[i]
        z[i, 1] = a[i] % b[i]
        z[i, 2] = a[i] ** 3
        z[i, 3] = abs(b[i]) ** (i % 4)
        z[i, 4] = a[i] << (i % 5)
        z[i, 5] = a[i] >> (i % 5)
        z[i, 6] = ~a[i]
        z[i, 7] = (a[i] & b[i]) | (a[i] ^ 5)

    a, b = np.random.default_rng(4).integers(-100, 100, (2, 50)).astype(np.int32)
    b[b == 0] = 7
    z = na.zeros((50, 8), np.int64).sync()
    integers[1, 50](z, a, b).sync()
    want = [[p // q, p % q, p**3, abs(q) ** (i % 4), p << (i % 5), p >> (i % 5), ~p,
             (p & q) | (p ^ 5)]
            for i, (p, q) in enumerate(zip(a.tolist(), b.tolist(), strict=True))]  # fmt: skip
    assert host(z).tolist() == want


def test_selp_and_cbrt(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def choose(z: na.KernelOutput, x: na.KernelInput, n: na.KernelInput):
        i = cuda.grid(1)
        z[i, 0] = cuda.selp(x[i] > 3, x[i], x[0])
        z[i, 1] = cuda.selp(n[i] % 2 == 0, n[i], n[1])
        z[i, 2] = cuda.cbrt(x[i])
        z[i, 3] = cuda.cbrt(np.float32(-x[i]))

    x, n = np.arange(9.0), np.arange(10, 19)
    z = na.zeros((9, 4), np.float64).sync()
    choose[1, 9](z, x, n).sync()
    got = host(z).T
    np.testing.assert_array_equal(got[0], np.where(x > 3, x, x[0]))
    np.testing.assert_array_equal(got[1], np.where(n % 2 == 0, n, 11))
    np.testing.assert_allclose(got[2], np.cbrt(x), rtol=1e-15)
    np.testing.assert_allclose(got[3], -np.cbrt(x), rtol=3e-7)
    np.testing.assert_array_equal(got[3], got[3].astype(np.float32))


# --- math ---

# Where CUDA's manual gives an error of at most some units in the last place.
UNARY: dict[str, tuple[float, float]] = {
    "acos": (-1, 1), "acosh": (1, 50), "asin": (-1, 1), "asinh": (-50, 50), "atan": (-9, 9),
    "atanh": (-0.99, 0.99), "ceil": (-9, 9), "cos": (-1.5, 1.5), "cosh": (-5, 5),
    "degrees": (-9, 9), "erf": (-3, 3), "erfc": (-3, 3), "exp": (-20, 20), "exp2": (-20, 20),
    "expm1": (-3, 3), "fabs": (-9, 9), "floor": (-9, 9), "gamma": (0.5, 10), "lgamma": (3, 30),
    "log": (2, 99), "log10": (2, 99), "log1p": (-0.9, 9), "log2": (2, 99), "radians": (-9, 9),
    "sin": (0.1, 3), "sinh": (-5, 5), "sqrt": (0, 99), "tan": (-1.5, 1.5), "tanh": (-3, 3),
    "trunc": (-9, 9),
}  # fmt: skip
FLOATS_ONLY = ["ceil", "degrees", "fabs", "floor", "radians", "trunc"]
# The rows of `of_numbers`; those of `of_floats` are FLOATS_ONLY.
NUMBERS = [name for name in UNARY if name not in FLOATS_ONLY]


@na.launcher
@cuda.jit
def of_numbers(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    z[0, i] = math.acos(x[0, i])
    z[1, i] = math.acosh(x[1, i])
    z[2, i] = math.asin(x[2, i])
    z[3, i] = math.asinh(x[3, i])
    z[4, i] = math.atan(x[4, i])
    z[5, i] = math.atanh(x[5, i])
    z[6, i] = math.cos(x[6, i])
    z[7, i] = math.cosh(x[7, i])
    z[8, i] = math.erf(x[8, i])
    z[9, i] = math.erfc(x[9, i])
    z[10, i] = math.exp(x[10, i])
    z[11, i] = math.exp2(x[11, i])
    z[12, i] = math.expm1(x[12, i])
    z[13, i] = math.gamma(x[13, i])
    z[14, i] = math.lgamma(x[14, i])
    z[15, i] = math.log(x[15, i])
    z[16, i] = math.log10(x[16, i])
    z[17, i] = math.log1p(x[17, i])
    z[18, i] = math.log2(x[18, i])
    z[19, i] = math.sin(x[19, i])
    z[20, i] = math.sinh(x[20, i])
    z[21, i] = math.sqrt(x[21, i])
    z[22, i] = math.tan(x[22, i])
    z[23, i] = math.tanh(x[23, i])


@na.launcher
@cuda.jit
def of_floats(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    z[0, i] = math.ceil(x[0, i])
    z[1, i] = math.degrees(x[1, i])
    z[2, i] = math.fabs(x[2, i])
    z[3, i] = math.floor(x[3, i])
    z[4, i] = math.radians(x[4, i])
    z[5, i] = math.trunc(x[5, i])


def integers_in(low: float, high: float) -> np.ndarray:
    return np.arange(max(math.ceil(low), -3), min(int(high), 9) + 1)


def results(kernel: na.Launcher, *rows: np.ndarray) -> np.ndarray:
    z = na.zeros(rows[0].shape, np.float64).sync()
    kernel[1, rows[0].shape[1]](z, *rows).sync()
    return host(z)


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_math(device: na.Device, name: str) -> None:
    function = getattr(math, name)
    takes_integers = name not in FLOATS_ONLY
    kernel, names = (of_numbers, NUMBERS) if takes_integers else (of_floats, FLOATS_ONLY)
    row = names.index(name)
    for dtype, rtol in ((np.float32, 2e-6), (np.float64, 1e-14)):
        x = np.array([np.random.default_rng(5).uniform(*UNARY[n], 64) for n in names], dtype)
        got = results(kernel, x)[row]
        np.testing.assert_allclose(got, [function(v) for v in x[row].tolist()], rtol=rtol)
        np.testing.assert_array_equal(got, got.astype(dtype))  # it is of the argument's type
    if takes_integers:
        n = np.array([np.resize(integers_in(*UNARY[n]), 13) for n in names], np.int32)
        want = [function(int(v)) for v in n[row]]
        np.testing.assert_allclose(results(kernel, n)[row], want, rtol=1e-14)


BINARY = ["atan2", "copysign", "fmod", "hypot", "nextafter", "pow", "remainder"]


@na.launcher
@cuda.jit
def of_two_floats(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput):
    i = cuda.grid(1)
    z[0, i] = math.atan2(x[0, i], y[0, i])
    z[1, i] = math.copysign(x[1, i], y[1, i])
    z[2, i] = math.fmod(x[2, i], y[2, i])
    z[3, i] = math.hypot(x[3, i], y[3, i])
    z[4, i] = math.nextafter(x[4, i], y[4, i])
    z[5, i] = math.pow(x[5, i], y[5, i])
    z[6, i] = math.remainder(x[6, i], y[6, i])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_arguments(device: na.Device, name: str, dtype: Any) -> None:
    function, row = getattr(math, name), BINARY.index(name)
    every = np.tile(np.random.default_rng(6).uniform(-5, 5, (2, 1, 64)), (1, 7, 1)).astype(dtype)
    every[0, BINARY.index("pow")] = abs(every[0, BINARY.index("pow")])
    got = results(of_two_floats, *every)[row]
    x, y = every[:, row]
    if name == "nextafter":
        np.testing.assert_array_equal(got, np.nextafter(x, y).astype(np.float64))
        return
    want = [function(p, q) for p, q in zip(x.tolist(), y.tolist(), strict=True)]
    exact = name in ("copysign", "fmod", "remainder")
    rtol = 0 if exact else 2e-6 if dtype is np.float32 else 1e-14
    np.testing.assert_allclose(got, want, rtol=rtol)
    np.testing.assert_array_equal(got, got.astype(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_parts_of_floats(device: na.Device, dtype: Any) -> None:
    @na.launcher
    @cuda.jit
    def parts(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        z[i, 0], z[i, 1] = math.frexp(x[i])
        z[i, 2], z[i, 3] = math.modf(x[i])
        z[i, 4] = math.ldexp(x[i], int32(i - 5))
        z[i, 5] = math.isnan(x[i]) + 2 * math.isinf(x[i]) + 4 * math.isfinite(x[i])
        z[i, 6] = round(x[i])
        z[i, 7] = math.pi * 2 + math.e

    x = np.array([0.75, -3.25, 100, 1e-3, 0, 2.5, -1.5, 3.5], dtype)
    z = na.zeros((8, 8), np.float64).sync()
    parts[1, 8](z, x).sync()
    want = [[*math.frexp(v), *math.modf(v), math.ldexp(v, i - 5), 4, round(v), 2 * math.pi + math.e]
            for i, v in enumerate(x.tolist())]  # fmt: skip
    assert host(z).tolist() == want
    special = na.zeros((3, 8), np.float64).sync()
    parts[1, 3](special, np.array([np.nan, np.inf, -np.inf], dtype)).sync()
    assert host(special)[:, 5].tolist() == [1, 2, 2]


@pytest.mark.parametrize("dtype", FLOATS)
def test_round_to_digits(device: na.Device, dtype: Any) -> None:
    @na.launcher
    @cuda.jit
    def rounded(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        z[i, 0] = round(x[i], 3)
        z[i, 1] = round(x[i], 0)
        z[i, 2] = round(x[i], -2)

    x = np.array([0.3425, 0.3435, 2.5, -2.5, 150, 250, 12345.67, 1e9, -np.inf, np.nan], dtype)
    z = na.zeros((10, 3), dtype).sync()
    rounded[1, 10](z, x).sync()
    wide, got = x.astype(np.float64), host(z)
    want = [np.rint(wide * 1000) / 1000, np.rint(wide), np.rint(wide / 100) * 100]
    np.testing.assert_array_equal(got.T, np.array(want).astype(dtype))
