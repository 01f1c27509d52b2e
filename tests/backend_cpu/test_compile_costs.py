"""How little code of the CPU device there is to compile: loops, loads, questions of types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, float32
from numba.core.compiler import CompilerBase
from numba.core.debuginfo import DummyDIBuilder
from numba.core.lowering import BaseLower
from numbasync.backend.cpu.compiler import kernel, pipeline

import numbasync as na
from numbasync import vectors
from numbasync.backend.cpu.library.options import types

pytestmark = pytest.mark.usefixtures("cpu")


@cuda.jit(device=True)
def twice(x):
    return x + x


@na.launcher
@cuda.jit
def reversed_in_blocks(z: na.KernelOutput, x: na.KernelInput):
    t = cuda.threadIdx.x
    kept = cuda.shared.array(64, float32)
    i = cuda.grid(1)
    if i >= x.size:
        return
    kept[t] = twice(x[i])
    cuda.syncthreads()
    last = cuda.blockDim.x - 1
    z[i] = kept[last - t] + t
    t = 1
    cuda.syncthreads()
    z[i] += t


@na.launcher
@cuda.jit
def with_columns(z: na.KernelOutput):
    z[cuda.threadIdx.x, cuda.threadIdx.y] = cuda.blockDim.x


@na.launcher
@cuda.jit
def written_twice(z: na.KernelOutput, x: na.KernelInput):
    i = 4 * cuda.grid(1)
    first = vectors.load(x, i, 4)
    vectors.store(z, i, first)
    second = vectors.load(x, i, 4)
    vectors.store(z, i, second)


@na.launcher
@cuda.jit
def summed_in_warps(z: na.KernelOutput):
    t = cuda.threadIdx.x
    some = t
    for k in range(5):
        some += cuda.shfl_xor_sync(0xFFFFFFFF, some, 1 << k)
    z[t] = some


def compiled_from_now_on(monkeypatch: pytest.MonkeyPatch) -> list[kernel.Compiled]:
    """A list to which every kernel that is compiled from now on is added."""
    made: list[kernel.Compiled] = []
    init = kernel.Compiled.__init__

    def kept(self: kernel.Compiled, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(kernel.Compiled, "__init__", kept)
    return made


def test_blocks_of_one_row_and_others_have_code_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = compiled_from_now_on(monkeypatch)
    x = np.arange(32, dtype=np.float32)
    z = na.zeros(32).sync()
    reversed_in_blocks[4, 8](z, x).sync()
    t = np.arange(32) % 8
    np.testing.assert_array_equal(z.to_host().sync(), 2 * x.reshape(4, 8)[:, ::-1].ravel() + t + 1)
    (row,) = made
    assert set(row._plain) == {True}
    assert "while _tx < _last_x" in row.source and "while _ty" not in row.source
    # Threads (t, 0), (t, 1) of a block write the same elements.
    reversed_in_blocks[4, (8, 2)](z, x).sync()
    np.testing.assert_array_equal(z.to_host().sync(), 2 * x.reshape(4, 8)[:, ::-1].ravel() + t + 2)
    assert set(row._plain) == {True, False} and made == [row]
    z = na.zeros((4, 4)).sync()
    with_columns[1, (4, 4)](z).sync()
    assert z.to_host().sync().tolist() == [[4.0] * 4] * 4
    assert set(made[1]._plain) == {False}


def test_a_piece_loads_what_it_does_not_write_first(monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiled_from_now_on(monkeypatch)
    x = np.ones(8, np.float64)
    reversed_in_blocks[1, 8](na.zeros(8), x).sync()
    loads = [line.split()[0] for line in made[0].source.splitlines() if "= _load_" in line]
    assert loads.count("t_1") == 2, made[0].source  # not in the first piece, which begins with it


def test_numba_is_asked_for_a_call_of_the_same_types_once() -> None:
    asked: list[Any] = []

    class Context:
        name = "numba's"

        def resolve_function_type(self, function: Any, args: Any, kws: Any) -> Any:
            asked.append((function, args))
            return len(asked)

    typing = pipeline.Typing(Context())
    add: Any = types.Function(type("Add", (), {"key": "add"}))
    other: Any = object()  # such as a dispatcher, which may have something compiled
    calls = [(add, (types.int64,)), (add, (types.int64,)), (add, (types.int32,))]
    assert [typing.resolve_function_type(f, a, {}) for f, a in calls] == [1, 1, 2]
    assert [typing.resolve_function_type(other, (), {}) for _ in range(2)] == [3, 4]
    assert typing.name == "numba's"


def test_no_variable_is_described_to_a_debugger(monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[str] = []

    def noted(self: Any, *args: Any, name: str, **kwargs: Any) -> None:
        described.append(name)

    monkeypatch.setattr(DummyDIBuilder, "mark_variable", noted)
    x = np.ones(8, np.int32)
    reversed_in_blocks[1, 8](na.zeros(8), x).sync()
    assert not described


def test_only_kernels_have_a_way_in_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped: list[str] = []

    def note_calls_of(method: str) -> None:
        wrap = getattr(BaseLower, method)

        def noted(self: Any, *args: Any) -> None:
            wrapped.append(self.fndesc.qualname)
            wrap(self, *args)

        monkeypatch.setattr(BaseLower, method, noted)

    note_calls_of("create_cpython_wrapper")
    note_calls_of("create_cfunc_wrapper")
    z = na.zeros(32, dtype=np.uint16).sync()
    summed_in_warps[1, 32](z).sync()
    np.testing.assert_array_equal(z.to_host().sync(), np.full(32, 496))
    assert wrapped == ["_blocks"]


def test_vector_accesses_of_several_places_are_compiled_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiler: Any = CompilerBase
    own, names = compiler._compile_bytecode, []

    def noted(self: Any) -> Any:
        names.append(self.state.func_id.func_name)
        return own(self)

    monkeypatch.setattr(compiler, "_compile_bytecode", noted)
    x = np.arange(8, dtype=np.float32)
    z = na.zeros(8).sync()
    written_twice[1, 2](z, x).sync()
    np.testing.assert_array_equal(z.to_host().sync(), x)
    assert "_blocks" in names and len(names) == len(set(names)), names
