"""Functions of floats in `libdevice` that the C library does not have."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from numbasync.backend.cpu.library import arithmetic
from numbasync.backend.cpu.library.entry_points import INLINED, OPTIONS, types

# What they make has other parameters.
_fma: Any = arithmetic.fma
_parts: Any = arithmetic.modf

_F = njit(**INLINED)
_L = njit(**OPTIONS)


@_F
def _rint(x):  # type: ignore[no-untyped-def]
    return types.int64(np.rint(x))


@_F
def _round(x):  # type: ignore[no-untyped-def]
    return types.int64(np.floor(abs(x) + 0.5) * math.copysign(1.0, x))


@_L
def _power(x, n):  # type: ignore[no-untyped-def]
    return types.float64(x) ** types.float64(n)


@_L
def _sinpi(x):  # type: ignore[no-untyped-def]
    wide = types.float64(x)
    if not math.isfinite(wide):
        return math.nan
    rest = wide - 2.0 * np.rint(wide / 2.0)  # exact, from -1 to 1
    if rest > 0.5:
        return math.sin(math.pi * (1.0 - rest))
    if rest < -0.5:
        return -math.sin(math.pi * (1.0 + rest))
    return math.sin(math.pi * rest)


@_L
def _cospi(x):  # type: ignore[no-untyped-def]
    wide = types.float64(x)
    if not math.isfinite(wide):
        return math.nan
    rest = abs(wide - 2.0 * np.rint(wide / 2.0))
    if rest > 0.75:
        return -math.cos(math.pi * (1.0 - rest))
    if rest > 0.25:
        return math.sin(math.pi * (0.5 - rest))
    return math.cos(math.pi * rest)


@_F
def _sincos(x):  # type: ignore[no-untyped-def]
    return math.sin(x), math.cos(x)


@_F
def _sincospi(x):  # type: ignore[no-untyped-def]
    return type(x)(_sinpi(x)), type(x)(_cospi(x))


@_F
def _rcbrt(x):  # type: ignore[no-untyped-def]
    return 1 / np.cbrt(types.float64(x))


@_F
def _frexp(x):  # type: ignore[no-untyped-def]
    return math.frexp(x)


@_F
def _modf(x):  # type: ignore[no-untyped-def]
    return _parts(x)


@_F
def _divide(x, y):  # type: ignore[no-untyped-def]
    return x / y


_ROOT_HALF = math.sqrt(0.5)
_ROOT_PI = math.sqrt(math.pi)


@_L
def _normcdf(x):  # type: ignore[no-untyped-def]
    return 0.5 * math.erfc(-types.float64(x) * _ROOT_HALF)


@_L
def _erfcx(x):  # type: ignore[no-untyped-def]
    """exp(x * x) * erfc(x)"""
    wide = types.float64(x)
    if wide < 25.0:
        # The square in two parts: its rounding would be multiplied.
        high = wide * wide
        return math.exp(high) * (1.0 + _fma(wide, wide, -high)) * math.erfc(wide)
    # A continued fraction, from its end.
    below = wide
    for k in range(20, 0, -1):
        below = wide + 0.5 * k / below
    return 1.0 / (_ROOT_PI * below)


@_L
def _erfcinv(y):  # type: ignore[no-untyped-def]
    """X with erfc(x) == y, by Newton's method on the logarithm."""
    wide = types.float64(y)
    if not 0.0 <= wide <= 2.0:
        return math.nan
    if wide == 0.0:
        return math.inf
    if wide == 2.0:
        return -math.inf
    small = min(wide, 2.0 - wide)  # exact, if it is above 1/2
    if small == 1.0:
        return 0.0
    root = math.sqrt(-2.0 * math.log(small / 2.0))
    x = (root - (2.30753 + root * 0.27061) / (1.0 + root * (0.99229 + root * 0.04481))) * _ROOT_HALF
    for _ in range(4):
        # Of log(erfc(x)) - log(small); its slope is -2 / (sqrt(pi) * erfcx(x)).
        x += (math.log(math.erfc(x)) - math.log(small)) * 0.5 * _ROOT_PI * _erfcx(x)
    return x if wide < 1.0 else -x


@_L
def _erfinv(y):  # type: ignore[no-untyped-def]
    wide = types.float64(y)
    if abs(wide) > 0.5:
        return _erfcinv(1.0 - wide)
    x = wide * _ROOT_PI / 2.0
    for _ in range(5):
        x -= (math.erf(x) - wide) * 0.5 * _ROOT_PI * math.exp(x * x)
    return x


@_L
def _normcdfinv(y):  # type: ignore[no-untyped-def]
    return -_erfcinv(2.0 * types.float64(y)) / _ROOT_HALF


@_L
def _remquo(x, y):  # type: ignore[no-untyped-def]
    rest = np.fmod(types.float64(x), 8.0 * types.float64(y))
    count = types.int64(0)
    size = abs(types.float64(y))
    left = abs(rest)
    for k in (4, 2, 1):
        if left >= k * size:
            left -= k * size
            count += k
    if left > 0.5 * size or (left == 0.5 * size and count & 1):
        left -= size
        count += 1
    if x < 0:
        left = -left
    count &= 7
    return type(x)(left), types.int32(-count if (x < 0) != (y < 0) else count)


FUNCTIONS: dict[str, Any] = {
    "llrint": _rint, "llrintf": _rint, "llround": _round, "llroundf": _round, "powi": _power,
    "powif": _power, "sinpi": _sinpi, "sinpif": _sinpi, "cospi": _cospi, "cospif": _cospi,
    "sincos": _sincos, "sincosf": _sincos, "fast_sincosf": _sincos, "sincospi": _sincospi,
    "sincospif": _sincospi, "rcbrt": _rcbrt, "rcbrtf": _rcbrt, "frexp": _frexp, "frexpf": _frexp,
    "modf": _modf, "modff": _modf, "fast_fdividef": _divide, "normcdf": _normcdf,
    "normcdff": _normcdf, "erfcx": _erfcx, "erfcxf": _erfcx, "erfinv": _erfinv,
    "erfinvf": _erfinv, "erfcinv": _erfcinv, "erfcinvf": _erfcinv, "normcdfinv": _normcdfinv,
    "normcdfinvf": _normcdfinv, "remquo": _remquo, "remquof": _remquo,
}  # fmt: skip
