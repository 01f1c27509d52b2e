"""Tiles in the bytes of a block's dynamic shared memory."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np

from numbasync.dtypes import SMALL, TABLE, is_extension, of_name
from numbasync.errors import MisalignedAccessError, OutOfBoundsError
from numbasync.tensor_cores import swizzle as swizzles
from numbasync.tensor_cores.tiles import ELEMENTS, Tile

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
CHUNK = 16  # bytes that lie together under every swizzle
GROUP = 8  # rows after which every swizzle begins again
HALF = 32  # bytes of which every swizzle changes only the place


class SharedTile:
    """A tile, or several, as a kernel names it.

    Attributes:
        name: of the array in the shared layout.
        offset: bytes from the start of dynamic shared memory.
    """

    __slots__ = (
        "columns", "dtype", "element", "label", "name", "nbytes", "offset", "row_bytes", "rows",
        "shape", "size", "swizzle",
    )  # fmt: skip

    def __init__(self, name: str, offset: int, declared: Tile) -> None:
        self.name, self.offset = name, offset
        self.label = f"tile {name}"  # for messages
        self.dtype, self.shape, self.swizzle = declared.dtype, declared.shape, declared.swizzle
        self.size = self.dtype.itemsize
        self.element = ELEMENTS[self.dtype.name]
        self.rows, self.columns = self.shape[-2:]
        self.row_bytes = self.columns * self.size
        self.nbytes = int(np.prod(self.shape)) * self.size

    def byte(self, call: Any, index: Any) -> int:
        """The bytes from the tile's start to an element, before the swizzle.

        Raises:
            OutOfBoundsError: there is no such element.
        """
        parts = index if isinstance(index, tuple) else (index,)
        at = 0
        for part, extent in zip(parts, self.shape, strict=True):
            number = int(part)
            if not 0 <= number < extent:
                raise OutOfBoundsError(
                    f"{call}: the index {tuple(map(int, parts))} is outside of tile {self.name} "
                    f"of shape {self.shape}"
                )
            at = at * extent + number
        return at * self.size

    def place(self, call: Any, index: Any) -> tuple[int, int, int]:
        """The bytes to an element, its row, and its byte in the row.

        Raises:
            OutOfBoundsError: there is no such element.
            MisalignedAccessError: it is at no multiple of 16 bytes.
        """
        at = self.byte(call, index)
        row, column = at // self.row_bytes % self.rows, at % self.row_bytes
        if column % CHUNK:
            raise MisalignedAccessError(
                f"{call}: the index {index} of tile {self.name} is {column} bytes behind the start "
                f"of a row; write a multiple of {CHUNK // self.size} elements."
            )
        return at, row, column

    def check_inside(self, call: Any, index: Any, rows: int, nbytes: int) -> int:
        """The bytes to an element of which `rows` rows of `nbytes` lie in one matrix of the tile.

        Raises:
            OutOfBoundsError: they do not.
            MisalignedAccessError: the swizzle of other rows or columns is not as that of the first.
        """
        at, row, column = self.place(call, index)
        if row % GROUP or column % HALF:
            raise MisalignedAccessError(
                f"{call}: the index {index} of tile {self.name} is row {row}, byte {column}; write "
                f"a row of a multiple of {GROUP}, and a column of {HALF // self.size}."
            )
        if row + rows > self.rows or column + nbytes > self.row_bytes:
            raise OutOfBoundsError(
                f"{call}: from the index {index} on, tile {self.name} of shape {self.shape} has "
                f"not {rows} rows of {nbytes // self.size} elements"
            )
        return at

    def addresses(self, places: Ints) -> Ints:
        """Where dynamic shared memory holds chunks, by their bytes from the tile's start."""
        return self.offset + swizzled(places, self.swizzle)


def swizzled(places: Ints, swizzle: int) -> Ints:
    """`numbasync.tensor_cores.swizzle.swizzled` of many places."""
    return places ^ ((places >> 3) & swizzles.mask(swizzle))


def decoded(chunks: np.ndarray[Any, Any], element: str) -> np.ndarray[Any, Any]:
    """Elements in the bytes of the last axis as numbers: float32, or float64 for integers. TF32
    has 10 bits of mantissa.
    """
    held = np.ascontiguousarray(chunks)
    if (small := _small(element)) is not None:
        return held.view(small).astype(np.float32)
    if element == "tf32":
        return (held.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return held.view(np.int8 if element == "s8" else np.uint8).astype(np.float64)


def encoded(values: np.ndarray[Any, Any], element: str) -> np.ndarray[Any, Any]:
    """float32 rounded to the nearest small float, as uint16."""
    dtype = _small(element)
    assert dtype is not None  # what is stored has a type of 16 bits
    bits = values.astype(dtype).view(np.uint16)
    # Of `dtypes.EXTENSIONS` as a GPU has it, not as ml_dtypes.
    return np.where(np.isnan(values), 0x7FFF, bits) if is_extension(dtype) else bits


@cache
def _small(element: str) -> np.dtype[Any] | None:
    """The small float of PTX's name; None of another element."""
    return next((of_name(name) for name in SMALL if TABLE[name].ptx == element), None)
