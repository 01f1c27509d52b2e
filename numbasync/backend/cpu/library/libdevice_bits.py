"""Functions of `libdevice` about integers, and about the bits of floats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from numbasync.backend.cpu.library.entry_points import INLINED, OPTIONS, types

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
    "isnand": _isnan, "signbitd": _signbit, "signbitf": _signbit, "float2half_rn": _half_bits,
    "half2float": _of_half_bits,
}  # fmt: skip
