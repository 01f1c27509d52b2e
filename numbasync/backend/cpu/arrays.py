"""Arrays as an interpreted kernel sees them: typed as Numba would type them.

Numba widens every integer to 64 bits and never converts between a `uint8` and a `uint8`
sum; NumPy scalars do. So integers leave an array as Python integers and go back reduced to
the array's width. Floating point elements stay NumPy scalars, which keep their precision in
arithmetic with each other as Numba's do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


class IntArray:
    """A view of an integer or boolean array whose elements are Python integers."""

    __slots__ = ("_get", "raw")

    def __init__(self, raw: np.ndarray[Any, Any]) -> None:
        self.raw = raw
        # A memoryview gives a Python number in a third of the time that int(array[i]) takes.
        # It has no views of several dimensions: `__getitem__` catches those.
        self._get = memoryview(raw.data).__getitem__

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.raw.shape
        return shape

    @property
    def strides(self) -> tuple[int, ...]:
        return self.raw.strides

    @property
    def ndim(self) -> int:
        return self.raw.ndim

    @property
    def size(self) -> int:
        return self.raw.size

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.raw.dtype
        return dtype

    @property
    def itemsize(self) -> int:
        return self.raw.itemsize

    @property
    def T(self) -> IntArray:
        return IntArray(self.raw.T)

    def __len__(self) -> int:
        return len(self.raw)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self.raw)))

    def __getitem__(self, index: Any) -> Any:
        try:
            value = self._get(index)
        except (NotImplementedError, TypeError):
            part = self.raw[index]
            return IntArray(part) if isinstance(part, np.ndarray) else part.item()
        if value.__class__ is memoryview:
            return IntArray(self.raw[index])
        return value

    def __setitem__(self, index: Any, value: Any) -> None:
        if value.__class__ is IntArray:
            value = value.raw
        try:
            self.raw[index] = value
        except OverflowError:
            self.raw[index] = wrap(value, self.raw.dtype)

    def reshape(self, *shape: Any) -> IntArray:
        return IntArray(self.raw.reshape(*shape))

    def ravel(self) -> IntArray:
        return IntArray(self.raw.ravel())

    def view(self, dtype: Any) -> Any:
        return typed(self.raw.view(dtype))


def typed(array: np.ndarray[Any, Any]) -> Any:
    """`array`, or a view of it whose elements have Numba's types."""
    return IntArray(array) if array.dtype.kind in "iub" else array


def raw(array: Any) -> np.ndarray[Any, Any]:
    """The NumPy array behind what `typed` returned."""
    result: np.ndarray[Any, Any] = array.raw if isinstance(array, IntArray) else array
    return result


def wrap(value: int, dtype: np.dtype[Any]) -> int:
    """`value` reduced modulo the width of an integer type, as a store does."""
    bits = dtype.itemsize * 8
    low = int(value) & ((1 << bits) - 1)
    return low - (1 << bits) if dtype.kind == "i" and low >> (bits - 1) else low
