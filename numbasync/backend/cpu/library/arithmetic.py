"""CUDA's functions of numbers for compiled kernels: those that Numba's processor target lacks, and
those whose results differ there.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit
from numba.extending import intrinsic, overload

from numbasync.backend.cpu.library.options import INLINED, types
from numbasync.backend.cpu.library.small_float_functions import OF_BFLOAT, OF_HALF
from numbasync.backend.cpu.library.small_floats import SmallFloat, bfloat, half

# --- bits ---


def _bitwise(name: str, result: Callable[[Any], Any], emit: Callable[..., Any]) -> Any:
    @intrinsic
    def function(tyctx: Any, x: Any):  # type: ignore[no-untyped-def]
        x = types.unliteral(x)
        if not isinstance(x, types.Integer):
            return None

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return emit(builder, args[0])

        return result(x)(x), codegen

    function.__name__ = name
    return function


def _brev_type(x: Any) -> Any:
    return types.uint64 if x.bitwidth == 64 else types.uint32


def _first_set(builder: Any, x: Any) -> Any:
    zero = ir.Constant(x.type, 0)
    count = builder.add(builder.cttz(x, ir.Constant(ir.IntType(1), 0)), ir.Constant(x.type, 1))
    position = builder.select(builder.icmp_unsigned("==", x, zero), zero, count)
    bits = x.type.width
    word = ir.IntType(32)
    return (
        builder.trunc(position, word)
        if bits > 32
        else builder.zext(position, word)
        if bits < 32
        else position
    )


popc = _bitwise("popc", lambda x: x, lambda b, x: b.ctpop(x))
clz = _bitwise("clz", lambda x: x, lambda b, x: b.ctlz(x, ir.Constant(ir.IntType(1), 0)))
ffs = _bitwise("ffs", lambda x: types.uint32, _first_set)


@intrinsic
def brev(tyctx: Any, x: Any):  # type: ignore[no-untyped-def]
    x = types.unliteral(x)
    if not isinstance(x, types.Integer):
        return None
    result = _brev_type(x)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitreverse(args[0])

    return result(result), codegen


@intrinsic
def fma(tyctx: Any, a: Any, b: Any, c: Any):  # type: ignore[no-untyped-def]
    result = types.float32 if {a, b, c} == {types.float32} else types.float64

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return result(result, result, result), codegen


@njit(**INLINED)
def selp(condition, a, b):  # type: ignore[no-untyped-def]
    return a if condition else b


@njit(**INLINED)
def cbrt(x):  # type: ignore[no-untyped-def]
    return np.cbrt(x)


# --- functions whose results differ on a GPU ---


def _number(x: Any) -> bool:
    return isinstance(x, (types.Number, types.Boolean))


def _are_floats(a: Any, b: Any) -> bool:
    """Whether a GPU computes `max(a, b)` by its instruction for floats, in which a NaN loses; two
    float16 or bfloat16 are compared instead.
    """
    both = isinstance(a, types.Float) and isinstance(b, types.Float)
    return both and not (a == b and isinstance(a, SmallFloat))


def _are_comparable(a: Any, b: Any) -> bool:
    """Whether Numba compares the two for a GPU: a bool with a bool only."""
    return isinstance(a, types.Boolean) == isinstance(b, types.Boolean)


def larger(a, b): ...  # type: ignore[no-untyped-def]


def smaller(a, b): ...  # type: ignore[no-untyped-def]


@overload(larger, jit_options=INLINED)
def _larger(a, b):  # type: ignore[no-untyped-def]
    if not _are_comparable(a, b):
        return None
    if _are_floats(a, b):
        return lambda a, b: b if a != a else (a if b != b else max(a, b))
    return lambda a, b: max(a, b)


@overload(smaller, jit_options=INLINED)
def _smaller(a, b):  # type: ignore[no-untyped-def]
    if not _are_comparable(a, b):
        return None
    if _are_floats(a, b):
        return lambda a, b: b if a != a else (a if b != b else min(a, b))
    return lambda a, b: min(a, b)


def _rounding(of: Any) -> Any:
    of_half, of_bfloat = (functions[f"h{of.__name__}"] for functions in (OF_HALF, OF_BFLOAT))

    def function(x): ...  # type: ignore[no-untyped-def]

    @overload(function, jit_options=INLINED)
    def _function(x):  # type: ignore[no-untyped-def]
        if x == half:
            return lambda x: of_half(x)
        if x == bfloat:
            return lambda x: of_bfloat(x)
        if isinstance(x, types.Float):
            return lambda x: of(x)
        return lambda x: np.float64(x)

    function.__name__ = of.__name__
    return function


@njit(**INLINED)
def _rounded_wide(x, digits):  # type: ignore[no-untyped-def]
    scale = 10.0 ** abs(digits)
    scaled = x * scale if digits >= 0 else x / scale
    if math.isinf(scaled) or math.isnan(scaled):
        return x
    return np.rint(scaled) / scale if digits >= 0 else np.rint(scaled) * scale


def rounded_to(x, digits): ...  # type: ignore[no-untyped-def]


@overload(rounded_to, jit_options=INLINED)
def _rounded_to(x, digits):  # type: ignore[no-untyped-def]
    """`round(x, digits)`, computed in float64 for a float32, too; halves are rounded to even."""
    if isinstance(x, types.Float):
        result = x
        return lambda x, digits: result(_rounded_wide(np.float64(x), digits))
    return lambda x, digits: round(x, digits)


_C = ctypes.CDLL("ucrtbase" if os.name == "nt" else None)

_C_TYPES: dict[Any, Any] = {
    types.float32: ctypes.c_float, types.float64: ctypes.c_double, types.int32: ctypes.c_int,
    types.int64: ctypes.c_longlong,
}  # fmt: skip


def of_c(name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
    """The C library's function `name` of these Numba types; None if the library has none."""
    function = getattr(_C, name, None)
    if function is None or not {result, *arguments} <= set(_C_TYPES):
        return None
    if binding.address_of_symbol(name):
        # By name, not by address: another process may load the compiled code from disk.
        return types.ExternalFunction(name, result(*arguments))
    function.argtypes = tuple(_C_TYPES[a] for a in arguments)
    function.restype = _C_TYPES[result]
    return function


_remainder = of_c("remainder", types.float64, (types.float64, types.float64))
_remainderf = of_c("remainderf", types.float32, (types.float32, types.float32))


def remainder(a, b): ...  # type: ignore[no-untyped-def]


@overload(remainder, jit_options=INLINED)
def _remainder_of(a, b):  # type: ignore[no-untyped-def]
    if a == b == types.float32:
        return lambda a, b: np.float32(_remainderf(a, b))
    return lambda a, b: _remainder(a, b)


def modf(x): ...  # type: ignore[no-untyped-def]


@overload(modf, jit_options=INLINED)
def _modf(x):  # type: ignore[no-untyped-def]
    zero = np.float32(0) if x == types.float32 else np.float64(0)
    return lambda x: (np.copysign(zero, x), x) if math.isinf(x) else (x - np.trunc(x), np.trunc(x))


floor, ceil, trunc = (_rounding(f) for f in (np.floor, np.ceil, np.trunc))
