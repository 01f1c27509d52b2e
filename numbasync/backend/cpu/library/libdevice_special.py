"""Functions of floats in `libdevice` that the C library does not have, or not for these types."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from numbasync.backend.cpu.library.options import INLINED, OPTIONS, UNWRAPPED, emitted, types

_DOUBLES = (types.float64,) * 3
_fma = emitted(types.float64, _DOUBLES, lambda builder, *args: builder.fma(*args))
# The C library's, exact of float32, too.
_remainder = types.ExternalFunction("remainder", types.float64(*_DOUBLES[:2]))

_F = njit(**INLINED)
_L = njit(**OPTIONS, **UNWRAPPED)


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
    # A continued fraction, evaluated from its end.
    below = wide
    for k in range(20, 0, -1):
        below = wide + 0.5 * k / below
    return 1.0 / (_ROOT_PI * below)


@_L
def _erfcinv(y):  # type: ignore[no-untyped-def]
    """The inverse of erfc, by Newton's method on the logarithm."""
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
    """The remainder, and the quotient's sign with the last three bits of its size."""
    rest = _remainder(types.float64(x), types.float64(y))
    count = types.int64(np.rint((np.fmod(x, 8 * types.float64(y)) - rest) / y))
    size = types.int32(abs(count) & 7)
    return rest, -size if count < 0 else size


_sincos = _F(lambda x: (math.sin(x), math.cos(x)))
_sincospi = _F(lambda x: (_sinpi(x), _cospi(x)))
_rsqrt, _rcbrt = _F(lambda x: 1 / math.sqrt(x)), _F(lambda x: 1 / np.cbrt(types.float64(x)))
_powi = _F(lambda x, n: types.float64(x) ** types.float64(n))
_frexp = _F(lambda x: math.frexp(x))
# Of an infinity, the rest is a zero of its sign.
_modf = _F(lambda x: (math.copysign(0.0, x) if math.isinf(x) else x - np.trunc(x), np.trunc(x)))

FUNCTIONS: dict[str, Any] = {
    "rsqrt": _rsqrt, "rsqrtf": _rsqrt, "frsqrt_rn": _rsqrt, "rcbrt": _rcbrt, "rcbrtf": _rcbrt,
    "saturatef": _F(lambda x: min(max(x, types.float32(0)), types.float32(1))),
    "powi": _powi, "powif": _powi,
    "sinpi": _sinpi, "sinpif": _sinpi, "cospi": _cospi, "cospif": _cospi,
    "sincos": _sincos, "sincosf": _sincos, "fast_sincosf": _sincos, "sincospi": _sincospi,
    "sincospif": _sincospi, "frexp": _frexp, "frexpf": _frexp, "modf": _modf, "modff": _modf,
    "remquo": _remquo, "remquof": _remquo, "normcdf": _normcdf, "normcdff": _normcdf,
    "erfcx": _erfcx, "erfcxf": _erfcx, "erfinv": _erfinv, "erfinvf": _erfinv,
    "erfcinv": _erfcinv, "erfcinvf": _erfcinv, "normcdfinv": _normcdfinv,
    "normcdfinvf": _normcdfinv,
}  # fmt: skip
