"""Functions that are defined in kernels and device functions, and parameters with a star."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, float64
from numba.cuda import extending

import numbasync as na
from numbasync.errors import KernelCompileError, OutOfBoundsError
from tests.common import host

api: Any = extending


def is_compiled(kernel: na.Launcher, device: na.Device) -> None:
    if device.kind == "cpu" and kernel.cpu_engine().name != "compiled":
        raise AssertionError(kernel.cpu_engine().why)


@cuda.jit(device=True)
def applied(function, *rest):
    return function(*rest)


@cuda.jit(device=True)
def doubled(x):
    return 2 * x


@cuda.jit(device=True)
def both(first, second, x):
    return second(first(x))


def test_an_inner_function(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, x: na.KernelInput, n):
        def clipped(v, low=-1.0, high=1.0):
            if v < low:
                return low
            return high if v > high else doubled(v)

        i = cuda.grid(1)
        if i < n:
            z[i] = clipped(x[i]) + clipped(x[i], -1.0, 2.5) * 10 + clipped(x[i], -3.0, 0.5) * 100

    x = np.linspace(-4, 4, 33)
    z = na.zeros(33).sync()
    put[2, 32](z, x, 33).sync()

    def clipped(low: float, high: float) -> np.ndarray:
        return np.where(x < low, low, np.where(x > high, high, 2 * x))

    want = clipped(-1, 1) + clipped(-1, 2.5) * 10 + clipped(-3, 0.5) * 100
    np.testing.assert_allclose(host(z), want)
    is_compiled(put, device)


def test_it_sees_the_variables_around_it(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput):
        i = cuda.grid(1)
        total = 0
        step = 1

        def add(count):
            nonlocal total
            v = count * step
            total = total + v
            return total

        first = add(i)
        step = 10
        v = 7
        z[i, 0] = add(1) * 1000 + first
        z[i, 1] = total * 10 + v

    z = na.zeros((4, 2)).sync()
    put[1, 4](z).sync()
    assert host(z).tolist() == [[(i + 10) * 1000 + i, (i + 10) * 10 + 7] for i in range(4)]
    is_compiled(put, device)


def test_inner_functions_are_passed_on(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput):
        i = cuda.grid(1)
        k = 3

        def scaled(v):
            return v * k

        z[i, 0] = applied(scaled, 5)
        z[i, 1] = applied(lambda a, b: a - b * k, 100, i)
        z[i, 2] = both(scaled, doubled, 7)

    z = na.zeros((8, 3)).sync()
    put[1, 8](z).sync()
    assert host(z).tolist() == [[15, 100 - 3 * i, 2 * 21] for i in range(8)]
    is_compiled(put, device)


def test_a_variable_is_read_after_its_changing_call(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput):
        total = cuda.grid(1)

        def more(by):
            nonlocal total
            total = total * 10 + by
            return by

        z[cuda.grid(1)] = total + more(1)

    z = na.zeros(4).sync()
    put[1, 4](z).sync()
    assert host(z).tolist() == [i * 10 + 1 + 1 for i in range(4)]
    is_compiled(put, device)


def test_a_function_using_its_threads_variables_stays_put(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput):
        i = cuda.grid(1)

        def scaled(v):
            return v + i

        z[i] = applied(scaled, 5)

    with pytest.raises(KernelCompileError):
        put[1, 8](na.zeros(8)).sync()


def test_what_is_left_out_is_not_done(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)

        def at(k):
            return x[k] > 0

        if i < x.size and at(i):
            z[i] += 1
        if i >= x.size or not at(i):
            z[i] += 10
        z[i] += 100 if i >= x.size else x[i]
        z[i] = z[i] + (at(i) if i < x.size else 1000)

    x = np.array([1.0, -1.0, 2.0])
    z = na.zeros(5).sync()
    put[1, 5](z, x).sync()
    assert host(z).tolist() == [3, 9, 4, 1110, 1110]
    is_compiled(put, device)


def test_an_index_in_one_is_checked(device: na.Device) -> None:
    if device.kind == "cuda":
        pytest.skip("a GPU reads what lies there")

    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, x: na.KernelInput):
        def at(k):
            return x[k + 1]

        z[cuda.grid(1)] = at(cuda.grid(1))

    z = na.zeros(4).sync()
    with pytest.raises(OutOfBoundsError, match=r"thread \(3, 0, 0\): .* index 4 .* of x,"):
        put[1, 4](z, np.zeros(4)).sync()


def test_threads_meet_in_one(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, x: na.KernelInput):
        t = cuda.threadIdx.x
        own = cuda.shared.array(64, float64)

        def turned(v):
            own[t] = v
            cuda.syncthreads()
            found = own[63 - t]
            cuda.syncthreads()
            return found

        z[t] = turned(x[t]) + turned(2 * x[t]) * 100

    x = np.arange(64.0)
    z = na.zeros(64).sync()
    put[1, 64](z, x).sync()
    np.testing.assert_array_equal(host(z), x[::-1] * 201)
    is_compiled(put, device)


def twice(function, *values):  # type: ignore[no-untyped-def]
    raise NotImplementedError


@api.overload(twice)
def _twice(function, *values):  # type: ignore[no-untyped-def]
    if len(values) == 1:
        return lambda function, *values: function(function(*values))
    return lambda function, *values: function(*values)


def test_overloads_are_given_functions(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput):
        i = cuda.grid(1)
        k = 3

        def scaled(*given):
            found = 0
            if len(given) == 1:
                found = given[0]
            elif len(given) == 2:
                found = given[0] * given[1]
            return found * k

        z[i] = twice(scaled, i) + 1000 * twice(scaled, i, 2)

    z = na.zeros(8).sync()
    put[1, 8](z).sync()
    assert host(z).tolist() == [9 * i + 6000 * i for i in range(8)]
    is_compiled(put, device)


def test_a_starred_parameter_is_not_walked(device: na.Device) -> None:
    @cuda.jit(device=True)
    def summed(first, *rest):
        total = first
        for r in rest:
            total += r
        return total

    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput):
        z[0] = summed(1)

    z = na.zeros(1).sync()
    with pytest.raises(KernelCompileError, match="put cannot be compiled.*\n.*z\\[0\\] = summed"):
        put[1, 1](z).sync()


def test_a_function_that_is_passed_to_itself(device: na.Device) -> None:
    """numba-cuda refuses it for a GPU; the CPU device compiles it, as its documents say."""

    @cuda.jit(device=True)
    def again(function, n):
        return n if n < 1 else function(again(function, n - 1))

    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput):
        z[0] = again(doubled, 3)

    z = na.zeros(1).sync()
    if device.kind == "cpu":
        put[1, 1](z).sync()
        assert host(z).tolist() == [0]
        return
    with pytest.raises(KernelCompileError, match="put cannot be compiled.*\n.*z\\[0\\] = again"):
        put[1, 1](z).sync()
