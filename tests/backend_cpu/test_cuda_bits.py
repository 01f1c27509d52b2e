"""Functions of bits: how many are set, which is the first, the reverse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from tests.common import host

INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]


def test_bits_that_are_set_and_leading_zeros(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def count(
        z: na.KernelOutput, i8: na.KernelInput, u8: na.KernelInput, i16: na.KernelInput,
        u16: na.KernelInput, i32: na.KernelInput, u32: na.KernelInput, i64: na.KernelInput,
        u64: na.KernelInput,
    ):  # fmt: skip
        i = cuda.grid(1)
        z[0, i, 0] = cuda.popc(i8[i])
        z[0, i, 1] = cuda.clz(i8[i])
        z[1, i, 0] = cuda.popc(u8[i])
        z[1, i, 1] = cuda.clz(u8[i])
        z[2, i, 0] = cuda.popc(i16[i])
        z[2, i, 1] = cuda.clz(i16[i])
        z[3, i, 0] = cuda.popc(u16[i])
        z[3, i, 1] = cuda.clz(u16[i])
        z[4, i, 0] = cuda.popc(i32[i])
        z[4, i, 1] = cuda.clz(i32[i])
        z[5, i, 0] = cuda.popc(u32[i])
        z[5, i, 1] = cuda.clz(u32[i])
        z[6, i, 0] = cuda.popc(i64[i])
        z[6, i, 1] = cuda.clz(i64[i])
        z[7, i, 0] = cuda.popc(u64[i])
        z[7, i, 1] = cuda.clz(u64[i])

    arrays = []
    for dtype in INTEGERS:
        ends = np.iinfo(dtype)
        some = [0, 1, 5, 100, ends.max, ends.max - 8, ends.min, ends.max // 3]
        arrays.append(np.array(some, dtype))
    z = na.zeros((8, 8, 2), np.int64).sync()
    count[1, 8](z, *arrays).sync()
    for got, x in zip(host(z), arrays, strict=True):
        width = 8 * x.itemsize
        bits = [format(int(v) & (1 << width) - 1, f"0{width}b") for v in x]
        want = [[b.count("1"), len((b + "1").split("1")[0])] for b in bits]
        assert got.tolist() == want, x.dtype


def test_the_first_bit(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def first(
        z: na.KernelOutput, i32: na.KernelInput, u32: na.KernelInput, i64: na.KernelInput,
        u64: na.KernelInput,
    ):  # fmt: skip
        i = cuda.grid(1)
        z[0, i] = cuda.ffs(i32[i])
        z[1, i] = cuda.ffs(u32[i])
        z[2, i] = cuda.ffs(i64[i])
        z[3, i] = cuda.ffs(u64[i])

    arrays = []
    for dtype in (np.int32, np.uint32, np.int64, np.uint64):
        ends = np.iinfo(dtype)
        arrays.append(np.array([0, 1, 12, 96, ends.max, ends.min, ends.max - 15], dtype))
    z = na.full((4, 7), -1, np.int64).sync()
    first[1, 7](z, *arrays).sync()
    for got, x in zip(host(z), arrays, strict=True):
        last = 0 if x.dtype.kind == "u" else 8 * x.itemsize
        assert got.tolist() == [0, 1, 3, 6, 1, last, 5], x.dtype


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_bits_in_reverse(device: na.Device, dtype: Any) -> None:
    @na.launcher
    @cuda.jit
    def reverse(z: na.KernelOutput, wide: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        z[i] = cuda.brev(x[i])
        wide[i] = cuda.brev(x[i])

    x = np.random.default_rng(1).integers(0, np.iinfo(dtype).max, 40, dtype)
    x[:3] = 0, 1, 6
    z, wide = na.zeros(40, dtype).sync(), na.zeros(40, np.float64).sync()
    reverse[1, 40](z, wide, x).sync()
    width = 8 * x.itemsize
    want = np.array([int(f"{int(v):0{width}b}"[::-1], 2) for v in x], dtype)
    np.testing.assert_array_equal(host(z), want)
    np.testing.assert_array_equal(host(wide), want.astype(np.float64))


def test_bit_functions_of_thread_indices_and_literals(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def bits(z: na.KernelOutput):
        t = cuda.threadIdx.x
        z[t, 0] = cuda.clz(t)  # 32 bits
        z[t, 1] = cuda.clz(t + 1)  # 64: a sum of int32 is an int64
        z[t, 2] = cuda.popc(t * 3) + cuda.popc(255)
        z[t, 3] = cuda.ffs(cuda.grid(1))
        z[t, 4] = cuda.clz(np.uint8(t + 1))

    z = na.zeros((9, 5), np.int64).sync()
    bits[1, 9](z).sync()
    want = [
        [32 - t.bit_length(), 64 - (t + 1).bit_length(), (3 * t).bit_count() + 8,
         (t & -t).bit_length(), 8 - (t + 1).bit_length()]
        for t in range(9)
    ]  # fmt: skip
    assert host(z).tolist() == want


def test_bits_are_counted_by_the_number_itself(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def count(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput):
        i = cuda.grid(1)
        z[i] = x[i].bit_count() * 100 + (y[i] >> 1).bit_count()

    x = np.array([0, 1, 255, 256, 2**32 - 1, 5], np.uint32)
    y = np.array([2**63, 0, 1, 6, 7, 2**40 - 1], np.uint64)
    z = na.zeros(6, np.int64).sync()
    count[1, 6](z, x, y).sync()
    want = [int(a).bit_count() * 100 + (int(b) >> 1).bit_count() for a, b in zip(x, y, strict=True)]
    assert host(z).tolist() == want
