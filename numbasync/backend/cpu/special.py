"""Functions of `libdevice` that the C library does not have, but for those of `rounding`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from numbasync.backend.cpu import arithmetic
from numbasync.backend.cpu.native import INLINED, OPTIONS, types

# What they make has other parameters.
_fma: Any = arithmetic.fma
_parts: Any = arithmetic.modf

_F = njit(**INLINED)
_L = njit(**OPTIONS)

# --- integers ---


@_F
def _mulhi(x, y):  # type: ignore[no-untyped-def]
    return types.int32((types.int64(x) * types.int64(y)) >> 32)


@_F
def _umulhi(x, y):  # type: ignore[no-untyped-def]
    wide = types.uint64(types.uint32(x)) * types.uint64(types.uint32(y))
    return types.int32(types.uint32(wide >> types.uint64(32)))


@_F
def _umul64hi(x, y):  # type: ignore[no-untyped-def]
    half = types.uint64(0xFFFFFFFF)
    a, b = types.uint64(x), types.uint64(y)
    s = types.uint64(32)
    middle = (a >> s) * (b & half) + (((a & half) * (b & half)) >> s)
    other = (a & half) * (b >> s) + (middle & half)
    return types.int64((a >> s) * (b >> s) + (middle >> s) + (other >> s))


@_F
def _mul64hi(x, y):  # type: ignore[no-untyped-def]
    high = _umul64hi(x, y)
    return high - (y if x < 0 else 0) - (x if y < 0 else 0)


@_F
def _low24(x):  # type: ignore[no-untyped-def]
    return (types.int64(x) << 40) >> 40


@_F
def _mul24(x, y):  # type: ignore[no-untyped-def]
    return types.int32(_low24(x) * _low24(y))


@_F
def _umul24(x, y):  # type: ignore[no-untyped-def]
    return types.int32((types.int64(x) & 0xFFFFFF) * (types.int64(y) & 0xFFFFFF))


@_F
def _natural(x):  # type: ignore[no-untyped-def]
    return types.int64(types.uint32(x))


@_F
def _hadd(x, y):  # type: ignore[no-untyped-def]
    return types.int32((types.int64(x) + types.int64(y)) >> 1)


@_F
def _rhadd(x, y):  # type: ignore[no-untyped-def]
    return types.int32((types.int64(x) + types.int64(y) + 1) >> 1)


@_F
def _uhadd(x, y):  # type: ignore[no-untyped-def]
    return types.int32((_natural(x) + _natural(y)) >> 1)


@_F
def _urhadd(x, y):  # type: ignore[no-untyped-def]
    return types.int32((_natural(x) + _natural(y) + 1) >> 1)


@_F
def _sad(x, y, z):  # type: ignore[no-untyped-def]
    return types.int32(abs(types.int64(x) - types.int64(y)) + types.int64(z))


@_F
def _usad(x, y, z):  # type: ignore[no-untyped-def]
    return types.int32(abs(_natural(x) - _natural(y)) + types.int64(z))


@_F
def _byte_perm(x, y, z):  # type: ignore[no-untyped-def]
    both = types.uint64(_natural(x)) | (types.uint64(_natural(y)) << types.uint64(32))
    found = types.uint64(0)
    for k in range(4):
        which = types.uint64((types.int64(z) >> (4 * k)) & 7)
        byte = (both >> (which * types.uint64(8))) & types.uint64(0xFF)
        found |= byte << types.uint64(8 * k)
    return types.int32(types.uint32(found))


@_F
def _larger(x, y):  # type: ignore[no-untyped-def]
    return x if x > y else y


@_F
def _smaller(x, y):  # type: ignore[no-untyped-def]
    return x if x < y else y


@_F
def _ularger(x, y):  # type: ignore[no-untyped-def]
    return x if types.uint64(x) > types.uint64(y) else y


@_F
def _usmaller(x, y):  # type: ignore[no-untyped-def]
    return x if types.uint64(x) < types.uint64(y) else y


@_F
def _magnitude(x):  # type: ignore[no-untyped-def]
    return x if x >= 0 else -x


# --- bits of floats ---


@_F
def _float_as_int(x):  # type: ignore[no-untyped-def]
    return np.float32(x).view(np.int32)


@_F
def _int_as_float(x):  # type: ignore[no-untyped-def]
    return np.int32(x).view(np.float32)


@_F
def _double_as_longlong(x):  # type: ignore[no-untyped-def]
    return np.float64(x).view(np.int64)


@_F
def _longlong_as_double(x):  # type: ignore[no-untyped-def]
    return np.int64(x).view(np.float64)


@_F
def _double2hiint(x):  # type: ignore[no-untyped-def]
    return types.int32(_double_as_longlong(x) >> 32)


@_F
def _double2loint(x):  # type: ignore[no-untyped-def]
    return types.int32(_double_as_longlong(x) & 0xFFFFFFFF)


@_F
def _hiloint2double(x, y):  # type: ignore[no-untyped-def]
    return _longlong_as_double((types.int64(x) << 32) | _natural(y))


@_F
def _isfinite(x):  # type: ignore[no-untyped-def]
    return types.int32(math.isfinite(x))


@_F
def _isinf(x):  # type: ignore[no-untyped-def]
    return types.int32(math.isinf(x))


@_F
def _isnan(x):  # type: ignore[no-untyped-def]
    return types.int32(math.isnan(x))


@_F
def _signbit(x):  # type: ignore[no-untyped-def]
    return types.int32(math.copysign(1.0, x) < 0)


@_F
def _rint(x):  # type: ignore[no-untyped-def]
    return types.int64(np.rint(x))


@_F
def _round(x):  # type: ignore[no-untyped-def]
    return types.int64(np.floor(abs(x) + 0.5) * math.copysign(1.0, x))


# --- functions of floats ---


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
def _half_bits(x):  # type: ignore[no-untyped-def]
    """A float32 as the 16 bits of a half, rounded to the nearest."""
    bits = types.int64(types.uint32(_float_as_int(x)))
    sign = (bits >> 16) & 0x8000
    magnitude = bits & 0x7FFFFFFF
    if magnitude > 0x7F800000:
        return types.int16(0x7FFF)
    if magnitude >= 0x477FF000:  # halfway between the greatest half and what would come next
        return types.int16(sign | 0x7C00)
    if magnitude >= 0x38800000:
        shift, kept = 13, magnitude - 0x38000000
    else:
        shift = 126 - (magnitude >> 23)
        kept = (magnitude & 0x7FFFFF) | 0x800000
        if shift > 24:
            return types.int16(sign)
    rest = kept & ((1 << shift) - 1)
    found = kept >> shift
    half = 1 << (shift - 1)
    if rest > half or (rest == half and found & 1):
        found += 1
    return types.int16(sign | found)


@_L
def _of_half_bits(x):  # type: ignore[no-untyped-def]
    bits = types.int64(x) & 0xFFFF
    exponent, fraction = (bits >> 10) & 31, bits & 1023
    if exponent == 31:
        value = math.nan if fraction else math.inf
    elif exponent:
        value = math.ldexp(1024.0 + fraction, exponent - 25)
    else:
        value = math.ldexp(types.float64(fraction), -24)
    return types.float32(-value if bits & 0x8000 else value)


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
    "abs": _magnitude, "llabs": _magnitude, "max": _larger, "llmax": _larger, "min": _smaller,
    "llmin": _smaller, "umax": _ularger, "ullmax": _ularger, "umin": _usmaller,
    "ullmin": _usmaller, "mulhi": _mulhi, "umulhi": _umulhi, "mul64hi": _mul64hi,
    "umul64hi": _umul64hi, "mul24": _mul24, "umul24": _umul24, "hadd": _hadd, "rhadd": _rhadd,
    "uhadd": _uhadd, "urhadd": _urhadd, "sad": _sad, "usad": _usad, "byte_perm": _byte_perm,
    "float_as_int": _float_as_int, "int_as_float": _int_as_float,
    "double_as_longlong": _double_as_longlong, "longlong_as_double": _longlong_as_double,
    "double2hiint": _double2hiint, "double2loint": _double2loint,
    "hiloint2double": _hiloint2double, "isfinited": _isfinite, "isinfd": _isinf,
    "isnand": _isnan, "signbitd": _signbit, "signbitf": _signbit, "llrint": _rint,
    "llrintf": _rint, "llround": _round, "llroundf": _round, "powi": _power, "powif": _power,
    "sinpi": _sinpi, "sinpif": _sinpi, "cospi": _cospi, "cospif": _cospi, "sincos": _sincos,
    "sincosf": _sincos, "fast_sincosf": _sincos, "sincospi": _sincospi, "sincospif": _sincospi,
    "rcbrt": _rcbrt, "rcbrtf": _rcbrt, "frexp": _frexp, "frexpf": _frexp, "modf": _modf,
    "modff": _modf, "fast_fdividef": _divide, "normcdf": _normcdf, "normcdff": _normcdf,
    "erfcx": _erfcx, "erfcxf": _erfcx, "erfinv": _erfinv, "erfinvf": _erfinv,
    "erfcinv": _erfcinv, "erfcinvf": _erfcinv, "normcdfinv": _normcdfinv,
    "normcdfinvf": _normcdfinv, "float2half_rn": _half_bits, "half2float": _of_half_bits,
    "remquo": _remquo, "remquof": _remquo,
}  # fmt: skip
