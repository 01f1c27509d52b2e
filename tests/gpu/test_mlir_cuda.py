"""Kernels of numba-cuda-mlir on a GPU, by its own compiler, beside those of numba-cuda."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import compilers
from numbasync.backend.cuda import kernels
from tests.common import host

pytestmark = pytest.mark.cuda
theirs: Any = pytest.importorskip("numba_cuda_mlir.cuda")


def _add(z, a, x):  # of any rank
    i = cuda.grid(1)
    if i < z.size:
        z[i] += a * x[i]


def _launcher(jit: Any, function: Any) -> na.Launcher:
    names = {**function.__globals__, "cuda": theirs if jit is theirs.jit else cuda}
    return na.launcher(jit(type(function)(function.__code__, names, function.__name__)))


@pytest.fixture(params=["numba-cuda-mlir", "numba-cuda"])
def add(request: pytest.FixtureRequest) -> na.Launcher:
    return _launcher(theirs.jit if "mlir" in request.param else cuda.jit, _add)


@pytest.fixture(autouse=True)
def _own_compilers() -> Iterator[None]:
    compilers.chosen.cache_clear()
    yield
    compilers.chosen.cache_clear()


def _passes(launcher: na.Launcher) -> set[str]:
    made: Any = launcher.planner.kernel._variants.values()  # type: ignore[attr-defined]
    return {k._compiled.passes.array for k in made if isinstance(k, kernels.CudaExecutable)}


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8"])
def test_numbers_of_every_type(add: na.Launcher, dtype: str, device: na.Device) -> None:
    z = na.to_device(np.arange(40).astype(dtype), device).sync()
    x = na.to_device(np.arange(80).astype(dtype)[::-2], device).sync()
    a = np.dtype(dtype).type(2) if dtype != "c8" else 2.0
    wanted = host(z) + np.asarray(a * host(x)).astype(dtype)
    for _ in range(3):
        z = na.to_device(np.arange(40).astype(dtype), device).sync()
        np.testing.assert_array_equal(host(add[2, 32](z, a, x).sync().z), wanted)
    assert _passes(add) == {"m" if hasattr(add.kernel, compilers.WRITTEN_AS) else "s"}


def test_arrays_of_several_axes_and_strides(device: na.Device) -> None:
    @theirs.jit
    def turned(z, x, rows):
        i, j = theirs.grid(2)
        if i < z.shape[0] and j < z.shape[1]:
            z[i, j] = x[j, i, 1] + rows

    x = np.arange(9 * 5 * 2, dtype=np.float64).reshape(9, 5, 2)
    held = na.to_device(x, device).sync()
    launch = na.launcher(turned)
    for part in np.s_[:, :], np.s_[::3, :], np.s_[1:, ::2]:
        z = na.zeros(x[part].shape[1::-1], np.float64).sync()
        launch[(1, 1), (16, 16)](z, held[part], 3).sync()
        np.testing.assert_array_equal(host(z), x[part][:, :, 1].T + 3)
    assert _passes(launch) == {"m"}


def test_graphs_and_prepared_launches(add: na.Launcher, device: na.Device) -> None:
    z, x = na.zeros(50).sync(), na.ones(50).sync()
    run = add[2, 32].prepare(z, np.float32(1), x)
    for _ in range(3):
        run(a=np.float32(2)).sync()
    graph = add[2, 32](z, np.float32(1), x).graph()
    for _ in range(4):
        graph.launch().sync()
    assert host(z).tolist() == [10] * 50


def test_kernels_of_both_in_one_program(device: na.Device) -> None:
    one, other = _launcher(theirs.jit, _add), _launcher(cuda.jit, _add)
    z, x = na.zeros(50).sync(), na.ones(50).sync()
    for kernel in (one, other, one, other):
        kernel[2, 32](z, np.float32(1), x).sync()
    assert host(z).tolist() == [4] * 50
    assert _passes(one) == {"m"} and _passes(other) == {"s"}
    facts = one[2, 32].explain(z, np.float32(1), x)
    assert ".entry" in facts.ptx and facts.registers


def test_the_variable_chooses_numba_cuda(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(compilers.NAME, "numba-cuda")
    kernel = _launcher(theirs.jit, _add)
    z = na.zeros(50).sync()
    kernel[2, 32](z, np.float32(1), na.ones(50).sync()).sync()
    assert _passes(kernel) == {"s"}


def test_none_and_functions_are_no_parameters(device: na.Device) -> None:
    @theirs.jit(device=True)
    def added(a, b):
        return a + b

    @theirs.jit(device=True)
    def folded(op, z, x):
        return op(z, x)

    @na.launcher
    @theirs.jit
    def add_those_there(z, a, x: na.KernelInput = None, y: na.KernelInput = None):
        i = theirs.grid(1)
        if i < z.size:
            if x is not None:
                z[i] = folded(added, z[i], x[i])
            if y is not None:
                z[i] = folded(added, z[i], y[i])
            z[i] += a

    x = na.to_device(np.arange(40.0), device).sync()
    for given, times in (((), 0), ((x,), 1), ((None, x), 1), ((x, x), 2)):
        z = add_those_there[2, 32](na.zeros(40, np.float64), 3.0, *given).sync().z
        np.testing.assert_array_equal(host(z), np.arange(40) * times + 3)
    assert _passes(add_those_there) == {"m"}
