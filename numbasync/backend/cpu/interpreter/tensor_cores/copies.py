"""Asynchronous copies between global and shared memory, each done at the latest legal moment."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from numbasync.backend.cpu.interpreter.tensor_cores.accesses import Copy, units_of
from numbasync.backend.cpu.interpreter.tensor_cores.barriers import Barrier, of_call
from numbasync.backend.cpu.interpreter.tensor_cores.block import SharedBarriers, TensorCoreBlock
from numbasync.backend.cpu.interpreter.tensor_cores.calls import Call
from numbasync.backend.cpu.interpreter.tensor_cores.order import Event
from numbasync.backend.cpu.interpreter.tensor_cores.shared_tiles import (
    CHUNK,
    Ints,
    SharedTile,
    swizzled,
)
from numbasync.errors import DataRaceError, MisalignedAccessError, OutOfBoundsError
from numbasync.tensor_cores.copies import rows_of_part

_ALIGNED = 128  # bytes, of the target of a copy by a tensor map


class TensorMap(Protocol):
    """A tensor map, as kernels get it."""

    source: np.ndarray[Any, Any]
    box: tuple[int, ...]
    swizzle: int


def _poison(tile: SharedTile) -> int:
    """The byte of which elements are made that have not come yet: NaN, or the least int8."""
    return 0x80 if tile.element in ("s8", "u8") else 0xFF


# --- by one thread ---


class Copying:
    """The groups of `copy_async` of one thread.

    Attributes:
        waited: an event's column: groups that are known to be copied. The next column counts those
            that are known to asynchronous reads.
    """

    def __init__(self, block: TensorCoreBlock) -> None:
        self.waited = block.new_fenced_columns()
        self._block = block
        self._count = 0
        self._open: _Group | None = None
        self._committed: deque[_Group] = deque()

    def open_group(self, call: Call) -> _Group:
        if self._open is None:
            self._count += 1
            self._open = _Group(self._block, call, self.waited, self._count)
        return self._open

    def commit(self) -> None:
        if self._open is None:
            self._count += 1
        else:
            self._open.is_committed = True
        self._committed.append(self._open or _Group(self._block, None, self.waited, self._count))
        self._open = None

    def wait(self, number: int, pending: int) -> None:
        while len(self._committed) > pending:
            group = self._committed.popleft()
            group.deliver()
            self._block.order.note([number], Event(self.waited, group.count))


class _Group:
    def __init__(self, block: TensorCoreBlock, call: Call | None, column: int, count: int) -> None:
        self.count = count
        self.is_committed = False
        self.pieces: list[tuple[int, int, np.ndarray[Any, Any] | None]] = []
        self._bytes = block.accesses.bytes
        events = Event(column, count), Event(column + 1, count)
        self.copy = Copy(str(call), self._missing, *events)
        self.number = 0 if call is None else block.accesses.new_copy(self.copy)

    def _missing(self) -> str:
        if not self.copy.pending:
            return "a barrier must lie between its wait_copies and here"
        if not self.is_committed:
            return "commit_copies, and wait_copies, must follow it"
        return "the thread that copies has not called wait_copies for this group"

    def deliver(self) -> None:
        for address, nbytes, source in self.pieces:
            self._bytes[address : address + nbytes] = 0 if source is None else source
        self.copy.pending = False


def copy_async(
    tile: SharedTile, index: Any, array: Any, source: Any, count: Any, inside: Any = True
) -> None:
    call = Call("copy_async")
    nbytes = int(count) * tile.size
    at = tile.byte(call, index)
    place = np.array([at])
    address = int(tile.addresses(place)[0])
    data = _neighbours(call, array, source, int(count)) if inside else None
    if at % nbytes or (data is not None and data.ctypes.data % nbytes):
        raise MisalignedAccessError(
            f"{call}: {nbytes} bytes, from {source} on, into tile {tile.name} from {index} on; "
            f"both must begin at a multiple of {nbytes} bytes."
        )
    if at % tile.row_bytes + nbytes > tile.row_bytes:
        raise OutOfBoundsError(f"{call}: {count} elements do not fit from {index} on.")
    _begin(call, tile, np.array([address]), nbytes, [data])


def _begin(
    call: Call, tile: SharedTile, addresses: Ints, nbytes: int, sources: Sequence[Any]
) -> None:
    """Begin copies of the calling thread, of so many bytes each, from `sources` to `addresses`."""
    block = call.block
    if call.number not in block.copying:
        block.copying[call.number] = Copying(block)
    group = block.copying[call.number].open_group(call)
    block.accesses.begin_copy(group.number, call, tile.label, units_of(addresses, nbytes))
    for address, source in zip(addresses.tolist(), sources, strict=True):
        block.accesses.bytes[address : address + nbytes] = _poison(tile)
        group.pieces.append((address, nbytes, source))


def copy_rows(
    tile: SharedTile, index: Any, array: Any, corner: Any, thread: Any, threads: Any, parts: Any = 1
) -> None:
    call = Call("copy_rows")
    rows, apart = rows_of_part(tile, int(threads), int(parts))
    start = tile.check_inside(call, index, rows, tile.row_bytes)
    row, column = map(int, corner)
    size = tile.size
    pitch, width = array.strides[0], array.shape[1] * size
    at = array.ctypes.data
    misaligned = (column * size | pitch | width | at) % CHUNK or array.strides[1] != size
    if misaligned and array.size:
        raise MisalignedAccessError(
            f"{call}: column {column} of a matrix at {at:#x} with rows of {width:,} bytes, "
            f"{pitch:,} apart; all of them must be multiples of {CHUNK}, and elements neighbours."
        )
    if row < 0 or column < 0:
        raise OutOfBoundsError(f"{call}: the corner {row, column} has negative numbers")
    line, chunk = divmod(int(thread), tile.row_bytes // CHUNK)
    if not 0 <= line < apart:
        raise OutOfBoundsError(f"{call}: thread {int(thread)} of {int(threads)}")
    lines = np.arange(line, rows, apart)
    first = column + chunk * CHUNK // size
    sources = [
        array[y, first : first + CHUNK // size].view(np.uint8)
        if y < array.shape[0] and first < array.shape[1]
        else None
        for y in (row + lines).tolist()
    ]
    places = start + lines * tile.row_bytes + chunk * CHUNK
    _begin(call, tile, tile.addresses(places), CHUNK, sources)


def _neighbours(call: Call, array: Any, source: Any, count: int) -> np.ndarray[Any, Any]:
    """The bytes of `count` elements of a C-contiguous array."""
    index = tuple(map(int, source)) if isinstance(source, tuple) else (int(source),)
    is_inside = all(0 <= i < n for i, n in zip(index, array.shape, strict=True))
    first = int(np.ravel_multi_index(index, array.shape)) if is_inside else 0
    if not is_inside or first + count > array.size:
        raise OutOfBoundsError(
            f"{call}: {count} elements from {index} on, of an array of shape {array.shape}"
        )
    flat: np.ndarray[Any, Any] = array.reshape(-1)[first : first + count].view(np.uint8)
    return flat


def commit_copies() -> None:
    call = Call("commit_copies")
    block = call.block
    if call.number not in block.copying:
        block.copying[call.number] = Copying(block)
    block.copying[call.number].commit()


def wait_copies(pending: Any) -> None:
    call = Call("wait_copies")
    copying = call.block.copying.get(call.number)
    if copying is not None:
        copying.wait(call.number, int(pending))


# --- by a tensor map ---


class Box:
    """A box of a tensor and its place in a tile: of `block`, or of the calling thread's block.

    Attributes:
        addresses: of its chunks in shared memory.
        corner: in the tensor.
    """

    def __init__(
        self, call: Call, tensor_map: TensorMap, corner: Any, tile: SharedTile, index: Any,
        block: TensorCoreBlock | None = None,
    ) -> None:  # fmt: skip
        self._shape = tensor_map.box
        self._source = tensor_map.source
        self._bytes = (block or call.block).accesses.chunks
        at = tile.byte(call, index)
        self.nbytes = int(np.prod(self._shape)) * tile.size
        if (tile.offset + at) % _ALIGNED:
            raise MisalignedAccessError(
                f"{call}: the index {index} of tile {tile.name} is {at:,} bytes from its start; "
                f"copies by a tensor map need a multiple of {_ALIGNED}."
            )
        if at + self.nbytes > tile.nbytes:
            raise OutOfBoundsError(
                f"{call}: a box of {self._shape} from {index} on goes beyond tile {tile.name} of "
                f"shape {tile.shape}"
            )
        places: Ints = at + np.arange(0, self.nbytes, CHUNK)
        self.addresses = tile.offset + swizzled(places, tensor_map.swizzle)
        self.units = units_of(self.addresses, CHUNK)
        self.corner = tuple(map(int, corner)) if isinstance(corner, tuple) else (int(corner),)
        outside, inside = [], []
        for c, extent, n in zip(self.corner, self._shape, self._source.shape, strict=True):
            low, high = min(max(c, 0), n), max(min(c + extent, n), 0)
            outside.append(slice(low, max(low, high)))
            inside.append(slice(low - c, max(low, high) - c))
        self._in_source, self._in_box = tuple(outside), tuple(inside)

    def load(self) -> None:
        """Copy from the tensor; zeros outside of it."""
        box = np.zeros(self._shape, self._source.dtype)
        if box[self._in_box].size:
            box[self._in_box] = self._source[self._in_source]
        self.write(box)

    def write(self, elements: np.ndarray[Any, Any]) -> None:
        """Write the elements of the box into the tile."""
        flat = np.ascontiguousarray(elements).reshape(-1).view(np.uint8)
        self._bytes[self.addresses // CHUNK] = flat.reshape(-1, CHUNK)

    def store(self) -> None:
        """Copy to the tensor what lies in it."""
        chunks = self._bytes[self.addresses // CHUNK]
        box = chunks.reshape(-1).view(self._source.dtype).reshape(self._shape)
        if box[self._in_box].size:
            self._source[self._in_source] = box[self._in_box]


def load_tile(
    tile: SharedTile, index: Any, tensor_map: TensorMap, corner: Any,
    barriers: SharedBarriers, barrier: Any, mask: Any = None,
) -> None:  # fmt: skip
    call = Call("load_tile")
    for block in _named(call, mask):
        box = Box(call, tensor_map, corner, tile, index, block)
        _load(call, block, tile, box, of_call(call, barriers, barrier, block))


def _named(call: Call, mask: Any) -> list[TensorCoreBlock]:
    """The blocks of the cluster that a mask names.

    Raises:
        OutOfBoundsError: it names none, or others.
    """
    if mask is None:
        return [call.block]
    blocks, bits = call.block.cluster.blocks, int(mask)
    if not 0 < bits < 1 << len(blocks):
        raise OutOfBoundsError(
            f"{call}: mask {bits:#x} in a cluster of {len(blocks)} blocks; write a bit for each "
            "block that gets the box, the lowest for rank 0."
        )
    return [block for block in blocks if bits >> block.rank & 1]


def _load(call: Call, block: TensorCoreBlock, tile: SharedTile, box: Box, until: Barrier) -> None:
    """Begin to load a box into a tile of `block`."""
    accesses = block.accesses
    if not until.is_fenced:
        raise DataRaceError(
            f"{call}: copies may not know barrier {until.name} yet: the thread that initialises it "
            "must call fence_barrier_init before the others go on."
        )
    parity = until.phase & 1

    def missing() -> str:
        return f"barrier_wait of barrier {until.name}, parity {parity}, must come before"

    copy = Copy(str(call), missing, Event(until.ended, until.phase + 1))
    number = accesses.new_copy(copy)
    of = "" if block is call.block else f" of block {block.rank}"
    accesses.begin_copy(number, call, tile.label + of, box.units)
    accesses.chunks[box.addresses // CHUNK] = _poison(tile)

    def deliver() -> None:
        box.load()
        copy.pending = False

    until.copies(box.nbytes, deliver)


def prefetch_map(tensor_map: TensorMap) -> None:
    """Nothing: there is no descriptor to be fetched."""
