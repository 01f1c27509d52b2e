"""Fragments and accumulators: the registers of the lanes, and the matrices that they are.

Lane ``4 g + t`` holds of an accumulator's block the elements ``(g, 2 t)``, ``(g, 2 t + 1)``,
``(g + 8, 2 t)`` and ``(g + 8, 2 t + 1)``; of a left operand 4 bytes at ``4 t`` of rows g and g + 8,
in both halves of 32 bytes along k; of a right one those of column g.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from numbasync.backend.cpu.interpreter.tensor_cores.accesses import units_of
from numbasync.backend.cpu.interpreter.tensor_cores.calls import WARP, Call
from numbasync.backend.cpu.interpreter.tensor_cores.shared_tiles import (
    CHUNK,
    SharedTile,
    decoded,
    encoded,
)
from numbasync.dtypes import SMALL, TABLE
from numbasync.errors import DataRaceError, KernelError

STEP = 32  # bytes along k of one product
Registers = np.ndarray[Any, Any]


class Group(Protocol):
    """What computes accumulators asynchronously, and the call that has begun it."""

    call: Call
    values: Registers
    is_done: bool
    is_passed_on: bool


class Accumulator:
    """What one lane holds of an accumulator.

    Attributes:
        group: the group of `wgmma` that computes it, until `wgmma_wait` has given its values.
    """

    __slots__ = ("column_blocks", "group", "row_blocks", "values")

    def __init__(
        self, row_blocks: int, column_blocks: int, values: Registers, group: Group | None = None
    ) -> None:
        self.row_blocks, self.column_blocks = row_blocks, column_blocks
        self.values, self.group = values, group

    def like(self, values: Registers) -> Accumulator:
        """An accumulator of the same shape."""
        return Accumulator(self.row_blocks, self.column_blocks, values)

    def settled(self, call: Call) -> Registers:
        """Its values.

        Raises:
            DataRaceError: it has not come from `wgmma_wait`.
        """
        if self.group is not None:
            raise DataRaceError(
                f"{call} uses accumulators that {self.group.call} may not have computed yet: take "
                "them from wgmma_wait, which must cover its group."
            )
        return self.values


class Fragment:
    """What one lane holds of an operand: registers of 32 bits."""

    __slots__ = ("blocks", "element", "registers", "steps")

    def __init__(self, element: str, blocks: int, registers: Registers, steps: int = 1) -> None:
        self.element, self.blocks, self.steps = element, blocks, steps
        self.registers = registers


# --- registers as matrices ---


def matrix(held: Sequence[Registers], row_blocks: int, column_blocks: int) -> Registers:
    """The matrix of an accumulator, of the lanes of a warp, or of several: those lie below one
    another.
    """
    parts = np.stack(held).reshape(-1, 8, 4, row_blocks, column_blocks, 2, 2)
    return parts.transpose(0, 3, 5, 1, 4, 2, 6).reshape(-1, 8 * column_blocks)


def lanes(whole: Registers, row_blocks: int, column_blocks: int) -> Registers:
    """What each lane holds of a matrix."""
    parts = whole.reshape(-1, row_blocks, 2, 8, column_blocks, 4, 2)
    return parts.transpose(0, 3, 5, 1, 4, 2, 6).reshape(-1, 4 * row_blocks * column_blocks)


@functools.cache
def places(row_blocks: int, column_blocks: int) -> tuple[Registers, Registers]:
    """The row and the column of each element of each lane."""
    shape = 16 * row_blocks, 8 * column_blocks
    rows, columns = np.indices(shape)
    return lanes(rows, row_blocks, column_blocks), lanes(columns, row_blocks, column_blocks)


def left(held: Sequence[Fragment]) -> Registers:
    """The left operand of the lanes of a warp, or of several: its elements as numbers."""
    first = held[0]
    values = decoded(np.stack([f.registers for f in held]).view(np.uint8), first.element)
    parts = values.reshape(-1, 8, 4, first.blocks, first.steps, 2, 2, values.shape[1] // (
        4 * first.blocks * first.steps
    ))  # fmt: skip
    # warp, block, lower half, g, step, half along k, t, element
    depth = first.steps * 8 * parts.shape[-1]
    return parts.transpose(0, 3, 6, 1, 4, 5, 2, 7).reshape(-1, depth)


def right(held: Sequence[Fragment]) -> Registers:
    """The right operand of the lanes of a warp, transposed: a row for each of its columns."""
    first = held[0]
    values = decoded(np.stack([f.registers for f in held]).view(np.uint8), first.element)
    parts = values.reshape(8, 4, first.blocks, 2, -1)
    return parts.transpose(2, 0, 3, 1, 4).reshape(8 * first.blocks, -1)


# --- operations ---


def accumulator(rows: Any, columns: Any, dtype: Any = None) -> Accumulator:
    name = "float32" if dtype is None else getattr(dtype, "__name__", str(dtype))
    count = int(rows) * int(columns) // WARP
    return Accumulator(int(rows) // 16, int(columns) // 8, np.zeros(count, name))


def load_a(tile: SharedTile, index: Any, rows: Any, transposed: Any = False) -> Fragment:
    return _load(Call("load_a"), "a", tile, index, int(rows) // 16, bool(transposed))


def load_b(tile: SharedTile, index: Any, columns: Any, transposed: Any = False) -> Fragment:
    return _load(Call("load_b"), "b", tile, index, int(columns) // 8, bool(transposed))


def _load(
    call: Call, side: str, tile: SharedTile, index: Any, blocks: int, along_rows: bool
) -> Fragment:
    def combine(numbers: list[int], values: list[Any]) -> Sequence[Fragment]:
        check_same(call, values, "tiles or indices")
        extent = blocks * (16 if side == "a" else 8)
        rows, nbytes = (16, 2 * extent) if along_rows else (extent, STEP)
        at = tile.check_inside(call, index, rows, nbytes)
        loads = blocks if side == "a" else blocks // 2
        load, half, row = np.ogrid[:loads, :4, :8]
        low, high = half & 1, half >> 1
        lower, chunk = (low, high) if (side == "a") != along_rows else (high, low)
        further = load * (STEP if along_rows else 16 * tile.row_bytes)
        offsets = at + (8 * lower + row) * tile.row_bytes + chunk * CHUNK + further
        addresses = tile.addresses(offsets)
        accesses = call.block.accesses
        units = units_of(addresses, CHUNK)
        accesses.check_read(call, tile.label, numbers, units, is_async=False)
        if tile.element not in ("s8", "u8"):
            accesses.check_written(call, tile.label, units)
        accesses.note_read(call, numbers, units)
        matrices = accesses.chunks[addresses // CHUNK]  # (loads, 4, 8 rows, 16 bytes)
        if along_rows:
            turned = matrices.view(np.uint16).transpose(0, 1, 3, 2)
            matrices = np.ascontiguousarray(turned).view(np.uint8)
        words = matrices.view(np.uint32).transpose(2, 3, 0, 1)  # (g, t, loads, 4)
        held = np.ascontiguousarray(words).reshape(WARP, 4 * loads)
        return [Fragment(tile.element, blocks, registers) for registers in held]

    fragment: Fragment = call.with_warp((tile.offset, index), combine)
    return fragment


def check_same(call: Call, values: Sequence[Any], what: str) -> None:
    """
    Raises:
        KernelError: threads that do something together name different operands.
    """
    for value in values:
        if value != values[0]:
            raise KernelError(f"{call}: its threads name different {what}.")


def to_fragment(accumulators: Accumulator, dtype: Any) -> Fragment:
    call = Call("to_fragment")
    name = getattr(dtype, "__name__", str(dtype))
    element = TABLE[max((n for n in SMALL if n in name), key=len, default=SMALL[0])].ptx
    bits = encoded(accumulators.settled(call), element)
    steps = accumulators.column_blocks // 2
    return Fragment(element, 1, bits.view(np.uint32), steps)
