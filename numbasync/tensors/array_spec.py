"""The properties that all new tensors of one shape and dtype share, computed once.

A new tensor is contiguous and fills its storage, so that its layout, its size and its fingerprint
(the number that stands for it in the keys of launch plans) follow from shape and dtype alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbasync import dtypes, layout
from numbasync.backend.protocols import ArrayKey
from numbasync.layout import Layout, Shape
from numbasync.memo import Memo
from numbasync.native import known

MOST = 4096  # memoised specs; a program with ever new shapes clears the memo


@known
class ArraySpec:
    """The shape, dtype and layout of a contiguous array, without its memory.

    Attributes:
        labels: what `label` has returned, by the operation's name.
        zero: the zero of the dtype, once it was asked for; None before.

    Examples:
        >>> from numbasync.extending import ArraySpec
        >>> spec = ArraySpec((2, 3), np.dtype(np.float32))
        >>> spec.shape, spec.dtype, spec.nbytes
        ((2, 3), dtype('float32'), 24)
    """

    __slots__ = ("_fingerprint", "_key", "at", "dtype", "labels", "nbytes", "shape", "zero")

    def __init__(self, shape: Shape, dtype: np.dtype[Any]) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        self.at = Layout(0, shape, layout.contiguous_strides(shape, dtype.itemsize))
        self._key: ArrayKey | None = None
        self._fingerprint = -1
        self.labels: dict[str, str] = {}
        self.zero: np.generic | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ArraySpec, (self.shape, self.dtype)  # a fingerprint is valid in one process only

    def label(self, name: str) -> str:
        """The name of an operation on such arrays, in messages."""
        label = self.labels.get(name)
        if label is None:
            label = self.labels[name] = f"{name}({self.shape})"
        return label

    @property
    def key(self) -> ArrayKey:
        """The array's part of a compiled kernel's key."""
        if self._key is None:
            self._key = array_key(self.at, self.dtype)
        return self._key

    @property
    def fingerprint(self) -> int:
        """A number that is equal for arrays of equal dtype, layout and shape."""
        if self._fingerprint < 0:
            self._fingerprint = layout.fingerprint((self.key, self.shape))
        return self._fingerprint


def array_key(at: Layout, dtype: np.dtype[Any]) -> ArrayKey:
    """An array's part of a compiled kernel's key; the extents are not in it."""
    order = layout.order(at.shape, at.strides, dtype.itemsize)
    return ArrayKey(dtypes.dtype_key(dtype), len(at.shape), order)


_PYTHONS = (bool, int, float, complex)

# Keyed by shape and scalar type, such as np.float32: equal types are one object, while dtypes that
# compare equal may differ in their metadata.
known_specs = Memo[tuple[Shape, type], ArraySpec](MOST)


def contiguous(shape: Any, dtype: Any, records: bool = False) -> ArraySpec:
    """The spec of a contiguous array, for a shape and a dtype as a caller writes them.

    Raises:
        ShapeError, DTypeError: a tensor cannot have that shape or dtype.

    Examples:
        >>> from numbasync.extending import contiguous
        >>> class Twice(na.DeviceOp):
        ...     def steps(self, ctx):
        ...         spec = contiguous(3, np.float32)
        ...         made = [na.Tensor.of(ctx.device, ctx.alloc(spec.nbytes), spec) for _ in "ab"]
        ...         yield from ()
        ...         return made
        >>> [t.shape for t in await Twice()]
        [(3,), (3,)]
    """
    extents = layout.check_shape(shape)
    if type(dtype) is not type:
        return ArraySpec(extents, dtypes.check_dtype(dtype, records))
    spec = known_specs.get((extents, dtype))
    if spec is None:
        spec = ArraySpec(extents, dtypes.check_dtype(dtype, records))
        # NumPy asks any other class for its `dtype` attribute, which may change: not memoised.
        if spec.dtype.type is dtype or dtype in _PYTHONS:
            known_specs[extents, dtype] = spec
    return spec


def spec_of(array: np.ndarray[Any, Any]) -> ArraySpec:
    """The spec of a tensor with the shape and the dtype of a NumPy array.

    Raises:
        DTypeError: a tensor cannot have that dtype.
    """
    shape, dtype = array.shape, array.dtype
    spec = known_specs.get((shape, dtype.type))
    if spec is None or spec.dtype is not dtype:
        spec = ArraySpec(shape, dtypes.check_dtype(dtype, records=True))
        if np.dtype(dtype.type) is dtype:
            known_specs[shape, dtype.type] = spec
    return spec
