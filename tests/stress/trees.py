"""Operations of batches, computed by NumPy beside, with a bound on every element.

A bound is carried along: what the operands may differ by, and what the operation itself may
round differently. Arithmetic is rounded alike on every device, so it adds nothing where its
operands are equal; functions of a mathematics library may differ by some units in the last
place. Where a decision (a comparison, a maximum, a cast to an integer) hangs on less than the
bound, the element is not compared: its bound is infinite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import numbasync as na

Array = np.ndarray[Any, Any]

# Units in the last place by which a function of two libraries may differ. CUDA's tables bound
# those of float32 at 2 (exp), 1 (log), 2 (tanh), 9 (pow) and of float64 at 1, 1, 2 and 2; NumPy's
# own are within 4.
ULPS = {"exp": 6, "expm1": 6, "log": 6, "log1p": 6, "sin": 6, "cos": 6, "tanh": 6,
        "sigmoid": 10, "swish": 10, "gelu": 16, "gelu_tanh": 16,
        "pow": 14}  # fmt: skip


@dataclass
class Value:
    """A value of the batch, the same by NumPy, and what they may differ by."""

    id: Any
    array: Array
    bound: Array


def wide(x: Any) -> Array:
    return np.asarray(x).astype(np.float64)


def exact(id: Any, array: Array) -> Value:
    return Value(id, array, np.zeros(array.shape))


def ulp(array: Array) -> Array:
    """The distance to the next number; of what is no float, 0."""
    if array.dtype.kind != "f":
        return np.zeros(array.shape)
    size = np.where(np.isfinite(array), np.abs(array), array.dtype.type(1))
    return wide(np.spacing(size.astype(array.dtype)))


def _finished(id: Any, array: Any, bound: Array) -> Value:
    array = np.asarray(array)
    # What overflows, or nearly, may be infinite for one and not for the other.
    if array.dtype.kind == "f":
        end = float(np.finfo(array.dtype).max)
        near = np.isfinite(array) & (np.abs(wide(array)) + bound > end * 0.99) & (bound > 0)
        bound = np.where(near | (~np.isfinite(array) & (bound > 0)), np.inf, bound)
    else:
        # An integer is the same, or unknown: it has no small differences.
        bound = np.where(bound > 0, np.inf, 0)
    bound = np.where(np.isnan(bound), np.inf, bound)
    return Value(id, array, bound)


def _rounded(array: Array, propagated: Array) -> Array:
    """A correctly rounded operation: equal for equal operands."""
    return np.where(propagated > 0, propagated + ulp(array), 0.0)


def _loops(name: str, *values: Value) -> list[Value]:
    """Operands as the operation converts them, with the bounds of what that rounds."""
    from numbasync.batch.record import element_ops

    loops, _ = element_ops.resolve(name, tuple(v.array.dtype for v in values))
    return [converted(v, t) for v, t in zip(values, loops, strict=True)]


def converted(v: Value, dtype: Any) -> Value:
    """A cast, as NumPy does it."""
    dtype = np.dtype(dtype)
    if v.array.dtype == dtype:
        return v
    with np.errstate(over="ignore", invalid="ignore"):  # to float16, say, or NaN to an integer
        array = v.array.astype(dtype)
    if dtype == np.bool_:
        unsure = np.abs(wide(v.array)) <= v.bound
        return _finished(v.id, array, np.where((v.bound > 0) & unsure, np.inf, 0))
    if dtype.kind == "i" and v.array.dtype.kind == "f":
        there = wide(v.array)
        held = np.isfinite(there) & (np.abs(there) < 2.0**31 - 1)
        with np.errstate(invalid="ignore"):
            near = np.abs(there - np.rint(there)) <= v.bound
        return _finished(v.id, array, np.where(~held | (near & (v.bound > 0)), np.inf, 0))
    return _finished(v.id, array, _rounded(array, v.bound))


def _numpy(name: str, *values: Value) -> Array:
    from numbasync.batch.record import element_ops

    with np.errstate(all="ignore"):
        return np.asarray(element_ops.OPS[name].numpy(*(v.array for v in values)))


def unary(b: na.CommandBatch, name: str, x: Value) -> Value:
    """One operand."""
    id = b.recorder.elementwise(name, x.id)
    (v,) = _loops(name, x)
    array = _numpy(name, v)
    e, a = v.bound, wide(v.array)
    with np.errstate(all="ignore"):
        if name in ("neg", "abs", "relu"):
            return _finished(id, array, e)
        if name == "square":
            return _finished(id, array, _rounded(array, 2 * np.abs(a) * e + e * e))
        r = wide(array)
        slope = {
            "exp": np.abs(r) * np.expm1(np.minimum(e, 700.0)),
            "expm1": np.abs(r + 1) * np.expm1(np.minimum(e, 700.0)),
            "log": np.where(e < np.abs(a), -np.log1p(-e / np.abs(a)), np.inf),
            "log1p": np.where(e < np.abs(a + 1), -np.log1p(-e / np.abs(a + 1)), np.inf),
            "sin": e, "cos": e,
            "sqrt": np.where(e < a, e / np.sqrt(np.maximum(a - e, 0)), np.inf),
            "tanh": e, "sigmoid": e, "swish": 2 * e, "gelu": 2 * e, "gelu_tanh": 2 * e,
        }[name]  # fmt: skip
        slope = np.where(e == 0, 0.0, slope)
        if name == "sqrt":
            return _finished(id, array, _rounded(array, slope))
        own = ULPS[name] * ulp(array)
        if name in ("gelu", "gelu_tanh"):
            # 1 + erf(x) of a large negative x cancels: its last place is that of 1.
            kind = np.float32 if array.dtype == np.float16 else array.dtype
            own = own + 8 * float(np.finfo(kind).eps) * np.abs(a)
        if name == "swish":
            own = own + ULPS[name] * float(np.finfo(array.dtype).tiny)
        return _finished(
            id, array, np.where(np.isfinite(r), slope + own, np.where(e > 0, np.inf, 0))
        )


def binary(b: na.CommandBatch, name: str, x: Value, y: Value) -> Value:
    """Two operands."""
    id = b.recorder.elementwise(name, x.id, y.id)
    p, q = _loops(name, x, y)
    array = _numpy(name, p, q)
    a, c, e, f = wide(p.array), wide(q.array), p.bound, q.bound
    with np.errstate(all="ignore"):
        if name in ("add", "sub"):
            return _finished(id, array, _rounded(array, e + f))
        if name == "mul":
            grown = np.where(e > 0, np.abs(c) * e, 0) + np.where(f > 0, np.abs(a) * f, 0) + e * f
            return _finished(id, array, _rounded(array, grown))
        if name == "div":
            least = np.abs(c) - f
            grown = (e + np.abs(wide(array)) * f) / np.maximum(least, 0)
            unsure = (f > 0) & (least <= 0)
            # 0 has a sign, which decides on that of an infinity; a maximum may choose either.
            zero = (c == 0) & (q.array.dtype.kind == "f")
            grown = np.where((e == 0) & (f == 0), 0.0, grown)
            return _finished(id, array, np.where(unsure | zero, np.inf, _rounded(array, grown)))
        close = np.abs(a - c) <= e + f
        unsure = close & (e + f > 0)
        if name in ("maximum", "minimum"):
            return _finished(id, array, np.where(unsure, e + f + np.abs(a - c), np.maximum(e, f)))
        return _finished(id, array, np.where(unsure, np.inf, 0))


def chosen(b: na.CommandBatch, c: Value, x: Value, y: Value) -> Value:
    """`where`."""
    id = b.where(c.id, x.id, y.id)
    t, p, q = _loops("where", c, x, y)
    array = _numpy("where", t, p, q)
    bound = np.where(t.array, p.bound, q.bound)
    return _finished(id, array, np.where(np.broadcast_to(t.bound, bound.shape) > 0, np.inf, bound))


def clamped(b: na.CommandBatch, x: Value, low: float, high: float) -> Value:
    """`clamp` between two Python numbers."""
    id = b.clamp(x.id, low, high)
    kind = np.result_type(x.array.dtype, low)
    v = converted(x, kind)
    with np.errstate(all="ignore"):
        array = np.minimum(np.maximum(v.array, kind.type(low)), kind.type(high))
    return _finished(id, array, v.bound)


def cast(b: na.CommandBatch, x: Value, dtype: Any) -> Value:
    v = converted(x, dtype)
    return Value(b.cast(x.id, dtype), v.array, v.bound)


def reduced(b: na.CommandBatch, name: str, x: Value, axis: int | None, keepdims: bool) -> Value:
    """A reduction, whose own bound is the one that its docstring states. `argmax` and `argmin` keep
    no axes.
    """
    from numbasync.batch.record import element_ops

    if name in ("argmax", "argmin"):
        place = np.asarray(getattr(np, name)(x.array, axis=axis))
        return _finished(
            getattr(b, name)(x.id, axis), place, (x.bound > 0).any(axis=axis).astype(float)
        )
    id = getattr(b, name)(x.id, axis, keepdims)
    kind = element_ops.accumulator(name, x.array.dtype)
    unsure = np.isinf(x.bound).any(axis=axis, keepdims=keepdims)
    with np.errstate(all="ignore"):
        if name in ("max", "min"):
            array = getattr(np, name)(x.array, axis=axis, keepdims=keepdims)
            grown = x.bound.max(axis=axis, keepdims=keepdims)
            return _finished(id, array, np.where(unsure, np.inf, grown))
        out = element_ops.reduced(name, x.array.dtype)
        count = x.array.size if axis is None else x.array.shape[axis]
        total = np.sum(x.array.astype(kind), axis=axis, keepdims=keepdims)
        sizes = np.sum(np.abs(wide(x.array)), axis=axis, keepdims=keepdims)
        grown = np.sum(x.bound, axis=axis, keepdims=keepdims)
        if kind.kind == "f":
            # Two orders of addition, each within count roundings of the sizes.
            grown = grown + 2 * count * float(np.finfo(kind).eps) * sizes
        if name == "mean":
            total, grown = total / kind.type(count), grown / count
        array = np.asarray(total).astype(out)
        # Rounded to the result's type from two sums that may differ.
        grown = np.where(grown > 0, grown + ulp(array), 0.0)
        if kind.kind == "f":
            end = np.isfinite(total)
            grown = np.where(end, grown, np.where(np.isinf(wide(total)), np.inf, 0.0))
        return _finished(id, array, np.where(unsure, np.inf, grown))


def check(value: Value, found: Array) -> float:
    """Compare; the part of the elements that could be."""
    assert found.shape == value.array.shape, (found.shape, value.array.shape)
    assert found.dtype == value.array.dtype, (found.dtype, value.array.dtype)
    sure = np.isfinite(value.bound)
    want, have = wide(value.array), wide(found)
    with np.errstate(all="ignore"):
        same = (want == have) | (np.isnan(want) & np.isnan(have))
        close = np.abs(want - have) <= value.bound
    wrong = sure & ~same & ~close
    if wrong.any():
        at = tuple(int(k) for k in np.argwhere(wrong)[0]) if wrong.ndim else ()
        raise AssertionError(
            f"element {at}: {have[at]!r}, NumPy {want[at]!r}, bound {value.bound[at]!r}"
        )
    return float(sure.mean()) if sure.size else 1.0
