"""Arrays of structures: in device memory, as arguments of kernels, and back."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import DTypeError

POINT = np.dtype([("x", np.float32), ("n", np.int64), ("flags", np.uint8, (3,))], align=True)
OTHER = np.dtype([("x", np.int32), ("n", np.float64), ("flags", np.uint8, (3,))], align=True)


@na.launcher
@cuda.jit
def step(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i].x = x[i].x * 2
        z[i]["n"] = x[i]["n"] + 1


def points(dtype: np.dtype, size: int = 5) -> np.ndarray:
    made = np.zeros(size, dtype)
    made["x"] = np.arange(size)
    made["n"] = 10
    made["flags"] = 7
    return made


def test_they_come_back_as_they_were() -> None:
    source = points(POINT)
    t = na.from_host(source).sync()
    assert t.dtype == POINT and t.shape == (5,)
    for copy in (t.to_host().sync(), t[1:3].to_host().sync(), na.dup(t).sync().to_host().sync()):
        assert copy.dtype == POINT
        np.testing.assert_array_equal(copy, source[1:3] if len(copy) == 2 else source)


@pytest.mark.parametrize("upload", [True, False])
def test_a_kernel_reads_and_writes_fields(upload: bool) -> None:
    for dtype in (POINT, OTHER, POINT):  # of one size: the fields make the variant
        source = points(dtype)
        x = na.from_host(source).sync() if upload else source
        z = step[1, 8](na.zeros(5, dtype=dtype), x).sync()[0].to_host().sync()
        np.testing.assert_array_equal(z["x"], 2 * source["x"])
        np.testing.assert_array_equal(z["n"], source["n"] + 1)
        np.testing.assert_array_equal(z["flags"], 0)


def test_what_needs_numbers_refuses_them() -> None:
    t = na.zeros(3, dtype=POINT).sync()
    for wrong in (
        lambda: na.ones(3, dtype=POINT),
        lambda: na.arange(3, dtype=POINT),
        lambda: na.convert(t, POINT),
        lambda: na.convert(t, np.float32).sync(),
        lambda: na.fill(t, 1),
        lambda: na.from_host(np.zeros(2, [("a", object)])),
        lambda: na.empty(3, dtype=[("a", ">i4")]),
    ):
        with pytest.raises(DTypeError):
            wrong()
