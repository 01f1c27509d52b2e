"""Atomics: what they leave, what they give back, on global and on shared arrays."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from numba import cuda, uint32

import numbasync as na
from tests.backend_cpu.values import wrapped
from tests.common import host, put

INTEGERS = [np.int32, np.uint32, np.int64, np.uint64]
NUMBERS = [*INTEGERS, np.float32, np.float64]
UNSIGNED = [np.uint32, np.uint64]
EXTREMES = ["max", "min", "nanmax", "nanmin"]


OPERATIONS = {
    "add": lambda old, v: old + v,
    "sub": lambda old, v: old - v,
    "and_": lambda old, v: old & v,
    "or_": lambda old, v: old | v,
    "xor": lambda old, v: old ^ v,
    "exch": lambda old, v: v,
    "max": max,
    "min": min,
    "nanmax": max,
    "nanmin": min,
    "inc": lambda old, v: 0 if old >= v else old + 1,
    "dec": lambda old, v: v if old == 0 or old > v else old - 1,
}


@na.launcher
@cuda.jit
def numbers(z: na.KernelOutput, old: na.KernelOutput, v: na.KernelInput, which):
    i = cuda.grid(1)
    if which == 0:
        old[i] = cuda.atomic.add(z, i, v[i])
    elif which == 1:
        old[i] = cuda.atomic.sub(z, i, v[i])
    elif which == 2:
        old[i] = cuda.atomic.max(z, i, v[i])
    elif which == 3:
        old[i] = cuda.atomic.min(z, i, v[i])
    elif which == 4:
        old[i] = cuda.atomic.nanmax(z, i, v[i])
    elif which == 5:
        old[i] = cuda.atomic.nanmin(z, i, v[i])


@na.launcher
@cuda.jit
def integers(z: na.KernelOutput, old: na.KernelOutput, v: na.KernelInput, which):
    i = cuda.grid(1)
    if which == 0:
        old[i] = cuda.atomic.and_(z, i, v[i])
    elif which == 1:
        old[i] = cuda.atomic.or_(z, i, v[i])
    elif which == 2:
        old[i] = cuda.atomic.xor(z, i, v[i])
    elif which == 3:
        old[i] = cuda.atomic.exch(z, i, v[i])


@na.launcher
@cuda.jit
def counters(z: na.KernelOutput, old: na.KernelOutput, v: na.KernelInput, which):
    i = cuda.grid(1)
    if which == 0:
        old[i] = cuda.atomic.inc(z, i, v[i])
    elif which == 1:
        old[i] = cuda.atomic.dec(z, i, v[i])


# What each kernel does, by `which`, and the types that CUDA has it for.
KERNELS = [
    (numbers, ["add", "sub", "max", "min", "nanmax", "nanmin"], NUMBERS),
    (integers, ["and_", "or_", "xor", "exch"], INTEGERS),
    (counters, ["inc", "dec"], UNSIGNED),
]
CASES = [(names[which], kernel, which, dtype) for kernel, names, dtypes in KERNELS
         for which in range(len(names)) for dtype in dtypes]  # fmt: skip


def name_of(value: Any) -> str | None:
    return "" if isinstance(value, na.Launcher) else getattr(value, "__name__", None)


def operands(dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of values that lie at the ends of a type, around zero and between."""
    if np.dtype(dtype).kind == "f":
        some = np.array([-1e30, -2.5, 0, 0.1, 1, 1e30], dtype)
    else:
        ends = np.iinfo(dtype)
        some = np.array([ends.min, ends.min + 1, 1, 5, 6, 100, ends.max - 1, ends.max], dtype)
    old, new = np.meshgrid(some, some)
    return old.ravel(), new.ravel()


@pytest.mark.parametrize(("name", "kernel", "which", "dtype"), CASES, ids=name_of)
def test_results_and_old_values(
    device: na.Device, name: str, kernel: na.Launcher, which: int, dtype: Any
) -> None:
    start, v = operands(dtype)
    z, old = put(start), na.zeros(start.size, dtype).sync()
    kernel[1, start.size](z, old, v, which).sync()
    rule = OPERATIONS[name]
    if np.dtype(dtype).kind == "f":
        with np.errstate(all="ignore"):
            want = [rule(a, b) for a, b in zip(start, v, strict=True)]
    else:
        pairs = zip(start.tolist(), v.tolist(), strict=True)
        want = [wrapped(rule(a, b), dtype) for a, b in pairs]
    np.testing.assert_array_equal(host(z), np.array(want, dtype))
    np.testing.assert_array_equal(host(old), start)


# Each operation with each type is in `test_results_and_old_values`. Arrays that are shared are of
# each type in one of two tests.
@pytest.mark.parametrize("dtype", [np.int32, np.uint64, np.float64])
def test_all_threads_add_to_one_element(device: na.Device, dtype: Any) -> None:
    @na.launcher
    @cuda.jit
    def count(z: na.KernelOutput, old: na.KernelOutput):
        own = cuda.shared.array(2, dtype)
        t = cuda.threadIdx.x
        if t < 2:
            own[t] = 0
        cuda.syncthreads()
        old[cuda.blockIdx.x, t] = cuda.atomic.add(own, 1, 1)
        cuda.atomic.sub(own, 0, t)
        cuda.syncthreads()
        if t < 2:
            cuda.atomic.add(z, t, own[t])

    z, old = put(np.array([5000, 0], dtype)), na.zeros((3, 50), dtype).sync()
    count[3, 50](z, old).sync()
    assert host(z).tolist() == [5000 - 3 * 1225, 150]
    # Everyone is given another one of the values between.
    np.testing.assert_array_equal(np.sort(host(old), axis=1), [range(50)] * 3)


SHARED = [np.uint32, np.int64, np.float32]


@functools.cache
def extreme_of(dtype: Any) -> na.Launcher:
    """The kernel, whose shared memory has elements of a type."""

    @na.launcher
    @cuda.jit
    def extreme(z: na.KernelOutput, x: na.KernelInput, which):
        own = cuda.shared.array(1, dtype)
        i, t = cuda.grid(1), cuda.threadIdx.x
        if t == 0:
            own[0] = x[i]
        cuda.syncthreads()
        if which == 0:
            cuda.atomic.max(own, 0, x[i])
        elif which == 1:
            cuda.atomic.min(own, 0, x[i])
        elif which == 2:
            cuda.atomic.nanmax(own, 0, x[i])
        else:
            cuda.atomic.nanmin(own, 0, x[i])
        cuda.syncthreads()
        at = cuda.blockIdx.x % 2, 1
        if t == 0:
            if which == 0:
                cuda.atomic.max(z, at, own[0])
            elif which == 1:
                cuda.atomic.min(z, at, own[0])
            elif which == 2:
                cuda.atomic.nanmax(z, at, own[0])
            else:
                cuda.atomic.nanmin(z, at, own[0])

    return extreme


@pytest.mark.parametrize("dtype", SHARED)
@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_of_all_threads(device: na.Device, name: str, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    x = (rng.integers(0, 2**31, 160) - (0 if np.dtype(dtype).kind == "u" else 2**30)).astype(dtype)
    start = np.full((2, 3), x[0])
    z = put(start)
    extreme_of(dtype)[4, 40](z, x, EXTREMES.index(name)).sync()
    pick = np.max if "max" in name else np.min
    rows = x.reshape(4, 40)
    start[:, 1] = [pick([pick(rows[b::2]), x[0]]) for b in range(2)]
    np.testing.assert_array_equal(host(z), start)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_and_nan(device: na.Device, name: str, dtype: Any) -> None:
    """A nan stays with max and min and is replaced by the others; one that comes is passed over."""
    nan = np.nan
    start, v = np.array([nan, 3, nan, nan, -np.inf], dtype), np.array([3, nan, nan, -1, nan], dtype)
    z, old = put(start), na.zeros(5, dtype).sync()
    numbers[1, 5](z, old, v, 2 + EXTREMES.index(name)).sync()
    replaced = [3, 3, nan, -1, -np.inf]
    kept = [nan, 3, nan, nan, -np.inf]
    np.testing.assert_array_equal(host(z), replaced if name.startswith("nan") else kept)
    np.testing.assert_array_equal(host(old), start)


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_counters_that_wrap(device: na.Device, dtype: Any) -> None:
    @na.launcher
    @cuda.jit
    def turn(z: na.KernelOutput, seen: na.KernelOutput):
        at = cuda.atomic.inc(z, 0, 6)
        cuda.atomic.add(seen, (0, at), 1)
        at = cuda.atomic.dec(z, 1, 6)
        cuda.atomic.add(seen, (1, at), 1)

    z, seen = na.zeros(2, dtype).sync(), na.zeros((2, 7), np.int32).sync()
    turn[3, 35](z, seen).sync()
    assert host(z).tolist() == [0, 0]  # 105 threads: 15 rounds of 7
    assert (host(seen) == 15).all()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_compare_and_swap(device: na.Device, dtype: Any) -> None:
    @na.launcher
    @cuda.jit
    def swap(z: na.KernelOutput, old: na.KernelOutput, expected: na.KernelInput):
        i = cuda.grid(1)
        old[i] = cuda.atomic.cas(z, (i % 2, i // 2), expected[i], i + 100)

    start = np.array([[0, 1, 2], [3, 4, np.iinfo(dtype).max]], dtype)
    expected = np.array([0, 9, 1, 4, 7, np.iinfo(dtype).max], dtype)
    z, old = put(start), na.zeros(6, dtype).sync()
    swap[1, 6](z, old, expected).sync()
    assert host(old).tolist() == [0, 3, 1, 4, 2, np.iinfo(dtype).max]
    assert host(z).tolist() == [[100, 102, 2], [3, 103, 105]]


@pytest.mark.parametrize("dtype", [np.int32, np.uint64])
def test_compare_and_swap_of_all_threads(device: na.Device, dtype: Any) -> None:
    @na.launcher
    @cuda.jit
    def first(z: na.KernelOutput, won: na.KernelOutput):
        own = cuda.shared.array(1, dtype)
        if cuda.threadIdx.x == 0:
            own[0] = 7
        cuda.syncthreads()
        if cuda.atomic.compare_and_swap(own, 7, 20 + cuda.threadIdx.x) == 7:
            won[cuda.blockIdx.x] = 20 + cuda.threadIdx.x
        cuda.atomic.compare_and_swap(z, 1, cuda.blockIdx.x + 5)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0 and own[0] == won[cuda.blockIdx.x]:
            won[cuda.blockIdx.x] += 1000

    z, won = na.ones(1, dtype).sync(), na.zeros(3, dtype).sync()
    first[3, 40](z, won).sync()
    assert host(z)[0] in (5, 6, 7)
    assert ((host(won) >= 1020) & (host(won) < 1060)).all()


def test_a_lock_of_one_thread_a_block(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def append(z: na.KernelOutput, lock: na.KernelOutput):
        if cuda.threadIdx.x == 0:
            while cuda.atomic.cas(lock, 0, 0, 1) != 0:
                pass
            cuda.threadfence()
            n = cuda.atomic.add(z, 0, 0)
            cuda.atomic.exch(z, 0, 2 * n + 1)
            cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)

    z, lock = na.zeros(1, np.int64).sync(), na.zeros(1, np.int32).sync()
    append[10, 32](z, lock).sync()
    assert host(z).tolist() == [2**10 - 1]
    assert host(lock).tolist() == [0]


def test_indices_of_several_axes(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def index(z: na.KernelOutput, cube: na.KernelOutput):
        own = cuda.shared.array((2, 3), uint32)
        i, j = cuda.threadIdx.x, cuda.threadIdx.y
        own[i, j] = 0
        cuda.syncthreads()
        cuda.atomic.add(own, (i, j), 1 + i)
        cuda.atomic.add(own, (1 - i, 2 - j), 10)
        cuda.atomic.add(z, (i, -1), j)
        cuda.atomic.max(cube, (i, j, cuda.blockIdx.x), i + j)
        cuda.atomic.add(cube[i, j], 3, 7)
        cuda.syncthreads()
        cuda.atomic.add(z[i], j, own[i, j])

    z, cube = na.zeros((2, 4), np.int32).sync(), na.zeros((2, 3, 4)).sync()
    index[3, (2, 3)](z, cube).sync()
    assert host(z).tolist() == [[33, 33, 33, 9], [36, 36, 36, 9]]
    i, j, k = np.indices((2, 3, 4))
    np.testing.assert_array_equal(host(cube), np.where(k < 3, i + j, 21))


@pytest.mark.parametrize("dtype", [np.int32, np.uint64, np.float64])
def test_operands_are_converted_first(device: na.Device, dtype: Any) -> None:
    @na.launcher
    @cuda.jit
    def convert(z: na.KernelOutput, small: na.KernelInput, x: na.KernelInput):
        cuda.atomic.add(z, 0, small[0])
        cuda.atomic.add(z, 1, x[0])
        cuda.atomic.max(z, 2, x[1])
        cuda.atomic.add(z, -1, True)
        z[4] = cuda.atomic.add(z, 4, 5) * 2 + 1

    z = put(np.array([1, 2, 3, 4, 5, 6], dtype))
    convert[1, 1](z, np.array([200], np.uint8), np.array([2.75, 9.5], np.float64)).sync()
    whole = np.dtype(dtype).kind != "f"
    assert host(z).tolist() == [201, 4 if whole else 4.75, 9 if whole else 9.5, 4, 11, 7]


def test_views_and_loops(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def scatter(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        every = z[::2]
        for k in range(3):
            if (i + k) % 2:
                continue
            cuda.atomic.add(every, x[i] + k, i)

    x = np.random.default_rng(2).integers(0, 6, 70)
    z = na.zeros(16, np.int64).sync()
    scatter[2, 35](z, x).sync()
    want = np.zeros(16, np.int64)
    for i, at in enumerate(x):
        for k in range(3):
            want[2 * (at + k)] += 0 if (i + k) % 2 else i
    np.testing.assert_array_equal(host(z), want)
