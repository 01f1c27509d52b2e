"""Arithmetic that is rounded in a direction, as functions of `libdevice` are: `fadd_rd` and so on.

A result is computed to the nearest, with the sign of its error, which a fused multiply-add tells;
where the error points the other way, the neighbour is taken. `_rn` is to the nearest, `_rd` down,
`_ru` up, `_rz` towards zero. Where a product or quotient is below the normal numbers its error
may vanish, and the result then is the nearest one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from numbasync.backend.cpu.library import arithmetic
from numbasync.backend.cpu.library.entry_points import INLINED, types

fma: Any = arithmetic.fma  # what it makes has other parameters

_F = njit(**INLINED)
NEAREST, DOWN, UP, ZERO = range(4)
MODES = {"rn": NEAREST, "rd": DOWN, "ru": UP, "rz": ZERO}


@_F
def _directed(value, error, mode):  # type: ignore[no-untyped-def]
    """`value`, which is what was wanted less `error`, rounded the way that `mode` says."""
    if error == 0 or error != error or value != value:
        return value
    down = mode == DOWN or (mode == ZERO and value > 0)
    if error < 0 and down:
        return np.nextafter(value, type(value)(-np.inf))
    up = mode == UP or (mode == ZERO and value < 0)
    if error > 0 and up:
        return np.nextafter(value, type(value)(np.inf))
    return value


@_F
def _overflown(value, mode, finite):  # type: ignore[no-untyped-def]
    """The greatest number instead of an infinity that rounding has made."""
    if finite and math.isinf(value):
        to_zero = mode == ZERO or (mode == DOWN and value > 0) or (mode == UP and value < 0)
        if to_zero:
            return np.nextafter(value, type(value)(0))
    return value


# --- one function for each mode ---


def _add(mode: int) -> Any:
    @_F
    def add(x, y):  # type: ignore[no-untyped-def]
        value = x + y
        other = value - x
        error = (x - (value - other)) + (y - other)
        if math.isinf(value):
            return _overflown(value, mode, math.isfinite(x) and math.isfinite(y))
        return _directed(value, error, mode)

    return add


def _sub(mode: int) -> Any:
    add = _add(mode)

    @_F
    def sub(x, y):  # type: ignore[no-untyped-def]
        return add(x, -y)

    return sub


def _mul(mode: int) -> Any:
    @_F
    def mul(x, y):  # type: ignore[no-untyped-def]
        value = x * y
        if math.isinf(value):
            return _overflown(value, mode, math.isfinite(x) and math.isfinite(y))
        return _directed(value, fma(x, y, -value), mode)

    return mul


def _div(mode: int) -> Any:
    @_F
    def div(x, y):  # type: ignore[no-untyped-def]
        value = x / y
        if math.isinf(value):
            return _overflown(value, mode, math.isfinite(x) and y != 0)
        if math.isinf(y):
            return value
        rest = fma(-value, y, x)
        return _directed(value, rest if y > 0 else -rest, mode)

    return div


def _sqrt(mode: int) -> Any:
    @_F
    def sqrt(x):  # type: ignore[no-untyped-def]
        value = type(x)(math.sqrt(x))
        if x == 0 or math.isinf(value):
            return value
        return _directed(value, fma(-value, value, x), mode)

    return sqrt


def _rcp(mode: int) -> Any:
    div = _div(mode)

    @_F
    def rcp(x):  # type: ignore[no-untyped-def]
        return div(type(x)(1), x)

    return rcp


@_F
def _two_sum(a, b):  # type: ignore[no-untyped-def]
    value = a + b
    other = value - a
    return value, (a - (value - other)) + (b - other)


def _fma(mode: int) -> Any:
    @_F
    def fused(x, y, z):  # type: ignore[no-untyped-def]
        value = fma(x, y, z)
        if math.isinf(value):
            finite = math.isfinite(x) and math.isfinite(y) and math.isfinite(z)
            return _overflown(value, mode, finite)
        # The error of a fused multiply-add, as Boldo and Muller give it: doi:10.1109/TC.2010.139.
        high = x * y
        low = fma(x, y, -high)
        a, lowest = _two_sum(z, low)
        b, c = _two_sum(high, a)
        return _directed(value, (b - value + c) + lowest, mode)

    return fused


def _to_float(kind: Any, mode: int) -> Any:
    @_F
    def convert(x):  # type: ignore[no-untyped-def]
        value = kind(x)
        # An integer of 64 bits may be rounded up to one that is none.
        whole = types.float64(value)
        if whole >= 9223372036854775808.0:
            back = np.uint64(whole) if whole < 18446744073709551616.0 else np.uint64(0)
            rounded_up = whole >= 18446744073709551616.0 or back > np.uint64(x)
            is_exact = whole < 18446744073709551616.0 and back == np.uint64(x)
            error = types.float64(0) if is_exact else -1.0 if rounded_up else 1.0
        else:
            same = types.int64(whole)
            error = types.float64(types.int64(x) - same)
        return _directed(value, error, mode)

    return convert


_BINARY = {"add": _add, "sub": _sub, "mul": _mul, "div": _div}
_UNARY = {"sqrt": _sqrt, "rcp": _rcp}
_INTEGERS = {"int": types.int32, "uint": types.uint32, "ll": types.int64, "ull": types.uint64}
_FLOATS = {"float": types.float32, "double": types.float64}


def _to_integer(kind: Any, mode: int) -> Any:
    """Rounded to a whole number, and to the end of the type that is nearest."""
    low = float(kind.minval)
    high = float(kind.maxval)
    least, most = kind.minval, kind.maxval
    nothing = 0 if kind.bitwidth == 32 else -(2**63) if kind.signed else 2**63

    @_F
    def convert(x):  # type: ignore[no-untyped-def]
        wide = types.float64(x)
        if wide != wide:
            return kind(nothing)
        if mode == NEAREST:
            wide = np.rint(wide)
        elif mode == DOWN:
            wide = np.floor(wide)
        elif mode == UP:
            wide = np.ceil(wide)
        else:
            wide = np.trunc(wide)
        if wide <= low:
            return kind(least)
        if wide >= high:
            return kind(most)
        return kind(wide)

    return convert


def _all() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for suffix, mode in MODES.items():
        for letter in "fd":
            for name, make in {**_BINARY, **_UNARY}.items():
                made[f"{letter}{name}_{suffix}"] = make(mode)
        made[f"fma_{suffix}"] = made[f"fmaf_{suffix}"] = _fma(mode)
        for integer, kind in _INTEGERS.items():
            for name, of in _FLOATS.items():
                made[f"{name}2{integer}_{suffix}"] = _to_integer(kind, mode)
                made[f"{integer}2{name}_{suffix}"] = _to_float(of, mode)
        made[f"double2float_{suffix}"] = _narrow(mode)
    return made


def _narrow(mode: int) -> Any:
    @_F
    def narrow(x):  # type: ignore[no-untyped-def]
        value = types.float32(x)
        if math.isinf(value):
            return _overflown(value, mode, math.isfinite(x))
        return _directed(value, x - types.float64(value), mode)

    return narrow


FUNCTIONS = _all()
