"""Functions of libdevice."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda import libdevice

import numbasync as na
from tests.backend_cpu.test_cuda_math import nearest
from tests.common import host

# --- libdevice ---


def test_libdevice_of_integers(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def integers(z: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
        i = cuda.grid(1)
        z[i, 0] = libdevice.mulhi(a[i], b[i])
        z[i, 1] = libdevice.hadd(a[i], b[i])
        z[i, 2] = libdevice.rhadd(a[i], b[i])
        z[i, 3] = libdevice.sad(a[i], b[i], np.uint32(7))
        z[i, 4] = libdevice.popc(a[i])
        z[i, 5] = libdevice.clz(b[i])
        z[i, 6] = libdevice.byte_perm(a[i], b[i], 0x5140)
        z[i, 7] = libdevice.mul24(a[i] % 1000, b[i] % 1000)

    a, b = np.random.default_rng(7).integers(-(2**31), 2**31, (2, 40)).astype(np.int32)
    z = na.zeros((40, 8), np.int64).sync()
    integers[1, 40](z, a, b).sync()
    got = host(z).T
    p, q = a.astype(object), b.astype(object)
    np.testing.assert_array_equal(got[0], [int(v) >> 32 for v in p * q])
    np.testing.assert_array_equal(got[1], [int(v) >> 1 for v in p + q])
    np.testing.assert_array_equal(got[2], [int(v) + 1 >> 1 for v in p + q])
    np.testing.assert_array_equal(got[3] % 2**32, [(abs(int(v)) + 7) % 2**32 for v in p - q])
    np.testing.assert_array_equal(got[4], [(int(v) % 2**32).bit_count() for v in p])
    np.testing.assert_array_equal(got[5], [32 - (int(v) % 2**32).bit_length() for v in q])
    low, high = a.view(np.uint8).reshape(40, 4), b.view(np.uint8).reshape(40, 4)
    picked = np.stack([low[:, 0], high[:, 0], low[:, 1], high[:, 1]], axis=1)
    np.testing.assert_array_equal(got[6] % 2**32, picked.copy().view(np.uint32).ravel())
    np.testing.assert_array_equal(got[7], [(int(v) % 1000) * (int(w) % 1000)
                                           for v, w in zip(a, b, strict=True)])  # fmt: skip


def test_libdevice_of_floats(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def floats(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput):
        i = cuda.grid(1)
        z[i, 0], z[i, 1] = libdevice.sincos(x[i])
        z[i, 2] = libdevice.rsqrt(y[i])
        z[i, 3] = libdevice.exp10(x[i])
        z[i, 4] = libdevice.sinpi(x[i])
        z[i, 5] = libdevice.normcdf(x[i])
        z[i, 6] = libdevice.fdim(x[i], y[i])
        z[i, 7] = libdevice.saturatef(np.float32(x[i]))
        z[i, 8] = libdevice.ddiv_rd(x[i], y[i])
        z[i, 9] = libdevice.ddiv_ru(x[i], y[i])
        z[i, 10] = libdevice.double2int_rn(x[i] * 3)
        z[i, 11] = libdevice.double_as_longlong(x[i]) >> 52
        z[i, 12] = libdevice.fma_rn(x[i], y[i], -1.0)
        z[i, 13] = libdevice.rint(y[i] * 4)

    x, y = np.random.default_rng(8).uniform(0.05, 0.95, (2, 64))
    x[::3] *= -1
    z = na.zeros((64, 14), np.float64).sync()
    floats[2, 32](z, x, y).sync()
    got = host(z).T
    near = [np.sin(x), np.cos(x), 1 / np.sqrt(y), 10**x, np.sin(np.pi * x),
            [math.erfc(-v / math.sqrt(2)) / 2 for v in x]]  # fmt: skip
    np.testing.assert_allclose(got[:6], near, rtol=1e-14)
    np.testing.assert_array_equal(got[6], np.maximum(x - y, 0))
    np.testing.assert_array_equal(got[7], np.clip(x.astype(np.float32), 0, 1))
    ratios = [Fraction(p) / Fraction(q) for p, q in zip(x.tolist(), y.tolist(), strict=True)]
    for down, up, ratio in zip(got[8], got[9], ratios, strict=True):
        assert Fraction(float(down)) <= ratio <= Fraction(float(up))
        assert up in (down, np.nextafter(down, np.inf))
    np.testing.assert_array_equal(got[10], np.rint(x * 3))
    np.testing.assert_array_equal(got[11], x.view(np.int64) >> 52)
    fused = [nearest(Fraction(p) * Fraction(q) - 1, np.float64)
             for p, q in zip(x.tolist(), y.tolist(), strict=True)]  # fmt: skip
    np.testing.assert_array_equal(got[12], fused)
    np.testing.assert_array_equal(got[13], np.rint(y * 4))


# --- rounded in a direction ---

MODES = ("rn", "rd", "ru", "rz")


def rounded(exact: Fraction, mode: str, kind: Any) -> Any:
    """The number of a float type that `exact` is rounded to."""
    value = nearest(exact, kind)
    error = exact - Fraction(float(value))
    down = mode == "rd" or (mode == "rz" and exact > 0)
    up = mode == "ru" or (mode == "rz" and exact < 0)
    if (error < 0 and down) or (error > 0 and up):
        return np.nextafter(value, kind(-np.inf if down else np.inf))
    return value


@pytest.mark.full
def test_arithmetic_is_rounded_as_its_name_says(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def all_modes(z: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, c: na.KernelInput):
        i = cuda.grid(1)
        x, y, w = a[i], b[i], c[i]
        z[0, 0, i] = libdevice.fadd_rn(x, y)
        z[0, 1, i] = libdevice.fadd_rd(x, y)
        z[0, 2, i] = libdevice.fadd_ru(x, y)
        z[0, 3, i] = libdevice.fadd_rz(x, y)
        z[1, 0, i] = libdevice.fmul_rn(x, y)
        z[1, 1, i] = libdevice.fmul_rd(x, y)
        z[1, 2, i] = libdevice.fmul_ru(x, y)
        z[1, 3, i] = libdevice.fmul_rz(x, y)
        z[2, 0, i] = libdevice.fdiv_rn(x, y)
        z[2, 1, i] = libdevice.fdiv_rd(x, y)
        z[2, 2, i] = libdevice.fdiv_ru(x, y)
        z[2, 3, i] = libdevice.fdiv_rz(x, y)
        z[3, 0, i] = libdevice.fmaf_rn(x, y, w)
        z[3, 1, i] = libdevice.fmaf_rd(x, y, w)
        z[3, 2, i] = libdevice.fmaf_ru(x, y, w)
        z[3, 3, i] = libdevice.fmaf_rz(x, y, w)
        z[4, 0, i] = libdevice.fsub_rn(x, y)
        z[4, 1, i] = libdevice.fsub_rd(x, y)
        z[4, 2, i] = libdevice.fsub_ru(x, y)
        z[4, 3, i] = libdevice.fsub_rz(x, y)

    a, b, c = np.random.default_rng(9).uniform(-8, 8, (3, 64)).astype(np.float32)
    a[:4], b[:4], c[:4] = (1, 2, 3, 0.5), (2, 2, -3, 4), (1, -4, 9, 0)  # exact ones
    a[4:8], b[4:8], c[4:8] = (1e-30, -3e-39, 1e-45, 2e-38), (1e-12, 0.3, 7, -1.7), (1, -2, 3e-45, 4)
    z = all_modes[2, 32](na.zeros((5, 4, 64)), a, b, c).sync()[0]
    p, q, r = ([Fraction(float(v)) for v in values] for values in (a, b, c))
    for mode, got in zip(MODES, host(z).transpose(1, 0, 2), strict=True):
        for i, (x, y, w) in enumerate(zip(p, q, r, strict=True)):
            exact = (x + y, x * y, x / y, x * y + w, x - y)
            want = [rounded(e, mode, np.float32) for e in exact]
            assert got[:, i].tolist() == want, (mode, float(x), float(y))


@pytest.mark.full
def test_conversions_are_rounded_as_their_names_say(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def convert(z: na.KernelOutput, f: na.KernelOutput, x: na.KernelInput, n: na.KernelInput):
        i = cuda.grid(1)
        z[0, i] = libdevice.double2int_rn(x[i])
        z[1, i] = libdevice.double2int_rd(x[i])
        z[2, i] = libdevice.double2int_ru(x[i])
        z[3, i] = libdevice.double2int_rz(x[i])
        z[4, i] = libdevice.double2ll_rn(x[i])
        f[0, i] = libdevice.ll2double_rn(n[i])
        f[1, i] = libdevice.ll2double_rd(n[i])
        f[2, i] = libdevice.ll2double_ru(n[i])
        f[3, i] = libdevice.ll2double_rz(n[i])
        f[4, i] = libdevice.double2float_rd(x[i])
        f[5, i] = libdevice.double2float_ru(x[i])
        f[6, i] = libdevice.ull2double_rz(n[i])
        f[7, i] = libdevice.uint2float_ru(np.uint32(n[i]))
        z[5, i] = libdevice.double2uint_rz(x[i]) & 0xFFFFFFFF

    x = np.array([0.5, 1.5, -0.5, -2.5, 2.4, -2.6, 1e12, -1e12, 3.0, 1 / 3, -1 / 3, 7.25])
    n = np.array([2**53 + 1, 2**60 + 3, -(2**53) - 1, 2**63 - 1, -(2**63), 5, 0, -7, 2**54 + 2,
                  2**62 + 1, -(2**61) - 5, 12])  # fmt: skip
    z, f = na.zeros((6, 12), np.int64).sync(), na.zeros((8, 12), np.float64).sync()
    convert[1, 12](z, f, x, n).sync()
    low, high = -(2**31), 2**31 - 1
    want = [np.clip(way(x), low, high) for way in (np.rint, np.floor, np.ceil, np.trunc)]
    np.testing.assert_array_equal(host(z)[:4], want)
    np.testing.assert_array_equal(host(z)[4], np.rint(x))
    np.testing.assert_array_equal(host(z)[5], np.clip(np.trunc(x), 0, 2**32 - 1))
    for k, mode in enumerate(MODES):
        assert host(f)[k].tolist() == [rounded(Fraction(int(v)), mode, np.float64) for v in n]
    for row, mode in ((4, "rd"), (5, "ru")):
        want32 = [rounded(Fraction(float(v)), mode, np.float32) for v in x]
        assert host(f)[row].tolist() == [float(v) for v in want32]
    wide = [rounded(Fraction(int(v) % 2**64), "rz", np.float64) for v in n]
    narrow = [float(rounded(Fraction(int(v) % 2**32), "ru", np.float32)) for v in n]
    assert host(f)[6:].tolist() == [wide, narrow]


# --- bits, parts and special functions ---


@pytest.mark.full
def test_bits_and_parts_of_floats(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def parts(z: na.KernelOutput, f: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        z[0, i] = libdevice.float_as_int(np.float32(x[i]))
        z[1, i] = libdevice.double2hiint(x[i])
        z[2, i] = libdevice.double2loint(x[i])
        z[3, i] = libdevice.signbitd(x[i]) != 0
        z[4, i] = libdevice.isfinited(x[i]) != 0
        z[5, i] = libdevice.float2half_rn(np.float32(x[i]))
        m, e = libdevice.frexp(x[i])
        f[0, i], z[6, i] = m, e
        f[1, i] = libdevice.hiloint2double(z[1, i], z[2, i])
        f[2, i] = libdevice.half2float(z[5, i])
        f[3, i] = libdevice.int_as_float(z[0, i])

    x = np.array([1.0, -2.5, 0.1, 65519.0, 65520.0, 1e-7, 6e-8, -0.0, 3.14159, 1e5, 2**-14, 1e-5])
    z, f = na.zeros((7, 12), np.int64).sync(), na.zeros((4, 12), np.float64).sync()
    parts[1, 12](z, f, x).sync()
    got, back = host(z), host(f)
    with np.errstate(over="ignore"):
        half = x.astype(np.float32).astype(np.float16)
    np.testing.assert_array_equal(got[0], x.astype(np.float32).view(np.int32))
    np.testing.assert_array_equal(got[1], x.view(np.int64) >> 32)
    np.testing.assert_array_equal(got[2].astype(np.uint32), (x.view(np.int64) & 0xFFFFFFFF))
    np.testing.assert_array_equal(got[3:5], [np.signbit(x), np.isfinite(x)])
    np.testing.assert_array_equal(got[5].astype(np.int16), half.view(np.int16))
    np.testing.assert_array_equal([back[0], got[6]], np.frexp(x))
    np.testing.assert_array_equal(back[1:], [x, half.astype(np.float64), x.astype(np.float32)])


@pytest.mark.full
def test_special_functions(device: na.Device) -> None:
    special = pytest.importorskip("scipy.special")

    @na.launcher
    @cuda.jit
    def functions(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        z[0, i] = libdevice.erfinv(x[i])
        z[1, i] = libdevice.erfcinv(1.0 - x[i])
        z[2, i] = libdevice.erfcx(x[i] * 30)
        z[3, i] = libdevice.normcdf(x[i] * 5)
        z[4, i] = libdevice.normcdfinv(0.5 + 0.5 * x[i])
        z[5, i], z[6, i] = libdevice.sincospi(x[i] * 10)
        z[7, i] = libdevice.rcbrt(x[i])
        z[8, i] = libdevice.powi(x[i], 3)

    x = np.concatenate([np.linspace(-0.999, 0.999, 61), [1e-9, 0.99999, -0.99999]])
    x[30] = 0.3
    z = functions[2, 32](na.zeros((9, 64), np.float64), x).sync()[0]
    want = [
        special.erfinv(x), special.erfcinv(1.0 - x), special.erfcx(x * 30), special.ndtr(x * 5),
        special.ndtri(0.5 + 0.5 * x), special.sinpi(x * 10) if hasattr(special, "sinpi")
        else np.sin(np.pi * np.remainder(x * 10, 2)), np.cos(np.pi * np.remainder(x * 10, 2)),
        1 / np.cbrt(x), x**3,
    ]  # fmt: skip
    for k, (got, expected) in enumerate(zip(host(z), want, strict=True)):
        finite = np.isfinite(expected)
        np.testing.assert_allclose(
            got[finite], expected[finite], rtol=1e-11, atol=1e-13, err_msg=str(k)
        )


@na.launcher
@cuda.jit
def remainders(z: na.KernelOutput, n: na.KernelOutput, x: na.KernelInput, y: na.KernelInput):
    i = cuda.grid(1)
    z[i], n[i] = libdevice.remquo(x[i], y[i])


@pytest.mark.full
def test_remainders_come_with_the_quotient_s_last_bits(device: na.Device) -> None:
    x, y = np.random.default_rng(12).uniform(-50, 50, (2, 64))
    z, n = na.zeros(64, np.float64).sync(), na.zeros(64, np.int32).sync()
    remainders[1, 64](z, n, x, y).sync()
    want = [math.remainder(p, q) for p, q in zip(x.tolist(), y.tolist(), strict=True)]
    np.testing.assert_array_equal(host(z), want)
    counts = np.rint((x - want) / y).astype(int)
    np.testing.assert_array_equal(host(n) % 8, np.sign(counts) * (abs(counts) % 8) % 8)
