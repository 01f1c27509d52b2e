"""Integers: what arithmetic gives, what stores and casts do."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, float64, int8, int32, int64, uint8, uint32
from numba import uint64 as u64

import numbasync as na
from tests.backend_cpu.values import wrapped
from tests.common import host, mostly_full

# Every type is that of an operand; pairs are of equal and of different sizes, signed and not.
INTEGERS = [np.int16, np.uint16, np.uint32, np.int64]
OTHERS = [np.int8, np.uint8, np.int32, np.uint64]


@na.launcher
@cuda.jit
def arithmetic(
    s: na.KernelOutput, f: na.KernelOutput, a: na.KernelInput, i8: na.KernelInput,
    u8: na.KernelInput, i32: na.KernelInput, u64: na.KernelInput,
):  # fmt: skip
    """Stored as floats they show their sign."""
    i = cuda.grid(1)
    x, p, q, r, t = a[i], i8[i], u8[i], i32[i], u64[i]
    s[0, i] = f[0, i] = x + p
    s[1, i] = f[1, i] = x - p
    s[2, i] = f[2, i] = x * p
    s[3, i] = f[3, i] = x & p
    s[4, i] = f[4, i] = x | p
    s[5, i] = f[5, i] = x ^ p
    s[6, i] = f[6, i] = x + q
    s[7, i] = f[7, i] = x - q
    s[8, i] = f[8, i] = x * q
    s[9, i] = f[9, i] = x & q
    s[10, i] = f[10, i] = x | q
    s[11, i] = f[11, i] = x ^ q
    s[12, i] = f[12, i] = x + r
    s[13, i] = f[13, i] = x - r
    s[14, i] = f[14, i] = x * r
    s[15, i] = f[15, i] = x & r
    s[16, i] = f[16, i] = x | r
    s[17, i] = f[17, i] = x ^ r
    s[18, i] = f[18, i] = x + t
    s[19, i] = f[19, i] = x - t
    s[20, i] = f[20, i] = x * t
    s[21, i] = f[21, i] = x & t
    s[22, i] = f[22, i] = x | t
    s[23, i] = f[23, i] = x ^ t
    s[24, i] = f[24, i] = ~x
    s[25, i] = f[25, i] = -x


def matches(rows: Any, kind: Any, want: list[int]) -> bool:
    """Whether both rows hold the integers, as their type has them."""
    for whole, as_float, value in zip(*rows, want, strict=True):
        kept = wrapped(value, kind)
        if np.dtype(kind).kind == "i" and kept != value:
            continue  # a signed overflow, of which Numba promises nothing
        if whole != wrapped(kept, np.int64) or as_float != float(kept):
            return False
    return True


@pytest.mark.parametrize("dtype", mostly_full(INTEGERS, np.int16, np.uint32))
def test_integers_are_computed_with_64_bits(device: na.Device, dtype: Any) -> None:
    """Of two unsigned ones the result is a uint64, else an int64. One alone keeps its width."""
    one = np.iinfo(dtype)
    first = np.array([one.min, 0, 1, 100, one.max], dtype)
    a, columns = np.tile(first, 4), []
    for other in OTHERS:
        two = np.iinfo(other)
        columns.append(np.repeat(np.array([two.min + 1, 0, 77, two.max], other), 5))
    s, f = na.zeros((26, 20), np.int64).sync(), na.zeros((26, 20), np.float64).sync()
    arithmetic[1, 20](s, f, a, *columns).sync()
    found = list(zip(host(s).tolist(), host(f).tolist(), strict=True))
    for other, b, at in zip(OTHERS, columns, range(0, 24, 6), strict=True):
        pair = np.uint64 if one.min == np.iinfo(other).min == 0 else np.int64
        rows = [[wrapped(v, pair) for v in row] for row in (a.tolist(), b.tolist())]
        for k, act in enumerate(("add", "sub", "mul", "and_", "or_", "xor")):
            want = list(map(getattr(operator, act), *rows))
            assert matches(found[at + k], pair, want), (act, other)
    assert matches(found[24], dtype, [~v for v in a.tolist()]), "invert"
    assert matches(found[25], dtype, [-v for v in a.tolist()]), "neg"


# Not int16: Numba's compiler may assume that it does not happen, and for that type it does.
@pytest.mark.parametrize("dtype", [np.int8, np.int32])
def test_the_least_integer_has_no_positive(device: na.Device, dtype: Any) -> None:
    """Negation and `abs` keep the operand's width."""

    @na.launcher
    @cuda.jit
    def negate(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        z[i, 0] = -x[i]
        z[i, 1] = abs(x[i])
        z[i, 2] = 0 - x[i]

    least = np.iinfo(dtype).min
    z = na.zeros((2, 3), np.int64).sync()
    negate[1, 2](z, np.array([least, least + 1], dtype)).sync()
    assert host(z).tolist() == [[least, least, -least], [-least - 1] * 3]


def test_unsigned_numbers_wrap(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def wrap(z: na.KernelOutput, x: na.KernelInput, small: na.KernelInput):
        z[0] = x[0] + x[0]
        z[1] = x[1] - x[2]
        z[2] = x[0] * x[0]
        z[3] = (x[1] - x[2]) >> u64(4)
        z[4] = (x[1] - x[2]) // u64(3)
        z[5] = x[0] << u64(8)
        z[6] = small[0] - small[1]
        z[7] = uint32(small[0] - small[1])
        z[8] = uint8(small[0]) * u64(2)
        z[9] = (small[0] + small[2]) // 2

    x, small = np.array([2**64 - 2, 0, 1], np.uint64), np.array([3, 5, 2**32 - 1], np.uint32)
    z = na.zeros(10, np.uint64).sync()
    wrap[1, 1](z, x, small).sync()
    top = 2**64 - 1
    want = [top - 3, top, 4, top >> 4, top // 3, top + 1 - 512, top - 1, 2**32 - 2, 6, 2**31 + 1]
    assert host(z).tolist() == want


def test_a_hash_with_wrap_around(device: na.Device) -> None:
    @cuda.jit(device=True)
    def fnv(data, n):
        value = u64(0xCBF29CE484222325)
        for k in range(n):
            value = (value ^ u64(data[k])) * u64(0x100000001B3)
        return value

    @cuda.jit(device=True)
    def xorshift(x):
        x ^= uint32(x << uint32(13))
        x = uint32(x)
        x ^= x >> uint32(17)
        x ^= uint32(x << uint32(5))
        return uint32(x)

    @na.launcher
    @cuda.jit
    def hashes(z: na.KernelOutput, data: na.KernelInput):
        i = cuda.grid(1)
        z[i, 0] = fnv(data, i)
        x = uint32(i + 1)
        for _ in range(20):
            x = xorshift(x)
        z[i, 1] = x

    data = np.random.default_rng(1).integers(0, 256, 40).astype(np.uint8)
    z = na.zeros((40, 2), np.uint64).sync()
    hashes[2, 20](z, data).sync()
    want = []
    for i in range(40):
        value = 0xCBF29CE484222325
        for byte in data[:i].tolist():
            value = (value ^ byte) * 0x100000001B3 % 2**64
        x = i + 1
        for _ in range(20):
            x ^= x << 13 & 0xFFFFFFFF
            x ^= x >> 17
            x ^= x << 5 & 0xFFFFFFFF
        want.append([value, x])
    assert host(z).tolist() == want


def test_stores_and_casts_take_the_low_bits(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def cast(z: na.KernelOutput, b: na.KernelOutput, h: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        b[i] = x[i]
        h[i] = x[i] * 3
        z[i, 0] = int8(x[i])
        z[i, 1] = uint8(x[i])
        z[i, 2] = np.int16(x[i])
        z[i, 3] = int32(x[i])
        z[i, 4] = uint32(x[i])
        z[i, 5] = np.uint16(int8(x[i]))
        z[i, 6] = int32(float64(int32(x[i])) / 8)
        z[i, 7] = int64(float32(int8(x[i])))

    x = np.random.default_rng(2).integers(-(2**60), 2**60, 50)
    x[:5] = 127, 128, 255, 256, -129
    z, b, h = (na.zeros(s, d).sync() for s, d in (((50, 8), np.int64), (50, np.int8),
                                                  (50, np.uint16)))  # fmt: skip
    cast[2, 25](z, b, h, x).sync()
    np.testing.assert_array_equal(host(b), x.astype(np.int8))
    np.testing.assert_array_equal(host(h), (x * 3).astype(np.uint16))
    casts = [x.astype(t) for t in (np.int8, np.uint8, np.int16, np.int32, np.uint32)]
    eighth = np.trunc(x.astype(np.int32) / 8)
    want = [*casts, x.astype(np.int8).astype(np.uint16), eighth, casts[0]]
    np.testing.assert_array_equal(host(z).T, np.stack([np.asarray(w, np.int64) for w in want]))


def test_integers_of_both_signs_are_compared(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def compare(z: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
        i = cuda.grid(1)
        z[i] = (a[i] < b[i]) + 2 * (a[i] == b[i]) + 4 * (a[i] >= b[i])

    a = np.array([0, 1, 5, 255, 7], np.uint8)
    b = np.array([-1, 1, 9, -1, 7], np.int32)
    z = na.zeros(5, np.int64).sync()
    compare[1, 5](z, a, b).sync()
    assert host(z).tolist() == [4, 6, 1, 4, 6]
    compare[1, 5](z, a, a[::-1].copy()).sync()
    assert host(z).tolist() == [1, 1, 6, 4, 4]


def test_uint64_and_signed_integers_compare_as_floats(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def compare(z: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
        i = cuda.grid(1)
        z[i] = (a[i] < b[i]) + 2 * (a[i] == b[i]) + 4 * (a[i] >= b[i])

    a = np.array([0, 1, 2**53 + 1, 2**64 - 1, 7, 2**63], np.uint64)
    b = np.array([-1, 1, 2**53, -1, 2**62, 2**63 - 1], np.int64)
    z = na.zeros(6, np.int64).sync()
    compare[1, 6](z, a, b).sync()
    pairs = [(float(p), float(q)) for p, q in zip(a.tolist(), b.tolist(), strict=True)]
    assert host(z).tolist() == [(p < q) + 2 * (p == q) + 4 * (p >= q) for p, q in pairs]
