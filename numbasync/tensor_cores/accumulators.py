"""What kernels compute of the elements of accumulators: any function of them, and of their rows.

The corner of an accumulator is the row and column of its first element in the result: of each warp,
its own. Elements are those of `fragments`: lane ``4 g + t`` holds rows g and g + 8 of each block of
16 rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from numbasync.kernel_names import TypingError, cgutils
from numbasync.kernel_names import types as numba_types
from numbasync.tensor_cores.fragments import AccumulatorType
from numbasync.tensor_cores.ptx import (
    F32,
    I32,
    I64,
    aggregate,
    asm,
    elements,
    lane_id,
    literal,
    operation,
    position,
    shuffle_xor,
)

types: Any = numba_types
_EX2 = "ex2.approx.ftz.f32 $0, $1;"


def check_accumulators(accumulators: Any, name: str) -> AccumulatorType:
    if not isinstance(accumulators, AccumulatorType):
        raise TypingError(f"{name} of {accumulators}; write an accumulator.")
    return accumulators


def places(kind: AccumulatorType) -> Iterator[tuple[int, int, int]]:
    """For each element of a thread: its row among the thread's rows, the row of the fragment
    without the lane's g, and the column without the lane's 2 t.
    """
    for i in range(kind.row_blocks):
        for j in range(kind.column_blocks):
            for part in range(4):
                yield 2 * i + part // 2, 16 * i + 8 * (part // 2), 8 * j + part % 2


def corner_of(context: Any, builder: Any, corner: Any, value: Any) -> tuple[Any, Any]:
    """The row and the column, as 64 bits, of the lane's first element."""
    lane = lane_id(builder)
    parts = zip(cgutils.unpack_tuple(builder, value), corner, strict=True)
    row, column = (context.cast(builder, v, t, types.int64) for v, t in parts)
    g = builder.zext(builder.lshr(lane, I32(2)), I64)
    t = builder.zext(builder.shl(builder.and_(lane, I32(3)), I32(1)), I64)
    return builder.add(row, g), builder.add(column, t)


@operation
def apply(typing, function, accumulators, corner, *extra):  # type: ignore[no-untyped-def]
    """The accumulator of ``function(element, row, column, *extra)`` for every element; row and
    column are int64, counted from `corner`.

    Args:
        function: a device function that gives a number.
    """
    kind = check_accumulators(accumulators, "apply")
    position(corner, 2, "the corner")
    asked = (kind.dtype, types.int64, types.int64, *extra)
    called = typing.resolve_function_type(function, asked, {})
    if called is None:
        raise TypingError(
            f"apply of {function}; write a device function of (element, row, column)."
        )

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        call = context.get_function(function, called)
        row, column = corner_of(context, builder, corner, args[2])
        more = cgutils.unpack_tuple(builder, args[3])
        results = []
        for value, (_, below, beside) in zip(elements(builder, args[1]), places(kind), strict=True):
            own = value, builder.add(row, I64(below)), builder.add(column, I64(beside)), *more
            given = zip(own, asked, called.args, strict=True)
            values = [context.cast(builder, v, t, to) for v, t, to in given]
            result = call(builder, values)
            results.append(context.cast(builder, result, called.return_type, kind.dtype))
        return aggregate(builder, results)

    return kind(function, accumulators, corner, types.StarArgTuple(extra)), generate


# --- rows ---


def _by_rows(builder: Any, kind: AccumulatorType, value: Any) -> list[list[Any]]:
    """The elements of each of the thread's rows."""
    rows: list[list[Any]] = [[] for _ in range(2 * kind.row_blocks)]
    for element, (row, _, _) in zip(elements(builder, value), places(kind), strict=True):
        rows[row].append(element)
    return rows


def _folded(combine: Callable[[Any, Any], Any], values: list[Any]) -> Any:
    """The values combined two by two, which takes the fewest steps one behind the other."""
    while len(values) > 1:
        pairs = [combine(*values[i : i + 2]) for i in range(0, len(values) - 1, 2)]
        values = pairs + values[len(values) - len(values) % 2 :]
    return values[0]


def _maximum(builder: Any, x: Any, y: Any) -> Any:
    return asm(builder, "max.f32 $0, $1, $2;", "f", "ff", [x, y], pure=True)[0]


def _over_row(builder: Any, combine: Callable[[Any, Any], Any], values: list[Any]) -> Any:
    """Combine a row's elements of all four lanes that hold some; each of them gets the result."""
    total = _folded(combine, values)
    for distance in (1, 2):
        total = combine(total, shuffle_xor(builder, total, distance))
    return total


def _rows_of(kind: AccumulatorType) -> Any:
    return types.UniTuple(types.float32, 2 * kind.row_blocks)


def _check_rows(kind: AccumulatorType, rows: Any, name: str) -> None:
    if kind.dtype != types.float32 or rows != _rows_of(kind):
        raise TypingError(f"{name} is {rows}; write {2 * kind.row_blocks} float32 for {kind}.")


@operation
def row_max(typing, accumulators, least):  # type: ignore[no-untyped-def]
    """The largest element of each of the thread's rows and the number for that row in `least`: a
    tuple of two float32 for each block of 16 rows. All lanes of a warp call it.
    """
    kind = check_accumulators(accumulators, "row_max")
    _check_rows(kind, least, "least")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def larger(x: Any, y: Any) -> Any:
            return _maximum(builder, x, y)

        rows = _by_rows(builder, kind, args[0])
        bounds = cgutils.unpack_tuple(builder, args[1])
        results = [
            larger(bound, _over_row(builder, larger, row))
            for bound, row in zip(bounds, rows, strict=True)
        ]
        return context.make_tuple(builder, signature.return_type, results)

    return _rows_of(kind)(accumulators, least), generate


@operation
def row_sum(typing, accumulators, whole=True):  # type: ignore[no-untyped-def]
    """The sum of each of the thread's rows: a tuple of two float32 for each block of 16 rows. All
    lanes of a warp call it.

    Args:
        whole: False: of the elements alone that the thread holds; four lanes hold a row.
    """
    kind = check_accumulators(accumulators, "row_sum")
    _check_rows(kind, _rows_of(kind), "the rows")
    is_whole = bool(literal(whole, "whole"))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def add(x: Any, y: Any) -> Any:
            return builder.fadd(x, y)

        rows = _by_rows(builder, kind, args[0])
        results = [_over_row(builder, add, r) if is_whole else _folded(add, r) for r in rows]
        return context.make_tuple(builder, signature.return_type, results)

    return _rows_of(kind)(accumulators, whole), generate


@operation
def sum_over_row(typing, value):  # type: ignore[no-untyped-def]
    """The sum of the float32 that the four lanes have which hold elements of the same rows. All
    lanes of a warp call it.
    """
    if value != types.float32:
        raise TypingError(f"sum_over_row of {value}; write a float32.")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _over_row(builder, lambda x, y: builder.fadd(x, y), [args[0]])

    return types.float32(value), generate


@operation
def exp2(typing, value):  # type: ignore[no-untyped-def]
    """``2 ** value`` of a float32, by the hardware's approximation: 2 units in the last place."""
    if value != types.float32:
        raise TypingError(f"exp2 of {value}; write a float32.")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return asm(builder, _EX2, "f", "f", args, pure=True)[0]

    return types.float32(value), generate


@operation
def scale_rows(typing, accumulators, factors):  # type: ignore[no-untyped-def]
    """The accumulator with each of the thread's rows times the row's number in `factors`."""
    kind = check_accumulators(accumulators, "scale_rows")
    _check_rows(kind, factors, "factors")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        factor = cgutils.unpack_tuple(builder, args[1])
        placed = zip(elements(builder, args[0]), places(kind), strict=True)
        return aggregate(
            builder, [builder.fmul(value, factor[row]) for value, (row, _, _) in placed]
        )

    return kind(accumulators, factors), generate


@operation
def exp2_rows(typing, accumulators, factor, subtracted):  # type: ignore[no-untyped-def]
    """The accumulator of ``2 ** (factor * (element - subtracted of its row))``, by the hardware's
    approximation: 2 units in the last place.
    """
    kind = check_accumulators(accumulators, "exp2_rows")
    _check_rows(kind, subtracted, "subtracted")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        scale = context.cast(builder, args[1], factor, types.float32)
        less = [
            builder.fsub(F32(0.0), builder.fmul(value, scale))
            for value in cgutils.unpack_tuple(builder, args[2])
        ]
        results = []
        for value, (row, _, _) in zip(elements(builder, args[0]), places(kind), strict=True):
            power = builder.fma(value, scale, less[row])
            results += asm(builder, _EX2, "f", "f", [power], pure=True)
        return aggregate(builder, results)

    return kind(accumulators, factor, subtracted), generate
