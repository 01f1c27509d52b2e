"""What all new tensors of one shape and dtype have in common, worked out once.

A new tensor is contiguous and fills its storage, so its layout, its size and the number that
stands for it in the keys of plans follow from shape and dtype alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbasync import layout
from numbasync.backend.protocols import ArrayKey
from numbasync.layout import Layout, Shape
from numbasync.memo import Memo

MOST = 4096  # that are known again; a program with ever new shapes starts over


class ArraySpec:
    """A contiguous array of some shape and dtype, wherever it lies."""

    __slots__ = ("_fingerprint", "_key", "at", "dtype", "nbytes", "shape")

    def __init__(self, shape: Shape, dtype: np.dtype[Any]) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        self.at = Layout(0, shape, layout.contiguous_strides(shape, dtype.itemsize))
        self._key: ArrayKey | None = None
        self._fingerprint = -1

    def __reduce__(self) -> tuple[Any, ...]:
        return ArraySpec, (self.shape, self.dtype)  # a fingerprint is one process's

    @property
    def key(self) -> ArrayKey:
        """Its part of a compiled kernel's key."""
        if self._key is None:
            self._key = array_key(self.at, self.dtype)
        return self._key

    @property
    def fingerprint(self) -> int:
        """Equal for arrays of equal dtype, layout and shape."""
        if self._fingerprint < 0:
            self._fingerprint = layout.fingerprint((self.key, self.shape))
        return self._fingerprint


def array_key(at: Layout, dtype: np.dtype[Any]) -> ArrayKey:
    """An array's part of a compiled kernel's key: nothing of its extents."""
    order = layout.order(at.shape, at.strides, dtype.itemsize)
    return ArrayKey(layout.dtype_key(dtype), len(at.shape), order)


_PYTHONS = (bool, int, float, complex)

# By shape and scalar type, such as np.float32: types are equal if they are one object, while
# dtypes that compare equal may differ in what they carry along.
_known = Memo[tuple[Shape, type], ArraySpec](MOST)


def contiguous(shape: Any, dtype: Any, records: bool = False) -> ArraySpec:
    """The contiguous array of a shape and dtype as a caller writes them.

    Raises:
        ShapeError, DTypeError: no tensor can have them.
    """
    extents = layout.check_shape(shape)
    if type(dtype) is not type:
        return ArraySpec(extents, layout.check_dtype(dtype, records))
    found = _known.get((extents, dtype))
    if found is None:
        found = ArraySpec(extents, layout.check_dtype(dtype, records))
        # Other classes may say today this and tomorrow that: NumPy asks them for their `dtype`.
        if found.dtype.type is dtype or dtype in _PYTHONS:
            _known[extents, dtype] = found
    return found
