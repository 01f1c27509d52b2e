"""Fragments: the parts of small matrices that the threads of a warp hold in registers.

An accumulator of 16 x 8 blocks: lane ``4 g + t`` holds of each block, in this order, the elements
``(g, 2 t)``, ``(g, 2 t + 1)``, ``(g + 8, 2 t)`` and ``(g + 8, 2 t + 1)``. Operands are read in
steps of 32 bytes along k: 16 elements of float16 and bfloat16, 8 of float32, 32 of int8.

Source: PTX ISA, "Matrix multiply-accumulate operation using mma instruction", its fragments.
"""

from __future__ import annotations

from typing import Any

from numbasync.dtypes import SMALL, in_words, small_types
from numbasync.kernel_names import TypingError, extending
from numbasync.kernel_names import types as numba_types
from numbasync.tensor_cores.ptx import (
    F32,
    I32,
    aggregate,
    asm,
    elements,
    lane_id,
    literal,
    numbers,
    operation,
    operation_of_warps,
)
from numbasync.tensor_cores.tiles import check_tile, offset, swizzled

types: Any = numba_types
_extending: Any = extending
# PTX's names of the float types of 16 bits.
SHORT = {numba_type: row.ptx for numba_type, row in small_types().items()}
STEP = 32  # bytes of k that one instruction multiplies


class AccumulatorType(types.Type):  # type: ignore[misc]
    """Numba's type of an accumulator: blocks of 16 rows and of 8 columns, of float32 or int32."""

    def __init__(self, row_blocks: int, column_blocks: int, dtype: Any = types.float32) -> None:
        self.row_blocks, self.column_blocks, self.dtype = row_blocks, column_blocks, dtype
        super().__init__(name=f"Accumulator({dtype}[{16 * row_blocks}, {8 * column_blocks}])")

    @property
    def count(self) -> int:
        """Elements that a thread holds."""
        return 4 * self.row_blocks * self.column_blocks

    @property
    def letter(self) -> str:
        return "f" if self.dtype == types.float32 else "r"


class FragmentType(types.Type):  # type: ignore[misc]
    """Numba's type of an operand's fragment: `side` "a" has blocks of 16 rows, "b" of 8 columns;
    `steps` count along k.
    """

    def __init__(self, side: str, element: str, blocks: int, steps: int = 1) -> None:
        self.side, self.element, self.blocks, self.steps = side, element, blocks, steps
        super().__init__(name=f"Fragment({side}, {element}, blocks={blocks}, steps={steps})")

    @property
    def count(self) -> int:
        """Registers of a thread."""
        return (4 if self.side == "a" else 2) * self.blocks * self.steps


class _Registers(_extending.core_models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, numba_type: Any) -> None:
        from llvmlite import ir

        is_float = getattr(numba_type, "letter", "r") == "f"
        super().__init__(
            manager, numba_type, ir.ArrayType(F32 if is_float else I32, numba_type.count)
        )


_extending.register_model(AccumulatorType)(_Registers)
_extending.register_model(FragmentType)(_Registers)


@operation
def accumulator(typing, rows, columns, dtype=None):  # type: ignore[no-untyped-def]
    """An accumulator of zeros: `rows` (a multiple of 16) by `columns` (a multiple of 8) of a warp.
    For `wgmma`, each warp of a warpgroup holds 16 rows of the 64.

    Args:
        dtype: float32, or int32 for products of int8 and uint8.
    """
    height, width = literal(rows, "rows"), literal(columns, "columns")
    if height < 1 or width < 1 or height % 16 or width % 8:
        raise TypingError(
            f"accumulator({height}, {width}): rows are a multiple of 16, columns of 8."
        )
    element = types.float32 if dtype == types.none else getattr(dtype, "dtype", dtype)
    if element not in (types.float32, types.int32):
        raise TypingError(f"an accumulator of {element}: write float32 or int32.")
    result = AccumulatorType(height // 16, width // 8, element)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = F32(0.0) if result.letter == "f" else I32(0)
        return aggregate(builder, [zero] * result.count)

    return result(rows, columns, dtype), generate


@operation_of_warps
def load_a(typing, tile, index, rows, transposed=False):  # type: ignore[no-untyped-def]
    """The fragment of `rows` rows (a multiple of 16) of a left operand, and 32 bytes along k. All
    lanes of a warp call it, after a barrier, with the index of the first element: a row of a
    multiple of 8, a column of a multiple of 32 bytes.

    Args:
        transposed: rows of the tile are along k (its columns are the operand's rows). For elements
            of 16 bits.
    """
    blocks = literal(rows, "rows") // 16
    if blocks < 1 or literal(rows, "rows") % 16:
        raise TypingError(f"load_a of {literal(rows, 'rows')} rows: write a multiple of 16.")
    return _load("a", tile, index, rows, blocks, transposed)


@operation_of_warps
def load_b(typing, tile, index, columns, transposed=False):  # type: ignore[no-untyped-def]
    """The fragment of `columns` columns (a multiple of 16) of a right operand, and 32 bytes along
    k, from an index as that of `load_a` on. Rows of the tile are the operand's columns: elements
    along k are neighbours.

    Args:
        transposed: rows of the tile are along k, as those of a row-major operand. For elements of
            16 bits.
    """
    blocks = literal(columns, "columns") // 8
    if blocks < 2 or literal(columns, "columns") % 16:
        raise TypingError(
            f"load_b of {literal(columns, 'columns')} columns: write a multiple of 16."
        )
    return _load("b", tile, index, columns, blocks, transposed)


def _load(side: str, tile: Any, index: Any, extent: Any, blocks: int, transposed: Any) -> Any:
    check_tile(tile, index, "the tile")
    along_rows = bool(literal(transposed, "transposed"))
    if along_rows and tile.dtype.itemsize != 2:
        raise TypingError(f"a transposed load from {tile}: its elements must have 16 bits.")
    if tile.row_bytes < STEP:
        raise TypingError(f"a load from {tile}: rows have at least {STEP} bytes.")
    result, size = FragmentType(side, tile.element, blocks), tile.dtype.itemsize
    suffix = ".trans" if along_rows else ""
    text = f"ldmatrix.sync.aligned.m8n8.x4{suffix}.shared.b16 {{$0, $1, $2, $3}}, [$4];"
    # Four matrices of 8 rows of 16 bytes are loaded at once. Lane l gives the address of row l % 8
    # of matrix l // 8. Matrix 1 of a left operand is 8 rows lower, that of a right operand is the
    # other half of k; in a transposed tile rows and halves of k change places.
    row_first = (side == "a") != along_rows

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lane = lane_id(builder)
        first_bit = builder.and_(builder.lshr(lane, I32(3)), I32(1))
        second_bit = builder.lshr(lane, I32(4))
        lower, chunk = (first_bit, second_bit) if row_first else (second_bit, first_bit)
        row = builder.add(builder.and_(lane, I32(7)), builder.shl(lower, I32(3)))
        own = builder.add(builder.mul(row, I32(tile.row_bytes)), builder.shl(chunk, I32(4)))
        beside = builder.mul(numbers(context, builder, index, args[1])[-1], I32(size))
        first = builder.sub(offset(context, builder, tile, index, args[1]), beside)
        # The swizzle repeats every 8 rows, and changes bits of which a multiple of 32 bytes has
        # other ones than the lane's chunk: what it does to the lane's own row is the same anywhere.
        start = builder.add(builder.add(args[0], first), swizzled(builder, own, tile.swizzle))
        moved = builder.xor if tile.swizzle else builder.add
        registers: list[Any] = []
        for k in range(blocks // (1 if side == "a" else 2)):
            if along_rows:  # 16 columns further: other chunks of the same rows
                address = moved(start, builder.add(beside, I32(32 * k)))
            else:  # 16 rows further
                address = builder.add(moved(start, beside), I32(16 * k * tile.row_bytes))
            registers += asm(builder, text, "rrrr", "r", [address])
        return aggregate(builder, registers)

    return result(tile, index, extent, transposed), generate


@operation
def to_fragment(typing, accumulators, dtype):  # type: ignore[no-untyped-def]
    """The left operand whose elements are those of an accumulator of 16 rows, rounded to `dtype`
    (float16 or bfloat16): its columns are along k. No thread needs an element of another.
    """
    source = accumulators
    if (
        not isinstance(source, AccumulatorType)
        or source.row_blocks != 1
        or source.column_blocks % 2
    ):
        raise TypingError(f"to_fragment of {source}: an accumulator of 16 rows, 16 n columns.")
    element = SHORT.get(getattr(dtype, "dtype", dtype))
    if element is None:
        raise TypingError(f"to_fragment to {dtype}: write {in_words(SMALL)}.")
    result = FragmentType("a", element, 1, source.column_blocks // 2)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = elements(builder, args[0])
        pairs = [packed(builder, element, *values[i : i + 2]) for i in range(0, len(values), 2)]
        return aggregate(builder, pairs)

    return result(accumulators, dtype), generate


def packed(builder: Any, element: str, low: Any, high: Any) -> Any:
    """Two float32 as 16-bit elements of one register, rounded to the nearest."""
    text = f"cvt.rn.{element}x2.f32 $0, $2, $1;"
    return asm(builder, text, "r", "ff", [low, high], pure=True)[0]
