"""float16 and bfloat16, of which a value is its 16 bits here: casts, operators, and the functions
of `numba.cuda.fp16` and `numba.cuda.bf16`, by their names there.

They are computed with the float32 of the same number, and rounded. A float32 has more than twice
the bits, so a sum, product, quotient or root that is computed in float32 and rounded again equals
the one that is rounded once. Functions that a GPU approximates (`hsin`, `hexp` ...) are computed in
float64 and rounded to the nearest number; a GPU's result may be the one beside it.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable
from typing import Any

from numbasync import dtypes
from numbasync.backend.cpu.library.libdevice_rounding import to_integer
from numbasync.backend.cpu.library.small_float_bits import (
    DOUBLE,
    FLOAT,
    Format,
    absolute,
    as_double,
    fused,
    negated,
)
from numbasync.backend.cpu.target.builder import Builder
from numbasync.backend.cpu.target.context import CASTS, TargetContext, emits
from numbasync.backend.cpu.target.module import I1, I32, types

_Emit = Callable[..., Any]


class _Small:
    """A type of Numba's: the module in which numba-cuda has its functions, and its bits.

    Attributes:
        name: of the type in names of functions.
        nearest: whether a cast to an integer rounds to the nearest.
    """

    def __init__(self, module: str, name: str, digits: int, nearest: bool) -> None:
        self.module, self.name, self.nearest = module, name, nearest
        self.format = Format(digits)


_SMALL = {types.float16: _Small("numba.cuda._internal.cuda_fp16", "half", 10, nearest=True)}
if (bfloat16 := dtypes.extension_types().get("bfloat16")) is not None:
    _SMALL[bfloat16] = _Small("numba.cuda._internal.cuda_bf16", "bfloat16", 7, nearest=False)


def widened(builder: Builder, numba_type: Any, bits: Any) -> Any:
    """The float32 of the bits of a small float."""
    return _SMALL[numba_type].format.read(builder, bits)


def _narrow(builder: Builder, numba_type: Any, value: Any) -> Any:
    """The bits of the number that is nearest to a float32 or float64."""
    small = _SMALL[numba_type].format
    return small.write(builder, small.rounded(builder, value))


# --- casts ---


def is_cast(from_type: Any, to_type: Any) -> bool:
    """Whether a cast is one of a small float and a number."""
    numbers = types.Integer | types.Float
    return (from_type in _SMALL and (to_type in _SMALL or isinstance(to_type, numbers))) or (
        to_type in _SMALL and isinstance(from_type, numbers)
    )


def cast(builder: Builder, value: Any, from_type: Any, to_type: Any) -> Any:
    if from_type not in _SMALL:
        if isinstance(from_type, types.Integer):
            value = as_double(builder, value, from_type.signed)
        return _narrow(builder, to_type, value)
    wide = widened(builder, from_type, value)
    if to_type in _SMALL:
        return _narrow(builder, to_type, wide)
    if isinstance(to_type, types.Float):
        return builder.fpext(wide, DOUBLE) if to_type == types.float64 else wide
    if _SMALL[from_type].nearest:
        wide = builder.call(builder.module.declare_intrinsic("llvm.rint", [FLOAT]), [wide])
    convert = builder.fptosi if to_type.signed else builder.fptoui
    return convert(wide, builder.lower.context.get_value_type(to_type))


# --- functions ---
#
# Each takes the numbers as float32, other arguments as they are, and gives a float32 or float64
# that is then rounded to the nearest number, the bits of a number, an integer, or a truth.


def _instruction(name: str) -> _Emit:
    return lambda builder, *args: getattr(builder, name)(*args)


def _comparison(sign: str, order: str) -> _Emit:
    return lambda builder, a, b: getattr(builder, f"fcmp_{order}")(sign, a, b)


def _relation(name: str, sign: str) -> _Emit:
    return _comparison(sign, "unordered" if name == "ne" else "ordered")


def _same(builder: Builder, a: Any) -> Any:
    return a


def _called(builder: Builder, name: str, x: Any) -> Any:
    """An intrinsic of LLVM of a float64."""
    return builder.call(builder.module.declare_intrinsic(f"llvm.{name}", [DOUBLE]), [x])


def _in_double(name: str, reciprocal: bool = False) -> _Emit:
    """Of negative numbers, zeros, infinities and NaN these return what C's functions return."""

    def emit(builder: Builder, a: Any) -> Any:
        x = builder.fpext(a, DOUBLE)
        result = _called(builder, name, x) if name else x
        return builder.fdiv(DOUBLE(1.0), result) if reciprocal else result

    return emit


def _saturated(emit: _Emit) -> _Emit:
    """Between 0 and 1; NaN is 0."""

    def saturated(builder: Builder, *args: Any) -> Any:
        x = emit(builder, *args)
        zero, one = x.type(0.0), x.type(1.0)
        positive = builder.select(builder.fcmp_ordered(">", x, zero), x, zero)
        return builder.select(builder.fcmp_ordered(">", x, one), one, positive)

    return saturated


def _chosen(sign: str, both: str) -> _Emit:
    """The larger or the smaller. NaN loses, and -0 is less than 0.

    Args:
        both: what is done with the bits of equal numbers, which are two zeros if they differ.
    """

    def chosen(builder: Builder, x: Any, y: Any) -> Any:
        words = (builder.bitcast(v, I32) for v in (x, y))
        zero = builder.bitcast(getattr(builder, both)(*words), FLOAT)
        better = builder.select(builder.fcmp_ordered(sign, y, x), y, x)
        better = builder.select(builder.fcmp_ordered("==", x, y), zero, better)
        return builder.select(builder.fcmp_unordered("uno", x, x), y, better)

    return chosen


def _or_nan(emit: _Emit) -> _Emit:
    """NaN wins."""

    def chosen(builder: Builder, x: Any, y: Any) -> Any:
        is_nan = builder.fcmp_unordered("uno", x, y)
        return builder.select(is_nan, builder.fadd(x, y), emit(builder, x, y))

    return chosen


def _is_infinite(builder: Builder, x: Any) -> Any:
    """1 or -1 of an infinity, else 0."""
    sign = builder.select(builder.fcmp_ordered(">", x, FLOAT(0.0)), I32(1), I32(-1))
    is_infinite = builder.fcmp_ordered("==", absolute(builder, x), FLOAT(math.inf))
    return builder.select(is_infinite, sign, I32(0))


_larger, _smaller = _chosen(">", "and_"), _chosen("<", "or_")
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_OPERATIONS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_IN_DOUBLE = {
    "hceil": "ceil", "hfloor": "floor", "htrunc": "trunc", "hrint": "rint", "hsqrt": "sqrt",
    "hsin": "sin", "hcos": "cos", "htanh": "tanh", "htanh_approx": "tanh", "hexp": "exp",
    "hexp2": "exp2", "hexp10": "exp10", "hlog": "log", "hlog2": "log2", "hlog10": "log10",
}  # fmt: skip
_OF_BOTH: dict[str, _Emit] = {
    **{f"__h{n}": _instruction(i) for n, i in _OPERATIONS.items()},
    **{f"__h{n}_rn": _instruction(i) for n, i in _OPERATIONS.items()},
    **{f"__h{n}_sat": _saturated(_instruction(i)) for n, i in _OPERATIONS.items()},
    **{f"__h{n}": _relation(n, s) for n, s in _SIGNS.items()},
    # `__hne` of NaN is false, as a GPU has it, where `!=` is true.
    "__hne": _comparison("!=", "ordered"),
    **{f"__h{n}u": _comparison(s, "unordered") for n, s in _SIGNS.items()},
    **{n: _instruction(i) for n, i in _OPERATIONS.items()},
    **{f"i{n}": _instruction(i) for n, i in _OPERATIONS.items()},
    "truediv": _instruction("fdiv"), "itruediv": _instruction("fdiv"),
    **{n: _relation(n, s) for n, s in _SIGNS.items()},
    "__habs": absolute, "__hneg": negated, "abs": absolute, "neg": negated, "pos": _same,
    "__hfma": fused, "__hfma_sat": _saturated(fused),
    "__hmax": _larger, "__hmin": _smaller,
    "__hmax_nan": _or_nan(_larger), "__hmin_nan": _or_nan(_smaller),
    "__hisnan": lambda builder, a: builder.fcmp_unordered("uno", a, a), "__hisinf": _is_infinite,
    **{name: _in_double(of_llvm) for name, of_llvm in _IN_DOUBLE.items()},
    "hrsqrt": _in_double("sqrt", reciprocal=True), "hrcp": _in_double("", reciprocal=True),
}  # fmt: skip
_INTEGERS = {
    "char": 8, "uchar": 8, "short": 16, "ushort": 16, "int": 32, "uint": 32, "ll": 64, "ull": 64,
}  # fmt: skip


def _is_up(builder: Builder, mode: str, x: Any) -> Any:
    """Whether a number is rounded up."""
    return builder.fcmp_ordered("<", x, x.type(0.0)) if mode == "rz" else I1(mode == "ru")


def _rounding(bits_format: Format, mode: str, integer: str = "") -> _Emit:
    """A conversion from a float, or from an integer of this name, by a rounding mode."""

    def emit(builder: Builder, value: Any) -> Any:
        if integer:
            value = as_double(builder, value, not integer.startswith("u"))
        elif value.type == FLOAT:
            value = builder.fpext(value, DOUBLE)
        if mode == "rn":
            return value
        return bits_format.rounded_to_side(builder, value, _is_up(builder, mode, value))

    return emit


def _of_one(small: _Small) -> dict[str, _Emit]:
    """The functions that have the name of the type in theirs, or depend on its bits."""
    name, bits = small.name, small.format

    def relu(builder: Builder, *args: Any) -> Any:
        x = bits.rounded(builder, fused(builder, *args))
        return builder.select(builder.fcmp_ordered("<", x, FLOAT(0.0)), FLOAT(0.0), x)

    found: dict[str, _Emit] = {
        "__hfma_relu": relu, f"__double2{name}": _same, f"__float2{name}": _same,
        f"__{name}2float": _same, f"__short_as_{name}": _same, f"__ushort_as_{name}": _same,
        f"__{name}_as_short": bits.write, f"__{name}_as_ushort": bits.write,
    }  # fmt: skip
    for mode in ("rn", "rz", "rd", "ru"):
        found[f"__float2{name}_{mode}"] = _rounding(bits, mode)
        for kind, width in _INTEGERS.items():
            convert = "fptoui" if kind.startswith("u") else "fptosi"
            found[f"__{name}2{kind}_{mode}"] = to_integer(convert, mode, width)
            found[f"__{kind}2{name}_{mode}"] = _rounding(bits, mode, kind)
    return found


def _emitted(emit: _Emit | None, of: Any, name: str = "") -> Any:
    def emitted(context: TargetContext, builder: Builder, signature: Any, args: list[Any]) -> Any:
        if emit is None:
            builder.refuse(f"a call of {name}")
            return context.get_constant_undef(signature.return_type)
        result = emit(builder, *(
            widened(builder, t, a) if t == of else a
            for t, a in zip(signature.args, args, strict=True)
        ))  # fmt: skip
        if result.type == I1:
            return context.cast(builder, result, types.boolean, signature.return_type)
        if signature.return_type == of and result.type in (FLOAT, DOUBLE):
            return _narrow(builder, of, result)
        return result

    return emitted


def _constructed(context: TargetContext, builder: Builder, signature: Any, args: list[Any]) -> Any:
    (value,), (value_type,) = args, signature.args
    return context.cast(builder, value, value_type, signature.return_type)


def _register() -> None:
    for of, small in _SMALL.items():
        known = _OF_BOTH | _of_one(small)
        for _, key, signature in importlib.import_module(small.module).target_registry.functions:
            name = getattr(key, "__name__", "")
            if not all(t in _SMALL or isinstance(t, types.Number) for t in signature):
                continue  # of two in one, or by address
            if isinstance(key, type | types.Type):
                if len(signature) == 1:
                    emits(key, *signature)(_constructed)
            elif signature:
                emits(key, *signature)(_emitted(known.get(name), of, name))


CASTS.append((is_cast, cast))
_register()
emits(operator.abs, types.float16)(_emitted(absolute, types.float16))
emits(math.fabs, types.float16)(_emitted(absolute, types.float16))
