"""Shared layouts on the CPU device: checked accesses, refusals, kernels that run as Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import testing
from numbasync.backend.cpu.interpreter.kernel import Interpreted
from numbasync.backend.cpu.runtime.workers import Engine
from numbasync.errors import (
    DataRaceError,
    KernelCompileError,
    OutOfBoundsError,
    UninitialisedReadError,
)

pytestmark = pytest.mark.usefixtures("cpu")
DEVICE = na.devices("cpu")[0]
LAYOUT = na.shared_layout(a=(np.float32, (4, 5)), b=(np.int64, 3), h=(np.float16, 2))


@na.launcher
@cuda.jit
def beyond(z: na.KernelOutput, i):
    LAYOUT.a[i, 4] = 1
    z[0] = LAYOUT.a[i, 4]


@na.launcher
@cuda.jit
def unwritten(z: na.KernelOutput):
    LAYOUT.a[0, 0] = 1
    z[0] = LAYOUT.b[1]


@na.launcher
@cuda.jit
def races(z: na.KernelOutput):
    t = cuda.threadIdx.x
    LAYOUT.b[0] = t
    z[t] = LAYOUT.b[0]


def test_an_outside_index_within_the_layout_is_found() -> None:
    z = na.zeros(1).sync()
    beyond[1, 1](z, 3).sync()
    with pytest.raises(OutOfBoundsError, match=r"LAYOUT\.a"):
        beyond[1, 1](z, 4).sync()


def test_checked_kernels_watch_the_arrays() -> None:
    with testing.checked(DEVICE):
        with pytest.raises(UninitialisedReadError, match=r"LAYOUT\.b"):
            unwritten[1, 1](na.zeros(1)).sync()
        with pytest.raises(DataRaceError, match=r"LAYOUT\.b"):
            races[1, 4](na.zeros(4)).sync()
        beyond[1, 1](na.zeros(1), 3).sync()


def test_memory_that_nobody_has_written_is_no_number() -> None:
    z = na.zeros(1).sync()
    unwritten[1, 1](z).sync()
    assert z.to_host().sync()[0] == -1


@cuda.jit(device=True)
def corner(layout):
    return layout.a[0, 0]


def no_such_array(z):
    z[0] = LAYOUT.d[0]


def as_a_value(z):
    LAYOUT.a[0, 0] = 7
    z[0] = corner(LAYOUT)


def test_a_layout_is_passed_to_a_function(device: na.Device) -> None:
    z = na.zeros(1).sync()
    na.launcher(cuda.jit(as_a_value))[1, 1](z).sync()
    assert z.to_host().sync()[0] == 7


def test_other_attributes_are_refused() -> None:
    z = na.zeros(1).sync()
    with pytest.raises(
        KernelCompileError, match=r"Unknown attribute 'd' of type SharedLayout\(a: fl"
    ):
        na.launcher(no_such_array)[1, 1](z).sync()


def test_the_type_of_an_array_is_known(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def sums(z: na.KernelOutput):
        h = LAYOUT.h
        own = cuda.local.array(2, h.dtype)
        wide = cuda.local.array(1, LAYOUT.b.dtype)
        h[0], own[0], wide[0] = 2049, 2049, 2**40 + 1
        z[0] = own[0] + h[0]
        z[1] = wide[0]

    z = na.zeros(2, np.float64).sync()
    sums[1, 1](z).sync()
    assert z.to_host().sync().tolist() == [4096, 2**40 + 1]


def test_kernels_that_run_as_python_have_them() -> None:
    def kernel(out: Any) -> None:
        t = cuda.threadIdx.x
        LAYOUT.a[t, 1] = t + 0.5
        LAYOUT.b[0] = 7
        cuda.syncthreads()
        out[t] = LAYOUT.a[3 - t, 1] + LAYOUT.b[0] + LAYOUT.a.shape[1]

    class Argument:
        array = np.zeros(4)

    interpreted = Interpreted(cuda.jit(kernel), 1024)
    interpreted.run((2, 1, 1), (4, 1, 1), LAYOUT.nbytes, [Argument], Engine("test", 1))
    assert Argument.array.tolist() == [15.5, 14.5, 13.5, 12.5]
