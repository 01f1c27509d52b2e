"""PTX instructions as operations of Numba's compiler for GPUs.

An operation is declared by a function of the types of its arguments, which gives the operation's
signature and the function that generates its code, as Numba's `intrinsic` has it. Outside of
kernels a call of an operation is an error; on the CPU device, kernels call a function of its
meaning instead (`backend/cpu`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from numbasync.errors import CallerError
from numbasync.kernel_names import TypingError, cgutils, extending, types
from numbasync.tensor_cores.capabilities import (
    OF_CLUSTERS,
    OF_MAPS,
    OF_WARPGROUPS,
    OF_WARPS,
    Need,
    check,
)

_types: Any = types
_Intrinsic: Any = extending._Intrinsic
I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_LLVM = {"r": I32, "l": I64, "f": F32}
Generate = Callable[[Any, Any, Any, Sequence[Any]], Any]


class Operation(_Intrinsic):  # type: ignore[misc]
    """An operation that kernels call."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise CallerError(
            f"{self._name} is an operation of kernels; call it in a @cuda.jit kernel."
        )

    def __repr__(self) -> str:
        return f"<operation {self._name}>"


def operation(define: Callable[..., Any], need: Need | None = None) -> Any:
    """Declare the operation that `define(typing, *argument types)` describes. Integers that are
    written in the kernel, and defaults, come as literal types.

    Args:
        need: the capability that it needs; None: all GPUs have it.
    """
    parameters = list(inspect.signature(define).parameters.values())[1:]

    @functools.wraps(define)
    def with_defaults(typing: Any, *args: Any, **given: Any) -> Any:
        for parameter in parameters[len(args) :]:
            if parameter.name not in given and parameter.default is not parameter.empty:
                default = parameter.default
                given[parameter.name] = _types.none if default is None else _types.literal(default)
        described = define(typing, *args, **given)
        if need is None or described is None:
            return described
        signature, generate = described
        needed = need

        def generate_checked(*compiling: Any) -> Any:
            check(define.__name__, needed)
            return generate(*compiling)

        return signature, generate_checked

    declared = Operation(define.__name__, with_defaults, prefer_literal=True)
    declared._register()
    return declared


operation_of_warps = functools.partial(operation, need=OF_WARPS)
operation_of_maps = functools.partial(operation, need=OF_MAPS)
operation_of_clusters = functools.partial(operation, need=OF_CLUSTERS)
operation_of_warpgroups = functools.partial(operation, need=OF_WARPGROUPS)


def asm(
    builder: Any,
    text: str,
    outputs: str,
    inputs: str,
    values: Sequence[Any],
    *,
    pure: bool = False,
    tied: int = 0,
) -> list[Any]:
    """Emit one statement of inline assembly; returns its outputs.

    Args:
        text: the instructions, with operands $0, $1 ...: the outputs first.
        outputs, inputs: a letter for each operand: r (32 bits), l (64 bits), f (float32).
        pure: the statement depends on its inputs alone, and may be moved or left out.
        tied: so many of the last inputs are in the registers of the outputs.
    """
    constraints = [f"={letter}" for letter in outputs]
    constraints += list(inputs[: len(inputs) - tied]) + [str(i) for i in range(tied)]
    if not pure:
        constraints.append("~{memory}")
    results = [_LLVM[letter] for letter in outputs]
    result = ir.VoidType() if not results else results[0]
    if len(results) > 1:
        result = ir.LiteralStructType(results)
    function = ir.FunctionType(result, [_LLVM[letter] for letter in inputs])
    code = ir.InlineAsm(function, text, ",".join(constraints), side_effect=not pure)
    value = builder.call(code, list(values))
    if len(results) < 2:
        return [value] if results else []
    return [builder.extract_value(value, i) for i in range(len(results))]


def statement(text: str, inputs: str = "") -> Generate:
    """The generator of one statement without a result; its operands are the arguments."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        wide = [_types.uint64 if letter == "l" else _types.uint32 for letter in inputs]
        values = [
            context.cast(builder, value, given, to)
            for value, given, to in zip(args, signature.args, wide, strict=True)
        ]
        asm(builder, text, "", inputs, values)
        return context.get_dummy_value()

    return generate


def word(context: Any, builder: Any, value: Any, numba_type: Any) -> Any:
    """An integer argument as 32 bits."""
    return context.cast(builder, value, numba_type, _types.uint32)


def elements(builder: Any, aggregate: Any) -> list[Any]:
    """The members of an array of LLVM."""
    return [builder.extract_value(aggregate, i) for i in range(aggregate.type.count)]


def aggregate(builder: Any, values: Sequence[Any]) -> Any:
    """An array of LLVM with these members."""
    array = ir.Constant(ir.ArrayType(values[0].type, len(values)), ir.Undefined)
    for i, value in enumerate(values):
        array = builder.insert_value(array, value, i)
    return array


def lane_id(builder: Any) -> Any:
    """The number of the thread in its warp."""
    return asm(builder, "mov.u32 $0, %laneid;", "r", "", [], pure=True)[0]


def shuffle_xor(builder: Any, value: Any, distance: int) -> Any:
    """The value that the lane `lane ^ distance` has of a 32-bit register."""
    letter = "f" if value.type == F32 else "r"
    text = f"shfl.sync.bfly.b32 $0, $1, {distance}, 31, -1;"
    return asm(builder, text, letter, letter, [value])[0]


def literal(value: Any, name: str, allowed: Sequence[int] | None = None) -> int:
    """The number of a literal type.

    Raises:
        TypingError: the number is not written in the kernel, or is none of those allowed.
    """
    number = getattr(value, "literal_value", value)
    if type(number) is bool:
        number = int(number)
    if type(number) is not int:
        raise TypingError(f"{name} is {value}; write an int, or the name of a global one.")
    if allowed is not None and number not in allowed:
        choices = ", ".join(map(str, allowed))
        raise TypingError(f"{name}={number}: write one of {choices}.")
    return number


def check_integers(**arguments: Any) -> None:
    """
    Raises:
        TypingError: one of the types is no integer.
    """
    for name, numba_type in arguments.items():
        if not isinstance(numba_type, _types.Integer | _types.Boolean):
            raise TypingError(f"{name} is {numba_type}; write an integer.")


def position(index: Any, axes: int, name: str) -> int:
    """Check the type of an index of `axes` integers; returns their number.

    Raises:
        TypingError: it has other members, or another number of them.
    """
    parts = list(index) if isinstance(index, _types.BaseTuple) else [index]
    if len(parts) != axes or not all(isinstance(p, _types.Integer) for p in parts):
        raise TypingError(f"{name} is {index}; write {axes} integers.")
    return len(parts)


def numbers(context: Any, builder: Any, index: Any, value: Any) -> list[Any]:
    """The members of an index, each as 32 bits."""
    if not isinstance(index, _types.BaseTuple):
        return [word(context, builder, value, index)]
    parts = cgutils.unpack_tuple(builder, value)
    return [word(context, builder, p, t) for p, t in zip(parts, index, strict=True)]
