"""Named tuples with arrays as arguments, and tuples beside None."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import KernelCompileError
from tests.common import host


@na.launcher
@cuda.jit
def add_pair(z: na.KernelOutput, pair, x):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] += pair[0] + pair[1][0]
        if x is not None:
            z[i] += x[i]


def test_none_beside_what_numba_launches(device: na.Device) -> None:
    z, x = na.zeros(8).sync(), na.ones(8).sync()
    for _ in range(2):
        add_pair(z, (1.0, (2, 0)), None).sync()
    add_pair(z, (1.0, (2, 0)), x).sync()
    assert (host(z) == 10).all()


class Curve(NamedTuple):  # with names that arrays' handles have, too
    array: Any
    low: float
    parts: Any


@na.launcher
@cuda.jit
def along(z: na.KernelOutput, curve):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] += curve.low * curve.array[i] + curve.parts[0].array[i]


@na.launcher
@cuda.jit
def bend(curve, x):
    i = cuda.grid(1)
    if i < x.shape[0]:
        curve.array[i] = x[i] + curve.low


@na.launcher
@cuda.jit
def add_numbers(z: na.KernelOutput, curve):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = curve.array + curve.low + curve.parts[0]


def test_named_tuples_of_arrays(device: na.Device) -> None:
    assert [p.is_output for p in (*along.parameters, *bend.parameters)] == [1, 0, 1, 0]
    z, x, y = na.zeros(8).sync(), na.ones(8).sync(), np.full(8, 3, np.float32)
    curve = Curve(x, 2.0, (Curve(y, 0.0, 0), 5))
    for _ in range(2):  # the second call is one of a form that is known
        assert along(z, curve).sync().curve is curve
    graph = along(z, curve).graph()
    graph.launch().sync()
    assert (host(z) == 15).all()
    with pytest.raises(KernelCompileError, match=r"along|curve"):  # another type, with those keys
        along(z, (x, 2.0, (Curve(y, 0.0, 0), 5))).sync()
    bend[1, 8](Curve(z, 1.0, 0), x).sync()
    assert (host(z) == 2).all()
    by_number = na.zeros(8).sync()
    add_numbers(by_number, Curve(3.0, 1.0, (2, 1))).sync()
    assert (host(by_number) == 6).all()
