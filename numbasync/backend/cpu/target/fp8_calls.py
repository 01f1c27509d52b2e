"""The floats of 8 bits of CUDA, of which a value is its bits here: their casts, and the conversions
that are named `cvt_...`.

`fp8_e5m2` and `fp8_e4m3` are computed as the small floats are. `fp8_e8m0` has exponents only: a
power of two from 2**-127 on, or NaN. A number that is too large becomes the largest one, but in
conversions that are told `saturation_t.NOSAT`. On a GPU all of this is C++ that is linked. Types of
two and four numbers are refused: numba-cuda makes values of them that nothing can read.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from numbasync.backend.cpu.library.libdevice_rounding import to_integer
from numbasync.backend.cpu.library.small_float_bits import (
    DOUBLE,
    FLOAT,
    Format,
    absolute,
    as_double,
)
from numbasync.backend.cpu.target import small_float_calls
from numbasync.backend.cpu.target.builder import Builder
from numbasync.backend.cpu.target.context import CASTS, TargetContext, emits
from numbasync.backend.cpu.target.module import I1, I8, I16, I32, I64, types
from numbasync.dtypes import extension_types

_UP = 2  # of cudaRoundMode: towards infinity
_DIGITS = 52  # of a float64
_BIAS, _BIAS_OF_DOUBLE = 127, 1023


class _Float:
    """The two formats that have a mantissa."""

    def __init__(self, digits: int, largest: float, has_infinity: bool) -> None:
        self._format = Format(digits, width=8, has_infinity=has_infinity)
        self._largest = largest

    def read(self, builder: Builder, bits: Any) -> Any:
        """The float32 of 8 bits."""
        return self._format.read(builder, bits)

    def write(self, builder: Builder, value: Any, saturates: Any, up: Any = None) -> Any:
        """The 8 bits of the number that is nearest to a float32 or float64.

        Args:
            saturates: a truth: what is too large becomes the largest number.
            up: of the other format.
        """
        near = self._format.rounded(builder, value)
        most = FLOAT(self._largest)
        is_negative = builder.fcmp_ordered("<", near, FLOAT(0.0))
        end = builder.select(is_negative, FLOAT(-self._largest), most)
        too_large = builder.fcmp_ordered(">", absolute(builder, near), most)
        near = builder.select(builder.and_(saturates, too_large), end, near)
        bits = self._format.write(builder, near)
        if value.type == DOUBLE:
            return bits
        return builder.select(builder.fcmp_unordered("uno", value, value), I8(0x7F), bits)

    def truth(self, builder: Builder, bits: Any) -> Any:
        return builder.icmp_unsigned("!=", builder.and_(bits, I8(0x7F)), I8(0))


class _Exponent:
    """The format that has neither sign nor mantissa: 8 bits, from which 127 is taken."""

    def read(self, builder: Builder, bits: Any) -> Any:
        word = builder.shl(builder.zext(bits, I32), I32(23))
        word = builder.select(builder.icmp_unsigned("==", bits, I8(0)), I32(0x400000), word)
        is_nan = builder.icmp_unsigned("==", bits, I8(0xFF))
        return builder.bitcast(builder.select(is_nan, I32(0x7FFF0000), word), FLOAT)

    def write(self, builder: Builder, value: Any, saturates: Any, up: Any = None) -> Any:
        """The 8 bits of the next power of two to the size of a float32 or float64.

        Args:
            up: a truth: the next larger one; None: so it is.
        """
        up = I1(1) if up is None else up
        wide = value if value.type == DOUBLE else builder.fpext(value, DOUBLE)
        size = builder.and_(builder.bitcast(wide, I64), I64((1 << 63) - 1))
        exponent = builder.lshr(size, I64(_DIGITS))
        exponent = builder.sub(exponent, I64(_BIAS_OF_DOUBLE - _BIAS))
        rest = builder.and_(size, I64((1 << _DIGITS) - 1))
        # Of what is less than the least number, the next larger one is that.
        is_between = builder.icmp_signed(">=", exponent, I64(0))
        is_between = builder.and_(is_between, builder.icmp_unsigned("!=", rest, I64(0)))
        exponent = builder.add(exponent, builder.zext(builder.and_(up, is_between), I64))
        infinite = I64((2 * _BIAS_OF_DOUBLE + 1) << _DIGITS)
        is_cut = builder.icmp_unsigned("<", size, infinite)
        ends = builder.or_(saturates, builder.and_(is_cut, builder.not_(up)))
        most = builder.select(ends, I64(0xFE), I64(0xFF))
        exponent = builder.select(builder.icmp_signed("<", exponent, most), exponent, most)
        exponent = builder.select(builder.icmp_signed("<", exponent, I64(0)), I64(0), exponent)
        is_nan = builder.icmp_unsigned(">", size, infinite)
        return builder.select(is_nan, I8(0xFF), builder.trunc(exponent, I8))

    def truth(self, builder: Builder, bits: Any) -> Any:
        return I1(1)


_Format = _Float | _Exponent
_FORMATS: dict[str, _Format] = {
    "e5m2": _Float(2, 57344.0, has_infinity=True),
    "e4m3": _Float(3, 448.0, has_infinity=False),
    "e8m0": _Exponent(),
}
_TYPES: dict[Any, _Format] = {}  # by Numba's type


def _float_of(builder: Builder, value: Any, numba_type: Any) -> Any:
    """A float32 or float64 that is rounded as the number itself."""
    if isinstance(numba_type, types.Integer):
        return as_double(builder, value, numba_type.signed)
    if numba_type in (types.float32, types.float64):
        return value
    return builder.lower.context.cast(builder, value, numba_type, types.float32)


# --- casts ---


def _is_cast(from_type: Any, to_type: Any) -> bool:
    numbers = types.Integer | types.Float | types.Boolean
    return from_type in _TYPES and (
        isinstance(to_type, numbers) or to_type == extension_types().get("bfloat16")
    )


def _cast(builder: Builder, value: Any, from_type: Any, to_type: Any) -> Any:
    of = _TYPES[from_type]
    if to_type == types.boolean:
        return of.truth(builder, value)
    wide = of.read(builder, value)
    if isinstance(to_type, types.Integer):
        convert = "fptosi" if to_type.signed else "fptoui"
        return to_integer(convert, "rz", to_type.bitwidth)(builder, wide)
    return builder.lower.context.cast(builder, wide, types.float32, to_type)


def _constructed(context: TargetContext, builder: Builder, signature: Any, args: list[Any]) -> Any:
    if not args:
        return I8(0)
    value = _float_of(builder, args[0], signature.args[0])
    return _TYPES[signature.return_type].write(builder, value, I1(1))


# --- conversions that are told how ---


def _is(builder: Builder, value: Any, number: int) -> Any:
    """Whether a member of an enumeration is that of a number."""
    return builder.icmp_unsigned("==", value, value.type(number))


def _of_raw(builder: Builder, value: Any) -> Any:
    """The float32 of a structure with the bits of a bfloat16."""
    bits = builder.extract_value(value, 0)
    return small_float_calls.widened(builder, extension_types()["bfloat16"], bits)


def _converted(source: str, emit: Callable[..., Any]) -> Any:
    """What emits a conversion of a number, or of two, by a saturation and what `emit` is given."""
    is_pair = source.endswith("2")

    def emitted(context: TargetContext, builder: Builder, signature: Any, args: list[Any]) -> Any:
        value, saturation, how = args
        if source == "bfloat16raw":
            value = _of_raw(builder, value)
        parts = [builder.extract_value(value, k) for k in range(2)] if is_pair else [value]
        saturates = _is(builder, saturation, 1)

        def write(of: _Format, up: Any = None) -> Any:
            bits = [of.write(builder, part, saturates, up) for part in parts]
            return _pair(builder, *bits) if is_pair else bits[0]

        return emit(builder, write, how)

    return emitted


def _pair(builder: Builder, first: Any, second: Any) -> Any:
    """16 bits, of which the first have the lower half."""
    return builder.or_(builder.zext(first, I16), builder.shl(builder.zext(second, I16), I16(8)))


def _of_kind(builder: Builder, write: Any, kind: Any) -> Any:
    """By an interpretation: `fp8_interpretation_t`."""
    of_e5m2, of_e4m3 = write(_FORMATS["e5m2"]), write(_FORMATS["e4m3"])
    return builder.select(_is(builder, kind, 1), of_e5m2, of_e4m3)


def _of_exponents(builder: Builder, write: Any, mode: Any) -> Any:
    """By a rounding: `cudaRoundMode`."""
    return write(_FORMATS["e8m0"], _is(builder, mode, _UP))


def _to_raw(context: TargetContext, builder: Builder, signature: Any, args: list[Any]) -> Any:
    """The bits of the bfloat16 of an exponent, in their structure."""
    word = builder.bitcast(_FORMATS["e8m0"].read(builder, args[0]), I32)
    made = ir.Constant(context.get_value_type(signature.return_type), ir.Undefined)
    return builder.insert_value(made, builder.trunc(builder.lshr(word, I32(16)), I16), 0)


def _register(home: Any) -> None:
    known = {"cvt_e8m0_to_bf16raw": _to_raw}
    for source in ("float", "double", "bfloat16raw", "float2", "double2"):
        for to, emit in (("fp8", _of_kind), ("e8m0", _of_exponents)):
            pair = "x2" if source.endswith("2") else ""
            known[f"cvt_{source}_to_{to}{pair}"] = _converted(source, emit)
    for name, of in _FORMATS.items():
        _TYPES[getattr(home, f"_type_fp8_{name}")] = of
    for _, key, signature in home.target_registry.functions:
        converts = known.get(key.__name__)
        if converts is not None or getattr(key, "_nbtype", None) in _TYPES:
            emits(key, *signature)(converts or _constructed)
    CASTS.append((_is_cast, _cast))


with contextlib.suppress(ImportError):  # an older numba-cuda
    _register(importlib.import_module("numba.cuda._internal.cuda_fp8"))
