"""What is combined: the operators of reductions and scans, as device functions.

An operator combines states, which are tuples of one to three numbers. `lift` makes a state of an
element and its index, `combine` one of two states, and `finish` a result of the last one. Each is
associative and commutative, up to rounding.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from numbasync import dtypes
from numbasync.algorithms.reduce_kernels import numba_type
from numbasync.arguments import is_one_of, shown
from numbasync.errors import CallerError, DTypeError
from numbasync.kernel_names import cuda, int64, types, uint8

F32, F64, I64, U64 = (np.dtype(t) for t in (np.float32, np.float64, np.int64, np.uint64))
U8, BOOL = np.dtype(np.uint8), np.dtype(np.bool_)


class Operator(NamedTuple):
    """One reduction of elements of one dtype.

    Attributes:
        states: dtypes of a state's numbers.
        out: dtype of the result.
        lift: device function `(element, index) -> state`.
        combine: device function `(state, state) -> state`.
        finish: device function `(state, count, ddof) -> result`.
        of_none: the result of no elements; None: there is none.
    """

    states: tuple[np.dtype[Any], ...]
    out: np.dtype[Any]
    lift: Any
    combine: Any
    finish: Any
    of_none: Any


@cuda.jit(device=True)
def _add(a: Any, b: Any) -> Any:
    return (a[0] + b[0],)


@cuda.jit(device=True)
def _multiply(a: Any, b: Any) -> Any:
    return (a[0] * b[0],)


@cuda.jit(device=True)
def _least(a: Any, b: Any) -> Any:
    return (b[0] if b[0] < a[0] or b[0] != b[0] else a[0],)  # NaN wins, as in NumPy


@cuda.jit(device=True)
def _most(a: Any, b: Any) -> Any:
    return (b[0] if b[0] > a[0] or b[0] != b[0] else a[0],)


def _first_by(is_ahead: Any) -> Any:
    """Of two numbers with their indices, the one that is ahead, NaN before all; else the first."""

    @cuda.jit(device=True)
    def first(a: Any, b: Any) -> Any:
        is_equal = a[0] == b[0] or (a[0] != a[0] and b[0] != b[0])
        wins = is_ahead(b[0], a[0]) or (b[0] != b[0] and a[0] == a[0])
        return b if wins or (is_equal and b[1] < a[1]) else a

    return first


_first_least, _first_most = _first_by(operator.lt), _first_by(operator.gt)


@cuda.jit(device=True)
def _merge_moments(a: Any, b: Any) -> Any:
    count = a[0] + b[0]
    share = b[0] / count
    away = b[1] - a[1]
    return count, a[1] + away * share, a[2] + b[2] + away * away * (a[0] * share)


@cuda.jit(device=True)
def _value(state: Any, count: Any, ddof: Any) -> Any:
    return state[0]


@cuda.jit(device=True)
def _is_true(state: Any, count: Any, ddof: Any) -> Any:
    return state[0] != 0


@cuda.jit(device=True)
def _index(state: Any, count: Any, ddof: Any) -> Any:
    return state[1]


@cuda.jit(device=True)
def _root(state: Any, count: Any, ddof: Any) -> Any:
    return math.sqrt(state[0])


@cuda.jit(device=True)
def _truth(x: Any, i: Any) -> Any:
    return (uint8(x != 0),)


@cuda.jit(device=True)
def _one_if_true(x: Any, i: Any) -> Any:
    return (int64(x != 0),)


@cache
def _lifted(dtype: np.dtype[Any], out: np.dtype[Any]) -> Any:
    """The element in another type. A bool is compared: not all its conversions are defined."""
    kind = numba_type(out)
    if dtype == BOOL:

        @cuda.jit(device=True)
        def lift(x: Any, i: Any) -> Any:
            return (kind(1 if x else 0),)
    else:

        @cuda.jit(device=True)
        def lift(x: Any, i: Any) -> Any:
            return (kind(x),)

    return lift


@cache
def _numbered(dtype: np.dtype[Any]) -> Any:
    kind = numba_type(dtype)

    @cuda.jit(device=True)
    def lift(x: Any, i: Any) -> Any:
        return kind(x), int64(i)

    return lift


@cache
def _moment(dtype: np.dtype[Any]) -> Any:
    kind = numba_type(dtype)

    @cuda.jit(device=True)
    def lift(x: Any, i: Any) -> Any:
        return kind(1.0), kind(x), kind(0.0)

    return lift


@cache
def _squared(dtype: np.dtype[Any]) -> Any:
    @cuda.jit(device=True)
    def of_complex(x: Any, i: Any) -> Any:
        real, imag = types.float64(x.real), types.float64(x.imag)
        return (real * real + imag * imag,)

    @cuda.jit(device=True)
    def of_real(x: Any, i: Any) -> Any:
        wide = types.float64(x)
        return (wide * wide,)

    return of_complex if dtype.kind == "c" else of_real


@cache
def _mean_of(state: np.dtype[Any]) -> Any:
    divisor = numba_type(np.dtype(f"f{state.itemsize // 2}") if state.kind == "c" else state)

    @cuda.jit(device=True)
    def finish(s: Any, count: Any, ddof: Any) -> Any:
        return s[0] / divisor(count)

    return finish


@cache
def _variance_of(state: np.dtype[Any], is_root: bool) -> Any:
    kind = numba_type(state)

    @cuda.jit(device=True)
    def variance(s: Any, count: Any, ddof: Any) -> Any:
        left = max(count - ddof, 0)
        if left == 0:
            return kind(math.nan) if s[2] == 0 or s[2] != s[2] else kind(math.inf)
        return s[2] / kind(left)

    @cuda.jit(device=True)
    def deviation(s: Any, count: Any, ddof: Any) -> Any:
        return kind(math.sqrt(variance(s, count, ddof)))

    return deviation if is_root else variance


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which sums and products are formed: float32 of shorter floats; of integers and
    bool 64 bits; else the dtype itself.
    """
    if dtype.kind in "bi":
        return I64
    if dtype.kind == "u":
        return U64
    return F32 if dtypes.is_small(dtype) else dtype


def _sum(dtype: np.dtype[Any]) -> Operator:
    state = wide(dtype)
    out = dtype if dtypes.has_nan(dtype) else state
    return Operator((state,), out, _lifted(dtype, state), _add, _value, 0)


def _prod(dtype: np.dtype[Any]) -> Operator:
    return _sum(dtype)._replace(combine=_multiply, of_none=1)


def _mean(dtype: np.dtype[Any]) -> Operator:
    state = wide(dtype) if dtypes.has_nan(dtype) else F64
    out = dtype if dtypes.has_nan(dtype) else F64
    return Operator((state,), out, _lifted(dtype, state), _add, _mean_of(state), math.nan)


def _moments(dtype: np.dtype[Any], is_root: bool) -> Operator:
    state = wide(dtype) if dtypes.has_nan(dtype) else F64
    out = dtype if dtypes.has_nan(dtype) else F64
    finish = _variance_of(state, is_root)
    return Operator((state,) * 3, out, _moment(state), _merge_moments, finish, math.nan)


def _var(dtype: np.dtype[Any]) -> Operator:
    return _moments(dtype, is_root=False)


def _std(dtype: np.dtype[Any]) -> Operator:
    return _moments(dtype, is_root=True)


def _compared(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which elements are compared."""
    if dtype == BOOL:
        return U8
    return wide(dtype) if dtypes.is_float(dtype) else dtype


def _min(dtype: np.dtype[Any]) -> Operator:
    state = _compared(dtype)
    finish = _is_true if dtype == BOOL else _value
    return Operator((state,), dtype, _lifted(dtype, state), _least, finish, None)


def _max(dtype: np.dtype[Any]) -> Operator:
    return _min(dtype)._replace(combine=_most)


def _argmin(dtype: np.dtype[Any]) -> Operator:
    state = _compared(dtype)
    return Operator((state, I64), I64, _numbered(state), _first_least, _index, None)


def _argmax(dtype: np.dtype[Any]) -> Operator:
    return _argmin(dtype)._replace(combine=_first_most)


def _any(dtype: np.dtype[Any]) -> Operator:
    return Operator((U8,), BOOL, _truth, _most, _is_true, False)


def _all(dtype: np.dtype[Any]) -> Operator:
    return Operator((U8,), BOOL, _truth, _least, _is_true, True)


def _count_nonzero(dtype: np.dtype[Any]) -> Operator:
    return Operator((I64,), I64, _one_if_true, _add, _value, 0)


def _norm(dtype: np.dtype[Any]) -> Operator:
    out = F64
    if dtype.kind == "c":
        out = np.dtype(f"f{dtype.itemsize // 2}")
    elif dtypes.is_float(dtype):
        out = dtype
    return Operator((F64,), out, _squared(dtype), _add, _root, 0)


OPERATORS: dict[str, Callable[[np.dtype[Any]], Operator]] = {
    "sum": _sum, "prod": _prod, "min": _min, "max": _max, "mean": _mean, "var": _var, "std": _std,
    "argmin": _argmin, "argmax": _argmax, "any": _any, "all": _all,
    "count_nonzero": _count_nonzero, "norm": _norm,
}  # fmt: skip
_ORDERED = ("min", "max", "argmin", "argmax", "var", "std")  # or squares of real numbers


@cache
def named(op: str, dtype: np.dtype[Any]) -> Operator:
    """The operator of this name, of elements of `dtype`.

    Raises:
        DTypeError: it is not defined of them.
    """
    if dtype.kind == "c" and op in _ORDERED:
        raise DTypeError(
            f"{op} of {dtype} is not defined here: complex numbers have no order.\n"
            "Reduce a real part of each: a kernel can write it to a tensor of floats."
        )
    return OPERATORS[op](dtype)


def _compiled(function: Any) -> Any:
    """A function of the host as a device function: its code, or of a builtin such as `max`, which
    has none, a call of what kernels know by that name.
    """
    if not hasattr(function, "__code__"):
        return cuda.jit(device=True)(lambda a, b: function(a, b))
    return cuda.jit(device=True)(function)


@cache
def from_function(function: Any, dtype: np.dtype[Any]) -> Operator:
    """The operator of a function of two numbers, of elements of `dtype`.

    Raises:
        DTypeError: the elements are bool.
    """
    if dtype == BOOL:
        raise DTypeError(f"reduce of {dtype} by a function: convert it, await t.astype(np.uint8).")
    state = wide(dtype) if dtypes.is_float(dtype) else dtype
    kind = numba_type(state)
    device_function = function if hasattr(function, "py_func") else _compiled(function)

    @cuda.jit(device=True)
    def combine(a: Any, b: Any) -> Any:
        return (kind(device_function(a[0], b[0])),)

    return Operator((state,), dtype, _lifted(dtype, state), combine, _value, None)


def operator_of(op: Any, dtype: np.dtype[Any]) -> Operator:
    """The operator that a caller names, or writes as a function, of elements of `dtype`.

    Raises:
        CallerError: there is no such operator.
        DTypeError: it is not defined of these elements.
    """
    if is_one_of(op, OPERATORS):
        return named(str(op), dtype)
    if isinstance(op, str) or not callable(op):
        raise CallerError(
            f"op={shown(op)}: write one of {', '.join(OPERATORS)}, or a function of two numbers."
        )
    try:
        return from_function(op, dtype)
    except TypeError as error:
        if isinstance(error, DTypeError):
            raise
        raise CallerError(f"op={shown(op)} is no function that can be compiled: {error}") from None
