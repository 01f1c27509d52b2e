"""float16: arithmetic that is rounded after every operation, casts, and `cuda.fp16`."""

from __future__ import annotations

import math
import operator

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32
from numba.cuda import bf16, fp16

import numbasync as na
from tests.common import host

float16 = cuda.types.float16

TABLE = np.array([0.5, -2, 65504, 6e-8], np.float16)


def every(count: int = 4096, seed: int = 3) -> np.ndarray:
    """Numbers of all sizes: also those below 2**-14, infinities and NaN."""
    bits = np.random.default_rng(seed).integers(0, 2**16, count).astype(np.uint16)
    bits[:12] = [0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x3C00]
    return bits.view(np.float16)


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal, also in the sign of a zero; any NaN is one."""
    assert got.dtype == want.dtype == np.float16
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    there = ~np.isnan(want)
    np.testing.assert_array_equal(got.view(np.uint16)[there], want.view(np.uint16)[there])


def test_operators_round_after_each(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def operators(z: na.KernelOutput, t: na.KernelOutput, x: na.KernelInput, y: na.KernelInput):
        i = cuda.grid(1)
        a, b = x[i], y[i]
        z[0, i] = a + b
        z[1, i] = a - b
        z[2, i] = a * b
        z[3, i] = a / b
        z[4, i] = -a
        z[5, i] = abs(a)
        z[6, i] = (a + b) * b  # no product that is added to: a GPU would fuse that
        z[7, i] = a
        z[7, i] += b
        t[0, i] = a < b
        t[1, i] = a <= b
        t[2, i] = a == b
        t[3, i] = a != b
        t[4, i] = a > b
        t[5, i] = a >= b

    x, y = every(), np.roll(every(seed=4), 7)
    y[:512] = x[:512]
    z, t = na.zeros((8, 4096), np.float16).sync(), na.zeros((6, 4096), np.bool_).sync()
    operators[16, 256](z, t, x, y).sync()
    with np.errstate(all="ignore"):
        want = [x + y, x - y, x * y, x / y, -x, abs(x), (x + y) * y, x + y]
    for got, right in zip(host(z), want, strict=True):
        same(got, right)
    names = ("lt", "le", "eq", "ne", "gt", "ge")
    np.testing.assert_array_equal(host(t), [getattr(operator, n)(x, y) for n in names])


def test_float16_meets_other_types(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def mixed(
        z: na.KernelOutput, x: na.KernelInput, f: na.KernelInput, i8: na.KernelInput,
        i16: na.KernelInput, i32: na.KernelInput,
    ):  # fmt: skip
        i = cuda.grid(1)
        z[0, i] = x[i] + f[i]
        z[1, i] = x[i] + i8[i]
        z[2, i] = x[i] + i16[i]
        z[3, i] = x[i] + i32[i]
        z[4, i] = x[i] * 3
        z[5, i] = x[i] * 0.1
        z[6, i] = x[i] * np.float16(0.1)
        z[7, i] = 1 if x[i] < f[i] else 0

    rng = np.random.default_rng(5)
    x, f = rng.standard_normal((2, 64)).astype(np.float16), rng.standard_normal(64)
    f = f.astype(np.float32)
    i8, i16, i32 = (rng.integers(-100, 100, 64).astype(t) for t in (np.int8, np.int16, np.int32))
    z = na.zeros((8, 64), np.float64).sync()
    mixed[2, 32](z, x[0], f, i8, i16, i32).sync()
    h = x[0]
    want = [
        h.astype(np.float32) + f, h + i8.astype(np.float16), h.astype(np.float32) + i16,
        h.astype(np.float64) + i32, h.astype(np.float64) * 3, h.astype(np.float64) * 0.1,
        h * np.float16(0.1), h < f,
    ]  # fmt: skip
    for got, right in zip(host(z), want, strict=True):
        np.testing.assert_array_equal(got, right.astype(np.float64))


def test_floats_and_integers_become_float16_in_one_rounding(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def narrowed(z: na.KernelOutput, d: na.KernelInput, f: na.KernelInput, n: na.KernelInput):
        i = cuda.grid(1)
        z[0, i] = d[i]
        z[1, i] = f[i]
        z[2, i] = np.float16(n[i])
        z[3, i] = float16(d[i])

    rng = np.random.default_rng(6)
    values = every(1024, seed=8).astype(np.float64)
    with np.errstate(all="ignore"):
        middle = (values + np.nextafter(every(1024, seed=8), np.float16(math.inf))) / 2
        d = np.nextafter(middle, rng.choice([-math.inf, math.inf], 1024))
        d[::3] = middle[::3]
        f = d.astype(np.float32)
    n = rng.integers(-(2**17), 2**17, 1024)
    n[:4] = [2**62, -(2**62), 65519, 65520]
    z = na.zeros((4, 1024), np.float16).sync()
    narrowed[4, 256](z, d, f, n).sync()
    with np.errstate(over="ignore"):
        once = [a.astype(np.float16) for a in (d, f, n.astype(np.float64), d)]
    for got, right in zip(host(z), once, strict=True):
        same(got, right)


def test_float16_becomes_the_nearest_integer(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def whole(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        z[i, 0] = np.int32(x[i])
        z[i, 1] = np.int64(x[i])
        z[i, 2] = x[i]
        z[i, 3] = np.int32(float32(x[i]))

    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 12.3, -12.75, 2047.0], np.float16)
    z = na.zeros((8, 4), np.int32).sync()
    whole[1, 8](z, x).sync()
    got = host(z).T
    for column in got[:3]:
        np.testing.assert_array_equal(column, np.rint(x))
    np.testing.assert_array_equal(got[3], np.trunc(x))


def test_float16_in_memory_that_threads_share(device: na.Device) -> None:
    @cuda.jit(device=True)
    def scaled(a, by):
        return a * by

    @na.launcher
    @cuda.jit
    def sums(z: na.KernelOutput, x: na.KernelInput, by):
        t = cuda.threadIdx.x
        own = cuda.shared.array(64, float16)
        pair = cuda.local.array(2, np.float16)
        table = cuda.const.array_like(TABLE)
        own[t] = x[cuda.grid(1)]
        kept = scaled(own[t], by)
        cuda.syncthreads()
        step = 32
        while step > 0:
            if t < step:
                own[t] += own[t + step]
            cuda.syncthreads()
            step //= 2
        pair[0] = own[0]
        pair[1] = kept
        z[cuda.grid(1), 0] = pair[0]
        z[cuda.grid(1), 1] = pair[1] * table[t % 4]  # a sum would be fused on a GPU

    x = np.random.default_rng(9).standard_normal(128).astype(np.float16)
    z = na.zeros((128, 2), np.float16).sync()
    sums[2, 64](z, x, np.float16(1.1)).sync()
    part = x.reshape(2, 64)
    while part.shape[1] > 1:
        half = part.shape[1] // 2
        part = part[:, :half] + part[:, half:]
    same(host(z)[:, 0].copy(), np.repeat(part[:, 0], 64))
    with np.errstate(over="ignore"):
        same(host(z)[:, 1].copy(), x * np.float16(1.1) * np.tile(TABLE, 32))


def test_fields_of_float16_in_structures(device: na.Device) -> None:
    record = np.dtype([("a", np.float16), ("b", np.float32)], align=True)

    @na.launcher
    @cuda.jit
    def swap(r: na.KernelOutput, z: na.KernelOutput, one):
        i = cuda.grid(1)
        own = cuda.shared.array(4, record)
        own[i] = r[i]
        cuda.syncthreads()
        other = own[3 - i]
        z[i] = r[i].a * one.a
        r[i].a = other.b
        r[i]["b"] = other["a"] + other.b

    r, one = np.zeros(4, record), np.zeros(1, record)
    r["a"], r["b"], one["a"] = [1.5, 2, 1 / 3, 7], [0.1, 2, 3, 4], 0.25
    records, z = na.from_host(r).sync(), na.zeros(4, np.float16).sync()
    swap[1, 4](records, z, one[0]).sync()
    same(host(z), r["a"] * np.float16(0.25))
    got = host(records)
    same(got["a"].copy(), r["b"][::-1].astype(np.float16))
    np.testing.assert_array_equal(got["b"], r["a"][::-1].astype(np.float32) + r["b"][::-1])


@pytest.mark.full
def test_functions_of_fp16(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def functions(z: na.KernelOutput, t: na.KernelOutput, x: na.KernelInput, y: na.KernelInput,
                  w: na.KernelInput):  # fmt: skip
        i = cuda.grid(1)
        a, b, c = x[i], y[i], w[i]
        z[0, i] = cuda.fp16.hadd(a, b)
        z[1, i] = fp16.hsub(a, b)
        z[2, i] = cuda.fp16.hmul(a, b)
        z[3, i] = cuda.fp16.hdiv(a, b)
        z[4, i] = cuda.fp16.hfma(a, b, c)
        z[5, i] = cuda.fp16.hneg(a)
        z[6, i] = cuda.fp16.habs(a)
        z[7, i] = cuda.fp16.hmax(a, b)
        z[8, i] = cuda.fp16.hmin(a, b)
        z[9, i] = cuda.fp16.hmul(a, 2)
        t[0, i] = cuda.fp16.heq(a, b)
        t[1, i] = cuda.fp16.hne(a, b)
        t[2, i] = cuda.fp16.hlt(a, b)
        t[3, i] = cuda.fp16.hle(a, b)
        t[4, i] = cuda.fp16.hgt(a, b)
        t[5, i] = cuda.fp16.hge(a, b)

    x, y, w = every(), np.roll(every(seed=4), 7), every(seed=12)
    y[:512] = x[:512]
    # In the middle of two, but for the last bit of the third.
    x[600:602], y[600:602], w[600:602] = 48, 683 / 32, [2.0**-24, -(2.0**-24)]
    z, t = na.zeros((10, 4096), np.float16).sync(), na.zeros((6, 4096), np.bool_).sync()
    functions[16, 256](z, t, x, y, w).sync()
    wide = np.float64  # which holds such a sum, or all of it that counts
    with np.errstate(all="ignore"):
        fused = (x.astype(wide) * y.astype(wide) + w.astype(wide)).astype(np.float16)
        want = [x + y, x - y, x * y, x / y, fused, -x, abs(x), np.fmax(x, y), np.fmin(x, y),
                x * np.float16(2)]  # fmt: skip
    assert fused[600:602].tolist() == [1025, 1024]
    zeros = (x == 0) & (y == 0)  # NumPy gives either
    for k, (got, right) in enumerate(zip(host(z), want, strict=True)):
        same(got[~zeros], right[~zeros]) if k in (7, 8) else same(got, right)
    ordered = ~(np.isnan(x) | np.isnan(y))
    names = ("eq", "ne", "lt", "le", "gt", "ge")
    want = [getattr(operator, n)(x, y) & ordered for n in names]
    np.testing.assert_array_equal(host(t), want)


@pytest.mark.full
def test_functions_of_fp16_that_a_gpu_approximates(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def functions(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        z[0, i] = cuda.fp16.hsin(x[i])
        z[1, i] = cuda.fp16.hcos(x[i])
        z[2, i] = cuda.fp16.hexp(x[i])
        z[3, i] = cuda.fp16.hexp2(x[i])
        z[4, i] = cuda.fp16.hexp10(x[i])
        z[5, i] = cuda.fp16.hlog(x[i])
        z[6, i] = cuda.fp16.hlog2(x[i])
        z[7, i] = cuda.fp16.hlog10(x[i])
        z[8, i] = cuda.fp16.hsqrt(x[i])
        z[9, i] = cuda.fp16.hrsqrt(x[i])
        z[10, i] = cuda.fp16.hrcp(x[i])
        z[11, i] = cuda.fp16.hceil(x[i])
        z[12, i] = cuda.fp16.hfloor(x[i])
        z[13, i] = cuda.fp16.htrunc(x[i])
        z[14, i] = cuda.fp16.hrint(x[i])
        z[15, i] = cuda.fp16.htanh(x[i])

    x = np.random.default_rng(13).uniform(0.125, 4.5, 256).astype(np.float16)
    x[:4] = [0.5, 1.5, 2.5, 1]
    z = na.zeros((16, 256), np.float16).sync()
    functions[1, 256](z, x).sync()
    d = x.astype(np.float64)
    want = [np.sin(d), np.cos(d), np.exp(d), np.exp2(d), 10**d, np.log(d), np.log2(d), np.log10(d),
            np.sqrt(d), 1 / np.sqrt(d), 1 / d, np.ceil(d), np.floor(d), np.trunc(d), np.rint(d),
            np.tanh(d)]  # fmt: skip
    exact = (8, 11, 12, 13, 14)
    for k, (got, right) in enumerate(zip(host(z), want, strict=True)):
        bound = (
            0 if k in exact else 2 * np.spacing(np.abs(right).astype(np.float16)) + 1e-3 * (k < 8)
        )
        assert (np.abs(got - right.astype(np.float16)) <= bound).all(), k


def test_math_of_float16_stays_float16(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def functions(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        third = np.float16(1) / np.float16(3)
        z[0, i] = math.sqrt(x[i]) * third
        z[1, i] = math.floor(x[i]) * third
        z[2, i] = math.ceil(x[i]) * third
        z[3, i] = math.trunc(x[i]) * third
        z[4, i] = math.fabs(-x[i]) * third
        z[5, i] = math.atan(x[i])

    x = np.random.default_rng(14).uniform(0.125, 9, 64).astype(np.float16)
    z = na.zeros((6, 64), np.float64).sync()
    functions[1, 64](z, x).sync()
    third = np.float16(1) / np.float16(3)
    for got, f in zip(host(z), (np.sqrt, np.floor, np.ceil, np.trunc, np.fabs), strict=False):
        np.testing.assert_array_equal(got, (f(x) * third).astype(np.float64))
    np.testing.assert_allclose(host(z)[5], np.arctan(x.astype(np.float64)), rtol=1e-6)


MODES = ["rn", "rz", "rd", "ru"]


@na.launcher
@cuda.jit
def converted(z: na.KernelOutput, n: na.KernelOutput, f: na.KernelInput, x: na.KernelInput):
    i = cuda.grid(1)
    z[0, i] = fp16.__float2half_rn(f[i])
    z[1, i] = fp16.__float2half_rz(f[i])
    z[2, i] = fp16.__float2half_rd(f[i])
    z[3, i] = fp16.__float2half_ru(f[i])
    n[0, i] = fp16.__half2int_rn(x[i])
    n[1, i] = fp16.__half2int_rz(x[i])
    n[2, i] = fp16.__half2int_rd(x[i])
    n[3, i] = fp16.__half2int_ru(x[i])


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_roundings_of_fp16(device: na.Device, mode: str) -> None:
    rng = np.random.default_rng(15)
    f = (rng.standard_normal(512) * 2.0 ** rng.integers(-26, 17, 512)).astype(np.float32)
    f[:4] = [0.0, 1e-9, -1e-9, 65519]
    x = (rng.standard_normal(512) * 30).astype(np.float16)
    z, n = na.zeros((4, 512), np.float16).sync(), na.zeros((4, 512), np.int32).sync()
    converted[2, 256](z, n, f, x).sync()
    with np.errstate(over="ignore"):
        near = f.astype(np.float16)
        below = np.where(near > f, np.nextafter(near, np.float16(-math.inf)), near)
        above = np.where(near < f, np.nextafter(near, np.float16(math.inf)), near)
    want = {"rn": near, "rd": below, "ru": above, "rz": np.where(f < 0, above, below)}[mode]
    np.testing.assert_array_equal(host(z)[MODES.index(mode)], want)
    whole = {"rn": np.rint, "rd": np.floor, "ru": np.ceil, "rz": np.trunc}[mode](x)
    np.testing.assert_array_equal(host(n)[MODES.index(mode)], whole.astype(np.int32))


@na.launcher
@cuda.jit
def beside_nan(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput, w: na.KernelInput):
    i = cuda.grid(1)
    z[0, i] = fp16.__hmax_nan(x[i], y[i])
    z[1, i] = fp16.__hmin_nan(x[i], y[i])
    z[2, i] = fp16.__hmul_sat(x[i], y[i])
    z[3, i] = fp16.__hfma_relu(x[i], y[i], w[i])


@pytest.mark.full
def test_functions_of_fp16_with_nan_and_ends(device: na.Device) -> None:
    x, y, w = every(), np.roll(every(seed=4), 7), every(seed=12)
    y[:512] = x[:512]
    z = na.zeros((4, 4096), np.float16).sync()
    beside_nan[16, 256](z, x, y, w).sync()
    with np.errstate(all="ignore"):
        fused = (x.astype(np.float64) * y + w).astype(np.float16)
        want = [np.maximum(x, y), np.minimum(x, y), np.nan_to_num(np.clip(x * y, 0, 1)),
                np.where(fused < 0, np.float16(0), fused)]  # fmt: skip
    for got, right in zip(host(z), want, strict=True):
        np.testing.assert_array_equal(got, right)


@na.launcher
@cuda.jit
def of_wide_integers(z: na.KernelOutput, n: na.KernelOutput, u: na.KernelInput):
    i = cuda.grid(1)
    z[0, i] = bf16.uint64_to_bfloat16_rz(u[i])
    z[1, i] = bf16.uint64_to_bfloat16_ru(u[i])
    n[i] = bf16.bfloat16_to_uint64_rz(z[0, i])


@pytest.mark.full
def test_wide_integers_are_rounded_to_one_side(device: na.Device) -> None:
    u = np.random.default_rng(16).integers(2**62, 2**64 - 2**57, 64, np.uint64)
    u[:3] = [2**63, 2**63 + 1, 2**64 - 2**57 - 1]
    z, n = na.zeros((2, 64), np.dtype(ml_dtypes.bfloat16)).sync(), na.zeros(64, np.uint64).sync()
    of_wide_integers[1, 64](z, n, u).sync()
    below, above = ([int(v) for v in row.astype(np.float64)] for row in host(z))
    for low, number, high, back in zip(below, u.tolist(), above, host(n).tolist(), strict=True):
        step = 1 << number.bit_length() - 8
        assert low == back == number // step * step
        assert high == -(-number // step) * step
