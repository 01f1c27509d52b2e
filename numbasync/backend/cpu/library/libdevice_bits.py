"""Functions of `libdevice` about integers, and about the bits of floats.

Numba's table of signatures has no unsigned integers: functions of unsigned integers receive signed
ones with the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from numbasync.backend.cpu.library.options import INLINED, types

_F = njit(**INLINED)

# --- integers ---

# An int32 as an int64, with its sign and without; the lowest 24 bits of one, likewise.
_signed = _F(lambda x: types.int64(x))
_unsigned = _F(lambda x: types.int64(types.uint32(x)))
_signed24 = _F(lambda x: (types.int64(x) << 40) >> 40)
_unsigned24 = _F(lambda x: types.int64(x) & 0xFFFFFF)


def _in_64_bits(widen: Any, compute: Callable[..., Any]) -> Any:
    """The low 32 bits of a function of two integers, computed in 64 bits."""
    wide = _F(compute)
    return _F(lambda x, y: types.int32(wide(widen(x), widen(y))))


def _difference(widen: Any) -> Any:
    """|x - y| + z"""
    return _F(lambda x, y, z: types.int32(abs(widen(x) - widen(y)) + types.int64(z)))


@_F
def _byte_perm(x, y, z):  # type: ignore[no-untyped-def]
    """Four of the eight bytes of `x` and `y`, as numbered by the hexadecimal digits of `z`."""
    pair = types.uint64(_unsigned(x) | (_unsigned(y) << 32))
    result = types.uint64(0)
    for k in range(4):
        shift = types.uint64(((types.int64(z) >> (4 * k)) & 7) * 8)
        result |= ((pair >> shift) & types.uint64(0xFF)) << types.uint64(8 * k)
    return types.int32(result)


_max, _min = _F(lambda x, y: x if x > y else y), _F(lambda x, y: x if x < y else y)
_umax = _F(lambda x, y: x if types.uint64(x) > types.uint64(y) else y)
_umin = _F(lambda x, y: x if types.uint64(x) < types.uint64(y) else y)
_abs = _F(lambda x: x if x >= 0 else -x)

# --- bits of floats ---

_int_of_float = _F(lambda x: np.float32(x).view(np.int32))
_float_of_int = _F(lambda x: np.int32(x).view(np.float32))
_int_of_double = _F(lambda x: np.float64(x).view(np.int64))
_double_of_int = _F(lambda x: np.int64(x).view(np.float64))
_signbit = _F(lambda x: types.int32(math.copysign(1.0, x) < 0))

FUNCTIONS: dict[str, Any] = {
    "abs": _abs, "llabs": _abs, "max": _max, "llmax": _max, "min": _min, "llmin": _min,
    "umax": _umax, "ullmax": _umax, "umin": _umin, "ullmin": _umin,
    "mulhi": _in_64_bits(_signed, lambda x, y: (x * y) >> 32),
    "umulhi": _in_64_bits(_unsigned, lambda x, y: (x * y) >> 32),
    "mul24": _in_64_bits(_signed24, lambda x, y: x * y),
    "umul24": _in_64_bits(_unsigned24, lambda x, y: x * y),
    "hadd": _in_64_bits(_signed, lambda x, y: (x + y) >> 1),
    "rhadd": _in_64_bits(_signed, lambda x, y: (x + y + 1) >> 1),
    "uhadd": _in_64_bits(_unsigned, lambda x, y: (x + y) >> 1),
    "urhadd": _in_64_bits(_unsigned, lambda x, y: (x + y + 1) >> 1),
    "sad": _difference(_signed), "usad": _difference(_unsigned), "byte_perm": _byte_perm,
    "float_as_int": _int_of_float, "int_as_float": _float_of_int,
    "double_as_longlong": _int_of_double, "longlong_as_double": _double_of_int,
    "double2hiint": _F(lambda x: types.int32(_int_of_double(x) >> 32)),
    "double2loint": _F(lambda x: types.int32(_int_of_double(x))),
    "hiloint2double": _F(lambda x, y: _double_of_int((types.int64(x) << 32) | _unsigned(y))),
    "signbitd": _signbit, "signbitf": _signbit,
}  # fmt: skip
