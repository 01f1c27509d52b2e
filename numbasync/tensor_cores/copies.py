"""Asynchronous copies between global and shared memory.

`copy_async` copies 4, 8 or 16 bytes of the calling thread; `wait_copies` waits for the thread's
own copies, and a barrier of the block must follow before other threads read them.

`load_tile` and `store_tile` copy a whole box of a tensor, by a tensor map that the kernel gets as
an argument (`na.tensor_map`); one thread calls them. A load ends a phase of a barrier
(`barrier_expect`); stores are waited for with `wait_stores`. What lies outside of the tensor is
loaded as 0 and not stored.

Source: PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy", and "Tensor copy".
"""

from __future__ import annotations

from typing import Any

from numba.cuda import cgutils, extending
from numba.cuda import types as numba_types
from numba.cuda.core.errors import TypingError

from numbasync.tensor_cores.ptx import I32, I64, asm, literal, numbers, operation, position
from numbasync.tensor_cores.tiles import (
    TileType,
    check_barrier,
    check_tile,
    offset,
    swizzled,
)

types: Any = numba_types
_extending: Any = extending


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


@operation
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


def _parts(index: Any) -> list[Any]:
    return list(index) if isinstance(index, types.BaseTuple) else [index]


def _unpacked(builder: Any, index: Any, value: Any) -> list[Any]:
    is_tuple = isinstance(index, types.BaseTuple)
    return list(cgutils.unpack_tuple(builder, value)) if is_tuple else [value]


@operation
def commit_copies(typing):  # type: ignore[no-untyped-def]
    """End a group of the thread's `copy_async`."""
    return types.void(), _fixed("cp.async.commit_group;")


@operation
def wait_copies(typing, pending):  # type: ignore[no-untyped-def]
    """Wait until at most `pending` of the thread's groups of `copy_async` are still copied."""
    number = literal(pending, "pending", range(16))
    return types.void(pending), _fixed(f"cp.async.wait_group {number};")


# --- by a tensor map ---


@operation
def load_tile(typing, tile, index, tensor_map, corner, barriers, barrier):  # type: ignore[no-untyped-def]
    """Begin to load a box of a tensor, from the element `corner` on, into a tile from `index` on.
    `barrier_expect` must have announced the bytes of the box to the barrier.
    """
    check_tile(tile, index, "the tile")
    _check_map(tensor_map, tile, corner)
    check_barrier(barriers, barrier)
    axes = tensor_map.ndim
    coordinates = ", ".join(f"${i + 3}" for i in range(axes))
    text = (
        f"cp.async.bulk.tensor.{axes}d.shared::cluster.global.mbarrier::complete_tx::bytes "
        f"[$0], [$1, {{{coordinates}}}], [$2];"
    )

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = builder.add(args[0], offset(context, builder, tile, index, args[1]))
        (number,) = numbers(context, builder, barrier, args[5])
        bar = builder.add(args[4], builder.mul(number, I32(8)))
        # The driver counts axes from the one whose elements are neighbours.
        at = numbers(context, builder, corner, args[3])[::-1]
        asm(builder, text, "", "rlr" + "r" * axes, [target, args[2], bar, *at])
        return context.get_dummy_value()

    return types.void(tile, index, tensor_map, corner, barriers, barrier), generate


@operation
def prefetch_map(typing, tensor_map):  # type: ignore[no-untyped-def]
    """Begin to fetch a tensor map, so that the first copy by it need not wait; one thread calls it
    where the kernel begins.
    """
    _checked_map(tensor_map)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        asm(builder, "prefetch.tensormap [$0];", "", "l", args)
        return context.get_dummy_value()

    return types.void(tensor_map), generate


@operation
def store_tile(typing, tensor_map, corner, tile, index):  # type: ignore[no-untyped-def]
    """Begin to store a tile, from `index` on, into a box of a tensor, from the element `corner` on.
    Writes to the tile must be ordered before by `fence_async` and a barrier.
    """
    check_tile(tile, index, "the tile")
    _check_map(tensor_map, tile, corner)
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


def _check_map(tensor_map: Any, tile: TileType, corner: Any) -> None:
    mapped = _checked_map(tensor_map)
    position(corner, mapped.ndim, "the corner of the box")
    rows, columns = tile.shape[-2:]
    *_, box_rows, box_columns = (1, *mapped.box)
    if mapped.dtype != tile.dtype or mapped.swizzle != tile.swizzle:
        raise TypingError(f"{mapped} and {tile}: dtype and swizzle must agree.")
    if box_columns != columns or box_rows > rows:
        raise TypingError(f"{mapped} and {tile}: the box must be rows of the tile.")


@operation
def commit_stores(typing):  # type: ignore[no-untyped-def]
    """End a group of the thread's `store_tile`."""
    return types.void(), _fixed("cp.async.bulk.commit_group;")


@operation
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
