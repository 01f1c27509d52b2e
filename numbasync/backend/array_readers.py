"""Quick readers of other libraries' arrays: where one lies, and on which stream its library works.

The protocols of arrays cost microseconds a call: they make capsules, dictionaries, streams and
events in Python. A reader knows one type of arrays, and asks for no more than a launch needs: by
DLPack's table of C functions where the type has one (PyTorch's tensors), else by attributes (see
`array_attributes`). What a reader does not read is left to the protocols: arrays of the host, with
a gradient, with a pending conjugation, of types that kernels have not.

The table's layout is that of `DLPackExchangeAPI` in dlpack.h, version 1.3.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Protocol

from numbasync.backend import array_protocols
from numbasync.backend.array_attributes import (
    LEGACY,
    MOST_QUICK_AXES,
    ArrayView,
    by_attributes,
)
from numbasync.errors import DTypeError, OperationError
from numbasync.memo import Memo
from numbasync.native import core, known

MOST_TYPES = 256
TABLE = "__dlpack_c_exchange_api__"
_TABLE_NAME = b"dlpack_exchange_api"
_GPU = 2  # DLPack's type of CUDA devices
_COMPLEX = 5  # DLPack's kind of complex numbers


class Library(Protocol):
    """What a reader asks of the library of its type.

    Attributes:
        may_be_readonly: it does not tell whether an array may be written.
        is_written_once: once an array is computed, the library does not write it again.
    """

    may_be_readonly: bool
    is_written_once: bool

    def read(self, x: Any) -> ArrayView | None: ...

    def keep(self, x: Any) -> object:
        """An object that keeps the array's memory, whatever its library does with the array."""
        ...

    def current(self, ordinal: int) -> tuple[int | None, object]:
        """The handle of the library's current stream on this thread, None where each array names
        its own; and the library's object of it, None where the library keeps the stream itself.
        """
        ...

    def in_core(self) -> tuple[Any, ...]:
        """What the core needs, to ask the library itself."""
        ...


@known
class Reader:
    """The reader of one type of arrays.

    Attributes:
        library: what it asks.
        may_be_readonly: it does not tell whether an array may be written.
        core: the core's reader, where there is a core.
    """

    __slots__ = ("core", "library", "may_be_readonly")

    def __init__(self, library: Library) -> None:
        self.library = library
        self.may_be_readonly = library.may_be_readonly
        self.core: Any = None if core is None else core.ArrayReader(self, *library.in_core())

    def read(self, x: Any) -> ArrayView | None:
        """The array, if it is one of a GPU that a kernel could take as it is; else None."""
        return self.library.read(x)

    def current_stream(self, ordinal: int) -> int | None:
        """The handle of the library's current stream; None where each array names its own."""
        return self.library.current(ordinal)[0]


_readers = Memo[type, Reader | None](MOST_TYPES)


def reader_of(cls: type) -> Reader | None:
    """The reader of arrays of exactly this type, None if there is none."""
    try:
        return _readers[cls]
    except KeyError:
        library = _library_of(cls)
        reader = None if library is None else Reader(library)
        return _readers.setdefault(cls, reader)


def know_borrowers() -> None:
    """Make readers of the libraries that are imported, of which one may borrow memory of ours."""
    for package, name in (("torch", "Tensor"), ("cupy", "ndarray")):
        cls = getattr(sys.modules.get(package), name, None)
        if isinstance(cls, type):
            reader_of(cls)


def current_streams(ordinal: int) -> set[int]:
    """The handles of the current streams, on this thread, of all libraries that have a reader."""
    readers = [reader for reader in list(_readers.values()) if reader is not None]
    return {reader.current_stream(ordinal) or LEGACY for reader in readers} - {LEGACY}


def _library_of(cls: type) -> Library | None:
    table = _table_of(cls)
    if table is not None:
        return ExchangeTable(cls, table)
    library: Library | None = by_attributes(cls)
    return library


# --- DLPack's table of C functions -----------------------------------------------------------


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class _Table(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("older", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p), ("managed_from_object", ctypes.c_void_p),
        ("object_from_managed", ctypes.c_void_p), ("tensor_from_object", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    ]  # fmt: skip


class _Managed(ctypes.Structure):
    """The head of a `DLManagedTensorVersioned`."""


_DELETER = ctypes.PYFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [
    ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
    ("deleter", _DELETER), ("flags", ctypes.c_uint64),
]  # fmt: skip
_DESCRIBE = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_DLTensor))
_MANAGE = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.POINTER(_Managed))
)
_CURRENT = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)


def _table_of(cls: type) -> int | None:
    """The address of the table of a type, if the type means the same arrays as the class that has
    the table: a subclass may be without memory of its own, such as those of PyTorch's tracing.
    """
    owner: Any = next((c for c in cls.__mro__ if TABLE in vars(c)), None)
    if owner is None or any(
        getattr(cls, name, None) is not getattr(owner, name, None)
        for name in ("__dlpack__", "__torch_dispatch__")
    ):
        return None
    address = array_protocols.pointer_in(vars(owner)[TABLE], _TABLE_NAME)
    while address is not None:
        table = _Table.from_address(address)
        if table.major == array_protocols.VERSION[0]:
            has_all = (
                table.managed_from_object and table.tensor_from_object and table.current_stream
            )
            return address if has_all else None
        address = table.older
    return None


class _Kept:
    """A managed tensor, which its library keeps until this object ends."""

    def __init__(self, managed: Any) -> None:
        self._managed = managed

    def __del__(self) -> None:
        managed = getattr(self, "_managed", None)  # None: half constructed
        if managed is not None and managed.contents.deleter:
            managed.contents.deleter(managed)


class ExchangeTable:
    """A library whose arrays are read by DLPack's table."""

    is_written_once = False

    def __init__(self, cls: type, address: int) -> None:
        table = _Table.from_address(address)
        self._table, self._cls = table, cls
        self._describe = _DESCRIBE(table.tensor_from_object)
        self._manage = _MANAGE(table.managed_from_object)
        self._current_stream = _CURRENT(table.current_stream)
        # What PyTorch's arrays may have beyond elements in memory.
        self._has_gradients = hasattr(cls, "requires_grad")
        self._has_signs = hasattr(cls, "is_neg") and hasattr(cls, "is_conj")
        # The table's description has no flags. PyTorch's tensors may all be written.
        self.may_be_readonly = cls.__module__.partition(".")[0] != "torch"

    def read(self, x: Any) -> ArrayView | None:
        if self._has_gradients and x.requires_grad is not False:
            return None
        tensor = _DLTensor()
        try:
            if self._describe(x, tensor):
                return None
        except Exception:  # the protocol says why the library does not lend it
            return None
        ndim = tensor.ndim
        if (
            tensor.device_type not in array_protocols.GPU
            or not 0 <= ndim <= MOST_QUICK_AXES
            or (ndim and not (tensor.shape and tensor.strides))
        ):
            return None
        if self._has_signs and (x.is_neg() or (tensor.code == _COMPLEX and x.is_conj())):
            return None
        try:
            dtype = array_protocols.dtype_of(x, tensor.code, tensor.bits, tensor.lanes)
        except DTypeError:
            return None
        shape, strides = (tuple(at[:ndim]) for at in (tensor.shape, tensor.strides))
        stream, _ = self.current(tensor.device_id)
        return ArrayView(
            tensor.device_id, (tensor.data or 0) + tensor.byte_offset, dtype, shape,
            tuple(n * dtype.itemsize for n in strides), stream, None,
        )  # fmt: skip

    def keep(self, x: Any) -> object:
        managed = ctypes.POINTER(_Managed)()
        if self._manage(x, managed):
            raise BufferError(f"{array_protocols.name_of(x)} does not lend its memory")
        return _Kept(managed)

    def current(self, ordinal: int) -> tuple[int, None]:
        stream = ctypes.c_void_p()
        if self._current_stream(_GPU, ordinal, stream):
            raise OperationError(
                f"a library does not say what its current stream on cuda:{ordinal} is"
            )
        return stream.value or LEGACY, None

    def in_core(self) -> tuple[Any, ...]:
        table = self._table
        return (
            "table", table.tensor_from_object, table.managed_from_object, table.current_stream,
            self._has_gradients, self._has_signs, None, self._cls,
        )  # fmt: skip
