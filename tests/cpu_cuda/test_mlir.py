"""Kernels and programs that are written for numba-cuda-mlir."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import compilers
from numbasync.cpu_cuda import arrays
from numbasync.errors import CallerError, UnsupportedKernelError
from numbasync.launch import mlir_kernels
from tests.cpu_cuda import mlir_stand_in

STEP = 3


@cuda.jit(device=True)
def _add_step(x):
    return x + STEP


def _fill(z):
    z[cuda.grid(1)] = _add_step(1)


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for kept in (mlir_kernels.counterparts, compilers.chosen):
        kept.cache_clear()
    yield mlir_stand_in.install(monkeypatch)
    for kept in (mlir_kernels.counterparts, compilers.chosen):
        kept.cache_clear()


def _tensor(*values: float) -> na.Tensor:
    return na.to_device(np.array(values, np.float32), arrays.cpu()).sync()


def test_its_kernels_have_launchers(other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, float32 = other.cuda, other.types.float32

    @theirs.jit(device=True)
    def twice(x):
        return 2 * x

    helpers: Any = ModuleType("helpers")
    helpers.twice = twice

    @na.launcher
    @theirs.jit
    def scale(z, x):
        held = theirs.shared.array(32, float32)
        i = theirs.grid(1)
        held[theirs.threadIdx.x] = x[i] if i < x.size else 0
        theirs.syncthreads()
        if i < z.size:
            z[i] = twice(held[theirs.threadIdx.x]) + helpers.twice(STEP)

    assert [p.is_output for p in scale.parameters] == [True, False]
    assert scale.py_func.__qualname__.endswith("scale") and scale.py_func.__module__ == __name__
    result = scale[1, 32](_tensor(0, 0, 0), _tensor(1, 2, 3)).sync()
    assert result.z.to_host().sync().tolist() == [8, 10, 12]


def test_names_of_its_module_are_looked_up_late(
    other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "@cuda.jit\ndef fill(z):\n    z[0] = added(N)\n"
    program = {"__name__": "program", "cuda": other.cuda, "N": 1}
    exec(source, program)
    fill = na.launcher(program["fill"])
    exec("@cuda.jit(device=True)\ndef added(x):\n    return x + 1\n", program)
    program["N"] = 6
    assert fill[1, 1](_tensor(0)).sync().z.to_host().sync().tolist() == [7]


def test_both_compilers_kernels_in_a_program(other: Any) -> None:
    @na.launcher
    @cuda.jit
    def ours(z):
        z[cuda.grid(1)] += 1

    theirs = na.launcher(other.cuda.jit(ours.py_func))
    assert theirs is not ours
    z = ours[1, 2](_tensor(0, 1)).sync().z
    assert theirs[1, 2](z).sync().z.to_host().sync().tolist() == [2, 3]
    kernel = other.cuda.jit(ours.py_func)
    assert mlir_kernels.as_numba_cuda(kernel) is mlir_kernels.as_numba_cuda(kernel)


def test_its_inner_modules_and_functions(other: Any) -> None:
    inner = ModuleType("numba_cuda_mlir.numba_cuda.libdevice")
    assert mlir_kernels.meaning(inner) is importlib.import_module("numba.cuda.libdevice")
    unknown = ModuleType("numba_cuda_mlir.numba_cuda.nowhere")
    assert mlir_kernels.meaning(unknown) is unknown


def test_the_compiler_of_a_kernel(other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = other.cuda

    @theirs.jit
    def scale(z):
        i = theirs.grid(1)
        if i < z.size:
            z[i] *= 2

    launcher = na.launcher(scale)
    kernel = launcher.kernel
    assert compilers.own_kernel(kernel) is scale
    assert compilers.own_kernel(cuda.jit(scale.py_func)) is None
    assert launcher.planner.coarse_kernels._plain == "numba-cuda-mlir compiles it"
    for value, own in ("auto", scale), ("numba-cuda", None):
        monkeypatch.setenv(compilers.NAME, value)
        compilers.chosen.cache_clear()
        assert compilers.own_kernel(kernel) is own
    monkeypatch.setenv(compilers.NAME, "numba-cuda-mlir")
    compilers.chosen.cache_clear()
    written = na.launcher(cuda.jit(_fill)).kernel
    names = compilers.own_kernel(written).py_func.__globals__
    assert names["cuda"] is theirs and names["STEP"] == STEP
    assert type(names["_add_step"]) is type(scale)
    monkeypatch.setenv(compilers.NAME, "nvcc")
    compilers.chosen.cache_clear()
    with pytest.raises(CallerError, match="NUMBASYNC_COMPILER is .nvcc.. Write numba-cuda or"):
        compilers.own_kernel(kernel)


def test_its_kernels_allocate_arrays(other: Any) -> None:
    @other.cuda.jit
    def smallest(z, a):
        whole = (a + a) // a  # which numba.cuda types and does not compute
        z[0] = np.min(a.copy()[1:]) + whole[2]

    z = np.zeros(1)
    with na.cuda_on_cpu():
        smallest[1, 1](z, np.array([1.0, 7, 4]))
    assert z.tolist() == [6]


def test_its_extensions_and_parameters(other: Any) -> None:
    theirs, extending, float32 = other.cuda, other.extending, other.types.float32

    registry = {"typing_registry": getattr(extending, "typing_registry", None)}

    def last(array):
        return array[-1]

    with na.cuda_on_cpu():

        @extending.register_jitable(**registry)
        def triple(x):
            return 3 * x

        @extending.overload(last, **registry)
        def choose(array):
            return lambda array: array[array.size - 1]

        @theirs.jit
        def sums(z, *more):
            held = theirs.shared_array(2, float32)
            held[0] = triple(last(more[0])) + len(more)
            z[0] = held[0]

        x, z = np.arange(4, dtype=np.float32), np.zeros(1, np.float32)
        sums[1, 1](z, x)
        assert z[0] == 10
        sums[1, 1](z, x, x)
        assert z[0] == 11


def test_a_name_that_numba_cuda_lacks_is_refused(other: Any) -> None:
    program = {"inline_ptx": other.cuda.inline_ptx, "cuda": other.cuda}
    exec("@cuda.jit\ndef stop(z):\n    inline_ptx('exit;')\n", program)
    with pytest.raises(UnsupportedKernelError) as error:
        na.launcher(program["stop"])
    assert "kernel stop uses inline_ptx of numba-cuda-mlir" in str(error.value)
    assert "names that both have" in str(error.value)


def test_its_programs_run_by_the_switch(other: Any) -> None:
    theirs = other.cuda

    @theirs.jit
    def before(z):
        if theirs.grid(1) < z.size:
            z[theirs.grid(1)] += 1

    own = theirs.jit
    with na.cuda_on_cpu():
        a = theirs.to_device(np.zeros(6, np.float32))
        assert isinstance(a, theirs.DeviceNDArray)
        before[1, 8](a)
        before[1, 8, theirs.stream()](a)
        before.forall(6)(a)

        @theirs.jit("void(float32[:])", fastmath=True)
        def within(z):
            z[theirs.grid(1)] *= theirs.blockDim.x

        within[2, 3](a)
        assert a.copy_to_host().tolist() == [9] * 6
        with pytest.raises(UnsupportedKernelError, match="inspect_mlir"):
            within.inspect_mlir()
    assert theirs.jit is own and type(before).__getitem__.__qualname__.startswith("MLIRDispatcher")


def test_a_function_of_a_function_calls_itself(other: Any) -> None:
    with na.cuda_on_cpu():

        @other.cuda.jit(device=True)
        def factorial(n):
            if n < 2:
                return 1
            return n * factorial(n - 1)

        @other.cuda.jit
        def put(z, n):
            z[0] = factorial(n)

        z = np.zeros(1, np.int64)
        put[1, 1](z, 5)
        assert z[0] == 120


def test_the_switch_needs_no_other_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    if mlir_stand_in.IS_INSTALLED:
        pytest.skip("numba-cuda-mlir is installed")
    with na.cuda_on_cpu():
        assert mlir_stand_in.PACKAGE not in sys.modules


@pytest.mark.skipif(not mlir_stand_in.IS_INSTALLED, reason="numba-cuda-mlir is not installed")
def test_its_types_are_numba_cudas(other: Any) -> None:
    theirs = other.types
    ours: Any = cuda.types
    for given, wanted in [
        (theirs.float32, ours.float32), (theirs.int64[:, ::1], ours.int64[:, ::1]),
        (theirs.UniTuple(theirs.complex64, 2), ours.UniTuple(ours.complex64, 2)),
        (theirs.void(theirs.uint8[:]), ours.void(ours.uint8[:])),
    ]:  # fmt: skip
        assert mlir_kernels.meaning(given) == wanted
        assert not mlir_kernels.belongs(mlir_kernels.meaning(given))
