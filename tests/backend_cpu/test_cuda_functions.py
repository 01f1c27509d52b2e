"""Device functions, names from outside a kernel, and tuples."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

import numbasync as na
from tests.common import host

overload: Any = importlib.import_module("numba.cuda.extending").overload

SCALE = 3
OFFSET = np.float32(0.25)
TABLE = np.array([[2, 3, 5], [7, 11, 13]], np.int16)
LIMITS = (4, 2.5, True)


class Point(NamedTuple):
    x: Any
    y: Any


# --- device functions ---


@cuda.jit(device=True)
def first_factor(n):
    if n < 2:
        return -1
    for d in range(2, n):
        if d * d > n:
            break
        if n % d == 0:
            return d
    return n


@cuda.jit(device=True)
def extremes(row):
    low, high = row[0], row[0]
    for v in row:
        if v < low:
            low = v
        elif v > high:
            high = v
    return low, high


@cuda.jit(device=True)
def spread(row, scale):
    low, high = extremes(row)
    return (high - low) * scale, first_factor(high - low)


@cuda.jit(device=True)
def bump(row, amount):
    row[0] += amount


def test_device_functions_with_early_returns_tuples_and_stores(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def analyse(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        if i < x.shape[0]:
            wide, factor = spread(x[i], 2)
            z[i, 0] = wide
            z[i, 1] = factor
            bump(z[i], first_factor(i))
            bump(z[i, 1:], 10 * i)

    def factor(n: int) -> int:
        return -1 if n < 2 else next(d for d in range(2, n + 1) if n % d == 0)

    x = np.random.default_rng(2).integers(-40, 40, (50, 6))
    z = na.zeros((50, 2), np.int64).sync()
    analyse[2, 32](z, x).sync()
    want = [[2 * int(np.ptp(row)) + factor(i), factor(int(np.ptp(row))) + 10 * i]
            for i, row in enumerate(x)]  # fmt: skip
    assert host(z).tolist() == want


def test_device_functions_of_several_types(device: na.Device) -> None:
    @cuda.jit(device=True)
    def twice(v):
        return v + v

    @cuda.jit(device=True)
    def both(a, b):
        return twice(a) * twice(b)

    @na.launcher
    @cuda.jit
    def mixed(z: na.KernelOutput, small: na.KernelInput, x: na.KernelInput):
        z[0] = twice(small[0])
        z[1] = twice(x[0])
        z[2] = both(small[0], x[0])
        z[3] = both(2.5, small[1])
        z[4] = twice(twice(1 + 2j)).imag

    z = na.zeros(5, np.float64).sync()
    small, x = np.array([200, 3], np.uint8), np.array([0.1], np.float32)
    mixed[1, 1](z, small, x).sync()
    wide = np.float32(2) * x[0]
    # A uint64 product with a float32 is a float64.
    assert host(z).tolist() == [400, float(wide), 400 * float(wide), 30, 8]


def test_a_device_function_that_calls_itself(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def fibonacci(z: na.KernelOutput):
        z[cuda.grid(1)] = fib(cuda.grid(1))

    z = na.zeros(12, np.int64).sync()
    fibonacci[1, 12](z).sync()
    assert host(z).tolist() == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89]


@cuda.jit(device=True)
def fib(n):
    if n < 2:
        return n
    return fib(n - 1) + fib(n - 2)


# --- names and tuples ---


def test_globals_and_free_variables_are_constants(device: na.Device) -> None:
    weights = np.array([0.5, 2.0, 8.0])
    bias, count = 0.1, 3

    @na.launcher
    @cuda.jit
    def apply(z: na.KernelOutput):
        i = cuda.grid(1)
        total = bias
        for j in range(count):
            total += weights[j] * TABLE[i % 2, j] * SCALE
        z[i] = total + OFFSET + (LIMITS[0] if LIMITS[2] else LIMITS[1])

    z = na.zeros(4, np.float64).sync()
    apply[1, 4](z).sync()
    want = []
    for i in range(4):
        total = 0.1
        for j in range(3):
            total += float(weights[j]) * int(TABLE[i % 2, j]) * 3
        want.append(total + 0.25 + 4)
    assert host(z).tolist() == want


def test_tuples_are_made_indexed_compared_and_unpacked(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def tuples(z: na.KernelOutput, pair, nested):
        i = cuda.grid(1)
        a, b = pair
        (c, d), e = nested
        triple = (a, b + i, c)
        total = 0
        for v in triple:
            total += v
        z[i, 0] = total + len(triple)
        z[i, 1] = triple[i % 3]
        z[i, 2] = (i, a) < (1, b)
        z[i, 3] = d * e + triple[-1]
        a, b = b, a
        z[i, 4] = a * 10 + b
        z[i, 5] = (pair + (i,))[2]  # noqa: RUF005

    z = na.zeros((4, 6), np.float64).sync()
    tuples[1, 4](z, (3, 4), ((5, 0.5), 8)).sync()
    want = [[12 + i + 3, (3, 4 + i, 5)[i % 3], (i, 3) < (1, 4), 9, 43, i] for i in range(4)]
    assert host(z).tolist() == want


def test_named_tuples(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def move(z: na.KernelOutput, at):
        i = cuda.grid(1)
        step = Point(at.x + i, at.y * 2)
        x, y = step
        z[i, 0] = x + step[1]
        z[i, 1] = y

    z = na.zeros((3, 2), np.float64).sync()
    move[1, 3](z, Point(4, 0.25)).sync()
    assert host(z).tolist() == [[4.5 + i, 0.5] for i in range(3)]


# --- device functions in which threads meet ---


@cuda.jit(device=True)
def reversed_or_less(held, t, n):
    if n < 0:
        return -1
    held[t] = t
    cuda.syncthreads()
    if t == 3:
        return 100
    for k in range(5):
        for j in range(2):
            if k == t and j == 1:
                return held[k] + 1000
    return held[31 - t]


@cuda.jit(device=True)
def counts_up(z, t):
    cuda.syncthreads()
    if t > 5:
        return
    z[t] += 1


def test_returns_of_device_functions_in_which_threads_meet(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def twice(z: na.KernelOutput, n):
        held = cuda.shared.array(32, np.int32)
        t = cuda.threadIdx.x
        first = reversed_or_less(held, t, n)
        cuda.syncthreads()
        z[t] = first + 2 * reversed_or_less(held, 31 - t, n)
        counts_up(z, t)

    def one(t: int) -> int:
        return 100 if t == 3 else 1000 + t if t < 5 else 31 - t

    for n, want in ((1, [one(t) + 2 * one(31 - t) for t in range(32)]), (-1, [-3] * 32)):
        z = twice[1, 32](na.zeros(32, dtype=np.int32), n).sync()[0]
        assert host(z).tolist() == [w + (t < 6) for t, w in enumerate(want)]
    assert device.kind == "cuda" or twice.cpu_engine().name == "compiled"


def test_a_changed_parameter_is_its_threads_own(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def change(z: na.KernelOutput, n):
        i = cuda.grid(1)
        n = n + i
        if i % 2:
            n *= 10
        z[i] = n

    z = change[2, 4](na.zeros(8, dtype=np.int64), 5).sync()[0]
    assert host(z).tolist() == [(5 + i) * (10 if i % 2 else 1) for i in range(8)]


joined = cuda.jit(device=True)(
    lambda a, b: a * 10 + b
)  # fmt: skip


def test_a_lambda_is_a_device_function(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def join(z: na.KernelOutput):
        i = cuda.grid(1)
        z[i] = joined(i, 7)

    assert host(join[1, 4](na.zeros(4, dtype=np.int64)).sync()[0]).tolist() == [7, 17, 27, 37]
    assert device.kind == "cuda" or join.cpu_engine().name == "compiled"


def no_less(x, low):  # type: ignore[no-untyped-def]
    raise NotImplementedError("only in kernels")


@overload(no_less)
def _no_less(x, low):  # type: ignore[no-untyped-def]
    if isinstance(x, cuda.types.Float):
        return lambda x, low: x if x > low else low
    return lambda x, low: 2 * x


def test_overloads_of_the_program(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def chosen(z: na.KernelOutput, x: na.KernelInput, n: na.KernelInput):
        i = cuda.grid(1)
        z[i] = no_less(x[i], 1.5) + no_less(n[i], 3)

    x, n = np.linspace(0, 3, 32), np.arange(32)
    z = na.zeros(32, np.float64).sync()
    chosen[1, 32](z, x, n).sync()
    np.testing.assert_array_equal(z.to_host().sync(), np.maximum(x, 1.5) + 2 * n)
