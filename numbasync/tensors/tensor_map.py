"""Tensor maps: tensors as kernels copy them, box by box, between global and shared memory."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from numbasync import dtypes, layout
from numbasync.arguments import shown, with_type
from numbasync.backend import protocols
from numbasync.errors import CallerError, DTypeError, ShapeError
from numbasync.native import compiled, known
from numbasync.public import Public
from numbasync.tensors.array_methods import NoOperators
from numbasync.tensors.tensor import SharedTensor, Tensor

if TYPE_CHECKING:
    from numbasync.device.device import Device

DTYPES = tuple(row.name for row in dtypes.TABLE.values() if row.tensor_map)
SWIZZLES = (0, 32, 64, 128)
MOST_AXES = 5
MOST_EXTENT = 256  # of a box
UNIT = 16  # bytes; of addresses, strides and rows of a box


class Known(NamedTuple):
    """What is kept of a tensor map as long as its storage, which every launch that uses it keeps.

    Attributes:
        handle: the backend's tensor map.
        key, fingerprint: of the `MappedTensor`.
    """

    handle: protocols.Array
    key: Any
    fingerprint: int


@known
class TensorMap(NoOperators, Public):
    """A tensor as an argument of a kernel that copies boxes of it, by `tensor_cores.load_tile` and
    `store_tile`; created by `tensor_map`. Nothing else takes it: views and copies are of `tensor`.

    Attributes:
        tensor: the tensor.
        shape, dtype, device: those of the tensor.
        box: the extents of a box, one for each axis.
        swizzle: bytes of a row of the box that are permuted in shared memory, or 0.
        mapped: what launches take.

    Examples:
        >>> t = await na.zeros((64, 64), np.float16)
        >>> boxes = na.tensor_map(t, (16, 64))  # passed to a kernel in the place of `t`
        >>> boxes.shape, boxes.tensor is t
        ((64, 64), True)
    """

    __slots__ = ("box", "mapped", "swizzle", "tensor")

    def __init__(
        self, tensor: Tensor, box: tuple[int, ...], swizzle: int, mapped: MappedTensor
    ) -> None:
        if not isinstance(mapped, MappedTensor):
            raise CallerError(
                f"a TensorMap is made of a tensor, not of {with_type(mapped)}: write "
                "na.tensor_map(t, box)."
            )
        self.tensor = tensor
        self.box = box
        self.swizzle = swizzle
        self.mapped = mapped

    @property
    def shape(self) -> layout.Shape:
        return self.tensor.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.tensor.dtype

    @property
    def device(self) -> Device | None:
        return self.tensor.device

    def __repr__(self) -> str:
        return f"<TensorMap of {self.tensor!r}, box={self.box}, swizzle={self.swizzle}>"


@known
class MappedTensor(Tensor):
    """The tensor of a `TensorMap`, as launches take it: its handle is the backend's tensor map."""

    __slots__ = ("box", "swizzle")

    def __init__(self, tensor: Tensor, box: tuple[int, ...], swizzle: int) -> None:
        super().__init__(tensor.device, tensor.storage, tensor._layout, tensor.dtype, tensor.source)
        self.box = box
        self.swizzle = swizzle

    @classmethod
    def again(cls, tensor: Tensor, box: tuple[int, ...], swizzle: int, known: Known) -> Self:
        """A mapped tensor like one that was launched before."""
        mapped = cls(tensor, box, swizzle)
        mapped.own_handle, mapped._key, mapped._fingerprint = known
        return mapped

    @property
    def handle(self) -> protocols.Array:
        """The backend's tensor map, made on first use."""
        if self.own_handle is None or self.own_storage is None:
            storage, device = self.storage, self.device
            if device is None:
                raise CallerError(f"{self!r} has no memory that kernels could copy.")
            offset, shape, strides = self._layout
            array = device.backend.array(storage.memory, offset, shape, strides, self.dtype)
            self.own_handle = device.backend.tensor_map(array, self.box, self.swizzle)
            if storage.maps is None:
                storage.maps = {}
            key = self._layout, self.dtype, self.box, self.swizzle
            storage.maps[key] = Known(self.own_handle, self.key, self.fingerprint)
        return self.own_handle

    @property
    def key(self) -> Any:
        """This argument's part of a compiled kernel's key: Numba's type of it."""
        if self._key is None:
            self._key = _numba_type(self.dtype, self.box, self.swizzle)
        return self._key

    @property
    def fingerprint(self) -> int:
        if self._fingerprint < 0:
            self._fingerprint = layout.fingerprint((self.key, self.shape))
        return self._fingerprint


@cache
def _numba_type(dtype: np.dtype[Any], box: tuple[int, ...], swizzle: int) -> Any:
    from numbasync.tensor_cores.copies import TensorMapType

    return TensorMapType(dtype, len(box), box, swizzle)


@cache
def _is_supported(dtype: np.dtype[Any]) -> bool:
    return dtype.name in DTYPES  # NumPy computes the name each time


@compiled
def tensor_map(t: Tensor | SharedTensor, box: Any, swizzle: int = 128) -> TensorMap:
    """`t` as an argument of kernels that copy boxes of it by `numbasync.tensor_cores`.

    Args:
        t: of 1 to 5 axes, float16, bfloat16, float32, int8 or uint8. Elements along the last axis
            are neighbours; the first element, and the steps along the other axes, are at multiples
            of 16 bytes.
        box: extents of the boxes, at most 256 each; a row has a multiple of 16 bytes.
        swizzle: as that of the kernel's tile: 128, 64 or 32 bytes, the most that a row may have;
            or 0.

    Raises:
        DTypeError, ShapeError: copies cannot move boxes of such a tensor.
        CallerError: there is no such swizzle.

    Examples:
        >>> t = await na.zeros((64, 64), np.float16)
        >>> boxes = na.tensor_map(t, (16, 64))
        >>> boxes.box, boxes.swizzle
        ((16, 64), 128)
    """
    tensor = t.tensor if isinstance(t, SharedTensor) else t
    if not isinstance(tensor, Tensor):
        raise CallerError(f"tensor_map of {with_type(t)}: write a tensor.")
    storage = tensor.own_storage
    if storage is not None and storage.maps is not None and type(box) is tuple:
        known = storage.maps.get((tensor._layout, tensor.dtype, box, swizzle))
        if known is not None:
            mapped = MappedTensor.again(tensor, box, swizzle, known)
            return TensorMap(tensor, box, swizzle, mapped)
    if not _is_supported(tensor.dtype):
        raise DTypeError(f"tensor_map of {tensor!r}: write one of {', '.join(DTYPES)}.")
    extents = layout.check_shape(box)
    if type(swizzle) is not int or swizzle not in SWIZZLES:
        raise CallerError(f"tensor_map(swizzle={shown(swizzle)}): write 128, 64, 32 or 0.")
    _check_tensor(tensor)
    _check_box(tensor, extents, swizzle)
    return TensorMap(tensor, extents, swizzle, MappedTensor(tensor, extents, swizzle))


def _check_tensor(tensor: Tensor) -> None:
    size = tensor.dtype.itemsize
    if not 1 <= tensor.ndim <= MOST_AXES or not tensor.size:
        raise ShapeError(f"tensor_map of {tensor!r}: write 1 to {MOST_AXES} axes, none of them 0.")
    *steps, last = tensor.strides
    if last != size and tensor.shape[-1] > 1:
        raise ShapeError(
            f"tensor_map of {tensor!r}, whose elements along the last axis are {last} bytes apart, "
            "not neighbours.\nPass a copy: await t.dup()"
        )
    if any(step % UNIT for step in steps) or not tensor.is_aligned:
        raise ShapeError(
            f"tensor_map of {tensor!r}, with steps of {tuple(steps)} bytes along its axes: they, "
            f"and the address of the first element, must be multiples of {UNIT}.\n"
            "Make it with na.empty_pitched, or with a number of columns that fits, and use a part."
        )


def _check_box(tensor: Tensor, box: tuple[int, ...], swizzle: int) -> None:
    if len(box) != tensor.ndim or not all(1 <= n <= MOST_EXTENT for n in box):
        raise ShapeError(
            f"a box of {shown(box)} of {tensor!r}: write {tensor.ndim} extents from 1 to "
            f"{MOST_EXTENT}."
        )
    nbytes = box[-1] * tensor.dtype.itemsize
    if nbytes % UNIT or (swizzle and nbytes > swizzle):
        most = f", at most {swizzle} with this swizzle" if swizzle else ""
        raise ShapeError(
            f"a box of {shown(box)} of {tensor!r} has rows of {nbytes} bytes: write a multiple of "
            f"{UNIT}"
            f"{most}."
        )
