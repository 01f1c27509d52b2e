"""Values of the threads of a block and of a warp combined in kernels, against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.dtypes import of_name
from numbasync.errors import BarrierDivergenceError, CallerError, KernelCompileError
from numbasync.facts.positions import usage
from numbasync.launch.coarsening import NotPlainError, plain_kernel
from tests.common import full, host, put

WARP = 32
SHAPES = [1, 31, 32, 33, 100, (10, 7), (2, 3, 11), 1024]
DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128", "bfloat16",
]  # fmt: skip


@cuda.jit(device=True)
def place():
    row = cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z
    return cuda.threadIdx.x + cuda.blockDim.x * row


@cuda.jit(device=True)
def latest(a, b):
    """The last value that is not zero: only the right order gives it."""
    return b if b != 0 else a


@cuda.jit(device=True)
def further(a, b):
    return b if abs(b) > abs(a) else a


@cuda.jit(device=True)
def apply_both(f, g):
    """Of two functions ``x -> a x + b``, given as (a, b), the one that applies one after the other:
    they do not commute.
    """
    return f[0] * g[0], f[1] * g[0] + g[1]


@na.launcher
@cuda.jit
def of_block(
    total: na.KernelOutput, last: na.KernelOutput, run: na.KernelOutput, before: na.KernelOutput,
    x: na.KernelInput,
):  # fmt: skip
    i = place()
    total[i] = na.block.sum(x[i])
    last[i] = na.block.reduce(x[i], latest)
    run[i] = na.block.scan(x[i], latest)
    before[i] = na.block.scan(x[i], latest, exclusive=True, initial=x[0])


@na.launcher
@cuda.jit
def of_warp(
    total: na.KernelOutput, last: na.KernelOutput, run: na.KernelOutput, before: na.KernelOutput,
    x: na.KernelInput,
):  # fmt: skip
    i = place()
    total[i] = na.warp.sum(x[i])
    last[i] = na.warp.reduce(x[i], latest)
    run[i] = na.warp.scan(x[i], latest)
    before[i] = na.warp.scan(x[i], latest, exclusive=True, initial=x[0])


def values(n: int, dtype: Any) -> np.ndarray:
    """Numbers of which every sum is exact, in whatever order; a third of them is zero."""
    least = 0 if np.dtype(dtype).kind in "bu" else -1
    x = np.random.default_rng(n).integers(least, least + 3, n).astype(dtype)
    if x.dtype.kind in "iu":  # bits in every byte
        x = x * np.array(3, x.dtype) << np.array(8 * x.itemsize - 3, x.dtype)
    return x * (1 + 2j) if x.dtype.kind == "c" else x  # type: ignore[no-any-return]


def latest_of(x: np.ndarray) -> np.ndarray:
    """At each place, the last value up to it that is not zero; else the first."""
    return x[np.maximum.accumulate(np.where(x != 0, np.arange(len(x)), 0))]


def check(kernel: Any, shape: Any, dtype: Any, group: int) -> None:
    n = math.prod(shape) if isinstance(shape, tuple) else shape
    x = values(n, dtype)
    kind = np.dtype(np.int32) if x.dtype == np.bool_ else x.dtype
    outs = (na.zeros(n, kind), *(na.zeros(n, x.dtype) for _ in range(3)))
    result = kernel[1, shape](*outs, put(x)).sync()
    total, last, run, before = (host(t) for t in tuple(result)[:4])
    for begin in range(0, n, group):
        part = slice(begin, min(begin + group, n))
        ran = latest_of(x[part])
        assert (total[part] == x[part].sum(dtype=kind)).all()
        assert (last[part] == ran[-1]).all()
        assert (run[part] == ran).all()
        shifted = np.concatenate((x[:1], x[part][:-1]))
        assert (before[part] == latest_of(shifted)).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(device: na.Device, shape: Any) -> None:
    check(of_block, shape, "float32", 1024)
    check(of_warp, shape, "float32", WARP)


@pytest.mark.parametrize("dtype", [full(d) for d in DTYPES])
def test_dtypes(device: na.Device, dtype: str) -> None:
    kind = of_name("bfloat16") if dtype == "bfloat16" else dtype
    check(of_block, 70, kind, 1024)
    check(of_warp, 70, kind, WARP)


def in_order(x: np.ndarray) -> Any:
    """The sum as the lanes of warps, and then the warps, form it."""
    ends = []
    for first in range(0, len(x), WARP):
        lanes, step = list(x[first : first + WARP]), 1
        while step < len(lanes):
            for i in range(0, len(lanes) - step, 2 * step):
                lanes[i] += lanes[i + step]
            step *= 2
        ends.append(lanes[0])
    total = ends[0]
    for end in ends[1:]:
        total += end
    return total


@pytest.mark.full
@pytest.mark.parametrize("n", [20, 33, 500])
def test_the_bits_are_those_of_one_order(device: na.Device, n: int) -> None:
    @na.launcher
    @cuda.jit
    def add_up(total: na.KernelOutput, runs: na.KernelOutput, x: na.KernelInput):
        i = place()
        total[i] = na.block.sum(x[i])
        runs[i] = na.block.scan(x[i])

    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    result = add_up[1, n](na.zeros(n), na.zeros(n), put(x)).sync()
    assert (host(result.total) == in_order(x)).all()
    exact = x.astype(np.float64).cumsum()
    assert (abs(host(result.runs) - exact) <= 36 * 2.0**-24 * abs(x).cumsum()).all()


@pytest.mark.full
def test_tuples(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def compose(z: na.KernelOutput, y: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
        i = place()
        z[i], y[i] = na.block.scan((a[i], b[i]), apply_both)
        both = na.block.reduce((a[i], b[i]), apply_both)
        if i == z.shape[0] - 1 and (both[0] != z[i] or both[1] != y[i]):
            z[i] = 0

    a, b = np.random.default_rng(3).choice([-1, 1], 70), np.arange(70.0)
    result = compose[1, (7, 10)](na.zeros(70, np.int64), na.zeros(70, np.float64), a, b).sync()
    expected = [(int(a[0]), float(b[0]))]
    for f, g in zip(a[1:], b[1:], strict=True):
        first, second = expected[-1]
        expected.append((int(first * f), float(second * f + g)))
    assert list(zip(host(result.z).tolist(), host(result.y).tolist(), strict=True)) == expected


@pytest.mark.full
def test_calls_follow_one_another(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def add_up(z: na.KernelOutput):
        i = place()
        carry = 0
        for _ in range(5):
            carry = na.block.sum(carry + i) - na.block.scan(1) + na.block.reduce(i, further)
        z[i] = carry

    got = host(add_up[1, 100](na.zeros(100, np.int64)).sync().z)
    i = np.arange(100)
    carry = np.zeros(100, np.int64)
    for _ in range(5):
        carry = (carry + i).sum() - (i + 1) + 99
    assert (got == carry).all()


@pytest.mark.full
def test_sums_that_begin_with_a_number(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def run(z: na.KernelOutput, y: na.KernelOutput, x: na.KernelOutput):
        i = place()
        z[i] = na.block.scan(i > 2, exclusive=True)
        y[i] = na.block.scan(1, None, False, 5)
        x[i] = na.warp.scan(2, exclusive=True, initial=i * 0 + 3)

    n = 70
    result = run[1, n](*(na.zeros(n, np.int64) for _ in range(3))).sync()
    i = np.arange(n)
    assert (host(result.z) == np.maximum(i - 3, 0)).all()
    assert (host(result.y) == i + 6).all()
    assert (host(result.x) == i % WARP * 2 + 3).all()


def test_inputs_are_found_and_threads_stay() -> None:
    @na.launcher
    @cuda.jit
    def undeclared(z, x):
        i = cuda.grid(1)
        z[i] = na.block.sum(x[i]) + na.warp.reduce(x[i], max)

    assert [p.is_output for p in undeclared.parameters] == [True, False]
    with pytest.raises(NotPlainError, match="give one another values"):
        plain_kernel(undeclared.kernel)
    # The sum is of the threads along every axis.
    assert usage(undeclared.kernel.py_func).threads == {0, 1, 2}


def test_not_outside_of_kernels() -> None:
    for call in (na.block.sum, na.warp.sum, na.block.scan, na.warp.scan):
        with pytest.raises(CallerError, match="call it in a kernel"):
            call(3)
    for reduce in (na.block.reduce, na.warp.reduce):
        with pytest.raises(CallerError, match="call it in a kernel"):
            reduce(3, max)


@pytest.mark.full
def test_what_is_refused(device: na.Device) -> None:
    def refused(words: str, body: Any) -> None:
        @na.launcher
        @cuda.jit
        def kernel(z: na.KernelOutput):
            body(z)

        with pytest.raises(KernelCompileError, match=words):
            kernel[1, 32](na.zeros(32)).sync()

    @cuda.jit(device=True)
    def of_an_array(z):
        z[0] = na.block.sum(z)

    @cuda.jit(device=True)
    def by_a_name(z):
        z[0] = na.block.reduce(z[0], "sum")

    @cuda.jit(device=True)
    def without_a_start(z):
        z[0] = na.warp.scan(z[0], max, True)

    @cuda.jit(device=True)
    def perhaps_exclusive(z):
        z[0] = na.block.scan(z[0], None, z[0] > 1)

    @cuda.jit(device=True)
    def pair(a, b):
        return a, b

    @cuda.jit(device=True)
    def by_what_gives_another(z):
        z[0] = na.warp.reduce(z[0], pair)

    refused("write a number", of_an_array)
    refused("write a function of two values", by_a_name)
    refused("needs a first result", without_a_start)
    refused("write True or False there", perhaps_exclusive)
    refused("an operator that gives a", by_what_gives_another)


def test_some_threads_only(cpu: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def some(z: na.KernelOutput):
        if place() < 20:
            z[place()] = na.block.sum(1)

    for n in (31, 64):
        with pytest.raises(BarrierDivergenceError, match=f"20 of {n} threads wait at na.block.sum"):
            some[1, n](na.zeros(64)).sync()


@pytest.mark.full
def test_some_lanes_only(cpu: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def some(z: na.KernelOutput):
        if place() >= 20:
            return
        z[place()] = na.warp.scan(1, exclusive=True)

    for n, count in ((31, 31), (64, 32)):
        with pytest.raises(BarrierDivergenceError, match=f"20 of the warp's {count} threads"):
            some[1, n](na.zeros(64)).sync()


@pytest.mark.full
def test_no_races(device: na.Device) -> None:
    """The shared memory of the functions, under the race finder."""
    x = values(70, "float32")

    def expected(*args: Any) -> Any:
        last = latest_of(x)
        before = latest_of(np.concatenate((x[:1], x[:-1])))
        return np.full(70, x.sum()), np.full(70, last[-1]), last, before

    outs = [np.zeros(70, np.float32) for _ in range(4)]
    na.testing.check_kernel(of_block, (*outs, x), expected, grid=1, block=70)
