"""What kernels do with the elements of accumulators: any function of them, their rows, and storing.

The corner of an accumulator is the row and column of its first element in the result: of each warp,
its own. Elements are those of `fragments`: lane ``4 g + t`` holds rows g and g + 8 of each block of
16 rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from numba.cuda import cgutils
from numba.cuda import types as numba_types
from numba.cuda.core.errors import TypingError

from numbasync.tensor_cores.fragments import SHORT, AccumulatorType, packed
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


def _check(accumulators: Any, name: str) -> AccumulatorType:
    if not isinstance(accumulators, AccumulatorType):
        raise TypingError(f"{name} of {accumulators}; write an accumulator.")
    return accumulators


def _places(kind: AccumulatorType) -> Iterator[tuple[int, int, int]]:
    """For each element of a thread: its row among the thread's rows, the row of the fragment
    without the lane's g, and the column without the lane's 2 t.
    """
    for i in range(kind.row_blocks):
        for j in range(kind.column_blocks):
            for part in range(4):
                yield 2 * i + part // 2, 16 * i + 8 * (part // 2), 8 * j + part % 2


def _corner(context: Any, builder: Any, corner: Any, value: Any) -> tuple[Any, Any]:
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
    kind = _check(accumulators, "apply")
    position(corner, 2, "the corner")
    asked = (kind.dtype, types.int64, types.int64, *extra)
    called = typing.resolve_function_type(function, asked, {})
    if called is None:
        raise TypingError(
            f"apply of {function}; write a device function of (element, row, column)."
        )

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        call = context.get_function(function, called)
        row, column = _corner(context, builder, corner, args[2])
        more = cgutils.unpack_tuple(builder, args[3])
        results = []
        for value, (_, below, beside) in zip(
            elements(builder, args[1]), _places(kind), strict=True
        ):
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
    for element, (row, _, _) in zip(elements(builder, value), _places(kind), strict=True):
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
    kind = _check(accumulators, "row_max")
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
    kind = _check(accumulators, "row_sum")
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
    kind = _check(accumulators, "scale_rows")
    _check_rows(kind, factors, "factors")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        factor = cgutils.unpack_tuple(builder, args[1])
        places = zip(elements(builder, args[0]), _places(kind), strict=True)
        return aggregate(
            builder, [builder.fmul(value, factor[row]) for value, (row, _, _) in places]
        )

    return kind(accumulators, factors), generate


@operation
def exp2_rows(typing, accumulators, factor, subtracted):  # type: ignore[no-untyped-def]
    """The accumulator of ``2 ** (factor * (element - subtracted of its row))``, by the hardware's
    approximation: 2 units in the last place.
    """
    kind = _check(accumulators, "exp2_rows")
    _check_rows(kind, subtracted, "subtracted")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        scale = context.cast(builder, args[1], factor, types.float32)
        less = [
            builder.fsub(F32(0.0), builder.fmul(value, scale))
            for value in cgutils.unpack_tuple(builder, args[2])
        ]
        results = []
        for value, (row, _, _) in zip(elements(builder, args[0]), _places(kind), strict=True):
            power = builder.fma(value, scale, less[row])
            results += asm(builder, _EX2, "f", "f", [power], pure=True)
        return aggregate(builder, results)

    return kind(accumulators, factor, subtracted), generate


# --- storing ---


@operation
def store(typing, array, corner, accumulators):  # type: ignore[no-untyped-def]
    """Store an accumulator into a matrix, from the element `corner` on, rounded to the matrix'
    elements; elements outside of the matrix are left out. All lanes of a warp call it.

    Args:
        array: C-contiguous, two axes, of float16, bfloat16, float32 or int32.
    """
    kind = _check(accumulators, "store")
    position(corner, 2, "the corner")
    if not isinstance(array, types.Array) or array.layout != "C" or array.ndim != 2:
        raise TypingError(f"store into {array}; pass a C-contiguous matrix.")
    element = SHORT.get(array.dtype)
    if element is None and array.dtype != kind.dtype:
        raise TypingError(f"store {kind} into {array}: write float16, bfloat16 or {kind.dtype}.")
    if element is not None and kind.dtype != types.float32:
        raise TypingError(f"store {kind} into {array}; integers go into int32.")
    nbytes = 4 if element is None else 2
    # Four lanes exchange their pairs, so that each stores 16 bytes of one block of 8 columns.
    together = element is not None and kind.column_blocks % 4 == 0

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = context.make_array(array)(context, builder, args[0])
        height, width = cgutils.unpack_tuple(builder, view.shape, 2)
        matrix = _Matrix(builder.ptrtoint(view.data, I64), height, width, nbytes, element)
        parts = zip(cgutils.unpack_tuple(builder, args[1]), corner, strict=True)
        first_row, first_column = (context.cast(builder, v, t, types.int64) for v, t in parts)
        bottom = builder.add(first_row, I64(16 * kind.row_blocks))
        right = builder.add(first_column, I64(8 * kind.column_blocks))
        unit = 16 if together else 2 * nbytes
        bytes_along = builder.mul(builder.or_(width, first_column), I64(nbytes))
        misaligned = builder.and_(builder.or_(bytes_along, matrix.start), I64(unit - 1))
        inside = builder.and_(
            builder.and_(
                builder.icmp_signed("<=", bottom, height), builder.icmp_signed("<=", right, width)
            ),
            builder.icmp_unsigned("==", misaligned, I64(0)),
        )
        place = _corner(context, builder, corner, args[1])
        values = elements(builder, args[2])
        with builder.if_else(_is_true_for_all(builder, inside)) as (whole, parts_of_it):
            with whole:
                _store_whole(builder, kind, values, matrix, place[0], first_column)
            with parts_of_it:
                _store_parts(builder, kind, values, matrix, place)
        return context.get_dummy_value()

    return types.void(array, corner, accumulators), generate


class _Matrix(NamedTuple):
    """A matrix in global memory: the address, the extents, the bytes of an element, and PTX's name
    of 16-bit elements.
    """

    start: Any
    height: Any
    width: Any
    nbytes: int
    element: str | None

    def address(self, builder: Any, row: Any, column: Any) -> Any:
        number = builder.add(builder.mul(row, self.width), column)
        return builder.add(self.start, builder.mul(number, I64(self.nbytes)))


def _is_true_for_all(builder: Any, condition: Any) -> Any:
    """The condition, if it is true for all lanes. The compiler then knows that a branch on it does
    not divide the warp; after one that might, it would keep addresses in registers of each lane,
    not of the warp: `wgmma` after such a branch took 4 % longer.
    """
    text = (
        "{ .reg .pred p; setp.ne.b32 p, $1, 0; vote.sync.all.pred p, p, -1; selp.b32 $0, 1, 0, p; }"
    )
    votes = asm(builder, text, "r", "r", [builder.zext(condition, I32)])
    return builder.icmp_unsigned("!=", votes[0], I32(0))


def _store_whole(
    builder: Any, kind: AccumulatorType, values: list[Any], matrix: _Matrix, row: Any, column: Any
) -> None:
    """Store all elements; `row` is the lane's, `column` the first one."""
    t = builder.and_(lane_id(builder), I32(3))
    wide_t = builder.zext(t, I64)
    start = matrix.address(builder, row, column)
    pitch = builder.mul(matrix.width, I64(matrix.nbytes))
    pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
    for i in range(kind.row_blocks):
        for half in range(2):
            line = builder.add(start, builder.mul(pitch, I64(16 * i + 8 * half)))
            own = pairs[2 * i * kind.column_blocks + half :: 2][: kind.column_blocks]
            if matrix.element is None:
                letter = kind.letter
                text = f"st.global.v2.{'f32' if letter == 'f' else 'b32'} [$0], {{$1, $2}};"
                for j, pair in enumerate(own):
                    moved = builder.add(builder.shl(wide_t, I64(3)), I64(32 * j))
                    asm(builder, text, "", "l" + letter * 2, [builder.add(line, moved), *pair])
                continue
            words = [packed(builder, matrix.element, *pair) for pair in own]
            if kind.column_blocks % 4:
                for j, word in enumerate(words):
                    moved = builder.add(builder.shl(wide_t, I64(2)), I64(16 * j))
                    place = builder.add(line, moved)
                    asm(builder, "st.global.b32 [$0], $1;", "", "lr", [place, word])
                continue
            for j in range(0, len(words), 4):
                exchanged = _exchanged(builder, words[j : j + 4], t)
                moved = builder.add(builder.shl(wide_t, I64(4)), I64(16 * j))
                text = "st.global.v4.b32 [$0], {$1, $2, $3, $4};"
                asm(builder, text, "", "lrrrr", [builder.add(line, moved), *exchanged])


def _exchanged(builder: Any, words: list[Any], t: Any) -> list[Any]:
    """Transpose the 4 x 4 words that four neighbouring lanes hold of four blocks: lane t gets the
    whole row of block t.
    """
    for distance in (1, 2):
        is_odd = builder.icmp_unsigned("!=", builder.and_(t, I32(distance)), I32(0))
        for low in [k for k in range(4) if not k & distance]:
            high = low + distance
            sent = builder.select(is_odd, words[low], words[high])
            got = shuffle_xor(builder, sent, distance)
            words[low], words[high] = (
                builder.select(is_odd, got, words[low]),
                builder.select(is_odd, words[high], got),
            )
    return words


def _store_parts(
    builder: Any,
    kind: AccumulatorType,
    values: list[Any],
    matrix: _Matrix,
    place: tuple[Any, Any],
) -> None:
    """Store the elements that lie in the matrix, one by one."""
    if matrix.element is None:
        letter = kind.letter
        stored = f"@p st.global.{'f32' if letter == 'f' else 'b32'} [$0], $1;"
    else:
        letter = "r"
        stored = "cvt.u16.u32 half, $1; @p st.global.b16 [$0], half;"
    text = f"{{ .reg .pred p; .reg .b16 half; setp.ne.b32 p, $2, 0; {stored} }}"
    for value, (_, below, beside) in zip(values, _places(kind), strict=True):
        row, column = builder.add(place[0], I64(below)), builder.add(place[1], I64(beside))
        inside = builder.and_(
            builder.icmp_signed("<", row, matrix.height),
            builder.icmp_signed("<", column, matrix.width),
        )
        if matrix.element is not None:
            value = packed(builder, matrix.element, value, F32(0.0))
        operands = [matrix.address(builder, row, column), value, builder.zext(inside, I32)]
        asm(builder, text, "", f"l{letter}r", operands)
