"""Matrix products by tensor cores: of a warp (`mma`) and of a warpgroup of four (`wgmma`).

`mma` multiplies fragments in registers, from compute capability 8.0 on. `wgmma` reads its operands
from tiles in shared memory, or the left one from registers, on capability 9.0; it is asynchronous:
`wgmma_wait` gives the sums.

float16, bfloat16 and TF32 products are exact and are added in float32; the order of the additions,
and their rounding, are the hardware's. float32 operands are cut to TF32, 10 bits of mantissa.

Source: PTX ISA, "Warp Level Matrix Instructions" and "Asynchronous Warpgroup Level Matrix
Multiply-Accumulate Instructions".
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from numbasync.dtypes import SMALL, TABLE, in_words, is_float
from numbasync.kernel_names import TypingError
from numbasync.kernel_names import types as numba_types
from numbasync.tensor_cores.fragments import STEP, AccumulatorType, FragmentType
from numbasync.tensor_cores.ptx import (
    I32,
    I64,
    aggregate,
    asm,
    elements,
    literal,
    operation_of_warpgroups,
    operation_of_warps,
    word,
)
from numbasync.tensor_cores.tiles import TileType, check_tile, offset

types: Any = numba_types
_K = {row.ptx: STEP // row.nbytes for row in TABLE.values() if row.ptx}  # elements of STEP bytes
_SHAPE = {element: f"m16n8k{k}" for element, k in _K.items()}
_PATTERN = {128: 1, 64: 2, 32: 3, 0: 0}  # of a descriptor, by the swizzle


@operation_of_warps
def mma(typing, accumulators, a, b):  # type: ignore[no-untyped-def]
    """``accumulators + a @ b``, of fragments. All lanes of a warp call it."""
    if not isinstance(accumulators, AccumulatorType):
        raise TypingError(
            f"mma into {accumulators}; write tensor_cores.accumulator(rows, columns)."
        )
    _check_sides(accumulators, a, b)
    element = a.element
    is_integer = element in ("s8", "u8")
    if is_integer != (accumulators.dtype == types.int32):
        raise TypingError(f"mma of {a} into {accumulators}; integers are added in int32.")
    total, letter = ("s32", "r") if is_integer else ("f32", "f")
    text = (
        f"mma.sync.aligned.{_SHAPE[element]}.row.col.{total}.{element}.{b.element}.{total} "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    )
    rows, columns = accumulators.row_blocks, accumulators.column_blocks

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        sums, left, right = (elements(builder, value) for value in args)
        for i in range(rows):
            # Back and forth, so that one of the two operands stays from one product to the next.
            for j in range(columns) if i % 2 == 0 else reversed(range(columns)):
                at = 4 * (i * columns + j)
                inputs = left[4 * i : 4 * i + 4] + right[2 * j : 2 * j + 2] + sums[at : at + 4]
                sums[at : at + 4] = asm(
                    builder, text, letter * 4, "r" * 6 + letter * 4, inputs, pure=True
                )
        return aggregate(builder, sums)

    return accumulators(accumulators, a, b), generate


def _check_sides(accumulators: AccumulatorType, a: Any, b: Any) -> None:
    if not (isinstance(a, FragmentType) and a.side == "a" and a.steps == 1):
        raise TypingError(f"mma: a is {a}; write load_a(...).")
    if not (isinstance(b, FragmentType) and b.side == "b"):
        raise TypingError(f"mma: b is {b}; write load_b(...).")
    integers = {"s8", "u8"}
    if a.element != b.element and {a.element, b.element} - integers:
        raise TypingError(f"mma of {a} and {b}: their elements differ.")
    if (accumulators.row_blocks, accumulators.column_blocks) != (a.blocks, b.blocks):
        raise TypingError(
            f"mma of {16 * a.blocks} rows and {8 * b.blocks} columns into {accumulators}."
        )


# --- of a warpgroup ---


@operation_of_warpgroups
def wgmma(  # type: ignore[no-untyped-def]
    typing,
    accumulators,
    a,
    a_index,
    b,
    b_index,
    keep,
    depth,
    transposed_a=False,
    transposed_b=False,
):
    """Begin ``accumulators + a @ b`` of 64 rows, and end a group. All threads of a warpgroup call
    it, and take the sums from `wgmma_wait`; meanwhile nothing may write the tiles.

    Args:
        accumulators: of 16 rows (a warp's of the 64) and 8 to 256 columns.
        a: tile whose rows are the operand's rows; `a_index` is that of the first element: a row of
            a multiple of 8, and column 0 where the operand goes on in the next tile.
        b: tile whose rows are the operand's columns, so that elements along k are neighbours.
        keep: if False (or 0), what the accumulators hold does not count.
        depth: elements along k. Where a row of the tile has fewer, the operand goes on in the next
            tile of the axis before.
        transposed_a, transposed_b: rows of the tile are along k. For elements of 16 bits. Where a
            row has fewer elements than the operand, the operand goes on in the next tile.
    """
    _check_accumulators(accumulators)
    check_tile(a, a_index, "a")
    check_tile(b, b_index, "b")
    by_rows = (
        bool(literal(transposed_a, "transposed_a")),
        bool(literal(transposed_b, "transposed_b")),
    )
    if a.dtype != b.dtype:
        raise TypingError(f"wgmma of {a} and {b}: their elements differ.")
    steps = _steps(a, literal(depth, "depth"))
    left = _places(a, steps, by_rows[0], 64)
    right = _places(b, steps, by_rows[1], 8 * accumulators.column_blocks)
    count = accumulators.count
    sums = ", ".join(f"${i}" for i in range(count))
    lines = ["{ .reg .pred p; .reg .b64 da, db;", f"setp.ne.b32 p, ${count + 2}, 0;"]
    lines.append("wgmma.fence.sync.aligned;")
    for step in range(steps):
        lines.append(
            f"add.s64 da, ${count}, {left[step]}; add.s64 db, ${count + 1}, {right[step]};"
        )
        lines.append(f"{_instruction(a.element, accumulators)} {{{sums}}}, da, db, p, 1, 1")
        orders = f", {by_rows[0]:d}, {by_rows[1]:d}" if a.dtype.itemsize == 2 else ""
        lines.append(f"{orders};")
        if step == 0:
            lines.append("setp.eq.b32 p, 0, 0;")
    text = " ".join([*lines, "wgmma.commit_group.sync.aligned; }"])

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = elements(builder, args[0])
        operands = [
            _descriptor(builder, context, a, a_index, args[1:3], by_rows[0]),
            _descriptor(builder, context, b, b_index, args[3:5], by_rows[1]),
            word(context, builder, args[5], keep),
        ]
        results = asm(
            builder, text, "f" * count, "llr" + "f" * count, operands + values, tied=count
        )
        return aggregate(builder, results)

    parameters = a, a_index, b, b_index, keep, depth, transposed_a, transposed_b
    return accumulators(accumulators, *parameters), generate


@operation_of_warpgroups
def wgmma_fragment(typing, accumulators, a, b, b_index, transposed_b=False):  # type: ignore[no-untyped-def]
    """`wgmma` with a left operand in registers, from `to_fragment`; the accumulators are kept."""
    _check_accumulators(accumulators)
    check_tile(b, b_index, "b")
    if not (isinstance(a, FragmentType) and a.side == "a" and a.blocks == 1):
        raise TypingError(f"wgmma_fragment of {a}; write to_fragment(accumulators, dtype).")
    if a.element != b.element:
        raise TypingError(f"wgmma_fragment of {a} and {b}: their elements differ.")
    by_rows = bool(literal(transposed_b, "transposed_b"))
    right = _places(b, a.steps, by_rows, 8 * accumulators.column_blocks)
    count, registers = accumulators.count, a.count
    sums = ", ".join(f"${i}" for i in range(count))
    lines = ["{ .reg .b64 db; wgmma.fence.sync.aligned;"]
    for step in range(a.steps):
        own = ", ".join(f"${count + 4 * step + i}" for i in range(4))
        lines.append(f"add.s64 db, ${count + registers}, {right[step]};")
        lines.append(f"{_instruction(a.element, accumulators)} {{{sums}}}, {{{own}}}, db, 1, 1, 1")
        lines.append(f", {by_rows:d};" if b.dtype.itemsize == 2 else ";")
    text = " ".join([*lines, "wgmma.commit_group.sync.aligned; }"])

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        operands = elements(builder, args[1])
        operands.append(_descriptor(builder, context, b, b_index, args[2:4], by_rows))
        values = elements(builder, args[0])
        inputs = "r" * registers + "l" + "f" * count
        return aggregate(
            builder, asm(builder, text, "f" * count, inputs, operands + values, tied=count)
        )

    return accumulators(accumulators, a, b, b_index, transposed_b), generate


@operation_of_warpgroups
def wgmma_wait(typing, accumulators, pending):  # type: ignore[no-untyped-def]
    """Wait until at most `pending` of the warpgroup's groups of `wgmma` are not done. Gives the
    accumulators of a group that is done; accumulators of pending groups may only be passed on.
    """
    _check_accumulators(accumulators)
    number = literal(pending, "pending", range(8))
    count = accumulators.count

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = elements(builder, args[0])
        text = f"wgmma.wait_group.sync.aligned {number};"
        return aggregate(builder, asm(builder, text, "f" * count, "f" * count, values, tied=count))

    return accumulators(accumulators, pending), generate


def _check_accumulators(accumulators: Any) -> None:
    if not isinstance(accumulators, AccumulatorType) or accumulators.row_blocks != 1:
        raise TypingError(
            f"wgmma into {accumulators}; write tensor_cores.accumulator(16, columns): each of four "
            "warps holds 16 of the 64 rows."
        )
    if accumulators.column_blocks > 32 or accumulators.dtype != types.float32:
        raise TypingError(f"wgmma into {accumulators}; at most 256 columns, of float32.")


def _instruction(element: str, accumulators: AccumulatorType) -> str:
    shape = f"m64n{8 * accumulators.column_blocks}k{_K[element]}"
    return f"wgmma.mma_async.sync.aligned.{shape}.f32.{element}.{element}"


def _steps(tile: TileType, depth: int) -> int:
    if not is_float(tile.dtype):
        raise TypingError(f"wgmma of {tile}: write {in_words((*SMALL, 'float32'))}.")
    if depth < 1 or depth * tile.dtype.itemsize % STEP:
        each = STEP // tile.dtype.itemsize
        raise TypingError(f"wgmma of depth {depth}: write a multiple of {each} for {tile.dtype}.")
    return depth * tile.dtype.itemsize // STEP


def _places(tile: TileType, steps: int, by_rows: bool, extent: int) -> list[int]:
    """For each step along k, how far its operand is from the first one's, in units of 16 bytes.

    Raises:
        TypingError: the tile does not hold the operand.
    """
    rows = tile.shape[-2]
    nbytes = rows * tile.row_bytes
    *outer, _, columns = tile.shape
    tiles = outer[-1] if outer else 1
    if not tile.swizzle:
        raise TypingError(f"wgmma of {tile}: declare it with a swizzle.")
    if by_rows:
        if tile.dtype.itemsize != 2:
            raise TypingError(f"wgmma of {tile}, transposed: its elements must have 16 bits.")
        each = STEP // tile.dtype.itemsize  # rows of a step
        wide = -(-extent // columns)
        if each * steps > rows or wide > tiles:
            raise TypingError(
                f"wgmma: {tile} has no operand of {each * steps} rows, {extent} columns."
            )
        return [step * each * tile.row_bytes >> 4 for step in range(steps)]
    in_row = tile.row_bytes // STEP
    if extent > rows or steps > in_row * tiles:
        raise TypingError(
            f"wgmma: {tile} has no operand of {extent} rows, {steps * STEP} bytes each."
        )
    return [(step // in_row * nbytes + step % in_row * STEP) >> 4 for step in range(steps)]


def _descriptor(
    builder: Any, context: Any, tile: TileType, index: Any, values: Any, by_rows: bool
) -> Any:
    """The descriptor of an operand in shared memory: its address, the distance of tiles along the
    axis of neighbours, the distance of groups of 8 rows, and the swizzle. In units of 16 bytes.
    """
    address = builder.add(values[0], offset(context, builder, tile, index, values[1]))
    start = builder.lshr(builder.and_(address, I32(0x3FFFF)), I32(4))
    beside = tile.shape[-2] * tile.row_bytes if by_rows else 16
    fixed = (beside >> 4) << 16 | (8 * tile.row_bytes >> 4) << 32 | _PATTERN[tile.swizzle] << 62
    return builder.or_(builder.zext(start, I64), ir.Constant(I64, fixed))
