"""Page-locked host memory that a program fills itself, for copies without staging.

An upload from any other array stages a copy first, so that the array may change immediately. The
device copies from and to a `HostBuffer` in place: half the work, and no second buffer. In return
the elements belong to the copy until it is done. Copies of one buffer are ordered by submission,
like all work on one tensor.
"""

from __future__ import annotations

import math
import threading
from typing import Any, ClassVar, Self

import numpy as np

from numbasync import dtypes, layout
from numbasync.arguments import shown
from numbasync.device.device import Device, chosen_device
from numbasync.device.storage import Storage
from numbasync.errors import OperationError
from numbasync.tensors.host_arrays import host_array


class _Block:
    """The memory of one buffer and its views."""

    def __init__(self, block: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self.bytes = block
        self.address = int(block.ctypes.data)
        self.nbytes = int(block.nbytes)


class _Host:
    """The owner of blocks, without a device. A block is freed when the last array on it dies."""

    device = fast_path_device = None

    def release(self, memory: object) -> None: ...


class HostBuffer(np.ndarray[Any, np.dtype[Any]]):
    """A NumPy array in page-locked memory. Made by `na.pinned(shape, dtype)`.

    Views of a buffer are buffers, too; results computed from a buffer are plain arrays.

    Examples:
        >>> buffer = na.HostBuffer.from_array(np.arange(4.0))
        >>> isinstance(buffer[1:3], na.HostBuffer)  # a view
        True
        >>> type(buffer + 1).__name__  # a result
        'ndarray'
    """

    _storage: Storage | None

    _host: ClassVar[_Host] = _Host()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        raise OperationError(
            f"na.HostBuffer{shown(args)} would not be in page-locked memory: write "
            "na.pinned(shape, dtype), or na.HostBuffer.from_array(array)."
        )

    def __array_finalize__(self, template: Any) -> None:
        self._storage = getattr(template, "_storage", None)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if array is self:  # out=
            return self
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain

    @classmethod
    def from_array(cls, array: Any, device: Device | None = None) -> Self:
        """A buffer with the shape, the dtype and the elements of `array`."""
        source = host_array(array)
        buffer = cls._make(source.shape, source.dtype, device)
        buffer[...] = source
        return buffer

    @classmethod
    def _make(cls, shape: Any, dtype: Any, device: Device | None) -> Self:
        extents, element = layout.check_shape(shape), dtypes.check_dtype(dtype, records=True)
        layout.contiguous_strides(extents, element.itemsize)  # refuses what no memory holds
        nbytes = math.prod(extents) * element.itemsize
        block = chosen_device(device, "a page-locked array").backend.host_buffer(max(nbytes, 1))
        buffer = block[:nbytes].view(element).reshape(extents).view(cls)
        buffer._storage = Storage(cls._host, _Block(block))  # type: ignore[arg-type]  # no pool
        return buffer

    @property
    def storage(self) -> Storage | None:
        """The storage with the buffer's access record; None for a copy, which has its own memory.

        Raises:
            OperationError: the view has gaps, or another order, so that no device can copy from
                it, and a copy by the host would not be ordered with the devices' copies.
        """
        storage = self._storage
        if storage is None:
            return None
        low, high = layout.span(self.shape, self.strides, self.itemsize)
        start = int(self.ctypes.data) - storage.memory.address
        if not (start + low >= 0 and start + high <= storage.nbytes):
            return None  # it has its template's storage, but not its memory
        if not self.flags.c_contiguous:
            raise OperationError(
                f"a view of shape {self.shape} and strides {self.strides} of a page-locked buffer "
                "has gaps or another order, so that no device can copy from where it lies.\n"
                "Copy the whole buffer, or a contiguous part; or pass np.array(view)."
            )
        return storage


def pinned(shape: Any, dtype: Any = np.float32, device: Device | None = None) -> HostBuffer:
    """An uninitialised array in page-locked host memory, which copies need not stage.

    An upload from the buffer reads its elements, and a `memcpy` into it writes them, when the copy
    runs: the caller must leave them alone until the operation is done.

    Args:
        shape: an int or a tuple of ints.
        dtype: a dtype that device memory can hold.
        device: the device whose driver locks the pages; any device may copy. Default: the default
            device.

    Raises:
        ShapeError, DTypeError: a tensor cannot have that shape or dtype.
        OutOfDeviceMemoryError: the pages cannot be locked.
        CallerError: `device` is no device.

    Examples:
        >>> buffer = na.pinned(4)
        >>> buffer[:] = [1, 2, 3, 4]
        >>> t = await na.zeros(4)
        >>> _ = await t.copy_from(buffer)  # copied from where it lies
        >>> await t.to_host()
        array([1., 2., 3., 4.], dtype=float32)
    """
    return HostBuffer._make(shape, dtype, device)


# The counterpart of `device.submit_lock` for a buffer that two devices use: while it is held, every
# recorded access has its work on the stream. It is taken inside `device.submit_lock`.
sharing = threading.RLock()


def direct(array: Any) -> Storage | None:
    """The storage of a host array that needs no staging; None for any other array.

    Raises:
        OperationError: the array is a view of a buffer that no device can copy from.
    """
    return array.storage if isinstance(array, HostBuffer) else None
