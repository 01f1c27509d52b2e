"""`numba.cuda.fp16` and `numba.cuda.bf16` for the processor: functions of float16 and of bfloat16,
by their names there; but for those that are an instruction or two, which `target` emits.

Functions that a GPU approximates (`hsin`, `hexp` ...) are computed in float64 and rounded to the
nearest number; a GPU's result may be the one beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from numbasync.backend.cpu.library.options import INLINED, emitted, types
from numbasync.backend.cpu.library.small_float_bits import fused
from numbasync.backend.cpu.library.small_floats import bfloat, half

_F = njit(**INLINED)
_ROUNDINGS = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}
_INTEGERS = {
    "short": types.int16, "ushort": types.uint16, "int": types.int32, "uint": types.uint32,
    "ll": types.int64, "ull": types.uint64,
}  # fmt: skip
_exp10 = _F(lambda x: 10.0**x)
_rcp = _F(lambda x: 1 / x)
_rsqrt = _F(lambda x: 1 / np.sqrt(x))


def _whole(of: Any, rounding: Any, integer: Any) -> Any:
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


def _of(source: Any, convert: Any) -> Any:
    return _F(lambda x: convert(source(x)))


def _functions(small: Any, name: str) -> dict[str, Any]:
    """All functions of one of the types, which has `name` in the functions' names."""
    of, bits_format = small.of, small.format

    # --- by instructions ---

    def by_instructions(count: int, result: Any, emit: Callable[..., Any]) -> Any:
        """A function of numbers of the type; other arguments are converted."""
        function = emitted(result, (small,) * count, emit)
        if count == 1:
            return _F(lambda a: function(of(a)))
        if count == 2:
            return _F(lambda a, b: function(of(a), of(b)))
        return _F(lambda a, b, c: function(of(a), of(b), of(c)))

    def compared(sign: str) -> Any:
        """A comparison that NaN passes."""
        return by_instructions(2, types.boolean, lambda b, x, y: b.fcmp_unordered(sign, x, y))

    add = _F(lambda a, b: of(a) + of(b))
    sub = _F(lambda a, b: of(a) - of(b))
    mul = _F(lambda a, b: of(a) * of(b))
    fma = by_instructions(3, small, lambda b, x, y, z: bits_format.rounded(b, fused(b, x, y, z)))
    bits = by_instructions(1, types.uint16, bits_format.write)
    signed_bits = by_instructions(1, types.int16, bits_format.write)
    is_nan = compared("!=")
    of_uint16 = emitted(small, (types.uint16,), bits_format.read)
    of_int16 = emitted(small, (types.int16,), bits_format.read)
    from_uint16 = _F(lambda a: of_uint16(np.uint16(a)))
    from_int16 = _F(lambda a: of_int16(np.int16(a)))

    # --- choices ---

    @_F
    def saturated(x):  # type: ignore[no-untyped-def]
        """Between 0 and 1; NaN is 0."""
        return of(1) if x > of(1) else (x if x > of(0) else of(0))

    @_F
    def fma_relu(a, b, c):  # type: ignore[no-untyped-def]
        x = fma(a, b, c)
        return of(0) if x < of(0) else x

    @_F
    def larger(a, b):  # type: ignore[no-untyped-def]
        """NaN loses, and so does -0 to 0."""
        x, y = of(a), of(b)
        if x != x:
            return y
        if x == y:
            return y if bits(x) >> 15 else x
        return y if y > x else x

    @_F
    def smaller(a, b):  # type: ignore[no-untyped-def]
        x, y = of(a), of(b)
        if x != x:
            return y
        if x == y:
            return x if bits(x) >> 15 else y
        return y if y < x else x

    infinite = bits_format.infinite

    @_F
    def isinf(a):  # type: ignore[no-untyped-def]
        b = bits(a)
        plus, minus = b == infinite, b == infinite + 0x8000
        return np.int32(1) if plus else np.int32(-1) if minus else np.int32(0)

    # --- functions computed in float64 ---

    def wide(function: Any) -> Any:
        return _F(lambda a: of(function(np.float64(of(a)))))

    # --- other roundings ---

    @_F
    def beside(x, up):  # type: ignore[no-untyped-def]
        """The next number above or below."""
        b = np.int32(bits(x))
        if b & 0x7FFF == 0:
            return from_uint16(np.uint16(0x0001 if up else 0x8001))
        grows = (b >> 15 == 0) == up
        return from_uint16(np.uint16(b + 1 if grows else b - 1))

    @_F
    def down(x):  # type: ignore[no-untyped-def]
        near = of(x)
        return beside(near, False) if np.float64(near) > np.float64(x) else near

    @_F
    def up(x):  # type: ignore[no-untyped-def]
        near = of(x)
        return beside(near, True) if np.float64(near) < np.float64(x) else near

    @_F
    def to_zero(x):  # type: ignore[no-untyped-def]
        return up(x) if x < 0 else down(x)

    roundings_to = {"rn": of, "rz": to_zero, "rd": down, "ru": up}
    functions = {
        "__hadd_sat": _F(lambda a, b: saturated(add(a, b))),
        "__hsub_sat": _F(lambda a, b: saturated(sub(a, b))),
        "__hmul_sat": _F(lambda a, b: saturated(mul(a, b))),
        "__hfma_sat": _F(lambda a, b, c: saturated(fma(a, b, c))), "__hfma_relu": fma_relu,
        "__hmax": larger, "__hmin": smaller,
        "__hmax_nan": _F(lambda a, b: of(a) + of(b) if is_nan(a, b) else larger(a, b)),
        "__hmin_nan": _F(lambda a, b: of(a) + of(b) if is_nan(a, b) else smaller(a, b)),
        "__hisnan": _F(lambda a: of(a) != of(a)), "__hisinf": isinf,
        **{
            f"__h{relation}u": compared(sign)
            for relation, sign in (
                ("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="),
            )
        },
        "hceil": wide(np.ceil), "hfloor": wide(np.floor), "htrunc": wide(np.trunc),
        "hrint": wide(np.rint), "hsqrt": wide(np.sqrt), "hrsqrt": wide(_rsqrt),
        "hrcp": wide(_rcp), "hsin": wide(np.sin), "hcos": wide(np.cos),
        "htanh": wide(np.tanh), "htanh_approx": wide(np.tanh), "hexp": wide(np.exp),
        "hexp2": wide(np.exp2), "hexp10": wide(_exp10),
        # Of negative numbers, zeros, infinities and NaN these return what C's functions return.
        "hlog": wide(np.log), "hlog2": wide(np.log2), "hlog10": wide(np.log10),
        f"__double2{name}": _of(types.float64, of), f"__float2{name}": _of(types.float32, of),
        f"__{name}2float": _F(lambda a: np.float32(of(a))),
        f"__short_as_{name}": from_int16, f"__ushort_as_{name}": from_uint16,
        f"__{name}_as_short": signed_bits, f"__{name}_as_ushort": bits,
        f"__{name}2char_rz": _whole(of, np.trunc, types.int8),
        f"__{name}2uchar_rz": _whole(of, np.trunc, types.uint8),
    }  # fmt: skip
    for mode, rounding in _ROUNDINGS.items():
        functions[f"__float2{name}_{mode}"] = _of(types.float32, roundings_to[mode])
        for kind, integer in _INTEGERS.items():
            functions[f"__{name}2{kind}_{mode}"] = _whole(of, rounding, integer)
            functions[f"__{kind}2{name}_{mode}"] = _of(integer, roundings_to[mode])
    for function_name, function in functions.items():
        # The names of the functions in generated code, and in compiled code on disk.
        if function is not of:
            function.__name__ = function_name.strip("_")
    return functions


OF_HALF, OF_BFLOAT = _functions(half, "half"), _functions(bfloat, "bfloat16")
