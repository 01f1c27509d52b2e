"""Libraries whose arrays are read by attributes, on the null device: their classes' names alone say
whose they are.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba.cuda.cudadrv.devicearray import DeviceNDArray

from tests.native.lending_library import ORDINAL


class Buffer:
    """A buffer of cuda.core."""

    __module__ = "cuda.core._memory._buffer"
    is_device_accessible, is_host_accessible, device_id = True, False, ORDINAL

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    @property
    def handle(self) -> int:
        if self.array.size == 0:
            raise ValueError("it is closed")
        return self.array.ctypes.data

    @property
    def size(self) -> int:
        return self.array.nbytes

    def __dlpack__(self, **how: Any) -> Any:
        raise BufferError("asked by the protocol")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, ORDINAL


class DeviceBuffer:
    """A buffer of RMM."""

    __module__ = "rmm.pylibrmm.device_buffer"

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    @property
    def ptr(self) -> int:
        return self.array.ctypes.data if self.array.size else 0

    @property
    def size(self) -> int:
        return self.array.nbytes

    def __dlpack__(self, **how: Any) -> Any:
        raise BufferError("asked by the protocol")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, ORDINAL


class Sharding:
    """The placement of an array of JAX; equal to others of its place."""

    def __init__(self, place: tuple[int, int]) -> None:
        self.place = place

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sharding) and other.place == self.place

    def __hash__(self) -> int:
        return hash(self.place)


class Lent:
    """What keeps the memory of an array of JAX."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array


class ArrayImpl:
    """An array of JAX."""

    __module__ = "jaxlib._jax"

    def __init__(self, array: np.ndarray[Any, Any], place: tuple[int, int] = (2, ORDINAL)) -> None:
        self.array, self.shape, self.dtype, self.ndim = array, array.shape, array.dtype, array.ndim
        self.sharding = Sharding(place)
        self.order: Any = tuple(range(array.ndim))
        self.ready, self.deleted = True, False

    @property
    def format(self) -> Any:
        order = self.order and SimpleNamespace(major_to_minor=self.order, tiling=())
        return SimpleNamespace(layout=order)

    def is_deleted(self) -> bool:
        return self.deleted

    def is_ready(self) -> bool:
        assert not self.deleted, "the library crashes"
        return self.ready

    def unsafe_buffer_pointer(self) -> int:
        return self.array.ctypes.data

    def __dlpack__(self, **how: Any) -> Any:
        if how.get("stream") is not None:
            raise BufferError("asked by the protocol")
        return Lent(self.array)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.sharding.place


class Pointer:
    """Memory of Numba's."""

    context = SimpleNamespace(device=SimpleNamespace(id=ORDINAL))

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.device_ctypes_pointer = ctypes.c_size_t(array.ctypes.data)


class NumbaStream:
    """A stream of Numba's."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __int__(self) -> int:
        return self.number


def of_numba(array: np.ndarray[Any, Any], stream: Any = 0) -> Any:
    """An array of Numba's, in the memory of another one."""
    return DeviceNDArray(array.shape, array.strides, array.dtype, stream, Pointer(array))


class Memory:
    """The memory of an array of CuPy."""

    device_id = ORDINAL

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    @property
    def ptr(self) -> int:
        return self.array.ctypes.data


class OtherMemory(Memory):
    """Memory that says the same in another way."""

    __slots__ = ("ptr",)

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        super().__init__(array)
        self.ptr = array.ctypes.data  # type: ignore[misc]  # no property here


class ndarray(Exception):  # as CuPy calls it
    """An array of CuPy. Its shape is what a C function gives: the arguments of an exception."""

    __module__ = "cupy"
    shape: Any = vars(BaseException)["args"]

    def __init__(self, array: np.ndarray[Any, Any], memory: type[Memory] = Memory) -> None:
        super().__init__(*array.shape)
        self.array, self.data = array, memory(array)

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    @property
    def strides(self) -> Any:
        return self.array.strides

    @property
    def ndim(self) -> int:
        return self.array.ndim

    def __dlpack__(self, **how: Any) -> Any:
        raise BufferError("asked by the protocol")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, ORDINAL


class _Getter(ctypes.Structure):
    """`PyGetSetDef`."""

    _fields_ = [
        ("name", ctypes.c_char_p), ("get", ctypes.c_void_p), ("set", ctypes.c_void_p),
        ("doc", ctypes.c_char_p), ("closure", ctypes.c_void_p),
    ]  # fmt: skip


class _Slot(ctypes.Structure):
    """`PyType_Slot`."""

    _fields_ = [("slot", ctypes.c_int), ("pfunc", ctypes.c_void_p)]


class _Spec(ctypes.Structure):
    """`PyType_Spec`."""

    _fields_ = [
        ("name", ctypes.c_char_p), ("basicsize", ctypes.c_int), ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_uint), ("slots", ctypes.POINTER(_Slot)),
    ]  # fmt: skip


_GET = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
_GETSET, _BASETYPE = 73, 1 << 10  # Py_tp_getset, Py_TPFLAGS_BASETYPE


def _with_c_attributes(*names: str) -> tuple[type, list[object]]:
    """A class whose attributes are C functions, which call `said(name)` of an instance; and what
    must be kept as long as the class.
    """
    gets = [_GET(lambda x, _, name=name: x.said(name)) for name in names]
    getters = (_Getter * (len(names) + 1))()
    for getter, name, get in zip(getters, names, gets, strict=False):
        getter.name, getter.get = name.encode(), ctypes.cast(get, ctypes.c_void_p)
    slots = (_Slot * 2)((_GETSET, ctypes.addressof(getters)))
    make = ctypes.pythonapi.PyType_FromSpec
    make.restype, make.argtypes = ctypes.py_object, [ctypes.POINTER(_Spec)]
    spec = _Spec(b"cupy._ndarray_base", 0, 0, _BASETYPE, slots)
    return make(spec), [gets, getters, slots, spec]


_base, _kept = _with_c_attributes(
    "data", "dtype", "shape", "strides", "_c_contiguous", "ndim", "size"
)


class CompiledArray(_base):  # type: ignore[misc, valid-type]
    """An array of CuPy whose attributes are C functions, as CuPy's are. `asked` has their names."""

    __module__ = "cupy"

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array, self.asked = array, list[str]()
        self.memory = Memory(array)

    def said(self, name: str) -> Any:
        self.asked.append(name)
        if name in ("data", "_c_contiguous"):
            return self.memory if name == "data" else self.array.flags.c_contiguous
        return getattr(self.array, name)

    def __dlpack__(self, **how: Any) -> Any:
        raise BufferError("asked by the protocol")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, ORDINAL


class CupyStream:
    """CuPy's current stream, of all threads and devices."""

    ptr = 0


class Cupy:
    """What of CuPy's module is looked at."""

    ndarray = ndarray
    stream = CupyStream()

    class cuda:
        @staticmethod
        def get_current_stream(ordinal: int = -1) -> CupyStream:
            return Cupy.stream
