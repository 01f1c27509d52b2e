"""Stores from tiles to global memory, by tensor maps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numbasync.backend.cpu.interpreter.tensor_cores.accesses import AsyncRead, Copy
from numbasync.backend.cpu.interpreter.tensor_cores.block import TensorCoreBlock
from numbasync.backend.cpu.interpreter.tensor_cores.calls import Call
from numbasync.backend.cpu.interpreter.tensor_cores.copies import Box, TensorMap
from numbasync.backend.cpu.interpreter.tensor_cores.fragments import (
    Accumulator,
    check_same,
    matrix,
)
from numbasync.backend.cpu.interpreter.tensor_cores.order import Event
from numbasync.backend.cpu.interpreter.tensor_cores.shared_tiles import SharedTile, encoded
from numbasync.errors import OutOfBoundsError
from numbasync.tensor_cores.storing_by_map import pending_before, pieces_of


class Storing:
    """The groups of `store_tile` of one thread."""

    def __init__(self, block: TensorCoreBlock) -> None:
        self._block = block
        self._open: list[Callable[[], None]] = []
        self._committed: deque[list[Callable[[], None]]] = deque()
        self._column = block.order.columns()
        self._writes = 0

    def write(
        self,
        call: Call,
        numbers: list[int],
        tile: SharedTile,
        box: Box,
        part: np.ndarray[Any, Any],
    ) -> None:
        """A warp writes a box of float32, rounded, before the thread stores it."""
        accesses = call.block.accesses
        self._writes += 1
        event = Event(self._column, self._writes)
        copy = Copy(str(call), lambda: "a barrier must lie between the two", event)
        copy.pending = False
        accesses.begin_copy(accesses.new_copy(copy), call, tile.label, box.units)
        call.block.order.note(numbers, event)
        box.write(part if tile.element == "tf32" else encoded(part, tile.element))

    def add(self, store: Callable[[], None]) -> None:
        self._open.append(store)

    def commit(self) -> None:
        self._committed.append(self._open)
        self._open = []

    def wait(self, pending: int) -> None:
        while len(self._committed) > pending:
            for store in self._committed.popleft():
                store()

    def finish(self) -> None:
        """Do all stores, those that have not been waited for, too."""
        self.commit()
        self.wait(0)


def store_tile(tensor_map: TensorMap, corner: Any, tile: SharedTile, index: Any) -> None:
    call = Call("store_tile")
    box = Box(call, tensor_map, corner, tile, index)
    call.block.accesses.check_read(call, tile.label, [call.number], box.units, is_async=True)
    if tile.element not in ("s8", "u8"):
        call.block.accesses.check_written(call, tile.label, box.units)
    _begin_store(call, call.number, box)


def _begin_store(call: Call, number: int, box: Box) -> None:
    """Thread `number` begins to store a box.

    Raises:
        OutOfBoundsError: the corner has negative numbers, with which a GPU loads, but does not
            store: there it is an illegal instruction.
    """
    if min(box.corner) < 0:
        raise OutOfBoundsError(
            f"{call}: the corner {box.corner} has negative numbers; stores begin in the tensor."
        )
    accesses = call.block.accesses
    reading = AsyncRead(str(call), box.units, "wait_stores, after commit_stores,")
    accesses.begin_reading(reading)

    def store() -> None:
        box.store()
        accesses.end_reading(reading)
        accesses.note_read(call, [number], box.units)

    call.block.storing.setdefault(number, Storing(call.block)).add(store)


def store_by_map(
    tensor_map: TensorMap, corner: Any, tile: SharedTile, index: Any, accumulators: Accumulator
) -> None:
    call = Call("store_by_map")
    accumulators.settled(call)
    kind = accumulators
    pieces, slots = pieces_of(kind.row_blocks, kind.column_blocks, tile.shape, tile.row_bytes)
    tile.place(call, index)
    *own, _, _, _ = map(int, index)
    row, column = map(int, corner)

    def combine(numbers: list[int], given: list[Any]) -> Sequence[Any]:
        check_same(call, [where for _, where in given], "matrices, corners or tiles")
        whole = matrix([held.values for held, _ in given], kind.row_blocks, kind.column_blocks)
        storing = call.block.storing.setdefault(numbers[0], Storing(call.block))
        for piece, part in enumerate(np.split(whole, pieces, axis=1)):
            storing.wait(pending_before(piece, pieces, slots))
            call.block.order.join(numbers)  # the lanes meet when the first one has waited
            place = *own, piece % slots, 0, 0
            box = Box(call, tensor_map, (row, column + piece * tile.columns), tile, place)
            storing.write(call, numbers, tile, box, part)
            _begin_store(call, numbers[0], box)
            storing.commit()
        return [None] * len(given)

    where = tensor_map.source.ctypes.data, row, column, tile.byte(call, index)
    call.with_warp((accumulators, where), combine)


def commit_stores() -> None:
    call = Call("commit_stores")
    call.block.storing.setdefault(call.number, Storing(call.block)).commit()


def wait_stores(pending: Any) -> None:
    call = Call("wait_stores")
    storing = call.block.storing.get(call.number)
    if storing is not None:
        storing.wait(int(pending))
