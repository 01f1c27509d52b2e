"""Numba's compiler for GPUs is asked where there is none, and leaves nothing behind."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda.descriptor import cuda_target

import numbasync as na
from numbasync.backend.cpu.compiler import numba_cuda
from numbasync.backend.cpu.compiler.numba_cuda import FrontEnd, type_on_gpu
from numbasync.backend.cpu.runtime import choose_engine
from numbasync.backend.protocols import ArrayKey
from numbasync.errors import KernelCompileError, UnsupportedKernelError
from numbasync.testing import counters

KEY = ArrayKey("<f4", 1, "C")
nvvm: Any = importlib.import_module("numba.cuda.cudadrv.nvvm")


def refusal(kernel: Any, keys: list[ArrayKey]) -> Exception | None:
    return FrontEnd(kernel.py_func, [type_on_gpu(k) for k in keys]).refusal


@cuda.jit(device=True)
def twice(a):
    return a + a


def doubled(a):
    return a + a


def rounded(a):
    return np.floor(a)


@cuda.jit
def takes(z, x):
    z[cuda.grid(1)] = twice(x[0])


@cuda.jit
def refused(z, x):
    z[cuda.grid(1)] = twice(x[0]) & 1


@cuda.jit
def votes(z, x):
    z[0] = cuda.syncthreads_or(x[0] > 0)  # Numba's votes of a block take integers


@cuda.jit
def floors(z, x):
    z[0] = np.floor(x[0])


@cuda.jit
def matches(z, x):
    match x.size:
        case 1:
            z[0] = twice(x[0])


def test_nothing_is_kept() -> None:
    kind: Any = cuda.dispatcher.CUDADispatcher
    context: Any = cuda_target.target_context

    def state() -> list[Any]:
        return [nvvm.NVVM, kind.get_call_template, kind.get_overload, dict(twice.overloads)]

    before = state()
    assert refusal(takes, [KEY, KEY]) is None
    functions = len(context._defns)
    assert refusal(takes, [KEY, KEY]) is None
    assert "and_" in str(refusal(refused, [KEY, KEY]))
    assert len(context._defns) == functions
    assert state() == before and not takes.overloads


@pytest.mark.parametrize("only", ["compiled", "interpreted"])
@pytest.mark.parametrize("kernel", [refused, votes], ids=["operator", "vote"])
def test_no_engine_runs_what_is_refused(kernel: Any, only: str) -> None:
    with pytest.raises(KernelCompileError, match="which uses z: array.*, x: array"):
        choose_engine.prepare_kernel(kernel, (KEY, KEY), 1024, only)


def test_what_is_compiled_alike_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(FrontEnd, "refusal", property(lambda f: asked.append(f._kernel)))
    for kernel in (takes, floors):
        choose_engine.prepare_kernel(kernel, (KEY, KEY), 1024)
    with pytest.raises(UnsupportedKernelError, match="a `match` statement"):
        choose_engine.prepare_kernel(matches, (KEY, KEY), 1024)
    assert asked == [floors.py_func, matches.py_func]


def test_a_numba_that_is_another_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise AttributeError("CUDACompiler")

    monkeypatch.setattr(numba_cuda, "_compiled", broken)
    assert refusal(refused, [KEY, KEY]) is None
    monkeypatch.undo()
    assert isinstance(refusal(floors, [KEY, KEY]), KeyError)


def test_elements_of_the_type_of_an_array_in_a_tuple() -> None:
    @cuda.jit
    def put(z, arrays):
        own = cuda.local.array(2, arrays[1].dtype)
        own[0] = arrays[1][0]
        z[0] = own[0] + arrays[0][0]

    keys = (KEY, (KEY, ArrayKey("<i8", 1, "C")))
    assert choose_engine.prepare_kernel(put, keys, 1024, "compiled").engine == "compiled"


@pytest.mark.full
def test_kernels_of_batches_are_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(FrontEnd, "refusal", property(lambda f: asked.append(f._kernel)))

    def written(inner: Any) -> int:  # not of any process before: nothing is on disk
        with na.use_device("cpu"):
            b = na.CommandBatch()
            last = b.argmax(inner(b.upload(np.arange(70_000.0))))
            compiles = counters().compiles
            b.execute_sync()
            assert b.read_sync(last) == 69_999
            return counters().compiles - compiles

    assert written(na.elementwise(doubled)) and not asked, (
        "though they use atomic operations and shared arrays"
    )
    assert written(na.elementwise(rounded)) and asked, "functions of programs may use anything"
