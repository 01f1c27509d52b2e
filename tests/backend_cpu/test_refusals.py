"""What Numba refuses for a GPU is refused, by both engines."""

from __future__ import annotations

from typing import Any

import pytest
from llvmlite import ir
from numba import cuda, types
from numba.cuda import extending

from numbasync.backend.cpu.runtime import choose_engine
from numbasync.backend.cpu.target import refusals
from numbasync.backend.declared_signatures import type_of
from numbasync.backend.protocols import ArrayKey
from numbasync.errors import KernelCompileError

KEY = ArrayKey("<f4", 1, "C")


@cuda.jit(device=True)
def twice(a):
    return a + a


@cuda.jit
def refused(z, x):
    z[cuda.grid(1)] = twice(x[0]) & 1


@cuda.jit
def votes(z, x):
    z[0] = cuda.syncthreads_or(x[0] > 0)  # Numba's votes of a block take integers


@pytest.mark.parametrize("only", ["compiled", "interpreted"])
@pytest.mark.parametrize("kernel", [refused, votes], ids=["operator", "vote"])
def test_no_engine_runs_what_is_refused(kernel: Any, only: str) -> None:
    with pytest.raises(KernelCompileError, match="which uses z: array.*, x: array"):
        choose_engine.prepare_kernel(kernel, (KEY, KEY), 1024, only)


def test_a_refusal_precedes_gpu_only_features() -> None:
    intrinsic: Any = extending.intrinsic

    @intrinsic
    def own(typingctx: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(ir.IntType(32), [])
            return builder.call(ir.Function(builder.module, kind, "llvm.nvvm.nowhere"), [])

        return types.int32(), emit

    @cuda.jit(device=True)
    def inner():
        return own()

    @cuda.jit
    def both(z, x):
        z[0] = inner()
        z[1] = x.no_such_thing

    with pytest.raises(KernelCompileError, match="no_such_thing"):
        choose_engine.prepare_kernel(both, (KEY, KEY), 1024)


def test_elements_typed_by_an_array_in_tuples() -> None:
    @cuda.jit
    def put(z, arrays):
        own = cuda.local.array(2, arrays[1].dtype)
        own[0] = arrays[1][0]
        z[0] = own[0] + arrays[0][0]

    keys = (KEY, (KEY, ArrayKey("<i8", 1, "C")))
    assert choose_engine.prepare_kernel(put, keys, 1024, "compiled").engine == "compiled"


def test_warnings_that_are_errors_refuse_no_interpreted_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def warned(*_: Any) -> None:
        raise UserWarning("one thread")

    monkeypatch.setattr(refusals, "lower", warned)
    refusals.check(refused.py_func, [type_of(KEY)] * 2)
