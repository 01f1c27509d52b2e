"""Device arrays of `numba.cuda` that lie in the memory of the host.

They are those of Numba's simulator, a NumPy array each. Kernels take tensors in that memory.
Making a tensor takes longer than a launch, so tensors are kept by what says all of them: address,
shape, strides and dtype. They do not keep the memory: whoever calls a kernel has the array until
the kernel has ended. So they are in no map of memory, either, and for memory that other libraries
know, the usual tensors are made.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from dataclasses import replace
from typing import Any

import numpy as np

from numbasync.arguments import shown
from numbasync.backend.array_protocols import bytes_of
from numbasync.device import address_map
from numbasync.device.device import Device, devices
from numbasync.device.storage import Storage
from numbasync.errors import OperationError
from numbasync.layout import Layout, fingerprint
from numbasync.memo import Memo
from numbasync.tensors.host_arrays import plain
from numbasync.tensors.import_array import as_tensor
from numbasync.tensors.tensor import Tensor

devicearray: Any = importlib.import_module("numba.cuda.simulator.cudadrv.devicearray")
Plain: Any = devicearray.FakeCUDAArray


shared = address_map._entries  # empty, if no memory is known to other libraries
_MOST_PLACES = 4096
_places = Memo[tuple[Any, ...], Tensor](_MOST_PLACES)
_HOST = "numbasync.host"  # a key of what arrays tell of themselves
_HEAD = object.__basicsize__  # NumPy's arrays have their address behind it


def _stored_address(array: np.ndarray[Any, Any]) -> int:
    """The address of the first element, as the array has it in its own memory."""
    return ctypes.c_void_p.from_address(id(array) + _HEAD).value or 0


def _told_address(array: np.ndarray[Any, Any]) -> int:
    """The address of the first element, as the array says it: four times slower."""
    address: int = array.__array_interface__["data"][0]
    return address


_sample = np.arange(3)[1:]
address_of = (
    _stored_address if _stored_address(_sample) == _told_address(_sample) else _told_address
)


def tensor_of(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor in the memory of an array, for one launch: the caller keeps the array meanwhile."""
    place = address_of(array), array.shape, array.strides, array.dtype
    tensor = _places.get(place)
    if tensor is None:
        tensor = _places[place] = _unkept(array)
    if shared:
        memory = tensor.storage.memory
        if address_map.is_shared(memory.address, memory.address + memory.nbytes):
            return as_tensor(array, cpu())
    return tensor


def _unkept(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor in the memory of an array, which it does not keep."""
    device = cpu()
    is_of_times = array.dtype.kind in "mM"  # which kernels see as times here
    memory: Any = device.backend.foreign(array if is_of_times else plain(array))
    export = memory.export = replace(memory.export, keep=None)
    memory.bytes = bytes_of(export)
    storage = Storage(address_map.owner_of(device.backend), memory)
    at = Layout(export.offset, export.shape, export.strides)
    return Tensor(device, storage, at, export.dtype)


def tensor_of_scalar(value: np.ndarray[Any, Any], scalar: np.generic) -> Tensor:
    """A tensor of no axes that kernels take as a scalar: a record, which they change, or a time."""
    tensor = _unkept(value)
    key: Any = cpu().backend.scalar_key(scalar)
    tensor._key = key
    tensor._fingerprint = fingerprint((key, "scalar"))
    return tensor


@functools.cache
def cpu() -> Device:
    """The device that programs for `numba.cuda` see."""
    return devices("cpu")[0]


def as_cuda_array(obj: Any, sync: bool = True) -> Any:
    """A device array in the memory of an object: of a device array, a NumPy array, or an array of
    another library in the host's memory, such as a CPU tensor of PyTorch.
    """
    if isinstance(obj, Plain):
        return obj
    described = getattr(obj, "__cuda_array_interface__", None)
    if described is not None:
        return from_cuda_array_interface(described, obj)
    found = obj if isinstance(obj, np.ndarray) else None
    if found is None and hasattr(obj, "__array_interface__"):
        found = np.asarray(obj)
    if found is None and hasattr(obj, "__dlpack__"):
        found = np.from_dlpack(obj)
    if found is None:
        raise OperationError(
            f"{type(obj).__name__} is no array of the host's memory, and programs run on the CPU "
            "device here. Give it as a NumPy array, or copy it: cuda.to_device(a)."
        )
    return Plain(found)


class _Described:
    """Memory of the host as NumPy asks for it, and the object that keeps it."""

    def __init__(self, interface: dict[str, Any], *kept: object) -> None:
        self.__array_interface__, self.kept = interface, kept


def from_cuda_array_interface(desc: Any, owner: object = None, sync: bool = True) -> Any:
    """A device array in the memory that `desc` describes, which an array of this device has."""
    host = desc.get(_HOST)
    if host is None:
        raise OperationError(
            f"{shown(desc)} describes memory of a GPU, and programs run on the CPU device here. "
            "Copy it to the host, and give that: cuda.to_device(a)."
        )
    told = {"version": 3}
    told |= {
        key: desc[key] for key in ("shape", "typestr", "data", "strides", "descr") if key in desc
    }
    return Plain(np.asarray(_Described(told, host, owner)))


def _interface(array: Any) -> dict[str, Any]:
    """What other libraries ask of an array of a GPU; the array in it tells that this is not one."""
    inner = array._ary
    return {**inner.__array_interface__, "version": 3, "stream": None, _HOST: inner}


def _host_copy(array: Any, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
    """`numpy.asarray(device_array)`: its elements on the host."""
    return np.array(array._ary, dtype)


def _element(array: Any, item: Any, stream: object = 0) -> Any:
    return array[item]


def _set_element(array: Any, key: Any, value: Any, stream: object = 0) -> None:
    array[key] = value


def _squeezed(array: Any, axis: Any = None, stream: object = 0) -> Any:
    return Plain(array._ary.squeeze(axis))


# What the simulator's arrays do not have, or not as arrays of a device.
METHODS: dict[str, Any] = {
    "__cuda_array_interface__": property(_interface), "__array__": _host_copy,
    "getitem": _element, "setitem": _set_element, "squeeze": _squeezed,
    "as_cuda_arg": lambda array: Memory(array._ary),
    "gpu_data": property(lambda array: Memory(array._ary)),
}  # fmt: skip


def is_cuda_array(obj: Any) -> bool:
    """Whether the object is an array of the device: not one of NumPy, which has `__dlpack__`,
    too.
    """
    if isinstance(obj, (np.ndarray, np.generic)):
        return False
    return hasattr(obj, "__cuda_array_interface__") or hasattr(obj, "__dlpack__")


class Memory:
    """What `array.gpu_data` is: memory, for further arrays in it."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.size = array.nbytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Memory) and self._place == other._place

    def __hash__(self) -> int:
        return hash(self._place)

    @property
    def _place(self) -> tuple[int, int]:
        return self.array.ctypes.data, self.size


def device_array_in(
    shape: Any, strides: Any, dtype: Any, stream: object = 0, gpu_data: Memory | None = None
) -> Any:
    """`numba.cuda`'s `DeviceNDArray(shape, strides, dtype)`: new, or in memory of another one."""
    shape, strides = ((n,) if isinstance(n, int) else n for n in (shape, strides))
    if gpu_data is None:
        return Plain(np.ndarray(shape, dtype, strides=strides))
    first = gpu_data.array
    view = np.lib.stride_tricks.as_strided(first.view(dtype), shape, strides)
    return Plain(view)


def to_device(obj: Any, stream: object = 0, copy: bool = True, to: Any = None) -> Any:
    """`cuda.to_device`: a copy in a new device array, or in `to`; of a record, a record."""
    made = devicearray.to_device(obj, stream, copy, to)
    return made[()] if isinstance(obj, np.void) and to is None else made
