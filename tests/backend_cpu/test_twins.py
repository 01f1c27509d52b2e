"""Functions of other languages that have a twin for the CPU device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, int32

import numbasync as na
from numbasync.errors import LauncherError, UnsupportedKernelError

pytestmark = pytest.mark.usefixtures("cpu")
cube: Any = cuda.declare_device("cube", "float32(float32)")
block_sum: Any = cuda.declare_device("block_sum", "int32(int32)")


@na.cpu_twin(cube)
def cube_twin(x):
    return x * x * x


@na.cpu_twin(block_sum)
def block_sum_twin(x):
    total = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        total[0] = 0
    cuda.syncthreads()
    cuda.atomic.add(total, 0, x)
    cuda.syncthreads()
    return total[0]


@na.launcher
@cuda.jit
def add_cubes(z, x):
    i = cuda.grid(1)
    total = block_sum(cuda.threadIdx.x + cuda.blockIdx.x)
    if i < z.size:
        z[i] = cube(x[i]) + total


@pytest.mark.parametrize("engine", ["", "interpreted"], ids=["compiled", "as Python"])
def test_a_twin_is_called_in_its_place(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(11, dtype=np.float32)
    device = na.devices("cpu")[0]
    if engine:
        monkeypatch.setattr(device.backend, "_engine_name", engine)
    assert [p.is_output for p in add_cubes.parameters] == [True, False]
    z = add_cubes[2, 8](na.zeros(11), x).sync().z.to_host().sync()
    np.testing.assert_array_equal(z, x**3 + np.where(x < 8, 28, 36))


def test_the_latest_twin_is_meant() -> None:
    of = cuda.declare_device("of", "float64(float64, int32)")

    @na.launcher
    @cuda.jit
    def call(z):
        z[0] = of(2, 3)

    with pytest.raises(UnsupportedKernelError, match="a call of of"):
        call[1, 1](na.zeros(1)).sync()
    na.cpu_twin(of)(lambda x, n: x**2 * n)
    na.cpu_twin(of)(lambda x, n: x**3 * n)
    call_again = na.launcher(cuda.jit(call.py_func))
    assert call_again[1, 1](na.zeros(1)).sync().z.to_host().sync().tolist() == [24]


def test_what_is_no_twin_is_refused() -> None:
    with pytest.raises(LauncherError, match=r"is no declared function.*declare_device"):
        na.cpu_twin(cube_twin)
    with pytest.raises(LauncherError, match="has 2 parameters, and cube is declared with 1"):

        @na.cpu_twin(cube)
        def twin(x, y):
            return x * y

    with pytest.raises(LauncherError, match="without cuda.jit"):
        na.cpu_twin(cube)(cuda.jit(cube_twin))
