"""float16 for Numba's compiler for the processor, which has none that can be computed with.

A type of its own, so that Numba's stays as it is: 16 bits in memory, and a float32 wherever it
is a value, always one that float16 has. A float32 holds more than twice the bits, so a sum,
product, quotient or root in it that is rounded again is the one that is rounded once. The
conversions are made of integers: not every processor has instructions for them, LLVM's
functions are not in every process, and `fastmath` has nothing to say about them.

What is typed as float16, and how it is cast, is `numba.cuda`'s: with another number, the
wider type, except that an int8 becomes a float16; to an integer, the nearest, and not, as from
a float32, the one towards zero.
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


def known(kind: Any) -> Any:
    """A type as compiled kernels know it; of a structure, with such fields."""
    if isinstance(kind, types.Record):
        fields = [(n, {**f._asdict(), "type": known(f.type)}) for n, f in kind.fields.items()]
        has_half = any(field["type"] is half for _, field in fields)
        return HalfRecord(fields, kind.size, kind.aligned) if has_half else kind
    return half if kind == types.float16 else kind


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
    found = builder.select(builder.icmp_unsigned(">=", size, word(0x7C00)), special, normal)
    found = builder.select(builder.icmp_unsigned("<", size, word(0x400)), small, found)
    return builder.bitcast(builder.or_(found, sign), _FLOAT)


def to_bits(builder: Any, value: Any) -> Any:
    """The 16 bits of a float32 that float16 has."""
    word = ir.IntType(32)
    bits = builder.bitcast(value, word)
    sign = builder.lshr(builder.and_(bits, word(1 << 31)), word(16))
    size = builder.and_(bits, word((1 << 31) - 1))
    shift = word(23 - _MANTISSA)
    normal = builder.sub(builder.lshr(size, shift), word((127 - _BIAS) << _MANTISSA))
    small = _in_steps(builder, size, _FLOAT)
    nan = builder.or_(builder.and_(builder.lshr(size, shift), word(0x3FF)), word(0x7E00))
    special = builder.select(builder.icmp_unsigned(">", size, word(0x7F800000)), nan, word(0x7C00))
    found = builder.select(builder.icmp_unsigned(">=", size, word(0x7F800000)), special, normal)
    least = word((127 - _BIAS + 1) << 23)
    found = builder.select(builder.icmp_unsigned("<", size, least), small, found)
    return builder.trunc(builder.or_(found, sign), _BITS)


def rounded(builder: Any, value: Any) -> Any:
    """The float32 that is the float16 nearest to a float32 or float64; of two, the even one."""
    kind = value.type
    wide, digits, bias = (64, 52, 1023) if kind == _DOUBLE else (32, 23, 127)
    word = ir.IntType(wide)
    bits = builder.bitcast(value, word)
    sign = builder.and_(bits, word(1 << (wide - 1)))
    size = builder.and_(bits, word((1 << (wide - 1)) - 1))
    dropped = digits - _MANTISSA
    odd = builder.and_(builder.lshr(size, word(dropped)), word(1))
    near = builder.add(builder.add(size, word((1 << (dropped - 1)) - 1)), odd)
    near = builder.and_(near, word(-1 << dropped))
    infinite = word((2 * bias + 1) << digits)
    too_large = builder.icmp_unsigned(">=", near, word((bias + 16) << digits))
    near = builder.select(too_large, infinite, near)
    near = builder.select(builder.icmp_unsigned(">", size, infinite), size, near)
    steps = builder.uitofp(_in_steps(builder, size, kind), kind)
    small = builder.bitcast(builder.fmul(steps, kind(2.0**-24)), word)
    least = word((bias - _BIAS + 1) << digits)
    near = builder.select(builder.icmp_unsigned("<", size, least), small, near)
    found = builder.bitcast(builder.or_(near, sign), kind)
    return found if kind == _FLOAT else builder.fptrunc(found, _FLOAT)


def _in_steps(builder: Any, size: Any, kind: Any) -> Any:
    """How many steps of the least float16 a number below 1 has, rounded, by its bits: a sum that
    the processor rounds, of which the last digits are taken.
    """
    word, digits = size.type, 52 if kind == _DOUBLE else 23
    steps = builder.fmul(builder.bitcast(size, kind), kind(2.0**24))
    whole = builder.bitcast(builder.fadd(steps, kind(2.0**digits)), word)
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
    # What a float64 cannot hold is infinite as a float16.
    convert = builder.sitofp if fromty.signed else builder.uitofp
    return rounded(builder, convert(value, _DOUBLE))


@lower_cast(Half, types.Integer)
def _to_integer(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
    nearest = builder.module.declare_intrinsic("llvm.rint", [_FLOAT])
    convert = builder.fptosi if toty.signed else builder.fptoui
    return convert(builder.call(nearest, [value]), context.get_value_type(toty))


@unbox(Half)
def _unboxed(kind: Any, value: Any, c: Any) -> Any:
    as_float = c.pyapi.number_float(value)
    given = c.pyapi.float_as_double(as_float)
    c.pyapi.decref(as_float)
    return NativeValue(rounded(c.builder, given), is_error=c.pyapi.c_api_error())


@box(Half)
def _boxed(kind: Any, value: Any, c: Any) -> Any:
    """Nobody calls it, but Numba makes it of every function."""
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
    """An array of uint16 as one of float16."""
    if not (isinstance(array, types.Array) and array.dtype == types.uint16):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return args[0]  # to LLVM they are the same

    return array.copy(dtype=half)(array), codegen


def emitted(result: Any, arguments: tuple[Any, ...], emit: Callable[..., Any]) -> Any:
    """A function of up to three values of these types, by its instructions."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return emit(builder, *args)

    made = result(*arguments), codegen

    def one(tyctx: Any, a: Any):  # type: ignore[no-untyped-def]
        return made

    def two(tyctx: Any, a: Any, b: Any):  # type: ignore[no-untyped-def]
        return made

    def three(tyctx: Any, a: Any, b: Any, c: Any):  # type: ignore[no-untyped-def]
        return made

    return any_intrinsic((one, two, three)[len(arguments) - 1])


# --- operators ---


_FIRST = {"target": "cpu"}  # puts a type of ours before Numba's, which widens both arguments
_register: Any = infer_global


def typed(op: Any, count: int, result: Any) -> None:
    """`op` of float16 has a type of its own."""

    class Template(AbstractTemplate):  # type: ignore[misc]
        key = op
        metadata = _FIRST

        def generic(self, args: Any, kws: Any) -> Any:
            if kws or len(args) != count or not any(isinstance(a, Half) for a in args):
                return None
            fits = (Conversion.exact, Conversion.promote, Conversion.safe)
            if any(a != half and self.context.can_convert(a, half) not in fits for a in args):
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
    how = "fcmp_unordered" if sign == "!=" else "fcmp_ordered"
    return lambda builder, a, b: getattr(builder, how)(sign, a, b)


def _signed(change: str, mask: int) -> Callable[..., Any]:
    """A change of the sign, of NaN as well."""

    def emit(builder: Any, a: Any) -> Any:
        word = ir.IntType(32)
        bits = getattr(builder, change)(builder.bitcast(a, word), word(mask))
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
_operator(float, 1, half, lambda builder, a: a)  # so on a GPU, too
