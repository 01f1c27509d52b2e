"""float16 and bfloat16 for compiled kernels: Numba's types for the processor have no arithmetic.

The types are separate, so that Numba's stay unchanged. They have 16 bits in memory; a value is a
float32 that is always equal to a number of the type. A float32 has more than twice the bits, so a
sum, product, quotient or root that is computed in float32 and rounded again equals the one that is
rounded once.

Types and casts are those of `numba.cuda`: such a number and another one give the wider type, except
that an int8 becomes a float16, an int8 or a uint8 a bfloat16, and that float16 with bfloat16 gives
float32. A cast of a float16 to an integer rounds to the nearest, whereas one from bfloat16, as from
float32, rounds towards zero.
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

from numbasync.backend.bfloat16_type import bfloat16
from numbasync.backend.cpu.library.options import any_intrinsic, types
from numbasync.backend.cpu.library.small_float_bits import DOUBLE, FLOAT, Format, as_double


class SmallFloat(types.Number):  # type: ignore[misc]
    """The type of a float16 or a bfloat16 in compiled kernels.

    Attributes:
        on_gpu: Numba's type for a GPU, whose conversions this one has.
        format: its bits.
        nearest: whether a cast to an integer rounds to the nearest.
        of: the function that converts a number to this type.
        of_bits: the function that gives an array of uint16 this type.
    """

    def __init__(self, name: str, on_gpu: Any, digits: int, nearest: bool) -> None:
        super().__init__(name=name)
        self.on_gpu = on_gpu
        self.format = Format(digits)
        self.nearest = nearest
        self.of = _conversion(self)
        self.of_bits = _reinterpretation(self)

    def can_convert_to(self, typingctx: Any, other: Any) -> Any:
        return typingctx.can_convert(self.on_gpu, other)

    def can_convert_from(self, typingctx: Any, other: Any) -> Any:
        return typingctx.can_convert(other, self.on_gpu)


class Half(SmallFloat, types.Float):  # type: ignore[misc]
    """The type of a float16."""


class BFloat(SmallFloat):
    """The type of a bfloat16. As on a GPU, it is no `Float` for Numba, which would take it for a
    dtype of NumPy's own.
    """

    bitwidth = 16


class SmallRecord(types.Record):  # type: ignore[misc]
    """The type of a structure with fields of float16: Numba's own, which has the same name, would
    be taken for it.
    """


def known(numba_type: Any) -> Any:
    """The type that compiled kernels use for a type of Numba; a structure's fields are replaced."""
    if isinstance(numba_type, types.Record):
        fields = [(n, {**f._asdict(), "type": known(f.type)}) for n, f in numba_type.fields.items()]
        is_own = any(isinstance(field["type"], SmallFloat) for _, field in fields)
        return SmallRecord(fields, numba_type.size, numba_type.aligned) if is_own else numba_type
    return SMALL_FLOATS.get(numba_type, numba_type)


register_default(SmallRecord)(models.RecordModel)


@register_default(Half)
@register_default(BFloat)
class _Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, FLOAT)

    def get_data_type(self) -> Any:
        return Format.bits

    def as_data(self, builder: Any, value: Any) -> Any:
        return self.fe_type.format.write(builder, value)

    def from_data(self, builder: Any, value: Any) -> Any:
        return self.fe_type.format.read(builder, value)


# --- casts ---


@lower_cast(Half, types.Float)
@lower_cast(BFloat, types.Float)
def _to_float(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
    return builder.fpext(value, DOUBLE) if toty == types.float64 else value


@lower_cast(types.Float, Half)
@lower_cast(types.Float, BFloat)
def _from_float(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
    return toty.format.rounded(builder, value)


@lower_cast(Half, Half)
@lower_cast(BFloat, BFloat)
@lower_cast(Half, BFloat)
@lower_cast(BFloat, Half)
def _between(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
    return value if fromty == toty else toty.format.rounded(builder, value)


@lower_cast(types.Integer, Half)
@lower_cast(types.Integer, BFloat)
@lower_cast(types.IntegerLiteral, Half)
@lower_cast(types.IntegerLiteral, BFloat)
def _from_integer(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
    return toty.format.rounded(builder, as_double(builder, value, fromty.signed))


@lower_cast(Half, types.Integer)
@lower_cast(BFloat, types.Integer)
def _to_integer(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
    if fromty.nearest:
        value = builder.call(builder.module.declare_intrinsic("llvm.rint", [FLOAT]), [value])
    convert = builder.fptosi if toty.signed else builder.fptoui
    return convert(value, context.get_value_type(toty))


@unbox(SmallFloat)
def _unboxed(small: Any, value: Any, c: Any) -> Any:
    as_float = c.pyapi.number_float(value)
    double = c.pyapi.float_as_double(as_float)
    c.pyapi.decref(as_float)
    return NativeValue(small.format.rounded(c.builder, double), is_error=c.pyapi.c_api_error())


@box(SmallFloat)
def _boxed(small: Any, value: Any, c: Any) -> Any:
    """Never called, but part of the wrapper that Numba creates of every function."""
    return c.pyapi.float_from_double(c.builder.fpext(value, DOUBLE))


def _conversion(small: SmallFloat) -> Any:
    """`np.float16(x)`, or that of a bfloat16."""

    def of(tyctx: Any, x: Any):  # type: ignore[no-untyped-def]
        x = types.unliteral(x)
        if not isinstance(x, (types.Integer, types.Float, types.Boolean, SmallFloat)):
            return None

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return context.cast(builder, args[0], x, small)

        return small(x), codegen

    return any_intrinsic(of)


def _reinterpretation(small: SmallFloat) -> Any:
    """An array of uint16 as an array of the type."""

    def of_bits(tyctx: Any, array: Any):  # type: ignore[no-untyped-def]
        if not (isinstance(array, types.Array) and array.dtype == types.uint16):
            return None

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return args[0]  # LLVM sees no difference

        return array.copy(dtype=small)(array), codegen

    return any_intrinsic(of_bits)


half: Any = Half("float16", types.float16, 10, nearest=True)
bfloat: Any = BFloat("bfloat16", bfloat16, 7, nearest=False)
SMALL_FLOATS: dict[Any, Any] = {half.on_gpu: half, bfloat.on_gpu: bfloat}


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


def typed(op: Any, small: Any, count: int, result: Any) -> None:
    """Give `op` of `count` numbers of the type `small` the type `result`."""

    class Template(AbstractTemplate):  # type: ignore[misc]
        key = op
        metadata = _FIRST

        def generic(self, args: Any, kws: Any) -> Any:
            if kws or len(args) != count or small not in args:
                return None
            lossless = (Conversion.exact, Conversion.promote, Conversion.safe)
            if any(a != small and self.context.can_convert(a, small) not in lossless for a in args):
                return None
            return signature(result, *[small] * count)

    _register(op)(Template)


def _operator(op: Any, small: Any, count: int, result: Any, emit: Callable[..., Any]) -> None:
    typed(op, small, count, result)

    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return emit(builder, *args)

    lower_builtin(op, *[small] * count)(lowered)


def _rounding(small: Any, name: str) -> Callable[..., Any]:
    return lambda builder, a, b: small.format.rounded(builder, getattr(builder, name)(a, b))


def _comparison(sign: str) -> Callable[..., Any]:
    instruction = "fcmp_unordered" if sign == "!=" else "fcmp_ordered"
    return lambda builder, a, b: getattr(builder, instruction)(sign, a, b)


def _signed(instruction: str, mask: int) -> Callable[..., Any]:
    """A change of the sign, also of NaN."""

    def emit(builder: Any, a: Any) -> Any:
        word = ir.IntType(32)
        bits = getattr(builder, instruction)(builder.bitcast(a, word), word(mask))
        return builder.bitcast(bits, FLOAT)

    return emit


negated = _signed("xor", 1 << 31)
absolute = _signed("and_", (1 << 31) - 1)

for _small in (half, bfloat):
    for _ops, _name in (
        ((operator.add, operator.iadd), "fadd"), ((operator.sub, operator.isub), "fsub"),
        ((operator.mul, operator.imul), "fmul"), ((operator.truediv, operator.itruediv), "fdiv"),
    ):  # fmt: skip
        for _op in _ops:
            _operator(_op, _small, 2, _small, _rounding(_small, _name))
    for _op, _sign in (
        (operator.eq, "=="), (operator.ne, "!="), (operator.lt, "<"), (operator.le, "<="),
        (operator.gt, ">"), (operator.ge, ">="),
    ):  # fmt: skip
        _operator(_op, _small, 2, types.boolean, _comparison(_sign))
    _operator(operator.neg, _small, 1, _small, negated)
    _operator(operator.pos, _small, 1, _small, lambda builder, a: a)


@lower_builtin(bool, bfloat)
def _truth(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.fcmp_unordered("!=", args[0], FLOAT(0.0))


# As on a GPU, where a bfloat16 has neither: its abs() is a float32, and it has no float().
_operator(abs, half, 1, half, absolute)
_operator(float, half, 1, half, lambda builder, a: a)
