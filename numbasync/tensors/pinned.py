"""Page-locked host memory that a program fills itself, for copies that need no staging.

What is uploaded from any other array is copied first, so that the array may change at once. A
`HostBuffer` is copied from, and to, where it lies: half the work, and no second buffer; in
return its elements belong to the copy until that is done. Copies of one buffer are ordered by
submission like all work of one tensor.
"""

from __future__ import annotations

import threading
from typing import Any, ClassVar, Self

import numpy as np

from numbasync import layout
from numbasync.device.device import Device, chosen_device
from numbasync.device.storage import Storage
from numbasync.errors import OperationError
from numbasync.tensors.host_arrays import host_array


class _Block:
    """The bytes of one buffer and its views."""

    def __init__(self, block: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self.bytes = block
        self.address = int(block.ctypes.data)
        self.nbytes = int(block.nbytes)


class _Host:
    """Owner of blocks: no device. A block goes back when the last array on it dies."""

    device = fast_path_device = None

    def release(self, memory: object) -> None: ...


class HostBuffer(np.ndarray[Any, np.dtype[Any]]):
    """A NumPy array in page-locked memory. Made by `na.pinned(shape, dtype)`.

    Views of it are buffers, too; what is computed from it is a plain array.
    """

    _storage: Storage | None

    _host: ClassVar[_Host] = _Host()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        raise OperationError(
            f"na.HostBuffer{args!r:.60} would not be in page-locked memory: write "
            "na.pinned(shape, dtype), or na.HostBuffer.from_array(array)."
        )

    def __array_finalize__(self, template: Any) -> None:
        self._storage = getattr(template, "_storage", None)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if array is self:  # out=
            return self
        found = np.asarray(array)
        return found[()] if return_scalar else found

    @classmethod
    def from_array(cls, array: Any, device: Device | None = None) -> Self:
        """A buffer with the shape, the dtype and the elements of `array`."""
        source = host_array(array)
        made = cls._make(source.shape, source.dtype, device)
        made[...] = source
        return made

    @classmethod
    def _make(cls, shape: Any, dtype: Any, device: Device | None) -> Self:
        extents, kind = layout.check_shape(shape), layout.check_dtype(dtype, records=True)
        nbytes = int(np.prod(extents, dtype=np.int64)) * kind.itemsize
        block = chosen_device(device, "a page-locked array").backend.host_buffer(max(nbytes, 1))
        made = block[:nbytes].view(kind).reshape(extents).view(cls)
        made._storage = Storage(cls._host, _Block(block))  # type: ignore[arg-type]  # no pool
        return made

    @property
    def storage(self) -> Storage | None:
        """The record of its use by devices; None for a copy, which has its own memory.

        Raises:
            OperationError: the view has gaps, or another order, so no device can copy from it,
                and a copy that the host makes would be in no order with those of devices.
        """
        found = self._storage
        if found is None:
            return None
        low, high = layout.span(self.shape, self.strides, self.itemsize)
        start = int(self.ctypes.data) - found.memory.address
        if not (start + low >= 0 and start + high <= found.nbytes):
            return None  # it has its template's record, and not its memory
        if not self.flags.c_contiguous:
            raise OperationError(
                f"a view of shape {self.shape} and strides {self.strides} of a page-locked buffer "
                "has gaps or another order, so that no device can copy from where it lies.\n"
                "Copy the whole buffer, or a contiguous part; or pass np.array(view)."
            )
        return found


def pinned(shape: Any, dtype: Any = np.float32, device: Device | None = None) -> HostBuffer:
    """An uninitialised array in page-locked host memory, which copies need not stage.

    An upload from it reads its elements, and a `memcpy` into it writes them, when the copy
    runs: leave them alone until the operation is done.

    Args:
        shape: an int or a tuple of ints.
        dtype: what device memory can hold.
        device: whose driver locks the pages; any device may copy. Default: the default device.

    Raises:
        ShapeError, DTypeError: they are none that a tensor can have.
        OutOfDeviceMemoryError: the pages cannot be locked.
        CallerError: `device` is no device.
    """
    return HostBuffer._make(shape, dtype, device)


# Of a buffer that two devices use: who finds a lease finds its work on the stream, as
# `device.submit_lock` has it for one device, inside of which it is taken.
sharing = threading.RLock()


def direct(array: Any) -> Storage | None:
    """The record of a host array that needs no staging; None for any other array.

    Raises:
        OperationError: it is a view of such an array that no device can copy from.
    """
    return array.storage if isinstance(array, HostBuffer) else None
