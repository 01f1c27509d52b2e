"""`na.Literal`: integers that a kernel is compiled for, one variant for each value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, float32

import numbasync as na
from numbasync import vectors
from numbasync.errors import DTypeError, KernelCompileError, LauncherError
from tests.common import host

pytestmark = pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")


def sums() -> na.Launcher:
    """A kernel that needs `n` when it is compiled: it sums the first `n` elements of each row, and
    adds the last one of them again.
    """

    @na.launcher
    @cuda.jit
    def sum_rows(z: na.KernelOutput, x: na.KernelInput, n: na.Literal):
        i = cuda.grid(1)
        if i < z.shape[0]:
            own = cuda.local.array(n, float32)
            for k in range(n):
                own[k] = x[i, k]
            total = vectors.load(x, (i, 0), n)[n - 1]
            for k in range(n):
                total += own[k]
            z[i] = total

    return sum_rows


def test_each_value_has_a_variant(device: na.Device) -> None:
    """Also of calls whose arguments are of types and shapes that were seen before."""
    sum_rows, before = sums(), na.compile_count()
    x = na.from_host(np.arange(20, dtype=np.float32).reshape(5, 4)).sync()
    for n in (4, 2, 4, 2, np.int32(2), 4):
        z = na.zeros(5).sync()
        sum_rows(z, x, n).sync()
        want = host(x)[:, :n].sum(1) + host(x)[:, n - 1]
        assert host(z).tolist() == want.tolist()
    assert na.compile_count() - before == 2
    fast_call = sum_rows.form((z, x, 4))
    assert fast_call is not None
    taken = fast_call.take((z, x, 4))
    assert taken is not None
    assert taken[1] == sum_rows.bind((z, x, 4)).fingerprint(device.backend)
    sum_rows.compile(na.meta(5), na.meta((5, 1)), 1).sync()
    assert na.compile_count() - before == 3


def test_literal_values_may_be_lazy_and_calls_recorded(device: na.Device) -> None:
    sum_rows = sums()
    x, z = na.ones((5, 4)).sync(), na.zeros(5).sync()
    assert sum_rows(z, x, na.value(2)).sync().n == 2
    assert host(z).tolist() == [3] * 5
    graph = sum_rows(z, x, 4).graph()
    graph.launch().sync()
    assert host(z).tolist() == [5] * 5
    graph.set_args(0, z, x, 1)
    graph.launch().sync()
    assert host(z).tolist() == [2] * 5


def test_literals_with_barriers_tiles_and_assigned_names(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def turn(z: na.KernelOutput, n: na.Literal):
        held = cuda.shared.array((n, 2), float32)
        t = cuda.threadIdx.x
        held[t, 0] = t
        cuda.syncthreads()
        z[t] = held[n - 1 - t, 0]

    @na.launcher
    @cuda.jit
    def tiled(z: na.Tile, n: na.Literal):
        own = cuda.local.array(n, float32)
        i = cuda.threadIdx.x
        for k in range(n):
            own[k] = k
        if i < z.shape[0]:
            z[i] = own[n - 1]

    @na.launcher
    @cuda.jit
    def counted(z: na.KernelOutput, n: na.Literal):
        while n > 3:
            n -= 1
        z[0] = n

    z = na.zeros(6).sync()
    turn[1, 6](z, 6).sync()
    assert host(z).tolist() == [5, 4, 3, 2, 1, 0]
    tiled(z.partition(4), 3).sync()
    assert host(z).tolist() == [2] * 6
    counted[1, 1](z, 5).sync()
    assert host(z)[0] == 3


@pytest.mark.parametrize("value", [2.5, True, None, np.float32(2), np.timedelta64(2, "s"), (2,)])
def test_what_is_no_integer_is_refused(device: na.Device, value: Any) -> None:
    z, x = na.zeros(5).sync(), na.ones((5, 4)).sync()
    with pytest.raises(LauncherError, match=r"sum_rows: n is a na.Literal, an integer"):
        sums()(z, x, value)
    with pytest.raises(LauncherError, match=r"n is a na.Literal"):
        sums()(z, x, x)


def test_values_that_do_not_fit_are_refused(device: na.Device) -> None:
    z, x = na.zeros(5).sync(), na.ones((5, 4)).sync()
    with pytest.raises(DTypeError, match="int64"):
        sums()(z, x, 2**63)
    with pytest.raises(KernelCompileError, match=r"n: Literal\[int\]\(3\).*\n.*vectors.load"):
        sums()(z, x, 3).sync()


def test_stores_to_a_literal_are_refused() -> None:
    with pytest.raises(LauncherError, match="stores to elements of n"):

        @na.launcher
        @cuda.jit
        def wrong(n: na.Literal):
            n[0] = 1  # type: ignore[index]


ROWS, SHAPE = 4, (4, 2)


def test_constants_of_modules_and_closures_are_literals(device: na.Device) -> None:
    """As shapes, counts and lengths of loops, on both devices."""
    width = 2

    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput):
        held = cuda.shared.array((ROWS, width), float32, alignment=16)
        other = cuda.shared.array(SHAPE, float32)
        own = cuda.local.array(ROWS, float32)
        for i in range(ROWS):
            own[i] = i
            vectors.store(held, (i, 0), (own[i], width))
            other[i, 1] = vectors.load(held, (i, 0), width)[1]
        for i in range(ROWS):
            z[i] = own[i] + other[i, 1]

    z = na.zeros(ROWS).sync()
    put[1, 1](z).sync()
    assert host(z).tolist() == [2, 3, 4, 5]
