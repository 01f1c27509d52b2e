"""How little code of the CPU device there is to compile: loops, loads, questions of types."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32
from numba.cuda.core import imputils
from numba.cuda.descriptor import cuda_target
from numba.cuda.typing import templates

import numbasync as na
from numbasync.backend.cpu.kernel import compiled
from numbasync.backend.cpu.library.options import types
from numbasync.backend.cpu.regions import turned_loops
from numbasync.backend.cpu.target import context, pipeline
from tests.backend_cpu.run_regions import Blocks

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


def compiled_from_now_on(monkeypatch: pytest.MonkeyPatch) -> list[compiled.Compiled]:
    """A list to which every kernel that is compiled from now on is added."""
    made: list[compiled.Compiled] = []
    init = compiled.Compiled.__init__

    def kept(self: compiled.Compiled, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(compiled.Compiled, "__init__", kept)
    return made


def test_code_with_checks_is_compiled_lightly(monkeypatch: pytest.MonkeyPatch) -> None:
    build = importlib.import_module("numbasync.backend.cpu.regions.build")
    levels: list[int] = []
    made = build.target_machine

    def noted(level: int) -> Any:
        levels.append(level)
        return made(level=level)

    monkeypatch.setattr(build, "target_machine", noted)
    args = np.zeros(8, np.float32), np.zeros(8, np.float32)
    for ordered in (False, True):
        Blocks(reversed_in_blocks.kernel, args, ordered=ordered)
    assert levels == [3, 0]


def test_blocks_of_one_row_have_own_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = compiled_from_now_on(monkeypatch)
    x = np.arange(32, dtype=np.float32)
    z = na.zeros(32).sync()
    reversed_in_blocks[4, 8](z, x).sync()
    t = np.arange(32) % 8
    np.testing.assert_array_equal(z.to_host().sync(), 2 * x.reshape(4, 8)[:, ::-1].ravel() + t + 1)
    (row,) = made
    assert [code.artifact.code.is_row for code in row._plain] == [True]
    # Threads (t, 0), (t, 1) of a block write the same elements.
    reversed_in_blocks[4, (8, 2)](z, x).sync()
    np.testing.assert_array_equal(z.to_host().sync(), 2 * x.reshape(4, 8)[:, ::-1].ravel() + t + 2)
    assert [code.artifact.code.is_row for code in row._plain] == [True, False] and made == [row]
    z = na.zeros((4, 4)).sync()
    with_columns[1, (4, 4)](z).sync()
    assert z.to_host().sync().tolist() == [[4.0] * 4] * 4
    assert [code.artifact.code.is_row for code in made[1]._plain] == [False]


def test_numba_types_each_call_once() -> None:
    asked: list[Any] = []

    class Add(templates.AbstractTemplate):
        key = "add"

        def generic(self, args: Any, kws: Any) -> Any:
            return templates.signature(args[0], *args)

    class Context:
        name = "numba's"

        def resolve_function_type(self, function: Any, args: Any, kws: Any) -> Any:
            asked.append((function, args))
            if function is not add:
                return len(asked)
            return function.get_call_type(cuda_target.typing_context, args, kws)

    typing = pipeline._Typing(Context())
    add: Any = types.Function(Add)
    other: Any = object()  # such as a dispatcher, which may have something compiled
    calls = [(types.int64,), (types.int64,), (types.int32,)]
    results = [typing.resolve_function_type(add, a, {}).return_type for a in calls]
    assert results == [types.int64, types.int64, types.int32]
    assert asked == [(add, (types.int64,)), (add, (types.int32,))]
    assert [typing.resolve_function_type(other, (), {}) for _ in range(2)] == [3, 4]
    assert typing.name == "numba's"
    # Another kernel asks for what takes functions alone: they are compiled into its module.
    takes_functions = (types.int64, types.Dummy("function"))
    for kernel in (typing, pipeline._Typing(Context())):
        kernel.resolve_function_type(add, calls[0], {})
        kernel.resolve_function_type(add, takes_functions, {})
    assert asked[4:] == [(add, takes_functions)] * 2


def test_nothing_of_ours_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = imputils.Registry("test")
    registry.lower("key", types.int64)(lambda *_: None)
    monkeypatch.setattr(context, "OWN", registry)
    monkeypatch.setattr(context, "_seen", 0)
    monkeypatch.setattr(context, "_selectors", {})
    monkeypatch.setattr(context, "_without", set())
    signature = templates.signature(types.none, types.UniTuple(types.int64, 2))
    assert context._found("key", signature) is None
    monkeypatch.setattr(context._selectors["key"], "find", lambda args: pytest.fail("looked up"))
    assert context._found("key", signature) is None


@cuda.jit
def with_two_loops(z, x):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        z[i] = x[i]
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        z[i] += x[i]


@pytest.mark.parametrize(
    ("limit", "most", "regions"),
    [("MOST_TURNED", 2, 4), ("MOST_TURNED", 1, 1), ("MOST_JUDGED", 2, 4), ("MOST_JUDGED", 1, 1)],
)
def test_few_loops_of_a_kernel_are_turned(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int, regions: int
) -> None:
    monkeypatch.setattr(turned_loops, limit, most)
    x = np.ones(100, np.float32)
    blocks = Blocks(with_two_loops, (np.zeros_like(x), x), row=True)
    assert blocks.code.notes["regions"] == regions
