"""Tiles and barriers in shared memory: their declarations in a `na.shared_layout`, and their types.

    LAYOUT = na.shared_layout(
        a=tensor_cores.tile(np.float16, (4, 128, 64)), full=tensor_cores.barriers(4)
    )

In a kernel `LAYOUT.a` is a tile: its last two axes are rows and columns of a matrix, axes before
them count stages. Operations take a tile and the index of an element of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbasync.arguments import shown
from numbasync.dtypes import TABLE
from numbasync.errors import DTypeError, LauncherError, ShapeError
from numbasync.kernel_names import TypingError, extending, types
from numbasync.layout import check_shape
from numbasync.tensor_cores.ptx import I32, numbers, position
from numbasync.tensor_cores.swizzle import SWIZZLES, alignment, mask

_types: Any = types
_extending: Any = extending
# Of the elements of a tile, by the names of their dtypes: the names that PTX has for them.
ELEMENTS = {row.name: row.ptx for row in TABLE.values() if row.ptx}


@dataclass(frozen=True)
class Tile:
    """The declaration of tiles in a shared layout; created by `tile`.

    Attributes:
        dtype: of the elements.
        shape: the stages, if there are several; rows; columns.
        swizzle: bytes of a row that are permuted, or 0.
        alignment: in bytes.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    swizzle: int

    @property
    def alignment(self) -> int:
        return alignment(self.swizzle)

    def numba_type(self) -> Any:
        return TileType(self.dtype, self.shape, self.swizzle)


def tile(dtype: Any, shape: Any, swizzle: int = 128) -> Tile:
    """Declare tiles of a shared layout.

    Args:
        dtype: float16, bfloat16, float32 (which tensor cores round to TF32), int8 or uint8.
        shape: rows and columns of a matrix; numbers before them are of several such tiles, one
            behind the other.
        swizzle: 128, 64 or 32: the bytes of a row, whose order depends on the row; copies by a
            tensor map, `load_a`, `load_b` and `wgmma` know the order. 0: rows in their order.

    Raises:
        DTypeError: there is no tile of such elements.
        ShapeError: the shape has less than two axes.
        LauncherError: a row has not `swizzle` bytes, or the tiles do not begin at a multiple of 8
            rows.
    """
    element = np.dtype(dtype)
    if element.name not in ELEMENTS:
        raise DTypeError(f"a tile of {element}: write one of {', '.join(ELEMENTS)}.")
    extents = check_shape(shape)
    if len(extents) < 2 or not math.prod(extents):
        raise ShapeError(f"a tile of shape {extents}: write rows and columns, all > 0.")
    if swizzle not in SWIZZLES:
        raise LauncherError(f"tile(swizzle={shown(swizzle)}): write 128, 64, 32 or 0.")
    *_, rows, columns = extents
    if swizzle and columns * element.itemsize != swizzle:
        raise LauncherError(
            f"a tile with rows of {columns} {element} has {columns * element.itemsize} bytes a "
            f"row; swizzle={swizzle} needs {swizzle // element.itemsize} columns.\n"
            "Cut wider matrices into several tiles: shape (tiles, rows, columns)."
        )
    if swizzle and rows % 8:
        raise LauncherError(f"a tile of {rows} rows: with a swizzle, write a multiple of 8.")
    return Tile(element, extents, swizzle)


@dataclass(frozen=True)
class Barriers:
    """The declaration of asynchronous barriers in a shared layout; created by `barriers`."""

    count: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint64)

    @property
    def alignment(self) -> int:
        return 8

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.count,)

    def numba_type(self) -> Any:
        return BarriersType(self.count)


def barriers(count: int) -> Barriers:
    """Declare `count` asynchronous barriers of a shared layout, to be initialised by
    `barrier_init`.

    Raises:
        ShapeError: the count is no positive integer.
    """
    (number,) = check_shape(count)
    if not number:
        raise ShapeError(f"barriers({shown(count)}): write at least 1.")
    return Barriers(number)


# --- in kernels ---


class TileType(_types.Type):  # type: ignore[misc]
    """Numba's type of a tile; a value of it is the tile's address in shared memory, in 32 bits."""

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...], swizzle: int) -> None:
        self.dtype, self.shape, self.swizzle = dtype, shape, swizzle
        super().__init__(name=f"Tile({dtype}{list(shape)}, swizzle={swizzle})")

    @property
    def element(self) -> str:
        """The name of the elements in PTX."""
        return ELEMENTS[self.dtype.name]

    @property
    def row_bytes(self) -> int:
        return self.shape[-1] * self.dtype.itemsize


class BarriersType(_types.Type):  # type: ignore[misc]
    """Numba's type of barriers; a value of it is the first one's address in shared memory."""

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__(name=f"Barriers({count})")


class _AddressModel(_extending.core_models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, I32)


_extending.register_model(TileType)(_AddressModel)
_extending.register_model(BarriersType)(_AddressModel)


def check_tile(tile: Any, index: Any, name: str) -> None:
    """
    Raises:
        TypingError: `tile` is no tile, or `index` is no index of it.
    """
    if not isinstance(tile, TileType):
        raise TypingError(
            f"{name} is {tile}; write a tile of a shared layout: "
            "na.shared_layout(a=tensor_cores.tile(dtype, shape))."
        )
    position(index, len(tile.shape), f"the index of {name}")


def check_barrier(barriers: Any, index: Any) -> None:
    """
    Raises:
        TypingError: `barriers` are none, or `index` is no integer.
    """
    if not isinstance(barriers, BarriersType):
        raise TypingError(
            f"barriers are {barriers}; write those of a shared layout: "
            "na.shared_layout(full=tensor_cores.barriers(count))."
        )
    position(index, 1, "the index of a barrier")


def offset(context: Any, builder: Any, tile: Any, index: Any, value: Any) -> Any:
    """The bytes from the start of a tile to an element, before the swizzle."""
    total: Any = I32(0)
    step = tile.dtype.itemsize
    parts = numbers(context, builder, index, value)
    for number, extent in zip(reversed(parts), reversed(tile.shape), strict=True):
        total = builder.add(total, builder.mul(number, I32(step)))
        step *= extent
    return total


def swizzled(builder: Any, address: Any, swizzle: int) -> Any:
    """The address at which a tile holds what would be at `address`; the tile is aligned, so that
    its own address changes nothing.
    """
    if not swizzle:
        return address
    changed = builder.and_(builder.lshr(address, I32(3)), I32(mask(swizzle)))
    return builder.xor(address, changed)


def barrier_address(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """The address of the barrier that the first two arguments name."""
    (number,) = numbers(context, builder, signature.args[1], args[1])
    return builder.add(args[0], builder.mul(number, I32(8)))
