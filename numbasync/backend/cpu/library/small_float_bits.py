"""The bits of a float of 16 or 8 bits, as instructions: read, written, and rounded to.

A value is a float32 that is always equal to a number of the format. The conversions compute with
integers: not every processor has instructions for them, LLVM's functions are not in every process,
and `fastmath` does not affect integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

FLOAT, DOUBLE = ir.FloatType(), ir.DoubleType()
_WORD = ir.IntType(32)
_DIGITS = 23  # of a float32
_BIAS = 127
_SIZE = (1 << 31) - 1  # all bits but the sign
_INFINITE = 0x7F800000


class Format:
    """A format of 16 bits, or of as many as `width` says.

    Attributes:
        bits: LLVM's type of them.
        digits: bits of the mantissa.
        bias: what is added to an exponent.
        infinite: the bits of infinity, or of the only NaN.
    """

    def __init__(self, digits: int, width: int = 16, has_infinity: bool = True) -> None:
        """
        Args:
            has_infinity: otherwise the last exponent is that of numbers, all bits but the sign are
                NaN, and so is the result where a number is too large.
        """
        self.bits = ir.IntType(width)
        self.digits = digits
        self.bias = (1 << (width - 2 - digits)) - 1
        self._size = (1 << (width - 1)) - 1
        self.infinite = self._size + 1 - (1 << digits) if has_infinity else self._size
        self._last = self.bias if has_infinity else self.bias + 1  # the largest exponent
        self._to_sign = 32 - width
        self._shift = _DIGITS - digits
        self._least = 1 - self.bias - digits  # the exponent of the least number
        self._is_wide = self.bias == _BIAS  # the exponents are those of a float32

    def read(self, builder: Any, bits: Any) -> Any:
        """The float32 of the bits."""
        wide = builder.zext(bits, _WORD)
        if self._is_wide:
            return builder.bitcast(builder.shl(wide, _WORD(self._shift)), FLOAT)
        sign = builder.shl(builder.and_(wide, _WORD(self._size + 1)), _WORD(self._to_sign))
        size = builder.and_(wide, _WORD(self._size))
        rest = builder.shl(size, _WORD(self._shift))
        step = (_BIAS - self.bias) << _DIGITS
        normal = builder.add(rest, _WORD(step))
        special = builder.add(rest, _WORD(2 * step))  # infinities and NaN have the last exponent
        steps = builder.fmul(builder.uitofp(size, FLOAT), FLOAT(2.0**self._least))
        small = builder.bitcast(steps, _WORD)
        is_special = builder.icmp_unsigned(">=", size, _WORD(self.infinite))
        result = builder.select(is_special, special, normal)
        is_small = builder.icmp_unsigned("<", size, _WORD(1 << self.digits))
        result = builder.select(is_small, small, result)
        return builder.bitcast(builder.or_(result, sign), FLOAT)

    def write(self, builder: Any, value: Any) -> Any:
        """The bits of a float32 that is equal to a number of the format."""
        bits = builder.bitcast(value, _WORD)
        sign = builder.lshr(builder.and_(bits, _WORD(1 << 31)), _WORD(self._to_sign))
        size = builder.and_(bits, _WORD(_SIZE))
        short = builder.lshr(size, _WORD(self._shift))
        normal = builder.sub(short, _WORD((_BIAS - self.bias) << self.digits))
        payload = builder.and_(short, _WORD((1 << self.digits) - 1))
        nan = builder.or_(payload, _WORD(self.infinite | 1 << (self.digits - 1)))
        is_nan = builder.icmp_unsigned(">", size, _WORD(_INFINITE))
        special = builder.select(is_nan, nan, _WORD(self.infinite))
        is_special = builder.icmp_unsigned(">=", size, _WORD(_INFINITE))
        result = builder.select(is_special, special, normal)
        if not self._is_wide:
            is_small = builder.icmp_unsigned("<", size, _WORD((_BIAS - self.bias + 1) << _DIGITS))
            result = builder.select(is_small, self._in_steps(builder, size, FLOAT), result)
        return builder.trunc(builder.or_(result, sign), self.bits)

    def rounded(self, builder: Any, value: Any) -> Any:
        """The number of the format that is nearest to a float32 or float64, as a float32; halfway,
        the even one.
        """
        source = value.type
        width, digits, bias = (64, 52, 1023) if source == DOUBLE else (32, _DIGITS, _BIAS)
        word = ir.IntType(width)
        bits = builder.bitcast(value, word)
        sign = builder.and_(bits, word(1 << (width - 1)))
        size = builder.and_(bits, word((1 << (width - 1)) - 1))
        dropped = digits - self.digits
        odd = builder.and_(builder.lshr(size, word(dropped)), word(1))
        near = builder.add(builder.add(size, word((1 << (dropped - 1)) - 1)), odd)
        near = builder.and_(near, word(-1 << dropped))
        infinite = word((2 * bias + 1) << digits)
        too_large = builder.icmp_unsigned(">=", near, word((bias + self._last + 1) << digits))
        near = builder.select(too_large, infinite, near)
        near = builder.select(builder.icmp_unsigned(">", size, infinite), size, near)
        if self.bias < bias:
            steps = builder.uitofp(self._in_steps(builder, size, source), source)
            small = builder.bitcast(builder.fmul(steps, source(2.0**self._least)), word)
            least = word((bias - self.bias + 1) << digits)
            near = builder.select(builder.icmp_unsigned("<", size, least), small, near)
        result = builder.bitcast(builder.or_(near, sign), source)
        return result if source == FLOAT else builder.fptrunc(result, FLOAT)

    def rounded_to_side(self, builder: Any, value: Any, up: Any) -> Any:
        """The bits of a float64 that is rounded up or, if the truth `up` is false, down."""
        near = self.rounded(builder, value)
        bits, wide = self.write(builder, near), builder.fpext(near, DOUBLE)
        is_below = builder.fcmp_ordered("<", wide, value)
        is_above = builder.fcmp_ordered(">", wide, value)
        is_negative = builder.icmp_signed("<", bits, self.bits(0))
        grows = builder.xor(is_negative, up)
        beside = builder.add(bits, builder.select(grows, self.bits(1), self.bits(-1)))
        is_zero = builder.icmp_unsigned("==", builder.shl(bits, self.bits(1)), self.bits(0))
        least = builder.select(up, self.bits(1), self.bits(-self._size))
        beside = builder.select(is_zero, least, beside)
        return builder.select(builder.select(up, is_below, is_above), beside, bits)

    def _in_steps(self, builder: Any, size: Any, source: Any) -> Any:
        """A number below the least normal one, given by its bits, as a rounded multiple of the
        least number: the last digits of a sum that the processor rounds.
        """
        word, digits = size.type, 52 if source == DOUBLE else _DIGITS
        steps = builder.fmul(builder.bitcast(size, source), source(2.0**-self._least))
        whole = builder.bitcast(builder.fadd(steps, source(2.0**digits)), word)
        return builder.and_(whole, word((1 << digits) - 1))


def as_double(builder: Any, integer: Any, signed: bool) -> Any:
    """A float64 that is rounded to either format as the integer itself: of one with more bits than
    a float64, the last bit that is kept says whether any that is dropped was set.
    """
    word = integer.type
    if word.width > 53:
        rest = builder.and_(integer, word(0xFFF))
        some = builder.select(builder.icmp_unsigned("!=", rest, word(0)), word(0x800), word(0))
        kept = builder.or_(builder.and_(integer, word(~0xFFF)), some)
        limit = word(1 << 53)
        start = builder.add(integer, limit) if signed else integer
        fits = builder.icmp_unsigned("<", start, word(2 << 53) if signed else limit)
        integer = builder.select(fits, integer, kept)
    return (builder.sitofp if signed else builder.uitofp)(integer, DOUBLE)


def fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """`a * b + c` in a float64 that is rounded to either format as the sum itself. The product is
    exact. Of a sum that is not, the last bit is set, as a sign of the bits that follow.
    """
    a, b, c = (builder.fpext(x, DOUBLE) for x in (a, b, c))
    product = builder.fmul(a, b)
    total = builder.fadd(product, c)
    own = builder.fsub(total, product)  # of c, as far as it is in the sum
    error = builder.fadd(builder.fsub(product, builder.fsub(total, own)), builder.fsub(c, own))
    word = ir.IntType(64)
    bits = builder.bitcast(total, word)
    zero = DOUBLE(0.0)
    even = builder.icmp_unsigned("==", builder.and_(bits, word(1)), word(0))
    changes = builder.and_(builder.fcmp_ordered("!=", error, zero), even)
    negative = builder.fcmp_ordered("<", total, zero)
    grows = builder.xor(builder.fcmp_ordered(">", error, zero), negative)
    beside = builder.add(bits, builder.select(grows, word(1), word(-1)))
    return builder.bitcast(builder.select(changes, beside, bits), DOUBLE)


def _signed(instruction: str, mask: int) -> Callable[..., Any]:
    """A change of the sign, also of NaN."""

    def emit(builder: Any, a: Any) -> Any:
        word = ir.IntType(32)
        bits = getattr(builder, instruction)(builder.bitcast(a, word), word(mask))
        return builder.bitcast(bits, FLOAT)

    return emit


negated = _signed("xor", 1 << 31)
absolute = _signed("and_", (1 << 31) - 1)
