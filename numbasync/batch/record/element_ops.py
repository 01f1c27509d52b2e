"""The elementwise operations: the types that they compute in, and their results in NumPy.

Types follow NumPy's promotion, in which Python's own numbers are weak: a Python number takes the
other operand's type where its kind allows it. The kernels' code for the operations is in
`codegen/expressions.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbasync.arguments import shown
from numbasync.batch.record.nodes import PLACES
from numbasync.dtypes import EXTENSIONS, SMALL, is_extension, of_name
from numbasync.dtypes import is_float as is_float
from numbasync.dtypes import is_small as is_small
from numbasync.errors import DTypeError

DType = np.dtype[Any]
# A type, or `int` or `float` for Python's own numbers, which are weak.
Kind = DType | type

F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
I32, I64, BOOL = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.bool_)
DTYPES = (F16, F32, F64, I32, I64, BOOL)
NAMES = (*SMALL, *(dtype.name for dtype in DTYPES[1:]))
_KNOWN = {dtype: dtype for dtype in DTYPES}


def is_supported(dtype: DType) -> bool:
    return dtype in _KNOWN or (is_extension(dtype) and dtype.isnative)


def is_integer(dtype: DType) -> bool:
    return dtype.kind == "i"


Resolved = tuple[tuple[DType, ...], DType]


@dataclass(frozen=True, slots=True)
class Op:
    """An elementwise operation.

    Attributes:
        arity: the number of operands.
        resolve: the types that operands are converted to, and the type of the result.
        numpy: the same operation on NumPy arrays of the converted types.
    """

    arity: int
    resolve: Callable[[tuple[Kind, ...]], Resolved]
    numpy: Callable[..., Any]


def _of_ufunc(ufunc: Any) -> Op:
    def resolve(kinds: tuple[Kind, ...]) -> Resolved:
        *loops, out = ufunc.resolve_dtypes((*kinds, None))
        return tuple(loops), out

    return Op(ufunc.nin, resolve, ufunc)


def common(kinds: Sequence[Kind]) -> DType:
    """The common type of several kinds, as NumPy's `result_type`."""
    dtype: DType = np.result_type(*(k(0) if isinstance(k, type) else k for k in kinds))
    return dtype


def _promoted(arity: int, numpy: Callable[..., Any]) -> Op:
    """An operation whose operands are all converted to one type, which is also the result's."""

    def resolve(kinds: tuple[Kind, ...]) -> Resolved:
        dtype = common(kinds)
        return (dtype,) * arity, dtype

    return Op(arity, resolve, numpy)


def _like_exp(numpy: Callable[..., Any]) -> Op:
    """An operation that keeps float types, and converts integers to the types of NumPy's `exp`."""
    return Op(1, _of_ufunc(np.exp).resolve, numpy)


def _where(kinds: tuple[Kind, ...]) -> Resolved:
    dtype = common(kinds[1:])
    return (BOOL, dtype, dtype), dtype


def _relu(kinds: tuple[Kind, ...]) -> Resolved:
    dtype = common((*kinds, int))
    return (dtype,), dtype


def _wide(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that computes small floats in float32 and rounds once."""

    def call(x: Any) -> Any:
        x = np.asarray(x)
        return function(x.astype(F32)).astype(x.dtype) if is_small(x.dtype) else function(x)

    return call


def _of(x: Any, value: float) -> Any:
    return x.dtype.type(value)


@_wide
def _sigmoid(x: Any) -> Any:
    return _of(x, 1) / (_of(x, 1) + np.exp(-x))


@_wide
def _swish(x: Any) -> Any:
    return x / (_of(x, 1) + np.exp(-x))


def _erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(x)  # avoids a dependency on scipy


@_wide
def _gelu(x: Any) -> Any:
    erf = _erf(x * _of(x, math.sqrt(0.5))).astype(x.dtype)
    return _of(x, 0.5) * x * (_of(x, 1) + erf)


GELU_FACTOR = math.sqrt(2 / math.pi)


@_wide
def _gelu_tanh(x: Any) -> Any:
    inner = _of(x, GELU_FACTOR) * (x + _of(x, 0.044715) * (x * x * x))
    return _of(x, 0.5) * x * (_of(x, 1) + np.tanh(inner))


_TRUTHS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_UFUNCS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide,
    "pow": np.power, "maximum": np.maximum, "minimum": np.minimum, "neg": np.negative,
    "abs": np.absolute, "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p,
    "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "square": np.square,
    **{name: getattr(np, name) for name in _TRUTHS},
}  # fmt: skip

OPS: dict[str, Op] = {
    **{name: _of_ufunc(ufunc) for name, ufunc in _UFUNCS.items()},
    "where": Op(3, _where, np.where),
    "clamp": _promoted(3, lambda x, low, high: np.minimum(np.maximum(x, low), high)),
    "relu": Op(1, _relu, lambda x: np.maximum(x, x.dtype.type(0))),
    "sigmoid": _like_exp(_sigmoid),
    "swish": _like_exp(_swish),
    "gelu": _like_exp(_gelu),
    "gelu_tanh": _like_exp(_gelu_tanh),
}

_resolved: dict[tuple[str, tuple[Kind, ...]], Resolved] = {}


def resolve(name: str, kinds: tuple[Kind, ...]) -> Resolved:
    """The types that an operation converts its operands to, and the type of its result.

    Raises:
        DTypeError: NumPy has no such operation for these types, or computes it in a type that
            batches do not support.
    """
    resolved = _resolved.get((name, kinds))
    if resolved is None:
        resolved = _resolved[name, kinds] = _resolve(name, kinds)
    return resolved


def _resolve(name: str, kinds: tuple[Kind, ...]) -> Resolved:
    shown = ", ".join(k.__name__ if isinstance(k, type) else str(k) for k in kinds)
    try:
        loops, out = OPS[name].resolve(kinds)
    except TypeError as error:
        raise DTypeError(
            f"{name} of {shown}: NumPy has no such operation ({str(error).splitlines()[0]}).\n"
            "Convert an operand first: b.cast(x, np.float32)"
        ) from None
    foreign = [t for t in (*loops, out) if not is_supported(t)]
    if foreign:
        raise DTypeError(
            f"{name} of {shown} is computed in {foreign[0]} by NumPy, which batches do not have.\n"
            "Convert an operand first: b.cast(x, np.int32)"
        )
    return loops, out


def check_dtype(dtype: Any, what: str) -> DType:
    """The supported type that equals `dtype`.

    Raises:
        DTypeError: batches do not support the type.
    """
    if isinstance(dtype, np.dtype) and dtype in _KNOWN:
        return _KNOWN[dtype]  # one object per type, quick to compare
    try:
        is_named = isinstance(dtype, str) and dtype in EXTENSIONS  # which NumPy may not know yet
        parsed: DType = of_name(dtype) if is_named else np.dtype("None" if dtype is None else dtype)
    except Exception:  # TypeError, and whatever an attribute `dtype` raises
        raise DTypeError(
            f"{what}: {shown(dtype)} is not a NumPy dtype; write np.float32."
        ) from None
    if is_supported(parsed):
        return _KNOWN.get(parsed, parsed)
    raise DTypeError(
        f"{what}: a batch has {', '.join(NAMES[:-1])} and {NAMES[-1]}, not {parsed}.\n"
        "Convert it: array.astype(np.float32)"
    )


# --- reductions ---


def reduced(name: str, dtype: DType) -> DType:
    """The type of a reduction's result, as in NumPy."""
    if name in PLACES:
        return I64
    if name == "sum":
        return I64 if dtype.kind in "bi" else dtype
    if name == "mean":
        return F64 if dtype.kind in "bi" else dtype
    return dtype


def accumulator(name: str, dtype: DType) -> DType:
    """The type that a reduction accumulates in: float64 for sums of float32 and float64, float32
    for those of float16 and bfloat16, int64 for those of integers and bools; the type itself for
    `max` and `min`.
    """
    if name in ("max", "min") or name in PLACES:
        return dtype
    if is_small(dtype):
        return F32
    return F64 if dtype.kind == "f" or name == "mean" else I64
