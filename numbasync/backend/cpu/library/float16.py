"""float16 for compiled kernels: Numba's type for the processor has no arithmetic.

The type is separate, so that Numba's stays unchanged. It has 16 bits in memory; a value is a
float32 that is always equal to a float16. A float32 has more than twice the bits, so a sum,
product, quotient or root that is computed in float32 and rounded again equals the one that is
rounded once. The conversions compute with integers: not every processor has instructions for them,
LLVM's functions are not in every process, and `fastmath` does not affect integers.

Types and casts are those of `numba.cuda`: float16 and another number give the wider type, except
that an int8 becomes a float16; a cast to an integer rounds to the nearest, whereas one from float32
rounds towards zero.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core.datamodel import models
from numba.core.datamodel.registry import register_default
from numba.core.typeconv.castgraph import Conversion
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import NativeValue, box, lower_builtin, lower_cast, unbox

from numbasync.backend.cpu.library.entry_points import any_intrinsic, types

_FLOAT, _DOUBLE = ir.FloatType(), ir.DoubleType()
_BITS = ir.IntType(16)
_MANTISSA = 10
_BIAS = 15


class Half(types.Float):  # type: ignore[misc]
    """The type of a float16 in compiled kernels."""

    def __init__(self) -> None:
        super().__init__(name="float16")

    def can_convert_to(self, typingctx: Any, other: Any) -> Any:
        return typingctx.can_convert(types.float16, other)

    def can_convert_from(self, typingctx: Any, other: Any) -> Any:
        return typingctx.can_convert(other, types.float16)


half: Any = Half()


class HalfRecord(types.Record):  # type: ignore[misc]
    """The type of a structure with fields of float16: Numba's own, which has the same name, would
    be taken for it.
    """


def known(numba_type: Any) -> Any:
    """The type that compiled kernels use for a type of Numba; a structure's fields are replaced."""
    if isinstance(numba_type, types.Record):
        fields = [(n, {**f._asdict(), "type": known(f.type)}) for n, f in numba_type.fields.items()]
        has_half = any(field["type"] is half for _, field in fields)
        return HalfRecord(fields, numba_type.size, numba_type.aligned) if has_half else numba_type
    return half if numba_type == types.float16 else numba_type


register_default(HalfRecord)(models.RecordModel)


@register_default(Half)
class HalfModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _FLOAT)

    def get_data_type(self) -> Any:
        return _BITS

    def as_data(self, builder: Any, value: Any) -> Any:
        return to_bits(builder, value)

    def from_data(self, builder: Any, value: Any) -> Any:
        return from_bits(builder, value)


# --- bits ---


def from_bits(builder: Any, bits: Any) -> Any:
    """The float32 of 16 bits."""
    word = ir.IntType(32)
    wide = builder.zext(bits, word)
    sign = builder.shl(builder.and_(wide, word(0x8000)), word(16))
    size = builder.and_(wide, word(0x7FFF))
    rest = builder.shl(size, word(23 - _MANTISSA))
    step = (127 - _BIAS) << 23
    normal = builder.add(rest, word(step))
    special = builder.add(rest, word(2 * step))  # infinities and NaN have the last exponent
    small = builder.bitcast(builder.fmul(builder.uitofp(size, _FLOAT), _FLOAT(2.0**-24)), word)
    result = builder.select(builder.icmp_unsigned(">=", size, word(0x7C00)), special, normal)
    result = builder.select(builder.icmp_unsigned("<", size, word(0x400)), small, result)
    return builder.bitcast(builder.or_(result, sign), _FLOAT)


def to_bits(builder: Any, value: Any) -> Any:
    """The 16 bits of a float32 that is equal to a float16."""
    word = ir.IntType(32)
    bits = builder.bitcast(value, word)
    sign = builder.lshr(builder.and_(bits, word(1 << 31)), word(16))
    size = builder.and_(bits, word((1 << 31) - 1))
    shift = word(23 - _MANTISSA)
    normal = builder.sub(builder.lshr(size, shift), word((127 - _BIAS) << _MANTISSA))
    small = _in_steps(builder, size, _FLOAT)
    nan = builder.or_(builder.and_(builder.lshr(size, shift), word(0x3FF)), word(0x7E00))
    special = builder.select(builder.icmp_unsigned(">", size, word(0x7F800000)), nan, word(0x7C00))
    result = builder.select(builder.icmp_unsigned(">=", size, word(0x7F800000)), special, normal)
    least = word((127 - _BIAS + 1) << 23)
    result = builder.select(builder.icmp_unsigned("<", size, least), small, result)
    return builder.trunc(builder.or_(result, sign), _BITS)


def rounded(builder: Any, value: Any) -> Any:
    """The float16 nearest to a float32 or float64, as a float32; halfway, the even one."""
    source = value.type
    width, digits, bias = (64, 52, 1023) if source == _DOUBLE else (32, 23, 127)
    word = ir.IntType(width)
    bits = builder.bitcast(value, word)
    sign = builder.and_(bits, word(1 << (width - 1)))
    size = builder.and_(bits, word((1 << (width - 1)) - 1))
    dropped = digits - _MANTISSA
    odd = builder.and_(builder.lshr(size, word(dropped)), word(1))
    near = builder.add(builder.add(size, word((1 << (dropped - 1)) - 1)), odd)
    near = builder.and_(near, word(-1 << dropped))
    infinite = word((2 * bias + 1) << digits)
    too_large = builder.icmp_unsigned(">=", near, word((bias + 16) << digits))
    near = builder.select(too_large, infinite, near)
    near = builder.select(builder.icmp_unsigned(">", size, infinite), size, near)
    steps = builder.uitofp(_in_steps(builder, size, source), source)
    small = builder.bitcast(builder.fmul(steps, source(2.0**-24)), word)
    least = word((bias - _BIAS + 1) << digits)
    near = builder.select(builder.icmp_unsigned("<", size, least), small, near)
    result = builder.bitcast(builder.or_(near, sign), source)
    return result if source == _FLOAT else builder.fptrunc(result, _FLOAT)


def _in_steps(builder: Any, size: Any, source: Any) -> Any:
    """A number below 1, given by its bits, as a rounded multiple of the least float16: the last
    digits of a sum that the processor rounds.
    """
    word, digits = size.type, 52 if source == _DOUBLE else 23
    steps = builder.fmul(builder.bitcast(size, source), source(2.0**24))
    whole = builder.bitcast(builder.fadd(steps, source(2.0**digits)), word)
    return builder.and_(whole, word((1 << digits) - 1))


# --- casts ---


@lower_cast(Half, types.Float)
def _to_float(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
    return builder.fpext(value, _DOUBLE) if toty == types.float64 else value


@lower_cast(types.Float, Half)
def _from_float(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
    return rounded(builder, value)


@lower_cast(Half, Half)
def _same(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
    return value


@lower_cast(types.Integer, Half)
@lower_cast(types.IntegerLiteral, Half)
def _from_integer(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
    # Numbers that a float64 cannot hold are infinite as a float16.
    convert = builder.sitofp if fromty.signed else builder.uitofp
    return rounded(builder, convert(value, _DOUBLE))


@lower_cast(Half, types.Integer)
def _to_integer(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
    nearest = builder.module.declare_intrinsic("llvm.rint", [_FLOAT])
    convert = builder.fptosi if toty.signed else builder.fptoui
    return convert(builder.call(nearest, [value]), context.get_value_type(toty))


@unbox(Half)
def _unboxed(half_type: Any, value: Any, c: Any) -> Any:
    as_float = c.pyapi.number_float(value)
    double = c.pyapi.float_as_double(as_float)
    c.pyapi.decref(as_float)
    return NativeValue(rounded(c.builder, double), is_error=c.pyapi.c_api_error())


@box(Half)
def _boxed(half_type: Any, value: Any, c: Any) -> Any:
    """Never called, but part of the wrapper that Numba creates of every function."""
    return c.pyapi.float_from_double(c.builder.fpext(value, _DOUBLE))


@any_intrinsic
def of(tyctx: Any, x: Any):  # type: ignore[no-untyped-def]
    """`np.float16(x)`."""
    x = types.unliteral(x)
    if not isinstance(x, (types.Integer, types.Float, types.Boolean)):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.cast(builder, args[0], x, half)

    return half(x), codegen


@any_intrinsic
def of_bits(tyctx: Any, array: Any):  # type: ignore[no-untyped-def]
    """An array of uint16 as an array of float16."""
    if not (isinstance(array, types.Array) and array.dtype == types.uint16):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return args[0]  # LLVM sees no difference

    return array.copy(dtype=half)(array), codegen


def emitted(result: Any, arguments: tuple[Any, ...], emit: Callable[..., Any]) -> Any:
    """A function of one to three values of these types, by the instructions that `emit` builds."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return emit(builder, *args)

    typed_code = result(*arguments), codegen

    def one(tyctx: Any, a: Any):  # type: ignore[no-untyped-def]
        return typed_code

    def two(tyctx: Any, a: Any, b: Any):  # type: ignore[no-untyped-def]
        return typed_code

    def three(tyctx: Any, a: Any, b: Any, c: Any):  # type: ignore[no-untyped-def]
        return typed_code

    return any_intrinsic((one, two, three)[len(arguments) - 1])


# --- operators ---


_FIRST = {"target": "cpu"}  # precedes Numba's own typing, which widens both arguments
_register: Any = infer_global


def typed(op: Any, count: int, result: Any) -> None:
    """Give `op` of `count` float16 the type `result`."""

    class Template(AbstractTemplate):  # type: ignore[misc]
        key = op
        metadata = _FIRST

        def generic(self, args: Any, kws: Any) -> Any:
            if kws or len(args) != count or not any(isinstance(a, Half) for a in args):
                return None
            lossless = (Conversion.exact, Conversion.promote, Conversion.safe)
            if any(a != half and self.context.can_convert(a, half) not in lossless for a in args):
                return None
            return signature(result, *[half] * count)

    _register(op)(Template)


def _operator(op: Any, count: int, result: Any, emit: Callable[..., Any]) -> None:
    typed(op, count, result)

    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return emit(builder, *args)

    lower_builtin(op, *[half] * count)(lowered)


def _rounding(name: str) -> Callable[..., Any]:
    return lambda builder, a, b: rounded(builder, getattr(builder, name)(a, b))


def _comparison(sign: str) -> Callable[..., Any]:
    instruction = "fcmp_unordered" if sign == "!=" else "fcmp_ordered"
    return lambda builder, a, b: getattr(builder, instruction)(sign, a, b)


def _signed(instruction: str, mask: int) -> Callable[..., Any]:
    """A change of the sign, also of NaN."""

    def emit(builder: Any, a: Any) -> Any:
        word = ir.IntType(32)
        bits = getattr(builder, instruction)(builder.bitcast(a, word), word(mask))
        return builder.bitcast(bits, _FLOAT)

    return emit


negated = _signed("xor", 1 << 31)
absolute = _signed("and_", (1 << 31) - 1)

for _ops, _name in (
    ((operator.add, operator.iadd), "fadd"), ((operator.sub, operator.isub), "fsub"),
    ((operator.mul, operator.imul), "fmul"), ((operator.truediv, operator.itruediv), "fdiv"),
):  # fmt: skip
    for _op in _ops:
        _operator(_op, 2, half, _rounding(_name))
for _op, _sign in (
    (operator.eq, "=="), (operator.ne, "!="), (operator.lt, "<"), (operator.le, "<="),
    (operator.gt, ">"), (operator.ge, ">="),
):  # fmt: skip
    _operator(_op, 2, types.boolean, _comparison(_sign))
_operator(operator.neg, 1, half, negated)
_operator(operator.pos, 1, half, lambda builder, a: a)
_operator(abs, 1, half, absolute)
_operator(float, 1, half, lambda builder, a: a)  # as on a GPU
