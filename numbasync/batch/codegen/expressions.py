"""The expressions of a kernel's values: operations as Python expressions that Numba compiles.

Values are held in *registers* of the value's type, except for float16 and bfloat16, each of which
is held as a float32 whose value it can represent: every operation computes in float32 and is
rounded, as in NumPy. Products are computed by functions that no compiler contracts with a following
sum, so a value is the same in whichever kernel computes it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from numbasync.batch.record.element_ops import (
    BOOL,
    F32,
    F64,
    GELU_FACTOR,
    I32,
    I64,
    DType,
    is_float,
    is_integer,
    is_small,
)
from numbasync.dtypes import EXTENSIONS, SMALL

_ROUNDING = """
def {}(x):  # rounded to what {} has
    return np.float32({})
"""


def rounding(name: str) -> str:
    """The function that rounds to a small float."""
    return f"as_{name}"


def rounded(name: str, value: str) -> str:
    """A value as an element of a small float; to an extension by way of float32, as ml_dtypes."""
    return f"{name}(np.float32({value}))" if name in EXTENSIONS else f"np.{name}({value})"


# Functions that a kernel's module defines if it uses them, in this order.
HELPERS = {
    **{rounding(n): _ROUNDING.format(rounding(n), n, rounded(n, "x")) for n in SMALL},
    "larger": '''
def larger(a, b):  # NaN, if one of them is
    return a if a >= b or a != a else b
''',
    "smaller": '''
def smaller(a, b):  # NaN, if one of them is
    return a if a <= b or a != a else b
''',
    "whole_power": '''
def whole_power(base, exponent):  # of int64, which wraps; cut off where it has a fraction
    result = np.int64(1)
    if exponent < 0:
        if base != 1 and base != -1:
            return np.int64(0)
        exponent = -exponent
    while exponent > 0:
        if exponent & 1:
            result = np.int64(np.uint64(result) * np.uint64(base))
        base = np.int64(np.uint64(base) * np.uint64(base))
        exponent = exponent >> 1
    return result
''',
    "beats": '''
def beats(v, i, w, k):  # NaN before numbers, then the larger one, then the first
    if v != v:
        return w == w or i < k
    if w != w:
        return False
    return v > w or (v == w and i < k)
''',
    "undercuts": '''
def undercuts(v, i, w, k):  # NaN before numbers, then the smaller one, then the first
    if v != v:
        return w == w or i < k
    if w != w:
        return False
    return v < w or (v == w and i < k)
''',
}  # fmt: skip

_INFIX = {
    "add": "+", "sub": "-", "div": "/", "equal": "==", "not_equal": "!=", "less": "<",
    "less_equal": "<=", "greater": ">", "greater_equal": ">=",
}  # fmt: skip
_MATH = {
    name: f"math.{name}" for name in ("exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh")
}


def identifier(name: str) -> str:
    """The part of a program's name that may appear in the names of a source, and of its file."""
    return re.sub(r"\W", "", name, flags=re.ASCII)[:40]


def register(dtype: DType) -> DType:
    """The type in which a value of this type is held."""
    return F32 if is_small(dtype) else dtype


def stored(dtype: DType, value: str) -> str:
    """A value in its register as an element."""
    if not is_small(dtype):
        return value
    return f"{dtype.name}({value})" if dtype.name in EXTENSIONS else f"np.{dtype.name}({value})"


def typed(dtype: DType, value: str) -> str:
    """A literal, or a conversion to a register."""
    return f"np.{register(dtype).name.replace('bool', 'bool_')}({value})"


def arithmetic(dtype: DType, sign: str, a: str, b: str) -> str:
    """`a + b`, `a - b` or `a * b` in a register. Integers wrap around, as NumPy's do: Numba tells
    its compiler that signed integers never overflow, and so `a < a + b` would become `0 < b`.
    """
    if dtype == I64:
        return f"np.int64(np.uint64({a}) {sign} np.uint64({b}))"
    return f"({a} {sign} {b})"


class Formulas:
    """Writes expressions, and records the helpers that they need.

    Attributes:
        helpers: names of `HELPERS`.
        functions: users' functions, by their names in the source.
    """

    def __init__(self) -> None:
        self.helpers: set[str] = set()
        self.functions: dict[str, object] = {}

    def use(self, helper: str) -> str:
        """The name of a helper, which the module will define."""
        self.helpers.add(helper)
        return helper

    def cast(self, x: str, old: DType, new: DType) -> str:
        """A value of type `old` as one of type `new`."""
        if old == new or (is_small(old) and new == F32):
            return x
        if new == BOOL:
            return f"({x} != 0)"
        if is_small(new):
            if old == BOOL:
                return typed(F32, x)
            return self._narrowed(new, typed(F32, x) if is_integer(old) else x)
        return typed(new, x)

    def product(self, ty: DType, a: str, b: str) -> str:
        """A product that is rounded before anything is added to it."""
        if register(ty) == F64:
            return f"dmul_rn({a}, {b})"
        return f"fmul_rn({a}, {b})"

    def rounded(self, ty: DType, x: str) -> str:
        """The result of an operation on registers, rounded to the type."""
        if is_small(ty):
            return self._narrowed(ty, x)
        return typed(ty, x) if ty == I32 else x

    def _narrowed(self, ty: DType, x: str) -> str:
        return f"{self.use(rounding(ty.name))}({x})"

    def of(self, op: str, loops: Sequence[DType], dtype: DType, args: Sequence[str]) -> str:
        """The expression of an operation.

        Args:
            loops: types of the operands, which have been converted.
            dtype: of the result.
            args: the operands.
        """
        ty = loops[-1]
        if op in ("cast", "copy"):
            return self.cast(args[0], loops[0], dtype)
        if op == "where":
            return f"({args[1]} if {args[0]} else {args[2]})"
        if ty == BOOL:
            return self._of_bools(op, args)
        if op in _INFIX:
            if dtype == BOOL:
                return f"({args[0]} {_INFIX[op]} {args[1]})"
            return self.rounded(ty, arithmetic(ty, _INFIX[op], args[0], args[1]))
        if op in _MATH:
            return self.rounded(ty, f"{_MATH[op]}({args[0]})")
        return self._others[op](self, ty, *args)

    def _of_bools(self, op: str, args: Sequence[str]) -> str:
        if op in ("add", "maximum"):
            return f"({args[0]} or {args[1]})"
        if op in ("mul", "minimum"):
            return f"({args[0]} and {args[1]})"
        if op == "clamp":
            return f"(({args[0]} or {args[1]}) and {args[2]})"
        if op == "abs":
            return args[0]
        a, b = (typed(I32, x) for x in args)
        return f"({a} {_INFIX[op]} {b})"

    def _mul(self, ty: DType, a: str, b: str) -> str:
        if is_float(ty) and not is_small(ty):
            return self.product(ty, a, b)
        # the product of two float16 or bfloat16 is exact in float32
        return self.rounded(ty, arithmetic(ty, "*", a, b))

    def _square(self, ty: DType, a: str) -> str:
        return self._mul(ty, a, a)

    def _neg(self, ty: DType, a: str) -> str:
        if is_integer(ty):
            return self.rounded(ty, arithmetic(ty, "-", typed(ty, "0"), a))
        return f"(-{a})"

    def _abs(self, ty: DType, a: str) -> str:
        return typed(ty, f"abs({a})") if is_integer(ty) else f"abs({a})"

    def _pow(self, ty: DType, a: str, b: str) -> str:
        if is_integer(ty):
            call = f"{self.use('whole_power')}({typed(I64, a)}, {typed(I64, b)})"
            return self.rounded(ty, call)
        return self.rounded(ty, typed(ty, f"math.pow({a}, {b})"))

    def _maximum(self, ty: DType, a: str, b: str) -> str:
        return f"{self.use('larger')}({a}, {b})"

    def _minimum(self, ty: DType, a: str, b: str) -> str:
        return f"{self.use('smaller')}({a}, {b})"

    def _clamp(self, ty: DType, x: str, low: str, high: str) -> str:
        return self._minimum(ty, self._maximum(ty, x, low), high)

    def _relu(self, ty: DType, a: str) -> str:
        return self._maximum(ty, a, typed(ty, "0"))

    def _sigmoid(self, ty: DType, a: str) -> str:
        one = typed(ty, "1")
        return self.rounded(ty, f"({one} / ({one} + math.exp(-{a})))")

    def _swish(self, ty: DType, a: str) -> str:
        return self.rounded(ty, f"({a} / ({typed(ty, '1')} + math.exp(-{a})))")

    def _gelu(self, ty: DType, a: str) -> str:
        one, half = typed(ty, "1"), typed(ty, "0.5")
        root = typed(ty, repr(math.sqrt(0.5)))
        text = self.product(ty, f"{half} * {a}", f"{one} + math.erf({a} * {root})")
        return self.rounded(ty, text)

    def _gelu_tanh(self, ty: DType, a: str) -> str:
        one, half = typed(ty, "1"), typed(ty, "0.5")
        factor, cubic = typed(ty, repr(GELU_FACTOR)), typed(ty, "0.044715")
        inner = f"{factor} * ({a} + {cubic} * ({a} * {a} * {a}))"
        return self.rounded(ty, self.product(ty, f"{half} * {a}", f"{one} + math.tanh({inner})"))

    _others: ClassVar[dict[str, Callable[..., str]]] = {
        "mul": _mul, "square": _square, "neg": _neg, "abs": _abs, "pow": _pow,
        "maximum": _maximum, "minimum": _minimum, "clamp": _clamp, "relu": _relu,
        "sigmoid": _sigmoid, "swish": _swish, "gelu": _gelu, "gelu_tanh": _gelu_tanh,
    }  # fmt: skip

    def call(self, function: object, name: str, dtype: DType, args: Sequence[str]) -> str:
        """A call of a user's function."""
        alias = next((n for n, f in self.functions.items() if f is function), None)
        if alias is None:
            # A unique name in the module, whatever the program calls its functions.
            alias = f"fn{len(self.functions)}_{identifier(name)}"
            self.functions[alias] = function
        text = f"{alias}({', '.join(args)})"
        if dtype == BOOL:
            return f"({text} != 0)"
        return self._narrowed(dtype, text) if is_small(dtype) else typed(dtype, text)


# --- reductions ---


def identity(op: str, ty: DType) -> str:
    """The value that a reduction of type `ty` starts with."""
    if op in ("sum", "mean"):
        return typed(ty, "0")
    if is_float(ty):
        return typed(ty, "math.inf" if op == "min" else "-math.inf")
    if ty == BOOL:
        return typed(I32, "1" if op == "min" else "0")
    limits = np.iinfo(ty)
    # The literal -(2**63) would be the negative of a number that int64 cannot represent.
    return typed(ty, str(limits.max) if op == "min" else f"-{limits.max} - 1")


def carried(ty: DType) -> DType:
    """The type in which a reduction is held: bools as 0 and 1."""
    return I32 if ty == BOOL else register(ty)


def combined(formulas: Formulas, op: str, ty: DType, a: str, b: str) -> str:
    """Two parts of a reduction as one."""
    if op in ("sum", "mean"):
        return arithmetic(ty, "+", a, b)
    return f"{formulas.use('larger' if op == 'max' else 'smaller')}({a}, {b})"
