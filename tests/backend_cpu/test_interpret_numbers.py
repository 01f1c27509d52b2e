"""Numbers in an interpreted kernel are those that compiled code gives."""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, int8, int32, int64, njit, uint8, uint64

from numbasync.errors import KernelError, UnsupportedKernelError
from tests.backend_cpu.test_interpret import run

INTEGERS = [np.uint8, np.uint64, np.int64]
PAIRS = [(np.uint8, np.uint8), (np.uint64, np.int32), (np.int64, np.uint64), (np.int32, np.int64)]
SEED = 0xCBF29CE484222325


def same(kernel: Callable[..., None], *inputs: Any, size: int = 1) -> list[float]:
    """Run it interpreted and compiled; what is written must be the same."""
    wide, narrow = np.zeros(size), np.zeros(size, np.int64)
    run(kernel, wide, narrow, *inputs)
    want_wide, want_narrow = np.zeros(size), np.zeros(size, np.int64)
    njit(kernel, error_model="numpy")(want_wide, want_narrow, *inputs)
    np.testing.assert_array_equal(narrow, want_narrow)
    np.testing.assert_array_equal(wide, want_wide)
    return wide.tolist()


def arithmetic(wide, narrow, x, y):
    a, b = x[0], y[0]
    narrow[0] = wide[0] = a + b
    narrow[1] = wide[1] = a - b
    narrow[2] = wide[2] = a * b
    narrow[3] = wide[3] = a // b
    narrow[4] = wide[4] = a % b
    wide[5] = a / b
    narrow[6] = wide[6] = a & b
    narrow[7] = wide[7] = a | b
    narrow[8] = wide[8] = a ^ b
    narrow[9] = wide[9] = ~a
    narrow[10] = wide[10] = -a
    narrow[11] = a - b > 5
    narrow[12] = a < b
    narrow[13] = a == b
    narrow[14] = a >= b
    narrow[15] = wide[15] = (a - b) // 3
    narrow[16] = wide[16] = a - 7
    narrow[17] = wide[17] = 7 - a
    narrow[18] = wide[18] = (a * b) >> 1
    narrow[19] = wide[19] = a * a * a * b
    narrow[20] = wide[20] = (a - b) * 2
    narrow[21] = wide[21] = a + 3 * b - a * 2


def shifts(wide, narrow, x, y):
    a, b = x[0], y[0]
    narrow[0] = wide[0] = a << b
    narrow[1] = wide[1] = a >> b
    narrow[2] = wide[2] = a << 60
    narrow[3] = wide[3] = (a << 60) >> 3
    narrow[4] = wide[4] = 3 << b
    narrow[5] = wide[5] = (a - b) >> 2


def literals(wide, narrow, x):
    a = x[0]
    narrow[0] = wide[0] = a * 6364136223846793005 + 1442695040888963407
    narrow[1] = wide[1] = a ^ SEED
    narrow[2] = wide[2] = a ^ 0x7FFFFFFFFFFFFFFF
    narrow[3] = a < SEED
    narrow[4] = wide[4] = uint64(a) * 3 + uint64(5)
    narrow[5] = wide[5] = np.uint64(a) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(60)
    narrow[6] = wide[6] = int64(a) * 2**62


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_integer_arithmetic(left: Any, right: Any) -> None:
    a, b = np.iinfo(left), np.iinfo(right)
    for p, q in [(3, 5), (200, 7), (a.max, b.max), (a.max, 2), (a.min + 1, 3), (5, b.max - 1)]:
        x, y = np.array([p]).astype(left), np.array([q]).astype(right)
        same(arithmetic, x, y, size=22)


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_shifts(left: Any, right: Any) -> None:
    top = np.iinfo(left)
    for p, q in [(3, 5), (top.max, 3), (top.min, 2), (top.max, 63)]:
        same(shifts, np.array([p]).astype(left), np.array([q]).astype(right), size=6)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_large_literals_and_casts(dtype: Any) -> None:
    for p in (0, 3, np.iinfo(dtype).max):
        same(literals, np.array([p]).astype(dtype), size=7)


def test_comparisons_of_uint64_with_signed_numbers_are_those_of_floats() -> None:
    def kernel(wide, narrow, x, y):
        narrow[0] = x[0] == y[0]
        narrow[1] = x[0] < y[0]
        narrow[2] = x[0] == 9007199254740993
        narrow[3] = x[0] >= 9007199254740993

    x, y = np.array([2**53 + 1], np.uint64), np.array([2**53], np.int64)
    assert same(kernel, x, y, size=4) is not None


def test_what_grows_in_a_loop_wraps_at_64_bits() -> None:
    def kernel(wide, narrow, x, seed):
        h = 5381
        for i in range(x.shape[0]):
            h = h * 33 + x[i]
        narrow[0] = wide[0] = h
        narrow[1] = h >> 33
        a, b = 0, 1
        for _ in range(100):
            a, b = b, a + b
        wide[2] = a
        s = seed
        for _ in range(5):
            s = s * 6364136223846793005 + 1442695040888963407
        narrow[3] = wide[3] = s >> 33
        p = x[0] + 0
        for _ in range(7):
            p *= p
        wide[4] = p

    same(kernel, np.arange(60, 100, dtype=np.uint8), 42, size=6)


def test_growth_through_a_device_function_and_a_call() -> None:
    @cuda.jit(device=True)
    def square(v):
        return v * v

    def kernel(out, x):
        out[0] = square(square(square(x[0])))

    out = np.zeros(1)
    run(kernel, out, np.array([77777], np.int32))
    want = 77777**8 % 2**64
    assert out[0] == np.float64(want - 2**64 if want >= 2**63 else want)


def test_booleans_are_numbers() -> None:
    def kernel(wide, narrow, x, flags):
        narrow[0] = (x[0] > 0) + (x[1] > 0)
        narrow[1] = ~(x[0] > 0)
        narrow[2] = ~flags[0]
        narrow[3] = flags[0] + flags[0]
        m = x[0] > 0
        narrow[4] = m + m + (x[0] < 5)
        narrow[5] = -(x[0] > 0)
        narrow[6] = m * 3 - m
        narrow[7] = ~m & flags[0]
        narrow[8] = ~narrow[3]

    same(kernel, np.array([1.0, 2.0]), np.array([True]), size=9)
    same(kernel, np.array([1, 2], np.float32), np.array([False]), size=9)


def test_a_quotient_of_integers_is_a_float64() -> None:
    def kernel(wide, narrow, x, n):
        wide[0] = n[0] / n[1] * x[0]
        wide[1] = n[0] / n[2]
        wide[2] = 1 / 3 * x[0]

    same(kernel, np.array([0.1], np.float32), np.array([1, 3, 0], np.int32), size=3)


def test_float_of_a_float32_stays() -> None:
    def kernel(wide, narrow, x, n):
        wide[0] = float(x[0]) * x[0]
        wide[1] = float(n[0]) * x[0]

    same(kernel, np.array([0.1], np.float32), np.array([3], np.int32), size=2)


def test_tuples_of_floats_hold_float64() -> None:
    def kernel(wide, narrow, x, pair, nested):
        wide[0] = pair[0] * x[0]
        wide[1] = pair[1] * x[0]
        wide[2] = nested[0][1] * x[0]

    same(kernel, np.array([0.1], np.float32), (1.3, 2.7), ((1, 0.7), 2), size=3)


def test_nan_and_infinity_become_integers() -> None:
    def kernel(out, small, x):
        out[0] = x[0]
        out[1] = x[1]
        out[2] = -x[1]
        out[3] = int32(x[0])
        out[4] = int(x[0])
        out[5] = round(x[0])
        out[6] = int32(x[1])
        small[0] = x[0]
        small[1] = x[1]
        small[2] = -x[1]
        small[3] = 1e300

    out, small = np.ones(7, np.int64), np.ones(4, np.uint8)
    for dtype in (np.float32, np.float64):
        run(kernel, out, small, np.array([math.nan, math.inf], dtype))
        top = 2**63 - 1
        assert out.tolist() == [0, top, -top - 1, 0, 0, 0, 2**31 - 1]
        assert small.tolist() == [0, 255, 0, 255]


def test_floor_is_a_float_as_on_cuda() -> None:
    def kernel(out, x):
        out[0] = math.floor(x[0])
        out[1] = math.ceil(x[1])
        out[2] = int(math.floor(x[1]))  # noqa: RUF046

    out = np.zeros(3)
    run(kernel, out, np.array([math.nan, -1.5]))
    assert math.isnan(out[0]) and out[1:].tolist() == [-1, -2]


def test_bit_functions_know_the_width() -> None:
    def kernel(out, narrow, wide, small):
        out[0] = cuda.clz(narrow[0])
        out[1] = cuda.clz(wide[0])
        out[2] = cuda.popc(narrow[1])
        out[3] = cuda.popc(wide[1])
        out[4] = cuda.clz(np.int32(1))
        out[5] = cuda.clz(np.int64(1))
        out[6] = cuda.brev(np.uint32(1))
        out[7] = cuda.brev(narrow[0])
        out[8] = cuda.clz(small[0])
        out[9] = cuda.ffs(wide[0])

    out = np.zeros(10, np.int64)
    run(kernel, out, np.array([1, -1], np.int32), np.array([1, -1]), np.array([1], np.uint8))
    assert out.tolist() == [31, 63, 32, 64, 31, 63, 1 << 31, -(1 << 31), 31, 1]


def test_a_bit_function_of_an_unknown_width_is_refused() -> None:
    def kernel(out):
        out[0] = cuda.clz(cuda.threadIdx.x)

    with pytest.raises(UnsupportedKernelError, match=r"clz\(np.int32\(x\)\)"):
        run(kernel, np.zeros(1))


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64, np.int32, np.int64])
def test_atomics_cast_their_arguments_first(dtype: Any) -> None:
    def kernel(out):
        cuda.atomic.cas(out, 0, -1, 2**40 + 7)
        cuda.atomic.compare_and_swap(out[1:], 2**64 - 1, 3)
        cuda.atomic.max(out, 2, -1)
        cuda.atomic.add(out, 3, 1.9)

    out = np.array([-1, -1, 5, 1]).astype(dtype)
    run(kernel, out)
    want = np.array([2**40 + 7, 3, 5 if np.iinfo(dtype).min else -1, 2]).astype(dtype)
    assert out.tolist() == want.tolist()


def test_an_atomic_on_float32_adds_in_float32() -> None:
    def kernel(out, x):
        cuda.atomic.add(out, 0, x[0])

    out, x = np.array([0.1], np.float32), np.array([0.3])
    run(kernel, out, x)
    assert out[0] == np.float32(0.1) + np.float32(0.3)


def test_division_by_zero_behind_a_barrier_is_silent() -> None:
    def kernel(out, x):
        cuda.syncthreads()
        out[cuda.threadIdx.x] = x[0] / x[1]
        cuda.syncthreads()

    out = np.zeros(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            run(kernel, out, np.array([1.0, 0.0]), block=(4, 1, 1))
    assert out.tolist() == [math.inf] * 4


def test_shared_memory_has_a_limit() -> None:
    def fits(out):
        own = cuda.shared.array(12 * 1024 - 16, float32)  # beside 64 dynamic bytes
        out[0] = own.shape[0]

    def exceeds(out):
        own = cuda.shared.array(12 * 1024 - 15, float32)
        out[0] = own.shape[0]

    run(fits, np.zeros(1))
    with pytest.raises(KernelError, match="49156 bytes of shared memory.*49152"):
        run(exceeds, np.zeros(1))


def test_casts_keep_their_sign() -> None:
    def kernel(wide, narrow, x):
        narrow[0] = wide[0] = uint8(x[0]) - uint8(x[1])
        narrow[1] = wide[1] = int8(x[0]) - int8(x[1])
        narrow[2] = np.uint32(x[0]) - np.uint32(x[1]) > 5

    same(kernel, np.array([3.0, 5.0]), size=3)


def test_without_source_a_tilde_is_refused_and_the_rest_runs() -> None:
    spaces: dict[str, Any] = {"cuda": cuda}
    exec("def inverts(out):\n    out[0] = ~out[0]\n", spaces)
    exec("def plain(out, x):\n    out[0] = x[0] - x[1]\n", spaces)
    assert isinstance(spaces["plain"], types.FunctionType)
    with pytest.raises(UnsupportedKernelError, match="source"):
        run(spaces["inverts"], np.zeros(1, np.int64))
    out = np.zeros(1)
    run(spaces["plain"], out, np.array([3, 5], np.uint8))
    assert out[0] == 2.0**64
