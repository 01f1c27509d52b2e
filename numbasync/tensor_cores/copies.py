"""Asynchronous copies between global and shared memory.

`copy_async` copies 4, 8 or 16 bytes of the calling thread, `copy_rows` a box of a matrix, of which
each thread copies a share; `wait_copies` waits for the thread's own copies, and a barrier of the
block must follow before other threads read them.

`load_tile` and `store_tile` copy a whole box of a tensor, by a tensor map that the kernel gets as
an argument (`na.tensor_map`); one thread calls them. A load ends a phase of a barrier
(`barrier_expect`); stores are waited for with `wait_stores`. What lies outside of the tensor is
loaded as 0 and not stored.

Source: PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy", and "Tensor copy".
"""

from __future__ import annotations

from typing import Any

from numbasync.kernel_names import TypingError, cgutils, extending
from numbasync.kernel_names import types as numba_types
from numbasync.tensor_cores.ptx import (
    I32,
    I64,
    asm,
    check_integers,
    literal,
    numbers,
    operation_of_maps,
    operation_of_warps,
    position,
    word,
)
from numbasync.tensor_cores.tiles import (
    TileType,
    check_barrier,
    check_tile,
    offset,
    swizzled,
)

types: Any = numba_types
_extending: Any = extending
CHUNK = 16  # bytes that a thread of `copy_rows` copies at a time


class TensorMapType(types.Type):  # type: ignore[misc]
    """Numba's type of a tensor map: of a tensor's element type, the extents of the box that one
    copy moves, and the swizzle of the tile in shared memory. A value is the descriptor's address.
    """

    is_device_address = True  # how the launch passes a value of the type

    def __init__(self, dtype: Any, ndim: int, box: tuple[int, ...], swizzle: int) -> None:
        self.dtype, self.ndim, self.box, self.swizzle = dtype, ndim, box, swizzle
        super().__init__(name=f"TensorMap({dtype}, {ndim}d, box={list(box)}, swizzle={swizzle})")


@_extending.register_model(TensorMapType)
class _MapModel(_extending.core_models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, I64)


# --- by one thread ---


@operation_of_warps
def copy_async(typing, tile, index, array, source, count, inside=True):  # type: ignore[no-untyped-def]
    """Begin to copy `count` neighbouring elements of `array`, from the index `source` on, into a
    row of a tile, from `index` on. Both begin at a multiple of the copied bytes: 4, 8 or 16.

    Args:
        inside: if False, nothing is read, and zeros are written.
    """
    check_tile(tile, index, "the tile")
    if not isinstance(array, types.Array) or array.layout != "C":
        raise TypingError(f"copy_async from {array}; pass a C-contiguous array.")
    if getattr(array.dtype, "bitwidth", 0) != 8 * tile.dtype.itemsize:
        raise TypingError(f"copy_async from {array} into {tile}: their elements differ.")
    position(source, array.ndim, "the index of the array")
    size = tile.dtype.itemsize
    nbytes = literal(count, "count", [n // size for n in (4, 8, 16) if n >= size]) * size
    if not isinstance(inside, types.Boolean):
        raise TypingError(f"copy_async: inside is {inside}; write a comparison.")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = offset(context, builder, tile, index, args[1])
        target = builder.add(args[0], swizzled(builder, place, tile.swizzle))
        view = context.make_array(array)(context, builder, args[2])
        shape = cgutils.unpack_tuple(builder, view.shape, array.ndim)
        at: Any = I64(0)
        parts = _unpacked(builder, source, args[3])
        for number, number_type, extent in zip(parts, _parts(source), shape, strict=True):
            wide = context.cast(builder, number, number_type, types.uint64)
            at = builder.add(builder.mul(at, extent), wide)
        address = builder.add(builder.ptrtoint(view.data, I64), builder.mul(at, I64(size)))
        kind = "cg" if nbytes == 16 else "ca"
        text = f"cp.async.{kind}.shared.global [$0], [$1], {nbytes}"
        if not isinstance(inside, types.BooleanLiteral):
            condition = context.cast(builder, args[5], inside, types.boolean)
            read = builder.select(condition, I32(nbytes), I32(0))
            asm(builder, f"{text}, $2;", "", "rlr", [target, address, read])
        else:
            asm(builder, f"{text};", "", "rl", [target, address])
        return context.get_dummy_value()

    return types.void(tile, index, array, source, count, inside), generate


@operation_of_warps
def copy_rows(typing, tile, index, array, corner, thread, threads, parts=1):  # type: ignore[no-untyped-def]
    """Begin to copy a box of a matrix, from the element `corner` on, into the rows of a tile from
    `index` on, a row of a multiple of 8 and column 0: all rows, or one of so many equal `parts`.
    Each of `threads` threads calls it, with its number among them, `thread`, and copies its share,
    16 bytes at a time. What lies outside of the matrix is 0.

    Args:
        array: two axes. The elements of a row are neighbours; rows begin at multiples of 16 bytes
            and have a multiple of 16 bytes.
        corner: no negative numbers; the column is a multiple of 16 bytes.
        threads, parts: a part is one or more rows for every 16 bytes of a row's threads.
    """
    check_tile(tile, index, "the tile")
    if not isinstance(array, types.Array) or array.ndim != 2:
        raise TypingError(f"copy_rows from {array}; pass a matrix.")
    size = tile.dtype.itemsize
    if getattr(array.dtype, "bitwidth", 0) != 8 * size:
        raise TypingError(f"copy_rows from {array} into {tile}: their elements differ.")
    position(corner, 2, "the corner of the box")
    check_integers(thread=thread)
    height, apart = rows_of_part(tile, literal(threads, "threads"), literal(parts, "parts"))
    chunks = tile.row_bytes // CHUNK

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = word(context, builder, args[4], thread)
        line = builder.udiv(number, I32(chunks))
        beside = builder.mul(builder.urem(number, I32(chunks)), I32(CHUNK))
        own = builder.add(builder.mul(line, I32(tile.row_bytes)), beside)
        start = builder.add(args[0], offset(context, builder, tile, index, args[1]))
        target = builder.add(start, swizzled(builder, own, tile.swizzle))
        view = context.make_array(array)(context, builder, args[2])
        extents = cgutils.unpack_tuple(builder, view.shape, 2)
        pitch, _ = cgutils.unpack_tuple(builder, view.strides, 2)
        parts = zip(cgutils.unpack_tuple(builder, args[3]), corner, strict=True)
        row, column = (context.cast(builder, v, t, types.int64) for v, t in parts)
        row = builder.add(row, builder.zext(line, I64))
        first = builder.add(builder.mul(column, I64(size)), builder.zext(beside, I64))
        is_inside = builder.icmp_signed("<", first, builder.mul(extents[1], I64(size)))
        left = builder.select(is_inside, builder.sub(extents[0], row), I64(0))
        many = builder.icmp_signed(">", left, I64(height))
        left = builder.trunc(builder.select(many, I64(height), left), I32)
        address = builder.add(builder.ptrtoint(view.data, I64), builder.mul(row, pitch))
        address = builder.add(address, first)
        step = builder.mul(pitch, I64(apart))
        text = f"cp.async.cg.shared.global [$0], [$1], {CHUNK}, $2;"
        for moved in range(0, height, apart):
            read = builder.select(builder.icmp_signed(">", left, I32(moved)), I32(CHUNK), I32(0))
            to = builder.add(target, I32(moved * tile.row_bytes))
            if apart % 8:  # the swizzle repeats every 8 rows
                there = builder.add(own, I32(moved * tile.row_bytes))
                to = builder.add(start, swizzled(builder, there, tile.swizzle))
            asm(builder, text, "", "rlr", [to, address, read])
            address = builder.add(address, step)
        return context.get_dummy_value()

    return types.void(tile, index, array, corner, thread, threads, parts), generate


def rows_of_part(tile: Any, threads: int, parts: int) -> tuple[int, int]:
    """The rows that one `copy_rows` copies, and those that all of its threads copy at a time.

    Raises:
        TypingError: the threads do not divide them.
    """
    rows, nbytes = tile.shape[-2], tile.shape[-1] * tile.dtype.itemsize
    chunks = nbytes // CHUNK
    if nbytes % CHUNK or threads < 1 or threads % chunks:
        raise TypingError(f"copy_rows by {threads} threads: {nbytes} bytes are a row of the tile.")
    apart = threads // chunks
    if parts < 1 or rows % (parts * apart):
        raise TypingError(
            f"copy_rows of {rows} rows in {parts} parts: {threads} threads copy {apart} at a time."
        )
    return rows // parts, apart


def _parts(index: Any) -> list[Any]:
    return list(index) if isinstance(index, types.BaseTuple) else [index]


def _unpacked(builder: Any, index: Any, value: Any) -> list[Any]:
    is_tuple = isinstance(index, types.BaseTuple)
    return list(cgutils.unpack_tuple(builder, value)) if is_tuple else [value]


@operation_of_warps
def commit_copies(typing):  # type: ignore[no-untyped-def]
    """End a group of the thread's `copy_async`."""
    return types.void(), _fixed("cp.async.commit_group;")


@operation_of_warps
def wait_copies(typing, pending):  # type: ignore[no-untyped-def]
    """Wait until at most `pending` of the thread's groups of `copy_async` are still copied."""
    number = literal(pending, "pending", range(16))
    return types.void(pending), _fixed(f"cp.async.wait_group {number};")


# --- by a tensor map ---


@operation_of_maps
def load_tile(typing, tile, index, tensor_map, corner, barriers, barrier, mask=None):  # type: ignore[no-untyped-def]
    """Begin to load a box of a tensor, from the element `corner` on, into a tile from `index` on.
    `barrier_expect` announces the bytes of the box to the barrier.

    Args:
        mask: a bit for each block of the cluster, by its rank, that gets the box: in its own tile,
            at the same index, with the bytes counted by its own barrier. Each of them announces the
            bytes to its barrier. None: the calling thread's block alone.
    """
    check_tile(tile, index, "the tile")
    check_map(tensor_map, tile, corner)
    check_barrier(barriers, barrier)
    axes = tensor_map.ndim
    coordinates = ", ".join(f"${i + 3}" for i in range(axes))
    to_several = mask not in (None, types.none)
    way, to = (".multicast::cluster", ", blocks") if to_several else ("", "")
    text = (
        f"cp.async.bulk.tensor.{axes}d.shared::cluster.global.mbarrier::complete_tx::bytes{way} "
        f"[$0], [$1, {{{coordinates}}}], [$2]{to};"
    )
    if to_several:
        check_integers(mask=mask)
        text = f"{{ .reg .b16 blocks; cvt.u16.u32 blocks, ${3 + axes}; {text} }}"

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = builder.add(args[0], offset(context, builder, tile, index, args[1]))
        (number,) = numbers(context, builder, barrier, args[5])
        bar = builder.add(args[4], builder.mul(number, I32(8)))
        # The driver counts axes from the one whose elements are neighbours.
        at = numbers(context, builder, corner, args[3])[::-1]
        if to_several:
            at.append(word(context, builder, args[6], mask))
        asm(builder, text, "", "rlr" + "r" * len(at), [target, args[2], bar, *at])
        return context.get_dummy_value()

    return types.void(tile, index, tensor_map, corner, barriers, barrier, mask), generate


@operation_of_maps
def prefetch_map(typing, tensor_map):  # type: ignore[no-untyped-def]
    """Begin to fetch a tensor map, so that the first copy by it need not wait; one thread calls it
    where the kernel begins.
    """
    _checked_map(tensor_map)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        asm(builder, "prefetch.tensormap [$0];", "", "l", args)
        return context.get_dummy_value()

    return types.void(tensor_map), generate


@operation_of_maps
def store_tile(typing, tensor_map, corner, tile, index):  # type: ignore[no-untyped-def]
    """Begin to store a tile, from `index` on, into a box of a tensor, from the element `corner` on.
    Writes to the tile must be ordered before by `fence_async` and a barrier. The corner has no
    negative numbers.
    """
    check_tile(tile, index, "the tile")
    check_map(tensor_map, tile, corner)
    axes = tensor_map.ndim
    coordinates = ", ".join(f"${i + 2}" for i in range(axes))
    text = (
        f"cp.async.bulk.tensor.{axes}d.global.shared::cta.bulk_group [$0, {{{coordinates}}}], [$1];"
    )

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = builder.add(args[2], offset(context, builder, tile, index, args[3]))
        at = numbers(context, builder, corner, args[1])[::-1]
        asm(builder, text, "", "lr" + "r" * axes, [args[0], source, *at])
        return context.get_dummy_value()

    return types.void(tensor_map, corner, tile, index), generate


def _checked_map(tensor_map: Any) -> TensorMapType:
    if not isinstance(tensor_map, TensorMapType):
        raise TypingError(
            f"the tensor map is {tensor_map}; pass na.tensor_map(tensor, box, swizzle) to the "
            "kernel."
        )
    return tensor_map


def check_map(tensor_map: Any, tile: TileType, corner: Any) -> None:
    """
    Raises:
        TypingError: it is no tensor map whose boxes are rows of the tile, or there is no such
            corner.
    """
    mapped = _checked_map(tensor_map)
    position(corner, mapped.ndim, "the corner of the box")
    rows, columns = tile.shape[-2:]
    *_, box_rows, box_columns = (1, *mapped.box)
    if mapped.dtype != tile.dtype or mapped.swizzle != tile.swizzle:
        raise TypingError(f"{mapped} and {tile}: dtype and swizzle must agree.")
    if box_columns != columns or box_rows > rows:
        raise TypingError(f"{mapped} and {tile}: the box must be rows of the tile.")


@operation_of_maps
def commit_stores(typing):  # type: ignore[no-untyped-def]
    """End a group of the thread's `store_tile`."""
    return types.void(), _fixed("cp.async.bulk.commit_group;")


@operation_of_maps
def wait_stores(typing, pending):  # type: ignore[no-untyped-def]
    """Wait until the tiles of all but `pending` of the thread's groups of stores may be written
    again. The end of the kernel waits for the stores themselves.
    """
    number = literal(pending, "pending", range(16))
    return types.void(pending), _fixed(f"cp.async.bulk.wait_group.read {number};")


def _fixed(text: str) -> Any:
    """The generator of a statement without operands."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        asm(builder, text, "", "", [])
        return context.get_dummy_value()

    return generate
