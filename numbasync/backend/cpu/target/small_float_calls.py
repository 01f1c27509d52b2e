"""float16 and bfloat16, of which a value is its 16 bits here: by the functions of `library`, whose
values are the float32 of the same number.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable
from typing import Any

from numbasync.backend.bfloat16_type import bfloat16
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
from numbasync.backend.cpu.target.compiled_calls import call_compiled
from numbasync.backend.cpu.target.context import CASTS, TargetContext, emits
from numbasync.backend.cpu.target.module import types

_Emit = Callable[..., Any]


class _Small:
    """A type of Numba's: the module in which numba-cuda has its functions, and its bits.

    Attributes:
        nearest: whether a cast to an integer rounds to the nearest.
    """

    def __init__(self, module: str, digits: int, nearest: bool) -> None:
        self.module, self.format, self.nearest = module, Format(digits), nearest

    def library(self) -> tuple[Any, dict[str, Any]]:
        """The type of `library`, and its functions. To import them takes a while."""
        functions = importlib.import_module("numbasync.backend.cpu.library.small_float_functions")
        floats = importlib.import_module("numbasync.backend.cpu.library.small_floats")
        if self.nearest:
            return floats.half, functions.OF_HALF
        return floats.bfloat, functions.OF_BFLOAT


_SMALL = {types.float16: _Small("numba.cuda._internal.cuda_fp16", 10, nearest=True)}
if bfloat16 is not None:
    _SMALL[bfloat16] = _Small("numba.cuda._internal.cuda_bf16", 7, nearest=False)


def _wide(builder: Builder, numba_type: Any, bits: Any) -> Any:
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
    wide = _wide(builder, from_type, value)
    if to_type in _SMALL:
        return _narrow(builder, to_type, wide)
    if isinstance(to_type, types.Float):
        return builder.fpext(wide, DOUBLE) if to_type == types.float64 else wide
    if _SMALL[from_type].nearest:
        wide = builder.call(builder.module.declare_intrinsic("llvm.rint", [FLOAT]), [wide])
    convert = builder.fptosi if to_type.signed else builder.fptoui
    return convert(wide, builder.lower.context.get_value_type(to_type))


# --- functions ---


def _arithmetic(instruction: str) -> _Emit:
    return lambda builder, *args: getattr(builder, instruction)(*args)


def _comparison(sign: str, order: str) -> _Emit:
    return lambda builder, a, b: getattr(builder, f"fcmp_{order}")(sign, a, b)


def _same(builder: Builder, a: Any) -> Any:
    return a


def _relation(name: str, sign: str) -> _Emit:
    return _comparison(sign, "unordered" if name == "ne" else "ordered")


_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_OPERATIONS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
# By instructions; the result is a float32 or float64, to be rounded, or a truth.
_DIRECT: dict[Any, _Emit] = {
    **{f"__h{n}": _arithmetic(i) for n, i in _OPERATIONS.items()},
    **{f"__h{n}_rn": _arithmetic(i) for n, i in _OPERATIONS.items()},
    **{f"__h{n}": _relation(n, s) for n, s in _SIGNS.items()},
    "__habs": absolute, "__hneg": negated, "abs": absolute, "neg": negated,
    "__hfma": fused,
    "pos": _same,
    **{n: _arithmetic(i) for n, i in _OPERATIONS.items()},
    **{f"i{n}": _arithmetic(i) for n, i in _OPERATIONS.items()},
    "truediv": _arithmetic("fdiv"), "itruediv": _arithmetic("fdiv"),
    **{n: _relation(n, s) for n, s in _SIGNS.items()},
}  # fmt: skip
# `__hne` of NaN is false, as a GPU has it, where `!=` is true.
_DIRECT["__hne"] = _comparison("!=", "ordered")


def _emitted(emit: _Emit, of: Any) -> Any:
    def emitted(context: TargetContext, builder: Builder, signature: Any, args: list[Any]) -> Any:
        wide = [_wide(builder, of, context.cast(builder, a, t, of))
                for a, t in zip(args, signature.args, strict=True)]  # fmt: skip
        result = emit(builder, *wide)
        if result.type in (FLOAT, DOUBLE):
            return _narrow(builder, of, result)
        return context.cast(builder, result, types.boolean, signature.return_type)

    return emitted


def _compiled(of: Any, name: str) -> Any:
    def emitted(context: TargetContext, builder: Builder, signature: Any, args: list[Any]) -> Any:
        small, functions = _SMALL[of].library()
        if name not in functions:
            builder.refuse(f"a call of {name}")
            return context.get_constant_undef(signature.return_type)
        given = tuple(small if t == of else t for t in signature.args)
        values = [_wide(builder, t, a) if t == of else a
                  for t, a in zip(signature.args, args, strict=True)]  # fmt: skip
        result_type, result = call_compiled(builder, functions[name], given, values)
        if result_type == small:
            return _SMALL[of].format.write(builder, result)
        return context.cast(builder, result, result_type, signature.return_type)

    return emitted


def _constructed(context: TargetContext, builder: Builder, signature: Any, args: list[Any]) -> Any:
    (value,), (value_type,) = args, signature.args
    return context.cast(builder, value, value_type, signature.return_type)


def _register() -> None:
    for of, small in _SMALL.items():
        for _, key, signature in importlib.import_module(small.module).target_registry.functions:
            name = getattr(key, "__name__", "")
            if not all(t in _SMALL or isinstance(t, types.Number) for t in signature):
                continue  # of two in one, or by address
            if isinstance(key, type | types.Type):
                if len(signature) == 1:
                    emits(key, *signature)(_constructed)
            elif name in _DIRECT:
                if set(signature) == {of}:
                    emits(key, *signature)(_emitted(_DIRECT[name], of))
            elif signature:
                emits(key, *signature)(_compiled(of, name))


CASTS.append((is_cast, cast))
_register()
emits(operator.abs, types.float16)(_emitted(absolute, types.float16))
emits(math.fabs, types.float16)(_emitted(absolute, types.float16))
