"""Libraries whose arrays are read by attributes: they have no table of C functions of DLPack's.

The core asks CuPy itself; of the other libraries it takes the view that `read` gives, and does all
that follows from it.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from numbasync import dtypes, layout
from numbasync.backend import array_protocols
from numbasync.backend.array_protocols import Exported
from numbasync.errors import NumbasyncError
from numbasync.memo import Memo

LEGACY, PER_THREAD = 1, 2  # the default streams, as the driver and the protocols write them
MOST_QUICK_AXES = 8
MOST_KINDS = 4096  # of places, and of shapes
_BYTES = np.dtype(np.int8)  # as DLPack describes a buffer of cuda.core
_UNSIGNED_BYTES = np.dtype(np.uint8)  # as the interface of arrays describes one of RMM


class ArrayView(NamedTuple):
    """An array of a GPU.

    Attributes:
        ordinal: the GPU's.
        address: of the first element.
        dtype, shape: as in NumPy.
        strides: bytes between neighbours along each axis.
        stream: the handle of the stream that the array's library works on; 0 where nothing is to be
            waited for.
        owner: the library's object of that stream, which keeps the handle valid; None where the
            library keeps it itself.
    """

    ordinal: int
    address: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    stream: int
    owner: object


def view_of(ordinal: int, export: Exported) -> ArrayView:
    """The view of an array that a protocol describes; nothing but a mark is to be waited for."""
    address = export.low + export.offset
    return ArrayView(ordinal, address, export.dtype, export.shape, export.strides, 0, None)


_view = tuple.__new__  # a third of what the class takes


def by_attributes(cls: type) -> Any:
    """What reads arrays of exactly this type, None if nothing does."""
    package, name = cls.__module__.partition(".")[0], cls.__name__
    if package == "cupy" and cls is getattr(sys.modules.get("cupy"), "ndarray", None):
        return CupyArrays()
    if package == "numba" and name == "DeviceNDArray" and not hasattr(cls, "__dlpack__"):
        return NumbaArrays()
    if cls.__module__.startswith("cuda.core.") and name == "Buffer":
        return CoreBuffers()
    if package == "rmm" and name == "DeviceBuffer" and hasattr(cls, "ptr"):
        return RmmBuffers()
    if package == "jaxlib" and name == "ArrayImpl" and hasattr(cls, "unsafe_buffer_pointer"):
        return JaxArrays()
    return None


class CupyArrays:
    """CuPy, whose arrays have no table yet."""

    may_be_readonly = is_written_once = False

    def __init__(self) -> None:
        self._current: Any = sys.modules["cupy"].cuda.get_current_stream

    def read(self, x: Any) -> ArrayView | None:
        data, dtype = x.data, x.dtype
        if not _is_plain(dtype) or x.ndim > MOST_QUICK_AXES:
            return None
        ordinal = data.device_id
        return ArrayView(ordinal, data.ptr, dtype, x.shape, x.strides, *self.current(ordinal))

    def keep(self, x: Any) -> object:
        return x.data

    def current(self, ordinal: int) -> tuple[int, object]:
        stream = self._current(ordinal)
        return stream.ptr or LEGACY, stream

    def in_core(self) -> tuple[Any, ...]:
        return "cupy", 0, 0, 0, False, False, self._current


class AttributesAlone:
    """A library without a current stream, of whose arrays Python reads the attributes."""

    may_be_readonly = is_written_once = False

    def keep(self, x: Any) -> object:
        return x

    def current(self, ordinal: int) -> tuple[None, None]:
        return None, None

    def in_core(self) -> tuple[Any, ...]:
        return ("view",)


class NumbaArrays(AttributesAlone):
    """Numba, whose arrays name their stream, or none: then their work is on Numba's default one."""

    def __init__(self) -> None:
        from numba.core import config

        self._config: Any = config

    def read(self, x: Any) -> ArrayView | None:
        dtype, data, shape, stream = x.dtype, x.gpu_data, x.shape, x.stream
        address = data.device_ctypes_pointer.value
        if not address or not _is_plain(dtype) or len(shape) > MOST_QUICK_AXES:
            return None
        handle, owner = (0, None) if type(stream) is int else (int(stream), stream)
        handle = handle or _default_stream(self._config)
        return _view(
            ArrayView, (data.context.device.id, address, dtype, shape, x.strides, handle, owner)
        )

    def keep(self, x: Any) -> object:
        return x.gpu_data


class CoreBuffers(AttributesAlone):
    """cuda.core, whose buffers are bytes and name no stream: their user keeps the order."""

    def read(self, x: Any) -> ArrayView | None:
        try:
            if not x.is_device_accessible or x.is_host_accessible:
                return None
            return _view(ArrayView, (x.device_id, int(x.handle), _BYTES, (x.size,), (1,), 0, None))
        except (RuntimeError, TypeError, ValueError):
            return None  # it is closed


class RmmBuffers(AttributesAlone):
    """RMM, whose buffers are bytes, and name no stream: their user keeps the order. The driver is
    asked for their GPU.
    """

    def __init__(self) -> None:
        from numbasync.backend.cuda.pointers import ordinal_at

        self._ordinal_at = ordinal_at

    def read(self, x: Any) -> ArrayView | None:
        address = x.ptr
        ordinal = self._ordinal_at(address) if address else None
        if ordinal is None:
            return None  # the protocol says why
        return _view(ArrayView, (ordinal, address, _UNSIGNED_BYTES, (x.size,), (1,), 0, None))


class JaxArrays(AttributesAlone):
    """JAX, which writes an array once, and has no current stream: an array that is computed is not
    waited for, and any other one is left to the protocol.
    """

    is_written_once = True

    def __init__(self) -> None:
        self._ordinals = Memo[Any, int](MOST_KINDS)  # by sharding
        self._strides = Memo[tuple[Any, tuple[int, ...]], tuple[int, ...]](MOST_KINDS)

    def read(self, x: Any) -> ArrayView | None:
        try:
            if x.is_deleted() or not x.is_ready():  # asked for the second, a deleted array crashes
                return None
            sharding, dtype, shape = x.sharding, x.dtype, x.shape
            address = x.unsafe_buffer_pointer()
            ordinal, strides = self._ordinals.get(sharding), self._strides.get((dtype, shape))
            if ordinal is None:
                ordinal = self._ordinals.setdefault(sharding, _gpu_of(x))
            if strides is None:
                strides = layout.contiguous_strides(shape, dtype.itemsize)
                self._strides[dtype, shape] = strides
            if (
                ordinal < 0
                or not (_is_plain(dtype) or dtypes.is_extension(dtype))
                or (len(shape) > 1 and not _is_row_major(x))
                or len(shape) > MOST_QUICK_AXES
            ):
                return None
            return _view(ArrayView, (ordinal, address, dtype, shape, strides, 0, None))
        except (AttributeError, RuntimeError, ValueError, NumbasyncError):
            return None  # the protocol says why

    def keep(self, x: Any) -> object:
        # The array itself would not do: its library may delete the memory, or give it away.
        return array_protocols.capsule(x)


def _gpu_of(x: Any) -> int:
    """The GPU that an array is on, by its ordinal; -1: it is on none, or not on it alone."""
    place = array_protocols.place(x)
    return place[1] if place is not None and place[0] in array_protocols.GPU else -1


def _is_row_major(x: Any) -> bool:
    order = x.format.layout
    return order is not None and order.major_to_minor == tuple(range(x.ndim)) and not order.tiling


def default_stream_of_numba() -> int:
    from numba.core import config

    return _default_stream(config)


def _default_stream(config: Any) -> int:
    return PER_THREAD if config.CUDA_PER_THREAD_DEFAULT_STREAM else LEGACY


def _is_plain(dtype: Any) -> bool:
    return type(dtype) in _DTYPES and dtype.isnative


_DTYPES = frozenset(type(np.dtype(char)) for char in dtypes.CHARS)
