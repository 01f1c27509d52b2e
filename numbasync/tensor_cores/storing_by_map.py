"""Storing accumulators by tensor maps: through tiles in shared memory, while the warp goes on."""

from __future__ import annotations

from typing import Any

from numbasync.kernel_names import TypingError
from numbasync.kernel_names import types as numba_types
from numbasync.tensor_cores.accumulators import check_accumulators
from numbasync.tensor_cores.copies import check_map
from numbasync.tensor_cores.fragments import AccumulatorType, packed
from numbasync.tensor_cores.ptx import I32, asm, elements, lane_id, numbers, operation_of_maps
from numbasync.tensor_cores.tiles import TileType, check_tile, offset, swizzled

types: Any = numba_types
_MET = "bar.warp.sync 0xffffffff;"


@operation_of_maps
def store_by_map(typing, tensor_map, corner, tile, index, accumulators):  # type: ignore[no-untyped-def]
    """Begin to store an accumulator into a matrix, from the element `corner` on, rounded to the
    matrix' elements; elements behind its last row or column are left out, and the corner has no
    negative numbers. All lanes of a warp call it. The warp goes on while the elements are on their
    way; before it returns, its first lane calls `wait_stores` with 0.

    Args:
        tensor_map: of the matrix, float16, bfloat16 or float32; its box is a matrix of the tile.
        tile: shape ``(..., slots, rows, columns)``: as many rows as the accumulator, and columns of
            64 or 128 bytes that divide its columns. The accumulator goes through the slots in
            turn: each takes as many columns, when what it held before has been read.
        index: of the first element of the warp's own slots.
    """
    kind = check_accumulators(accumulators, "store_by_map")
    check_tile(tile, index, "the tile")
    check_map(tensor_map, tile, corner)
    pieces_of(kind.row_blocks, kind.column_blocks, tile.shape, tile.row_bytes)
    if kind.dtype != types.float32 or tensor_map.ndim != 2 or tile.element in ("s8", "u8"):
        raise TypingError(
            f"store_by_map of {kind} into {tensor_map}: write float32 into a matrix of floats."
        )

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lane = lane_id(builder)
        start = builder.add(args[2], offset(context, builder, tile, index, args[3]))
        row, column = numbers(context, builder, corner, args[1])
        values = elements(builder, args[4])
        pieces, slots = pieces_of(kind.row_blocks, kind.column_blocks, tile.shape, tile.row_bytes)
        blocks = kind.column_blocks // pieces
        for piece in range(pieces):
            slot = builder.add(start, I32(piece % slots * tile.shape[-2] * tile.row_bytes))
            pending = pending_before(piece, pieces, slots)
            asm(builder, f"cp.async.bulk.wait_group.read {pending}; {_MET}", "", "", [])
            own = [
                values[4 * (i * kind.column_blocks + piece * blocks + j) :][:4]
                for i in range(kind.row_blocks)
                for j in range(blocks)
            ]
            _write(builder, kind, tile, slot, lane, own)
            asm(builder, f"fence.proxy.async.shared::cta; {_MET}", "", "", [])
            text = (
                "{ .reg .pred p; setp.eq.s32 p, $4, 0; "
                "@p cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [$0, {$1, $2}], [$3]; "
                "@p cp.async.bulk.commit_group; }"
            )
            across = builder.add(column, I32(piece * tile.shape[-1]))
            asm(builder, text, "", "lrrrr", [args[0], across, row, slot, lane])
        return context.get_dummy_value()

    return types.void(tensor_map, corner, tile, index, accumulators), generate


def pieces_of(
    row_blocks: int, column_blocks: int, shape: tuple[int, ...], row_bytes: int
) -> tuple[int, int]:
    """The pieces in which an accumulator is stored through a tile, and the slots of the tile.

    Raises:
        TypingError: the tile has another shape than such an accumulator needs.
    """
    height, width = 16 * row_blocks, 8 * column_blocks
    if len(shape) < 3 or shape[-2] != height or width % shape[-1] or row_bytes not in (64, 128):
        raise TypingError(
            f"store_by_map of {height} x {width} elements through a tile of shape {list(shape)}: "
            f"write (..., slots, {height}, columns), columns of 64 or 128 bytes that divide "
            f"{width}."
        )
    return width // shape[-1], shape[-3]


def pending_before(piece: int, pieces: int, slots: int) -> int:
    """The stores that may be on their way when a piece is written into its slot: those of the
    other slots, unless the call before has ended with another slot than the last.
    """
    return 0 if piece == 0 and pieces % slots else slots - 1


def _write(
    builder: Any, kind: AccumulatorType, tile: TileType, slot: Any, lane: Any, blocks: list[Any]
) -> None:
    """Write blocks of 16 x 8 elements, the lane's four of each, row after row, into a slot."""
    many = tile.shape[-1] // 8
    if tile.element == "tf32":
        g, t = builder.lshr(lane, I32(2)), builder.and_(lane, I32(3))
        first = builder.add(builder.mul(g, I32(tile.row_bytes)), builder.shl(t, I32(3)))
        first = builder.add(slot, first)
        for number, four in enumerate(blocks):
            i, j = divmod(number, many)
            place = swizzled(builder, builder.add(first, I32(32 * j)), tile.swizzle)
            for half in range(2):
                below = I32((16 * i + 8 * half) * tile.row_bytes)
                pair = four[2 * half : 2 * half + 2]
                text = "st.shared.v2.f32 [$0], {$1, $2};"
                asm(builder, text, "", "rff", [builder.add(place, below), *pair])
        return
    # Lane 8 q + r says where row r of the q-th of four blocks is to lie.
    q, r = builder.lshr(lane, I32(3)), builder.and_(lane, I32(7))
    first = builder.add(builder.mul(r, I32(tile.row_bytes)), builder.shl(q, I32(4)))
    first = builder.add(slot, first)
    for start in range(0, len(blocks), 4):
        i, j = divmod(start, many)
        place = swizzled(builder, builder.add(first, I32(16 * j)), tile.swizzle)
        for half in range(2):
            below = I32((16 * i + 8 * half) * tile.row_bytes)
            words = [
                packed(builder, tile.element, *four[2 * half : 2 * half + 2])
                for four in blocks[start : start + 4]
            ]
            text = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};"
            asm(builder, text, "", "rrrrr", [builder.add(place, below), *words])
