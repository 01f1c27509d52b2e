"""Products: `mma` of fragments; `wgmma` of tiles, which are read as late as the kernel allows, when
`wgmma_wait` covers the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from numbasync.backend.cpu.interpreter.tensor_cores.accesses import AsyncRead, units_of
from numbasync.backend.cpu.interpreter.tensor_cores.calls import WARPGROUP, Call
from numbasync.backend.cpu.interpreter.tensor_cores.fragments import (
    STEP,
    Accumulator,
    Fragment,
    Registers,
    check_same,
    lanes,
    left,
    matrix,
    right,
)
from numbasync.backend.cpu.interpreter.tensor_cores.fragments import Group as Computed
from numbasync.backend.cpu.interpreter.tensor_cores.shared_tiles import CHUNK, SharedTile, decoded
from numbasync.errors import DataRaceError, KernelError, MisalignedAccessError, OutOfBoundsError

ROWS = 64  # of the left operand of `wgmma`


def mma(accumulators: Accumulator, a: Fragment, b: Fragment) -> Accumulator:
    call = Call("mma")

    def combine(numbers: list[int], given: list[Any]) -> Sequence[Accumulator]:
        held, lefts, rights = zip(*given, strict=True)
        kind = accumulators
        sums = matrix([acc.values for acc in held], kind.row_blocks, kind.column_blocks)
        product = left(lefts) @ right(rights).T
        if sums.dtype == np.int32:  # exact in float64; sums wrap around
            total = (sums + product.astype(np.int64)).astype(np.int32)
        else:
            total = sums + product.astype(np.float32)
        return [kind.like(row) for row in lanes(total, kind.row_blocks, kind.column_blocks)]

    accumulators.settled(call)
    result: Accumulator = call.with_warp((accumulators, a, b), combine)
    return result


# --- of a warpgroup ---


class Operand:
    """An operand in a tile.

    Attributes:
        units: of the bytes that it is read from.
    """

    def __init__(
        self, call: Call, tile: SharedTile, index: Any, extent: int, steps: int, along_rows: bool
    ) -> None:
        """
        Args:
            extent: rows of the left operand, columns of the right one.
            steps: of 32 bytes along k; along rows, of 16 elements.
        """
        self.tile, self._along_rows = tile, along_rows
        at, row, column = tile.place(call, index)
        if row % 8:
            raise MisalignedAccessError(
                f"{call}: the index {index} of tile {tile.name} is in row {row}; operands of wgmma "
                "begin at a multiple of 8 rows."
            )
        rows, nbytes = (16 * steps, extent * tile.size) if along_rows else (extent, STEP * steps)
        matrix_bytes = tile.rows * tile.row_bytes
        first = column // CHUNK
        chunk = first + np.arange(nbytes // CHUNK)
        in_row = tile.row_bytes // CHUNK
        goes_on = first + nbytes // CHUNK > in_row  # in the next tile
        beside = chunk // in_row * matrix_bytes + chunk % in_row * CHUNK
        start = at - column
        places = start + np.arange(rows)[:, None] * tile.row_bytes + beside
        if row + rows > tile.rows or (goes_on and column) or places[-1, -1] >= tile.nbytes:
            raise OutOfBoundsError(
                f"{call}: from the index {index} on, tile {tile.name} of shape {tile.shape} has no "
                f"operand of {rows} rows of {nbytes // tile.size} elements"
            )
        self._addresses = tile.addresses(places)
        self.units = units_of(self._addresses, CHUNK)

    def read(self, call: Call) -> Registers:
        """Its elements as numbers: rows of the left operand, columns of the right one."""
        chunks = call.block.accesses.chunks[self._addresses // CHUNK]
        values = decoded(chunks.reshape(len(chunks), -1), self.tile.element)
        return values.T if self._along_rows else values


class Group:
    """A group of `wgmma` of one warpgroup.

    Attributes:
        call: what has begun it.
        is_done: whether its values are there.
        is_passed_on: whether a later group goes on with its accumulators.
    """

    def __init__(
        self, call: Call, numbers: list[int], kind: Accumulator, start: Registers | Computed | None,
        a: Operand | Registers, b: Operand,
    ) -> None:  # fmt: skip
        self.call, self.is_done, self.is_passed_on = call, False, False
        self.values: Registers = np.zeros(0)
        self._kind, self._start, self._a, self._b, self._numbers = kind, start, a, b, numbers
        self._readings = []
        accesses = call.block.accesses
        for operand in (a, b):
            if isinstance(operand, Operand):
                accesses.check_read(call, operand.tile.label, numbers, operand.units, is_async=True)
                accesses.check_written(call, operand.tile.label, operand.units)
                reading = AsyncRead(
                    str(call), operand.units, "wgmma_wait, and a barrier behind it,"
                )
                accesses.begin_reading(reading)
                self._readings.append(reading)

    def finish(self) -> None:
        """Compute the values."""
        accesses = self.call.block.accesses
        a = self._a.read(self.call) if isinstance(self._a, Operand) else self._a
        product = a @ self._b.read(self.call).T
        shape = self._kind.row_blocks, self._kind.column_blocks
        if self._start is not None:
            held = self._start.values if not isinstance(self._start, np.ndarray) else self._start
            product = matrix(list(held), *shape) + product
        self.values = lanes(product.astype(np.float32), *shape)
        self._start = None
        for reading in self._readings:
            accesses.end_reading(reading)
            accesses.note_read(self.call, self._numbers, reading.units)
        self.is_done = True


def wgmma(
    accumulators: Accumulator, a: SharedTile, a_index: Any, b: SharedTile, b_index: Any, keep: Any,
    depth: Any, transposed_a: Any = False, transposed_b: Any = False,
) -> Accumulator:  # fmt: skip
    call = Call("wgmma")
    columns = 8 * accumulators.column_blocks
    steps = int(depth) * a.size // STEP

    def combine(numbers: list[int], given: list[Any]) -> Sequence[Accumulator]:
        check_same(call, [named for _, named in given], "operands")
        left_operand = Operand(call, a, a_index, ROWS, steps, bool(transposed_a))
        right_operand = Operand(call, b, b_index, columns, steps, bool(transposed_b))
        held = [acc for acc, _ in given]
        return _begin(call, numbers, held, left_operand, right_operand, bool(keep))

    named = a.offset, a_index, b.offset, b_index, bool(keep)
    result: Accumulator = call.with_warpgroup((accumulators, named), combine)
    return result


def wgmma_fragment(
    accumulators: Accumulator, a: Fragment, b: SharedTile, b_index: Any, transposed_b: Any = False
) -> Accumulator:
    call = Call("wgmma_fragment")
    columns = 8 * accumulators.column_blocks

    def combine(numbers: list[int], given: list[Any]) -> Sequence[Accumulator]:
        held, fragments, named = zip(*given, strict=True)
        check_same(call, named, "operands")
        operand = Operand(call, b, b_index, columns, a.steps, bool(transposed_b))
        return _begin(call, numbers, held, left(fragments), operand, True)

    given = accumulators, a, (b.offset, b_index)
    result: Accumulator = call.with_warpgroup(given, combine)
    return result


def _begin(
    call: Call, numbers: list[int], held: Sequence[Accumulator], a: Operand | Registers, b: Operand,
    keep: bool,
) -> Sequence[Accumulator]:  # fmt: skip
    """Begin a group; what each thread gets are its accumulators, whose values are to come."""
    kind = held[0]
    start: Registers | Computed | None = None
    before = kind.group
    if any(acc.group is not before for acc in held):
        raise KernelError(f"{call}: its threads pass on accumulators of different groups.")
    if before is not None:
        if before.is_passed_on:
            raise DataRaceError(
                f"{call}: the accumulators of {before.call} have been passed on to another wgmma; "
                "go on with what that one gives."
            )
        before.is_passed_on = True
    if keep:
        start = np.stack([acc.values for acc in held]) if before is None else before
    group = Group(call, numbers, kind, start, a, b)
    call.block.groups.setdefault(numbers[0] // WARPGROUP, []).append(group)
    shape = kind.row_blocks, kind.column_blocks
    return [Accumulator(*shape, acc.values, group) for acc in held]


def wgmma_wait(accumulators: Accumulator, pending: Any) -> Accumulator:
    call = Call("wgmma_wait")

    def combine(numbers: list[int], held: list[Any]) -> Sequence[Accumulator]:
        groups = call.block.groups.setdefault(numbers[0] // WARPGROUP, [])
        while len(groups) > int(pending):
            groups.pop(0).finish()
        results = []
        for number, acc in zip(numbers, held, strict=True):
            group: Computed | None = acc.group
            if group is not None and group.is_done:
                results.append(acc.like(group.values[number % WARPGROUP]))
            else:
                results.append(acc)
        return results

    result: Accumulator = call.with_warpgroup(accumulators, combine)
    return result
