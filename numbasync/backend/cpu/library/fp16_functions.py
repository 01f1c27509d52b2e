"""`numba.cuda.fp16` for the processor: functions of float16, by their names there.

Functions that a GPU approximates (`hsin`, `hexp` ...) are computed in float64 and rounded to the
nearest float16; a GPU's result may be the float16 beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.extending import lower_builtin

from numbasync.backend.cpu.library.entry_points import INLINED, types
from numbasync.backend.cpu.library.float16 import (
    absolute,
    emitted,
    from_bits,
    half,
    negated,
    of,
    rounded,
    to_bits,
    typed,
)

_F = njit(**INLINED)
_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()


# --- by instructions ---


def _emitted(count: int, result: Any, emit: Callable[..., Any]) -> Any:
    """A function of float16; other arguments are converted."""
    function = emitted(result, (half,) * count, emit)
    if count == 1:
        return _F(lambda a: function(of(a)))
    if count == 2:
        return _F(lambda a, b: function(of(a), of(b)))
    return _F(lambda a, b, c: function(of(a), of(b), of(c)))


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """`a * b + c`, rounded once: the float64 is exact, or so far from the middle of two float16
    that its own rounding does not matter. A product has 22 bits; of a sum that needs more than
    53, the last bits decide nothing.
    """
    a, b, c = (builder.fpext(x, _DOUBLE) for x in (a, b, c))
    return rounded(builder, builder.fadd(builder.fmul(a, b), c))


def _short(builder: Any, a: Any) -> Any:
    return to_bits(builder, a)


def _compared(sign: str, order: str) -> Any:
    return _emitted(2, types.boolean, lambda b, x, y: getattr(b, f"fcmp_{order}")(sign, x, y))


_add = _F(lambda a, b: of(a) + of(b))
_sub = _F(lambda a, b: of(a) - of(b))
_mul = _F(lambda a, b: of(a) * of(b))
_div = _F(lambda a, b: of(a) / of(b))
_hfma = _emitted(3, half, _fma)
_abs, _neg = _emitted(1, half, absolute), _emitted(1, half, negated)
_bits = _emitted(1, types.uint16, _short)
_signed_bits = _emitted(1, types.int16, _short)
_is_nan = _compared("!=", "unordered")

_of_uint16 = emitted(half, (types.uint16,), from_bits)
_of_int16 = emitted(half, (types.int16,), from_bits)
_from_uint16 = _F(lambda a: _of_uint16(np.uint16(a)))
_from_int16 = _F(lambda a: _of_int16(np.int16(a)))


# --- choices ---


@_F
def _saturated(x):  # type: ignore[no-untyped-def]
    """Between 0 and 1; NaN is 0."""
    return of(1) if x > of(1) else (x if x > of(0) else of(0))


_add_sat = _F(lambda a, b: _saturated(_add(a, b)))
_sub_sat = _F(lambda a, b: _saturated(_sub(a, b)))
_mul_sat = _F(lambda a, b: _saturated(_mul(a, b)))
_fma_sat = _F(lambda a, b, c: _saturated(_hfma(a, b, c)))


@_F
def _fma_relu(a, b, c):  # type: ignore[no-untyped-def]
    x = _hfma(a, b, c)
    return of(0) if x < of(0) else x


@_F
def _max(a, b):  # type: ignore[no-untyped-def]
    """NaN loses, and so does -0 to 0."""
    x, y = of(a), of(b)
    if x != x:
        return y
    if x == y:
        return y if _bits(x) >> 15 else x
    return y if y > x else x


@_F
def _min(a, b):  # type: ignore[no-untyped-def]
    x, y = of(a), of(b)
    if x != x:
        return y
    if x == y:
        return x if _bits(x) >> 15 else y
    return y if y < x else x


_max_nan = _F(lambda a, b: of(a) + of(b) if _is_nan(a, b) else _max(a, b))
_min_nan = _F(lambda a, b: of(a) + of(b) if _is_nan(a, b) else _min(a, b))


@_F
def _isinf(a):  # type: ignore[no-untyped-def]
    bits = _bits(a)
    return np.int32(1) if bits == 0x7C00 else np.int32(-1) if bits == 0xFC00 else np.int32(0)


# --- functions computed in float64 ---


def _wide(function: Any) -> Any:
    return _F(lambda a: of(function(np.float64(of(a)))))


# Of negative numbers, zeros, infinities and NaN these return what C's functions return.
_log, _log2, _log10 = (_wide(f) for f in (np.log, np.log2, np.log10))
_exp10 = _F(lambda x: 10.0**x)
_rcp = _F(lambda x: 1 / x)
_rsqrt = _F(lambda x: 1 / np.sqrt(x))


# --- other roundings ---


@_F
def _beside(x, up):  # type: ignore[no-untyped-def]
    """The next float16 above or below."""
    bits = np.int32(_bits(x))
    if bits & 0x7FFF == 0:
        return _from_uint16(np.uint16(0x0001 if up else 0x8001))
    grows = (bits >> 15 == 0) == up
    return _from_uint16(np.uint16(bits + 1 if grows else bits - 1))


@_F
def _down(x):  # type: ignore[no-untyped-def]
    near = of(x)
    return _beside(near, False) if np.float64(near) > np.float64(x) else near


@_F
def _up(x):  # type: ignore[no-untyped-def]
    near = of(x)
    return _beside(near, True) if np.float64(near) < np.float64(x) else near


@_F
def _to_zero(x):  # type: ignore[no-untyped-def]
    return _up(x) if x < 0 else _down(x)


def _whole(rounding: Any, integer: Any) -> Any:
    """A conversion to an integer type; numbers beyond an end of the type become that end."""
    low, high, wide = int(integer.minval), int(integer.maxval), integer.bitwidth == 64
    # NaN becomes 0; in 64 bits, the number whose first bit alone is set.
    of_nan = (1 << 63) - (1 << 64) * integer.signed if wide else 0

    @_F
    def whole(a):  # type: ignore[no-untyped-def]
        x = rounding(np.float64(of(a)))
        if x != x:
            return integer(of_nan)
        if x >= high:
            return integer(high)
        if x <= low:
            return integer(low)
        return integer(np.int64(x))

    return whole


_ROUNDINGS = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}
_TO_HALF = {"rn": of, "rz": _to_zero, "rd": _down, "ru": _up}
_INTEGERS = {
    "short": types.int16, "ushort": types.uint16, "int": types.int32, "uint": types.uint32,
    "ll": types.int64, "ull": types.uint64,
}  # fmt: skip


def _conversions() -> dict[str, Any]:
    functions: dict[str, Any] = {
        "__half2char_rz": _whole(np.trunc, types.int8),
        "__half2uchar_rz": _whole(np.trunc, types.uint8),
    }
    for mode in _ROUNDINGS:
        functions[f"__float2half_{mode}"] = _of(types.float32, _TO_HALF[mode])
        for name, integer in _INTEGERS.items():
            functions[f"__half2{name}_{mode}"] = _whole(_ROUNDINGS[mode], integer)
            functions[f"__{name}2half_{mode}"] = _of(integer, _TO_HALF[mode])
    return functions


def _of(source: Any, convert: Any) -> Any:
    return _F(lambda x: convert(source(x)))


FUNCTIONS: dict[str, Any] = {
    "__habs": _abs, "__hneg": _neg, "__hfma": _hfma,
    "__hadd": _add, "__hsub": _sub, "__hmul": _mul, "__hdiv": _div,
    "__hadd_rn": _add, "__hsub_rn": _sub, "__hmul_rn": _mul,
    "__hadd_sat": _add_sat, "__hsub_sat": _sub_sat, "__hmul_sat": _mul_sat,
    "__hfma_sat": _fma_sat, "__hfma_relu": _fma_relu,
    "__hmax": _max, "__hmin": _min, "__hmax_nan": _max_nan, "__hmin_nan": _min_nan,
    "__hisnan": _F(lambda a: of(a) != of(a)), "__hisinf": _isinf,
    **{
        f"__h{name}{mark}": _compared(sign, how)
        for name, sign in (
            ("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="),
        )
        for mark, how in (("", "ordered"), ("u", "unordered"))
    },
    "hceil": _wide(np.ceil), "hfloor": _wide(np.floor), "htrunc": _wide(np.trunc),
    "hrint": _wide(np.rint), "hsqrt": _wide(np.sqrt), "hrsqrt": _wide(_rsqrt),
    "hrcp": _wide(_rcp), "hsin": _wide(np.sin), "hcos": _wide(np.cos),
    "htanh": _wide(np.tanh), "htanh_approx": _wide(np.tanh), "hexp": _wide(np.exp),
    "hexp2": _wide(np.exp2), "hexp10": _wide(_exp10),
    "hlog": _log, "hlog2": _log2, "hlog10": _log10,
    "__double2half": _of(types.float64, of), "__float2half": _of(types.float32, of),
    "__half2float": _F(lambda a: np.float32(of(a))),
    "__short_as_half": _from_int16, "__ushort_as_half": _from_uint16,
    "__half_as_short": _signed_bits, "__half_as_ushort": _bits,
    **_conversions(),
}  # fmt: skip

# The functions of `math` that take and return float16 on a GPU; the others widen it.
OF_MATH: dict[Any, str] = {
    math.trunc: "htrunc", math.ceil: "hceil", math.floor: "hfloor", math.fabs: "__habs",
    math.sqrt: "hsqrt", math.log: "hlog", math.log2: "hlog2", math.log10: "hlog10",
    math.exp: "hexp", math.tanh: "htanh", math.cos: "hcos", math.sin: "hsin",
}  # fmt: skip
if hasattr(math, "exp2"):  # from Python 3.11 on
    OF_MATH[math.exp2] = "hexp2"


def _register(function: Any, name: str) -> None:
    typed(function, 1, half)
    half_function = FUNCTIONS[name]

    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return context.compile_internal(builder, lambda a: half_function(a), sig, args)

    lower_builtin(function, half)(lowered)


for _function, _name in OF_MATH.items():
    _register(_function, _name)
for _name, _function in FUNCTIONS.items():
    # The names of the functions in generated code, and in compiled code on disk.
    if _function is not of:
        _function.__name__, _function.made_of = _name.strip("_"), ("fp16", _name)
