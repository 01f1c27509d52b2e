"""Arrays between libraries: what a device does with them, and what theirs say of themselves.

DLPack capsules and array interfaces are read here, for every device. A capsule is never
consumed: while it is held its producer keeps the memory, and when it is dropped its producer
takes the memory back. `np.from_dlpack` would take every array of an older producer for
read-only; cuda.core reads PyTorch's tensors without asking, also those that it refuses to lend:
with a gradient, or a conjugate that is still to be taken.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from numbasync import layout
from numbasync.errors import DTypeError, NumbasyncError, OperationError, ShapeError

if TYPE_CHECKING:
    from numbasync.backend.pools import Memory

# DLPack's numbers for kinds of memory.
HOST = frozenset({1, 3})  # pageable, page-locked
GPU = frozenset({2, 13})  # CUDA's, and CUDA's managed
UNKNOWN = -1  # __cuda_array_interface__ does not say which GPU it is

VERSION = (1, 0)
READ_ONLY, IS_COPIED = 1, 2

_TENSOR = struct.Struct("@PiiiBBHPPQ")
_VERSIONED = struct.Struct("@IIPPQ")  # what comes before the tensor in a versioned capsule
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}

# Prototypes of their own: those of `ctypes.pythonapi` belong to the whole process.
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
        low, nbytes: the memory from its lowest byte to its highest.
        offset: of its first element in there.
        shape: as in NumPy.
        strides: bytes between neighbours along each axis; may be negative.
        dtype: one that device memory can hold.
        readonly: its library forbids writing.
        keep: keeps the memory, for as long as it is held itself.
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
        """What it is, and what keeps its memory."""
        ...

    @property
    def memory(self) -> Memory:
        """Its memory, for `Device.array`; keeps it."""
        ...

    def order(self, stream: Any) -> None:
        """Start what is enqueued from now on after what its library had enqueued when it was
        found, and after what it holds now on the stream that it calls the current one.
        """
        ...


class Export(Protocol):
    """An array of a device as other libraries may take it. Both keep its memory.

    `after`: streams of the device with work that comes before theirs; `source`: whose array it
    is, if another library's.

    Attributes:
        protocols: the names of the attributes that a tensor has by it.
        waits: `dlpack` blocks the thread until `after` have done what they hold.
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
        """A capsule; what is enqueued on `stream`, a native handle, starts after all that. Without
        streams, for host memory, all that is done when it returns.

        Raises:
            BufferError: the consumer asks for something else than this memory as it is.
        """
        ...


def place(obj: Any) -> tuple[int, int] | None:
    """The kind of memory that `obj` exports and the number of its device, as DLPack counts
    them; None if it exports none.
    """
    if isinstance(obj, type):
        return None
    if hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
        try:
            kind, number = obj.__dlpack_device__()
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise _refused(obj, error) from error
        return int(kind), int(number)
    return (2, UNKNOWN) if hasattr(obj, "__cuda_array_interface__") else None


def where(at: tuple[int, int]) -> str:
    """A place as messages name it."""
    kind, number = at
    if kind in HOST:
        return "in host memory"
    if kind in GPU:
        return "on a GPU" if number == UNKNOWN else f"on cuda:{number}"
    return f"on device {number} of DLPack's kind {kind}"


def is_foreign(obj: object) -> bool:
    """Whether it is of a library that lends its arrays, other than NumPy. Asks its type alone."""
    kind = type(obj)
    lends = hasattr(kind, "__dlpack__") or hasattr(kind, "__cuda_array_interface__")
    return lends and not isinstance(obj, np.ndarray)


def name_of(obj: object) -> str:
    """The type of another library's array. Never its `repr`, which may wait for a GPU."""
    kind = type(obj)
    library = kind.__module__.partition(".")[0]
    return (
        kind.__qualname__ if library in ("builtins", "__main__") else f"{library}.{kind.__name__}"
    )


# --- DLPack --------------------------------------------------------------------------


def capsule(obj: Any, **how: Any) -> Any:
    """A new capsule of `obj`. `stream=handle` has its library put that stream behind its own.

    Raises:
        OperationError: the library does not lend it.
    """
    try:
        try:
            return obj.__dlpack__(max_version=VERSION, **how)
        except TypeError as error:
            if type(error) is not TypeError:  # a library's own, such as Arrow's of nulls
                raise
            # Written before there were versions.
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
        OperationError: the library does not lend it, or gives a copy.
        DTypeError, ShapeError: no tensor can have such elements, or such a layout.
    """
    found = capsule(obj, **how)
    flags = 0
    if _is_valid(found, b"dltensor_versioned"):
        address = _pointer(found, b"dltensor_versioned")
        major, minor, _, _, flags = _VERSIONED.unpack(ctypes.string_at(address, _VERSIONED.size))
        if major != VERSION[0]:
            raise OperationError(
                f"{name_of(obj)} speaks DLPack {major}.{minor}, of which nothing but the number "
                f"can be read; {VERSION[0]}.x is known here."
            )
        address += _VERSIONED.size
    elif _is_valid(found, b"dltensor"):
        address = _pointer(found, b"dltensor")
    else:
        raise OperationError(f"__dlpack__ of {name_of(obj)} gave no unused DLPack capsule.")
    if flags & IS_COPIED:
        raise OperationError(
            f"{name_of(obj)} lends a copy of its elements, not its memory; make the copy yourself."
        )
    data, _, _, ndim, code, bits, lanes, extents, steps, offset = _TENSOR.unpack(
        ctypes.string_at(address, _TENSOR.size)
    )
    shape = _integers(extents, ndim)
    dtype = _dtype(obj, code, bits, lanes)
    strides = None
    if steps:
        strides = tuple(n * dtype.itemsize for n in _integers(steps, ndim))
    return _checked(
        obj, (data or 0) + offset, shape, strides, dtype, bool(flags & READ_ONLY), found
    )


def _integers(address: int, count: int) -> tuple[int, ...]:
    return tuple((ctypes.c_int64 * count).from_address(address)) if count else ()


def _dtype(obj: object, code: int, bits: int, lanes: int) -> np.dtype[Any]:
    try:
        if lanes == 1 and not bits % 8:
            return np.dtype(f"{_KINDS[code]}{bits // 8}")
    except (KeyError, TypeError):
        pass
    what = "bfloat16" if (code, bits) == (4, 16) else f"{bits} bits of DLPack's kind {code}"
    many = f", {lanes} together" if lanes != 1 else ""
    raise DTypeError(
        f"{name_of(obj)} has elements of {what}{many}, which NumPy has no type for.\n"
        "Convert it in its own library, to float32 for example, or lend its bits as integers."
    )


# --- array interfaces: __cuda_array_interface__ and NumPy's __array_interface__ ----------


def read_interface(obj: object, interface: Mapping[str, Any]) -> Exported:
    """The array that `obj` describes by `interface`.

    Raises:
        OperationError: it is a masked array.
        DTypeError, ShapeError: no tensor can have such elements, or such a layout.
    """
    if interface.get("mask") is not None:
        raise OperationError(f"{name_of(obj)} is masked; a kernel would not see the mask.")
    address, readonly = interface["data"]
    dtype = np.dtype(interface["typestr"])
    own = getattr(obj, "dtype", None)
    if dtype.kind == "V" and isinstance(own, np.dtype) and own.itemsize == dtype.itemsize:
        dtype = own  # a structure, of which the interface says the size
    return _checked(
        obj, int(address or 0), tuple(interface["shape"]), interface.get("strides"), dtype,
        bool(readonly), obj,
    )  # fmt: skip


# --- both ----------------------------------------------------------------------------


def _checked(
    obj: object,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    dtype: np.dtype[Any],
    readonly: bool,
    keep: object,
) -> Exported:
    layout.check_dtype(dtype, records=True)
    if strides is None or 0 in shape:
        strides = layout.contiguous_strides(shape, dtype.itemsize)
    size = dtype.itemsize
    if any(n > 1 and stride % size for n, stride in zip(shape, strides, strict=True)):
        raise ShapeError(
            f"{name_of(obj)} has strides of {strides} bytes, no whole numbers of its elements of "
            f"{size}.\nPass a contiguous copy of it."
        )
    low, high = layout.span(shape, strides, size)
    if high > low and address % dtype.alignment:
        raise ShapeError(
            f"{name_of(obj)} begins at {address:#x}, where no {dtype} can lie: a GPU reads them at "
            f"multiples of {dtype.alignment} bytes.\nPass a contiguous copy of it."
        )
    return Exported(address + low, high - low, -low, shape, tuple(strides), dtype, readonly, keep)


class _Described:
    """Host memory as NumPy takes it; the array that is made of it keeps this."""

    def __init__(self, interface: dict[str, Any], keep: object) -> None:
        self.__array_interface__ = interface
        self._keep = keep


def kept(array: np.ndarray[Any, Any], keep: object, readonly: bool) -> np.ndarray[Any, Any]:
    """A view of `array` that holds `keep` too, and that may be for reading only."""
    interface = {**array.__array_interface__, "data": (array.ctypes.data, readonly)}
    return np.asarray(_Described(interface, (array, keep)))


def bytes_of(export: Exported) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The host memory of an array. Writable: who may write is decided elsewhere."""
    interface = {
        "version": 3, "shape": (export.nbytes,), "typestr": "|u1",
        "data": (export.low, False),
    }  # fmt: skip
    return np.asarray(_Described(interface, export.keep))


def numpy_of(export: Exported) -> np.ndarray[Any, Any]:
    """An array in host memory as a NumPy array, without a copy."""
    found: np.ndarray[Any, Any] = np.ndarray(
        export.shape, export.dtype, bytes_of(export), export.offset, export.strides
    )
    found.flags.writeable = not export.readonly
    return found
