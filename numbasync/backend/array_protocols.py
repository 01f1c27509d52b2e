"""Exchange of arrays between libraries: protocols of a device, and readers of foreign arrays.

This module reads DLPack capsules and array interfaces, for every device. A capsule is never
consumed: its producer keeps the memory while the capsule is held, and reclaims the memory when
the capsule is dropped. `np.from_dlpack` would treat every array of an older producer as
read-only. cuda.core reads PyTorch's tensors without asking PyTorch, even those that PyTorch
refuses to export: with a gradient, or with a pending conjugation.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from numbasync import dtypes, layout
from numbasync.errors import DTypeError, NumbasyncError, OperationError, ShapeError

if TYPE_CHECKING:
    from numbasync.backend.pools import Memory

# DLPack's device types.
HOST = frozenset({1, 3})  # pageable, page-locked
GPU = frozenset({2, 13})  # CUDA's, and CUDA's managed
UNKNOWN = -1  # __cuda_array_interface__ does not name the GPU

VERSION = (1, 0)
READ_ONLY, IS_COPIED = 1, 2
MOST_AXES = 64  # as many as NumPy has

_TENSOR = struct.Struct("@PiiiBBHPPQ")
_VERSIONED = struct.Struct("@IIPPQ")  # the header before the tensor in a versioned capsule
_KIND_AT = struct.calcsize("@Piii")  # where a tensor says the kind of its elements

# Separate prototypes, since those of `ctypes.pythonapi` are shared by the whole process.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@dataclass(frozen=True, slots=True)
class Exported:
    """An array as its library describes it.

    Attributes:
        low, nbytes: the address of the array's lowest byte, and the bytes up to its highest.
        offset: bytes from `low` to the first element.
        shape: as in NumPy.
        strides: bytes between neighbours along each axis; may be negative.
        dtype: a dtype that device memory can hold.
        readonly: the library forbids writing.
        keep: an object that keeps the memory alive while it is held.
    """

    low: int
    nbytes: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    readonly: bool
    keep: object


class Foreign(Protocol):
    """An array of another library in a device's memory."""

    @property
    def export(self) -> Exported:
        """The array's description, with the object that keeps its memory alive."""
        ...

    @property
    def memory(self) -> Memory:
        """The array's memory, for `Device.array`; keeps the memory alive."""
        ...

    @property
    def is_nonblocking(self) -> bool:
        """Whether `order` calls nothing of the library that may wait: it may be called under a
        device's `submit_lock`.
        """
        ...

    def order(self, stream: Any) -> None:
        """Order work enqueued on `stream` from now on after the library's work: the work that it
        had enqueued when the array was imported, and the present work of its current stream.
        """
        ...


class Export(Protocol):
    """An array of a device as other libraries import it. `interface` and `dlpack` keep its memory.

    Parameter `after`: streams of the device whose work precedes the consumer's. Parameter
    `source`: the imported array, if the memory belongs to another library.

    Attributes:
        protocols: names of the attributes that a tensor offers through the export.
        waits: `dlpack` blocks the thread until the work of the streams `after` is done.
    """

    @property
    def protocols(self) -> frozenset[str]: ...

    @property
    def waits(self) -> bool: ...

    def interface(self, after: Sequence[Any], source: Any) -> dict[str, Any]:
        """`__cuda_array_interface__`, version 3."""
        ...

    def dlpack_device(self) -> tuple[int, int]: ...

    def dlpack(
        self,
        after: Sequence[Any],
        source: Any,
        stream: int | None,
        max_version: tuple[int, int] | None,
        dl_device: tuple[int, int] | None,
        copy: bool | None,
    ) -> object:
        """A capsule. Work enqueued later on `stream`, a native handle, starts after the work of
        `after` and `source`. For host memory, without streams, that work is done on return.

        Raises:
            BufferError: the consumer asks for anything but this memory, unchanged.
        """
        ...


def place(obj: Any) -> tuple[int, int] | None:
    """DLPack's device type and device number of the memory that `obj` exports; None if `obj`
    exports no memory.
    """
    if isinstance(obj, type):
        return None
    if hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
        try:
            device_type, number = obj.__dlpack_device__()
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise _refused(obj, error) from error
        return int(device_type), int(number)
    return (2, UNKNOWN) if hasattr(obj, "__cuda_array_interface__") else None


def where(at: tuple[int, int]) -> str:
    """The text for a place in messages."""
    device_type, number = at
    if device_type in HOST:
        return "in host memory"
    if device_type in GPU:
        return "on a GPU" if number == UNKNOWN else f"on cuda:{number}"
    return f"on device {number} of DLPack's kind {device_type}"


def is_foreign(obj: object) -> bool:
    """Whether `obj` is of a library, other than NumPy, that exports its arrays. Only the type of
    `obj` is examined.
    """
    cls = type(obj)
    lends = hasattr(cls, "__dlpack__") or hasattr(cls, "__cuda_array_interface__")
    return lends and not isinstance(obj, np.ndarray)


def name_of(obj: object) -> str:
    """The type name of another library's array. Never its `repr`, which may wait for a GPU."""
    cls = type(obj)
    library = cls.__module__.partition(".")[0]
    return cls.__qualname__ if library in ("builtins", "__main__") else f"{library}.{cls.__name__}"


# --- DLPack --------------------------------------------------------------------------


def capsule(obj: Any, **how: Any) -> Any:
    """A new capsule of `obj`. With `stream=handle`, its library orders that stream behind its own.

    Raises:
        OperationError: the library refuses to export the array.
    """
    try:
        try:
            return obj.__dlpack__(max_version=VERSION, **how)
        except TypeError as error:
            if type(error) is not TypeError:  # a library's subclass, such as Arrow's for nulls
                raise
            # The library implements DLPack as it was before versions.
            return obj.__dlpack__(**how)
    except NumbasyncError:
        raise
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise _refused(obj, error) from error


def _refused(obj: object, error: Exception) -> OperationError:
    detach = ""
    if getattr(obj, "requires_grad", False) is True:
        detach = "\nIt requires a gradient, of which a kernel knows nothing: detach() it first."
    return OperationError(f"{name_of(obj)} does not lend its memory: {error}{detach}")


def read_dlpack(obj: object, **how: Any) -> Exported:
    """The array that `obj` exports by DLPack; `how` as for `capsule`.

    Raises:
        OperationError: the library refuses to export the array, or exports a copy.
        DTypeError, ShapeError: no tensor can have such elements, or such a layout.
    """
    if getattr(obj, "is_neg", bool)():  # PyTorch's, which lends the elements unchanged
        raise OperationError(f"{name_of(obj)} has its negative bit set: pass x.resolve_neg().")
    dlpack_capsule = capsule(obj, **how)
    address, flags = _tensor_in(obj, dlpack_capsule)
    if flags & IS_COPIED:
        raise OperationError(
            f"{name_of(obj)} lends a copy of its elements, not its memory; make the copy yourself."
        )
    data, _, _, ndim, code, bits, lanes, extents, steps, offset = _TENSOR.unpack(
        ctypes.string_at(address, _TENSOR.size)
    )
    if not 0 <= ndim <= MOST_AXES or (ndim and not extents):
        raise ShapeError(f"{name_of(obj)} lends an array of {ndim} axes without their extents.")
    shape = _integers(extents, ndim)
    dtype = dtype_of(obj, code, bits, lanes)
    strides = None
    if steps:
        strides = tuple(n * dtype.itemsize for n in _integers(steps, ndim))
    return exported(
        obj, (data or 0) + offset, shape, strides, dtype, bool(flags & READ_ONLY), dlpack_capsule
    )


def _tensor_in(obj: object, dlpack_capsule: object) -> tuple[int, int]:
    """The address of a capsule's tensor, and the capsule's flags."""
    if _is_valid(dlpack_capsule, b"dltensor_versioned"):
        address = _pointer(dlpack_capsule, b"dltensor_versioned")
        major, minor, _, _, flags = _VERSIONED.unpack(ctypes.string_at(address, _VERSIONED.size))
        if major != VERSION[0]:
            raise OperationError(
                f"{name_of(obj)} speaks DLPack {major}.{minor}, of which nothing but the number "
                f"can be read; {VERSION[0]}.x is known here."
            )
        return address + _VERSIONED.size, flags
    if _is_valid(dlpack_capsule, b"dltensor"):
        return _pointer(dlpack_capsule, b"dltensor"), 0
    raise OperationError(f"__dlpack__ of {name_of(obj)} gave no unused DLPack capsule.")


def pointer_in(capsule_of_name: object, name: bytes) -> int | None:
    """The address in a capsule of that name; None if it is no such capsule."""
    if not _is_valid(capsule_of_name, name):
        return None
    address: int = _pointer(capsule_of_name, name)
    return address


def retype(capsule_of_bits: object, dtype: np.dtype[Any]) -> object:
    """A new capsule of `dtypes.bits_of(dtype)`, changed, if that is another type, to say that these
    are the bits of `dtype`, which the libraries that make capsules for numbasync do not export.
    """
    if dtypes.is_extension(dtype):
        address, _ = _tensor_in(capsule_of_bits, capsule_of_bits)
        ctypes.c_uint8.from_address(address + _KIND_AT).value = dtypes.row_of(dtype).dlpack
    return capsule_of_bits


def _integers(address: int, count: int) -> tuple[int, ...]:
    return tuple((ctypes.c_int64 * count).from_address(address)) if count else ()


def dtype_of(obj: object, code: int, bits: int, lanes: int) -> np.dtype[Any]:
    """The dtype of DLPack's kind `code`.

    Raises:
        DTypeError: there is none.
    """
    found = dtypes.of_dlpack(code, bits) if lanes == 1 else None
    if found is not None:
        return found
    lanes_text = f", {lanes} together" if lanes != 1 else ""
    raise DTypeError(
        f"{name_of(obj)} has elements of {bits} bits of DLPack's kind {code}{lanes_text}, which "
        "numbasync has no type for.\n"
        "Convert it in its own library, to float32 for example, or lend its bits as integers."
    )


# --- array interfaces: __cuda_array_interface__ and NumPy's __array_interface__ ----------


def read_interface(obj: object, interface: Mapping[str, Any]) -> Exported:
    """The array that `obj` describes by `interface`.

    Raises:
        OperationError: the array is masked.
        DTypeError, ShapeError: no tensor can have such elements, or such a layout.
    """
    if interface.get("mask") is not None:
        raise OperationError(f"{name_of(obj)} is masked; a kernel would not see the mask.")
    address, readonly = interface["data"]
    dtype = np.dtype(interface["typestr"])
    own = getattr(obj, "dtype", None)
    if dtype.kind == "V" and isinstance(own, np.dtype) and own.itemsize == dtype.itemsize:
        dtype = own  # a structure, or an extension: the interface gives only its size
    return exported(
        obj, int(address or 0), tuple(interface["shape"]), interface.get("strides"), dtype,
        bool(readonly), obj,
    )  # fmt: skip


# --- both ----------------------------------------------------------------------------


def exported(
    obj: object,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    dtype: np.dtype[Any],
    readonly: bool,
    keep: object,
) -> Exported:
    """An array that `obj` describes, checked; strides of None are those of a contiguous one.

    Raises:
        DTypeError, ShapeError: no tensor can have such elements, or such a layout.
    """
    dtypes.check_dtype(dtype, records=True)
    if strides is None or 0 in shape:
        strides = layout.contiguous_strides(shape, dtype.itemsize)
    size = dtype.itemsize
    if any(n < 0 for n in shape) or math.prod(shape) * size >= 2**63:
        raise ShapeError(
            f"{name_of(obj)} says that its shape is {shape}; extents are 0 or more, and an array "
            "has less than 2^63 bytes."
        )
    if any(n > 1 and stride % size for n, stride in zip(shape, strides, strict=True)):
        raise ShapeError(
            f"{name_of(obj)} has strides of {strides} bytes, no whole numbers of its elements of "
            f"{size}.\nPass a contiguous copy of it."
        )
    low, high = layout.span(shape, strides, size)
    if high > low and not 0 < address + low <= address + high < 2**64:
        raise ShapeError(
            f"{name_of(obj)} says that its {high - low} bytes are at {address + low:#x}, where no "
            "memory is."
        )
    if high > low and address % dtype.alignment:
        raise ShapeError(
            f"{name_of(obj)} begins at {address:#x}, where no {dtype} can lie: a GPU reads them at "
            f"multiples of {dtype.alignment} bytes.\nPass a contiguous copy of it."
        )
    return Exported(address + low, high - low, -low, shape, tuple(strides), dtype, readonly, keep)


class _Described:
    """Host memory in NumPy's array interface. An array made from this object keeps it alive."""

    def __init__(self, interface: dict[str, Any], keep: object) -> None:
        self.__array_interface__ = interface
        self._keep = keep


def kept(array: np.ndarray[Any, Any], keep: object, readonly: bool) -> np.ndarray[Any, Any]:
    """A view of `array` that also keeps `keep` alive; read-only if `readonly`."""
    interface = {**array.__array_interface__, "data": (array.ctypes.data, readonly)}
    return np.asarray(_Described(interface, (array, keep)))


def bytes_of(export: Exported) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The host memory of an array, always writable: callers enforce the right to write."""
    interface = {
        "version": 3, "shape": (export.nbytes,), "typestr": "|u1",
        "data": (export.low, False),
    }  # fmt: skip
    return np.asarray(_Described(interface, export.keep))


def numpy_of(export: Exported) -> np.ndarray[Any, Any]:
    """An array in host memory as a NumPy array, without a copy."""
    array: np.ndarray[Any, Any] = np.ndarray(
        export.shape, export.dtype, bytes_of(export), export.offset, export.strides
    )
    array.flags.writeable = not export.readonly
    return array
