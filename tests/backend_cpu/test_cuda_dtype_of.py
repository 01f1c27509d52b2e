"""Arrays that a kernel makes, of the type of its arguments' elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.np.numpy_support import from_dtype

import numbasync as na
from tests.common import full

N = 4
PAIR = np.dtype([("a", np.float32), ("b", np.int64)], align=True)


@cuda.jit(device=True)
def last_of(k, values):
    own = cuda.local.array(N, values.dtype)
    for j in range(N):
        own[j] = values[j]
    return own[k]


@cuda.jit(device=True)
def last(values):
    return last_of(N - 1, values)


def kernel_of(kind: Any) -> na.Launcher:
    """A kernel that knows the type of elements from its arguments, and once from outside."""

    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.threadIdx.x
        row = x[1:]
        dtype = row.dtype
        own = cuda.local.array(N, dtype=x.dtype)
        shared = cuda.shared.array((2, N), row.dtype)
        again = cuda.local.array(N, own.dtype)
        known = cuda.local.array(N, kind)
        plain = cuda.local.array(N, dtype)
        own[i] = x[i]
        shared[1, i] = own[i]
        cuda.syncthreads()
        again[i] = shared[1, (i + 1) % N]
        known[i] = again[i]
        plain[i] = known[i]
        z[0, i] = plain[i]
        if i == 0:
            z[1, 0] = last(x)
            z[1, 1] = last(row)

    return put


@pytest.mark.parametrize(
    "dtype", [full(np.float32), np.float16, full(np.complex64), full(np.bool_), PAIR],
    ids=lambda d: str(np.dtype(d).name),
)  # fmt: skip
def test_arrays_of_the_type_of_an_argument(device: na.Device, dtype: Any) -> None:
    x: Any = np.zeros(N + 1, dtype)
    if dtype is PAIR:
        x["a"], x["b"] = range(5), range(0, 50, 10)
    else:
        x[:] = [1, 0, 3, 0, 5]
    z = np.zeros((2, N), dtype)
    put = kernel_of(from_dtype(np.dtype(dtype)))
    out = na.from_host(z).sync()
    put[1, N](out, na.from_host(x).sync()).sync()
    got = out.to_host().sync()
    np.testing.assert_array_equal(got[0], np.roll(x[:N], -1))
    np.testing.assert_array_equal(got[1, :2], x[N - 1 :])
    assert device.kind != "cpu" or put.cpu_engine() == ("compiled", "")


def test_the_type_of_a_dtype(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, n):
        own = cuda.local.array(N, z.dtype.type)
        own[0] = n[1]
        z[0] = own[0]
        z[1] = z.dtype.type(n[0])

    z = na.zeros(2, dtype=np.int8).sync()
    put[1, 1](z, (2.5, 7)).sync()
    assert z.to_host().sync().tolist() == [7, 2]
    assert device.kind != "cpu" or put.cpu_engine() == ("compiled", "")
