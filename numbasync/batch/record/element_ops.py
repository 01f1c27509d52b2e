"""The elementwise operations: which types they compute in, and what NumPy says that they give.

Types follow NumPy's promotion, in which Python's own numbers are weak: they take the other
operand's type where their kind allows it. How a kernel computes them is in `formulas`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbasync.errors import DTypeError

DType = np.dtype[Any]
# A type, or `int` or `float` for Python's own numbers, which are weak.
Kind = DType | type

F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
I32, I64, BOOL = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.bool_)
DTYPES = (F16, F32, F64, I32, I64, BOOL)
_KNOWN = {dtype: dtype for dtype in DTYPES}


def is_float(dtype: DType) -> bool:
    return dtype.kind == "f"


def is_integer(dtype: DType) -> bool:
    return dtype.kind == "i"


Resolved = tuple[tuple[DType, ...], DType]


@dataclass(frozen=True, slots=True)
class Op:
    """An elementwise operation.

    Attributes:
        arity: how many operands it takes.
        resolve: the types that operands are converted to, and that of the result.
        numpy: the same on NumPy arrays of the types that operands are converted to.
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
    """The type that they have together, as NumPy's `result_type`."""
    found: DType = np.result_type(*(k(0) if isinstance(k, type) else k for k in kinds))
    return found


def _promoted(arity: int, numpy: Callable[..., Any]) -> Op:
    """All operands become one type, which the result has, too."""

    def resolve(kinds: tuple[Kind, ...]) -> Resolved:
        kind = common(kinds)
        return (kind,) * arity, kind

    return Op(arity, resolve, numpy)


def _like_exp(numpy: Callable[..., Any]) -> Op:
    """Floats stay what they are; integers become what NumPy's `exp` makes of them."""
    return Op(1, _of_ufunc(np.exp).resolve, numpy)


def _where(kinds: tuple[Kind, ...]) -> Resolved:
    kind = common(kinds[1:])
    return (BOOL, kind, kind), kind


def _relu(kinds: tuple[Kind, ...]) -> Resolved:
    kind = common((*kinds, int))
    return (kind,), kind


def _wide(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """float16 is computed in float32 and rounded once."""

    def call(x: Any) -> Any:
        x = np.asarray(x)
        return function(x.astype(F32)).astype(F16) if x.dtype == F16 else function(x)

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
    return np.vectorize(math.erf, otypes=[np.float64])(x)  # no scipy where it is not needed


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
    "abs": np.absolute, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh,
    "square": np.square, **{name: getattr(np, name) for name in _TRUTHS},
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
    """The types that an operation converts its operands to, and that of its result.

    Raises:
        DTypeError: NumPy has no such operation for these types, or computes it in a type that
            batches do not have.
    """
    found = _resolved.get((name, kinds))
    if found is None:
        found = _resolved[name, kinds] = _resolve(name, kinds)
    return found


def _resolve(name: str, kinds: tuple[Kind, ...]) -> Resolved:
    shown = ", ".join(k.__name__ if isinstance(k, type) else str(k) for k in kinds)
    try:
        loops, out = OPS[name].resolve(kinds)
    except TypeError as error:
        raise DTypeError(
            f"{name} of {shown}: NumPy has no such operation ({str(error).splitlines()[0]}).\n"
            "Convert an operand first: b.cast(x, np.float32)"
        ) from None
    wrong = [t for t in (*loops, out) if t not in DTYPES]
    if wrong:
        raise DTypeError(
            f"{name} of {shown} is computed in {wrong[0]} by NumPy, which batches do not have.\n"
            "Convert an operand first: b.cast(x, np.int32)"
        )
    return loops, out


def check_dtype(dtype: Any, what: str) -> DType:
    """A type that batches have.

    Raises:
        DTypeError: it is another one.
    """
    if isinstance(dtype, np.dtype) and dtype in _KNOWN:
        return _KNOWN[dtype]  # one object a type, quick to compare
    try:
        found: DType = np.dtype("None" if dtype is None else dtype)
    except TypeError:
        raise DTypeError(f"{what}: {dtype!r:.60} is not a NumPy dtype; write np.float32.") from None
    if found in _KNOWN:
        return _KNOWN[found]
    raise DTypeError(
        f"{what}: a batch has float16, float32, float64, int32, int64 and bool, not {found}.\n"
        "Convert it: array.astype(np.float32)"
    )


# --- reductions ---


def reduced(name: str, dtype: DType) -> DType:
    """The type of a reduction's result, as NumPy has it."""
    if name == "argmax":
        return I64
    if name == "sum":
        return I64 if dtype.kind in "bi" else dtype
    if name == "mean":
        return F64 if dtype.kind in "bi" else dtype
    return dtype


def accumulator(name: str, dtype: DType) -> DType:
    """What a reduction accumulates in: float64 for sums of float32 and float64, float32 for those
    of float16, int64 for those of integers and bools; the type itself for `max` and `min`.
    """
    if name in ("max", "min", "argmax"):
        return dtype
    if dtype == F16:
        return F32
    return F64 if dtype.kind == "f" or name == "mean" else I64
