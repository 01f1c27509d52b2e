"""Arrays as an interpreted kernel sees them: typed as Numba would type them.

Numba widens every integer to 64 bits and never converts between a `uint8` and a `uint8`
sum; NumPy scalars do. So integers leave an array as Python integers, or as `integers` of
their type, and go back reduced to the array's width. Floating point elements stay NumPy
scalars, which keep their precision in arithmetic with each other as Numba's do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numba.cuda import config

from numbasync.backend.cpu.interpreter.integers import SMALL, Int64, maker


class IntArray:
    """A view of an integer or boolean array whose elements are Python integers.

    `tags` holds the kinds, of "i" and "u", whose elements must know their type.
    """

    __slots__ = ("_get", "raw", "tags")

    def __init__(self, raw: np.ndarray[Any, Any], tags: str = "") -> None:
        self.raw = raw
        self.tags = tags
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
        return self._part(self.raw.T)

    def __len__(self) -> int:
        return len(self.raw)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self.raw)))

    def __getitem__(self, index: Any) -> Any:
        try:
            value = self._get(index)
        except (NotImplementedError, TypeError):
            return self._slow(index)
        return self._slow(index) if value.__class__ is memoryview else value

    def _slow(self, index: Any) -> Any:
        part = self.raw[index]
        return self._part(part) if isinstance(part, np.ndarray) else part.item()

    def __setitem__(self, index: Any, value: Any) -> None:
        if not isinstance(value, int):
            value = value.raw if isinstance(value, IntArray) else element(value, self.raw.dtype)
        try:
            self.raw[index] = value
        except OverflowError:
            self.raw[index] = wrap(value, self.raw.dtype)

    def reshape(self, *shape: Any) -> IntArray:
        return self._part(self.raw.reshape(*shape))

    def ravel(self) -> IntArray:
        return self._part(self.raw.ravel())

    def copy(self) -> IntArray:
        """A new array, which kernels make only where Numba is told to manage their memory."""
        if not config.CUDA_ENABLE_NRT:
            raise AttributeError("copy() of an array in a kernel needs NUMBA_CUDA_ENABLE_NRT=1.")
        return self._part(self.raw.copy())

    def view(self, dtype: Any) -> Any:
        return typed(self.raw.view(dtype), self.tags)

    def _part(self, part: np.ndarray[Any, Any]) -> IntArray:
        return type(self)(part, self.tags)


class LongArray(IntArray):
    """An int64 array: its elements are Python integers unless they are large."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        try:
            value = self._get(index)
        except (NotImplementedError, TypeError):
            value = self._slow(index)
        if value.__class__ is int:
            return value if -SMALL <= value < SMALL else Int64(value)
        return self._slow(index) if value.__class__ is memoryview else value


class TaggedArray(IntArray):
    """An integer array whose elements know their type."""

    __slots__ = ("_make",)

    def __init__(self, raw: np.ndarray[Any, Any], tags: str = "") -> None:
        super().__init__(raw, tags)
        self._make = maker(raw.dtype)

    def __getitem__(self, index: Any) -> Any:
        try:
            value = self._get(index)
        except (NotImplementedError, TypeError):
            value = self._slow(index)
        if value.__class__ is int:
            return self._make(value)
        return self._slow(index) if value.__class__ is memoryview else value


def typed(array: np.ndarray[Any, Any], tags: str = "") -> Any:
    """`array`, or a view of it whose elements have Numba's types."""
    kind = array.dtype.kind
    if kind not in "iub":
        return array
    if kind in tags or array.dtype == np.uint64:
        return TaggedArray(array, tags)
    return (LongArray if array.dtype == np.int64 else IntArray)(array, tags)


def raw(array: Any) -> np.ndarray[Any, Any]:
    """The NumPy array behind what `typed` returned."""
    result: np.ndarray[Any, Any] = array.raw if isinstance(array, IntArray) else array
    return result


def wrap(value: int, dtype: np.dtype[Any]) -> int:
    """`value` reduced modulo the width of an integer type, as a store does."""
    bits = dtype.itemsize * 8
    low = int(value) & ((1 << bits) - 1)
    return low - (1 << bits) if dtype.kind == "i" and low >> (bits - 1) else low


def element(value: Any, dtype: np.dtype[Any]) -> Any:
    """A number as a Python integer or bool that an element of `dtype` can hold."""
    if dtype.kind == "b":
        return bool(value)
    if isinstance(value, (float, np.floating)):
        return wrap(truncated(value, dtype), dtype)
    return wrap(int(value), dtype) if isinstance(value, (int, np.integer, np.bool_)) else value


def truncated(value: Any, dtype: np.dtype[Any]) -> int:
    """A float as an integer: nan is 0, infinities are the type's ends, as CUDA converts.

    What exceeds 64 bits is saturated to 64; a store or cast then takes the low bits.
    """
    if math.isfinite(value):
        wide = np.iinfo(np.uint64 if dtype == np.uint64 else np.int64)
        return max(int(np.iinfo(np.int64).min), min(int(value), int(wide.max)))
    if math.isnan(value):
        return 0
    limits = np.iinfo(dtype)
    return int(limits.max) if value > 0 else int(limits.min)
