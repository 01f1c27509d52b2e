"""What programs teach `numba.cuda`'s compiler: intrinsics, types, methods, overloads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from llvmlite import ir
from numba import cuda
from numba.cuda import cgutils, extending, types

import numbasync as na
from numbasync.errors import OutOfBoundsError, UnsupportedKernelError
from tests.common import host

api: Any = extending


def is_compiled(kernel: na.Launcher, device: na.Device) -> None:
    if device.kind == "cpu" and kernel.cpu_engine().name != "compiled":
        # Where the environment asks for the interpreter, it has refused before.
        raise AssertionError(kernel.cpu_engine().why)


@api.intrinsic
def rotated(typingctx: Any, x: Any, by: Any):  # type: ignore[no-untyped-def]
    """The bits of a 32-bit integer turned to the left."""
    if x != types.uint32 or not isinstance(by, types.Integer):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(32)
        count = context.cast(builder, args[1], by, types.uint32)
        kind = ir.FunctionType(word, [word] * 3)
        turn = builder.module.declare_intrinsic("llvm.fshl", [word], kind)
        return builder.call(turn, [args[0], args[0], count])

    return types.uint32(types.uint32, by), codegen


def test_an_intrinsic_of_plain_instructions(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def turn(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        if i < z.size:
            z[i] = rotated(x[i], i % 32)

    x = np.random.default_rng(3).integers(0, 2**32, 100, np.uint32)
    z = na.zeros(100, np.uint32).sync()
    turn[1, 128](z, x).sync()
    turns = [((int(v) << i % 32) | (int(v) >> (32 - i % 32))) % 2**32 for i, v in enumerate(x)]
    assert host(z).tolist() == turns
    is_compiled(turn, device)


def _clock(builder: Any) -> Any:
    kind = ir.FunctionType(ir.IntType(32), [])
    return builder.call(ir.Function(builder.module, kind, "llvm.nvvm.read.ptx.sreg.smid"), [])


def _of_a_warp(builder: Any) -> Any:
    kind = ir.FunctionType(ir.IntType(32), [])
    return builder.asm(kind, "mov.u32 $0, %warpid;", "=r", [], False)


def _lane(builder: Any) -> Any:
    word = ir.IntType(32)
    name = "llvm.nvvm.read.ptx.sreg.laneid"
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(word, []), name)
    return builder.call(function, [])


def _by_assembly(builder: Any) -> Any:
    kind = ir.FunctionType(ir.IntType(32), [])
    return builder.asm(kind, "mov.u32 $0, %laneid;", "=r", [], False)


def _in_shared_memory(builder: Any) -> Any:
    word = ir.IntType(32)
    place = builder.inttoptr(ir.IntType(64)(64), word.as_pointer(3))
    builder.store(word(1), place)
    return builder.load(place)


def _unknown(builder: Any) -> Any:
    kind = ir.FunctionType(ir.IntType(32), [])
    return builder.call(ir.Function(builder.module, kind, "__nv_nowhere"), [])


@pytest.mark.parametrize(
    ("emit", "said"),
    [
        (_lane, ""),
        (_by_assembly, ""),
        (_clock, "llvm.nvvm.read.ptx.sreg.smid"),
        (_of_a_warp, "the assembly"),
        (_in_shared_memory, "address space 3"),
        (_unknown, "__nv_nowhere"),
    ],
)
def test_the_cpu_device_refuses_gpu_only_features(device: na.Device, emit: Any, said: str) -> None:
    @api.intrinsic
    def own(typingctx: Any):  # type: ignore[no-untyped-def]
        return types.int32(), lambda context, builder, signature, args: emit(builder)

    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput):
        z[cuda.grid(1)] = own()

    z = na.zeros(4, np.int32).sync()
    if not said:  # what numba.cuda itself emits
        put[1, 4](z).sync()
        assert host(z).tolist() == [0, 1, 2, 3]
    if device.kind == "cuda" or not said:
        return
    with pytest.raises(UnsupportedKernelError, match=said) as caught:
        put[1, 4](z).sync()
    assert "only a GPU has" in str(caught.value)


class Span:
    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high


class SpanType(types.Type):
    def __init__(self) -> None:
        super().__init__(name="numbasync's span")


span = SpanType()


@api.type_callable(Span)
def _span_of(context: Any) -> Any:
    def typer(low: Any, high: Any) -> Any:
        return span if isinstance(low, types.Float) and isinstance(high, types.Float) else None

    return typer


@api.register_model(SpanType)
class SpanModel(api.core_models.StructModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, [("low", types.float64), ("high", types.float64)])


api.make_attribute_wrapper(SpanType, "low", "low")
api.make_attribute_wrapper(SpanType, "high", "high")


@api.lower_builtin(Span, types.Float, types.Float)
def _make_span(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    made = cgutils.create_struct_proxy(span)(context, builder)
    kinds = zip(args, sig.args, strict=True)
    made.low, made.high = (context.cast(builder, a, k, types.float64) for a, k in kinds)
    return made._getvalue()


@api.overload_method(SpanType, "clipped")
def _clipped(self, x):  # type: ignore[no-untyped-def]
    return lambda self, x: min(max(x, self.low), self.high)


@api.overload_attribute(SpanType, "width")
def _width(self):  # type: ignore[no-untyped-def]
    return lambda self: self.high - self.low


def test_a_type_with_attributes_and_methods(device: na.Device) -> None:
    @cuda.jit(device=True)
    def doubled(s):
        return Span(2 * s.low, 2 * s.high)

    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            s = doubled(Span(x[i], 10.0))
            z[i, 0] = s.low
            z[i, 1] = s.width
            z[i, 2] = s.clipped(5.0)

    x = np.arange(8.0)
    z = na.zeros((8, 3)).sync()
    put[1, 32](z, x).sync()
    want = np.stack([2 * x, 20 - 2 * x, np.clip(5, 2 * x, 20)], axis=1)
    np.testing.assert_array_equal(host(z), want)
    is_compiled(put, device)


@api.overload_method(types.Array, "numbasync_second")
def _second(self):  # type: ignore[no-untyped-def]
    if isinstance(self, types.Array) and self.ndim == 1:
        return lambda self: self[1]
    return None


def test_methods_of_arrays(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, x):
        z[0] = x.numbasync_second()

    z = na.zeros(1).sync()
    put[1, 1](z, na.from_host(np.array([3.0, 4.0]))).sync()
    assert host(z).tolist() == [4]
    is_compiled(put, device)
    if device.kind == "cpu":
        with pytest.raises(OutOfBoundsError, match="index 1 is out of bounds for axis 0 of self"):
            put[1, 1](z, na.from_host(np.array([3.0]))).sync()


def norm(x: float, y: float) -> float:
    raise NotImplementedError


@api.type_callable(norm)
def _norm_of(context: Any) -> Any:
    def typer(x: Any, y: Any) -> Any:
        return types.float64 if x == y == types.float64 else None

    return typer


@api.lower_builtin(norm, types.Float, types.Float)
def _emit_norm(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    def of(x: float, y: float) -> float:
        return math.sqrt(x * x + y * y)

    return context.compile_internal(builder, of, sig, args)


def test_a_function_that_is_typed_and_emitted(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput):
        i = cuda.grid(1)
        z[i] = norm(3.0 * i, 4.0 * i)

    z = na.zeros(8).sync()
    put[1, 8](z).sync()
    np.testing.assert_allclose(host(z), 5.0 * np.arange(8))
    is_compiled(put, device)


def column(a):  # type: ignore[no-untyped-def]
    raise NotImplementedError


@api.overload(column, inline="always")
def _column(a):  # type: ignore[no-untyped-def]
    return lambda a: a[:, 1]


def element(a, i):  # type: ignore[no-untyped-def]
    raise NotImplementedError


@api.overload(element, inline="always")
def _element(a, i):  # type: ignore[no-untyped-def]
    return lambda a, i: a[i]


def test_overloads_that_are_written_out(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, n):
        i = cuda.grid(1)
        if i < n:
            column(z)[i] += element(z, i)[0] + 1

    z = na.from_host(np.arange(8.0).reshape(4, 2)).sync()
    put[1, 8](z, 4).sync()
    assert host(z).tolist() == [[0, 2], [2, 6], [4, 10], [6, 14]]
    is_compiled(put, device)


def test_indices_of_inlined_overloads_are_checked(device: na.Device) -> None:
    if device.kind == "cuda":
        pytest.skip("a GPU reads what lies there")

    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, x: na.KernelInput, i):
        z[0] = element(x, i)

    z = na.zeros(1).sync()
    put[1, 1](z, np.array([3.0, 4.0]), 1).sync()
    assert host(z).tolist() == [4]
    with pytest.raises(OutOfBoundsError, match="index 2 is out of bounds for axis 0 of x"):
        put[1, 1](z, np.array([3.0, 4.0]), 2).sync()
