"""A library that lends its arrays by DLPack's table of C functions, on the null device."""

from __future__ import annotations

import ctypes
import io
from collections import deque
from typing import Any

import numpy as np

from numbasync.backend import array_readers as readers

ORDINAL = 99  # of the null device
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


class State:
    """What the library does, and has done.

    Attributes:
        stream: its current stream, by its handle.
        described, asked: how often it has described an array, and told its current stream.
        kept: the managed tensors that are lent.
        extents: what was described lately.
        refuses: it describes nothing.
    """

    stream = 0
    described = asked = 0
    refuses = False
    kept: dict[int, Any] = {}
    extents: deque[Any] = deque(maxlen=1000)


def _describe(x: Any, out: Any) -> int:
    State.described += 1
    if State.refuses:
        return -1
    array, tensor = x.array, out.contents
    size = array.itemsize
    extents = (ctypes.c_int64 * (2 * array.ndim))(*array.shape, *(s // size for s in array.strides))
    State.extents.append(extents)  # no array's own: tests describe an array while it is described
    tensor.data, tensor.byte_offset = array.ctypes.data - 2 * size, 2 * size
    tensor.device_type, tensor.device_id, tensor.ndim = x.place[0], x.place[1], array.ndim
    tensor.code, tensor.bits, tensor.lanes = _CODES[array.dtype.kind], 8 * size, 1
    axes = ctypes.addressof(extents)
    for name, at in (("shape", axes), ("strides", axes + 8 * array.ndim)):
        setattr(tensor, name, ctypes.cast(at, ctypes.POINTER(ctypes.c_int64)))
    return 0


def _manage(x: Any, out: Any) -> int:
    managed = readers._Managed(1, 3, None, _DELETER, 0)
    State.kept[ctypes.addressof(managed)] = managed, x.array
    out[0] = ctypes.pointer(managed)
    return 0


def _current(device_type: int, ordinal: int, out: Any) -> int:
    assert device_type == 2
    is_ours = ordinal == ORDINAL  # else later tests ask, of a GPU that they use
    State.asked += is_ours
    out[0] = (State.stream or None) if is_ours else None
    return 0


def _current_of_others(device_type: int, ordinal: int, out: Any) -> int:
    out[0] = OtherArray.stream or None
    return 0


def _delete(managed: Any) -> None:
    del State.kept[ctypes.addressof(managed.contents)]


_DELETER = readers._DELETER(_delete)
_FUNCTIONS = readers._DESCRIBE(_describe), readers._MANAGE(_manage), readers._CURRENT(_current)
_ADDRESSES = [ctypes.cast(f, ctypes.c_void_p).value for f in _FUNCTIONS]
_NEWER = readers._Table(1, 3, None, 1, _ADDRESSES[1], 1, _ADDRESSES[0], _ADDRESSES[2])
_CURRENT_OF_OTHERS = readers._CURRENT(_current_of_others)
_OTHERS = readers._Table(
    1, 3, None, 1, _ADDRESSES[1], 1, _ADDRESSES[0],
    ctypes.cast(_CURRENT_OF_OTHERS, ctypes.c_void_p).value,
)  # fmt: skip
_UNKNOWN = readers._Table(2, 0, ctypes.addressof(_NEWER), 0, 0, 0, 0, 0)  # of a later DLPack
_NAME = b"dlpack_exchange_api"
_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))


class Array:
    """An array of the library, with a gradient if a test says so."""

    __dlpack_c_exchange_api__ = _new_capsule(ctypes.addressof(_UNKNOWN), _NAME, None)
    __module__ = "torch"  # whose arrays may all be written
    requires_grad = False

    def __init__(self, array: np.ndarray[Any, Any], place: tuple[int, int] = (2, ORDINAL)) -> None:
        super().__init__()
        self.array, self.place = array, place
        self.negative = self.conjugated = False

    def is_neg(self) -> bool:
        return self.negative

    def is_conj(self) -> bool:
        return self.conjugated

    def __dlpack__(self, **how: Any) -> Any:
        raise BufferError("asked by the protocol")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place


class Part(Array):
    """A class that means the same arrays."""


class OtherArray(Array):
    """An array of another library, with a current stream of its own."""

    __dlpack_c_exchange_api__ = _new_capsule(ctypes.addressof(_OTHERS), _NAME, None)
    __module__ = "torch"
    __dlpack__ = Array.__dlpack__
    stream = 0


class BuiltInArray(Array, io.BytesIO):
    """An array whose class has C functions."""

    __dlpack_c_exchange_api__ = Array.__dlpack_c_exchange_api__
    __module__ = "torch"
    __dlpack__ = Array.__dlpack__
    requires_grad = vars(io.BytesIO)["closed"]
    is_neg = vars(io.BytesIO)["isatty"]  # False


class GradientArray(BuiltInArray):
    """An array that has a gradient once it is closed."""

    is_neg = Array.is_neg


class NegativeArray(BuiltInArray):
    """An array whose class has another C function."""

    is_neg = vars(io.BytesIO)["seekable"]  # True


class Traced(Array):
    """A class whose arrays have no memory of their own."""

    def __dlpack__(self, **how: Any) -> Any:
        raise BufferError("traced")
