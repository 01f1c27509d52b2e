"""float16 and bfloat16 in the functions of this package: types of our own, since Numba's for the
processor have no arithmetic.

They have 16 bits in memory; a value is a float32 that is always equal to a number of the type. A
float32 has more than twice the bits, so a sum, product, quotient or root that is computed in
float32 and rounded again equals the one that is rounded once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from numba.core.datamodel import models
from numba.core.datamodel.registry import register_default
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, lower_cast

from numbasync.backend.cpu.library.options import any_intrinsic, types
from numbasync.backend.cpu.library.small_float_bits import DOUBLE, FLOAT, Format, as_double


class SmallFloat(types.Number):  # type: ignore[misc]
    """The type of a float16 or a bfloat16.

    Attributes:
        format: its bits.
        of: the function that converts a number to this type.
    """

    def __init__(self, name: str, digits: int) -> None:
        super().__init__(name=name)
        self.format = Format(digits)
        self.of = _conversion(self)


@register_default(SmallFloat)
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


@lower_cast(SmallFloat, types.Float)
def _to_float(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
    return builder.fpext(value, DOUBLE) if toty == types.float64 else value


@lower_cast(types.Float, SmallFloat)
def _from_float(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
    return toty.format.rounded(builder, value)


@lower_cast(SmallFloat, SmallFloat)
def _between(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
    return value if fromty == toty else toty.format.rounded(builder, value)


@lower_cast(types.Integer, SmallFloat)
@lower_cast(types.IntegerLiteral, SmallFloat)
def _from_integer(context: Any, builder: Any, fromty: Any, toty: Any, value: Any) -> Any:
    return toty.format.rounded(builder, as_double(builder, value, fromty.signed))


def _conversion(small: SmallFloat) -> Any:
    """A function that makes a number one of this type."""

    def of(tyctx: Any, x: Any):  # type: ignore[no-untyped-def]
        x = types.unliteral(x)
        if not isinstance(x, (types.Integer, types.Float, types.Boolean, SmallFloat)):
            return None

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return context.cast(builder, args[0], x, small)

        return small(x), codegen

    return any_intrinsic(of)


half: Any = SmallFloat("float16", 10)
bfloat: Any = SmallFloat("bfloat16", 7)


# --- operators ---


_FIRST = {"target": "cpu"}  # precedes Numba's own typing, which widens both arguments
_register: Any = infer_global


def _operator(op: Any, small: Any, result: Any, emit: Callable[..., Any]) -> None:
    """Give `op` of two numbers of the type `small` a result of type `result`."""

    class Template(AbstractTemplate):  # type: ignore[misc]
        key = op
        metadata = _FIRST

        def generic(self, args: Any, kws: Any) -> Any:
            return None if kws or args != (small, small) else signature(result, small, small)

    _register(op)(Template)

    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return emit(builder, *args)

    lower_builtin(op, small, small)(lowered)


def _rounding(small: Any, name: str) -> Callable[..., Any]:
    return lambda builder, a, b: small.format.rounded(builder, getattr(builder, name)(a, b))


def _comparison(sign: str) -> Callable[..., Any]:
    instruction = "fcmp_unordered" if sign == "!=" else "fcmp_ordered"
    return lambda builder, a, b: getattr(builder, instruction)(sign, a, b)


for _small in (half, bfloat):
    for _op, _name in (
        (operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul"),
        (operator.truediv, "fdiv"),
    ):  # fmt: skip
        _operator(_op, _small, _small, _rounding(_small, _name))
    for _op, _sign in (
        (operator.eq, "=="), (operator.ne, "!="), (operator.lt, "<"), (operator.gt, ">"),
    ):  # fmt: skip
        _operator(_op, _small, types.boolean, _comparison(_sign))
