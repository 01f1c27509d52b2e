"""Storing accumulators into matrices in global memory."""

from __future__ import annotations

from typing import Any, NamedTuple

from numbasync.dtypes import SMALL, in_words
from numbasync.kernel_names import TypingError, cgutils
from numbasync.kernel_names import types as numba_types
from numbasync.tensor_cores.accumulators import check_accumulators, corner_of, places
from numbasync.tensor_cores.fragments import SHORT, AccumulatorType, packed
from numbasync.tensor_cores.ptx import (
    F32,
    I32,
    I64,
    asm,
    elements,
    lane_id,
    operation,
    position,
    shuffle_xor,
)

types: Any = numba_types


@operation
def store(typing, array, corner, accumulators):  # type: ignore[no-untyped-def]
    """Store an accumulator into a matrix, from the element `corner` on, rounded to the matrix'
    elements; elements outside of the matrix are left out. All lanes of a warp call it.

    Args:
        array: C-contiguous, two axes, of float16, bfloat16, float32 or int32.
    """
    kind = check_accumulators(accumulators, "store")
    position(corner, 2, "the corner")
    if not isinstance(array, types.Array) or array.layout != "C" or array.ndim != 2:
        raise TypingError(f"store into {array}; pass a C-contiguous matrix.")
    element = SHORT.get(array.dtype)
    if element is None and array.dtype != kind.dtype:
        names = in_words((*SMALL, str(kind.dtype)))
        raise TypingError(f"store {kind} into {array}: write {names}.")
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
        place = corner_of(context, builder, corner, args[1])
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
    for value, (_, below, beside) in zip(values, places(kind), strict=True):
        row, column = builder.add(place[0], I64(below)), builder.add(place[1], I64(beside))
        inside = builder.and_(
            builder.icmp_signed("<", row, matrix.height),
            builder.icmp_signed("<", column, matrix.width),
        )
        if matrix.element is not None:
            value = packed(builder, matrix.element, value, F32(0.0))
        operands = [matrix.address(builder, row, column), value, builder.zext(inside, I32)]
        asm(builder, text, "", f"l{letter}r", operands)
