"""Device arrays of `numba.cuda` that lie in the memory of the host, and tensors in that memory.

The arrays are numba.cuda's own, with its views and its errors. Kernels take tensors.
Making a tensor takes longer than a launch, so tensors are kept by what says all of them: address,
shape, strides and dtype. They do not keep the memory: whoever calls a kernel has the array until
the kernel has ended. So they are in no map of memory, either, and for memory that other libraries
know, the usual tensors are made.
"""

# Pyright reads the numba.cuda that is part of Numba.
# pyright: reportPrivateImportUsage=false, reportOptionalCall=false

from __future__ import annotations

import ctypes
import functools
from dataclasses import replace
from typing import Any

import numpy as np
from numba.cuda import api
from numba.cuda.cudadrv import devicearray, driver
from numba.cuda.kernels import transpose

from numbasync.arguments import shown, with_type
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

# As they are on a GPU.
_told_of_a_gpu = devicearray.DeviceNDArrayBase.__cuda_array_interface__.fget
_of_a_gpu = api.from_cuda_array_interface

_MOST_PLACES = 4096
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


class Place:
    """The memory of an array as a tensor, and when it was last seen that no other library knows
    that memory.
    """

    __slots__ = ("additions", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.additions = tensor, -1  # of the address map

    def tensor_of(self, array: np.ndarray[Any, Any]) -> Tensor:
        """A tensor for one launch; of memory that other libraries know, the one that they know."""
        additions = address_map.additions
        if self.additions != additions:
            memory = self.tensor.storage.memory
            if address_map.is_shared(memory.address, memory.address + memory.nbytes):
                return as_tensor(array, cpu())
            self.additions = additions
        return self.tensor


_places = Memo[tuple[Any, ...], Place](_MOST_PLACES)


def place_of(array: np.ndarray[Any, Any]) -> Place:
    """The place of an array in memory."""
    key = address_of(array), array.shape, array.strides, array.dtype
    place = _places.get(key)
    if place is None:
        place = _places[key] = Place(_unkept(array))
    return place


def tensor_of(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor in the memory of an array, for one launch: the caller keeps the array meanwhile."""
    return place_of(array).tensor_of(array)


def _unkept(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor in the memory of an array, which it does not keep."""
    device, dtype = cpu(), array.dtype
    if dtype.kind in "SU":  # a tensor has text in records only
        array = array.view([("text", dtype)])
    is_of_times = dtype.kind in "mM"  # which kernels see as times here
    memory: Any = device.backend.foreign(array if is_of_times else plain(array))
    export = memory.export = replace(memory.export, keep=None)
    memory.bytes = bytes_of(export)
    storage = Storage(address_map.owner_of(device.backend), memory)
    at = Layout(export.offset, export.shape, export.strides)
    return Tensor(device, storage, at, dtype if dtype.kind in "SU" else export.dtype)


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


class _Described:
    """Memory of the host as NumPy asks for it, and the object that keeps it."""

    def __init__(self, interface: dict[str, Any], kept: object) -> None:
        self.__array_interface__, self.kept = interface, kept


def elements(array: Any) -> np.ndarray[Any, Any]:
    """The elements of a device array where they are, as an array of NumPy."""
    if array.size == 0:
        return np.empty(array.shape, array.dtype)
    told = {
        "version": 3, "shape": tuple(array.shape), "strides": tuple(array.strides),
        "data": (array.device_ctypes_pointer.value, False), "typestr": f"|V{array.dtype.itemsize}",
    }  # fmt: skip
    return np.asarray(_Described(told, array.gpu_data)).view(array.dtype)


def as_cuda_array(obj: Any, sync: bool = True) -> Any:
    """A device array in the memory of an object: of a device array, a NumPy array, or an array of
    another library in the host's memory, such as a CPU tensor of PyTorch.
    """
    described = getattr(obj, "__cuda_array_interface__", None)
    if described is not None:
        return from_cuda_array_interface(described, obj, sync)
    found = obj if isinstance(obj, np.ndarray) else None
    if found is None and hasattr(obj, "__array_interface__"):
        found = np.asarray(obj)
    if found is None and hasattr(obj, "__dlpack__"):
        found = np.from_dlpack(obj)
    if found is None or found.dtype.hasobject:
        raise OperationError(
            f"{with_type(obj)} is no array of numbers in the host's memory, and programs run on "
            "the CPU device here. Give it as a NumPy array, or copy it: cuda.to_device(a)."
        )
    pointer = driver.binding.CUdeviceptr(address_of(found))
    memory = driver.MemoryPointer(api.current_context(), pointer, found.nbytes, owner=found)
    return devicearray.from_array_like(found, gpu_data=memory)


def from_cuda_array_interface(desc: Any, owner: object = None, sync: bool = True) -> Any:
    """A device array in the memory that `desc` describes, which an array of this device has."""
    if not isinstance(desc, dict):
        raise OperationError(
            f"{with_type(desc)} describes no array. Give what an array has as "
            "__cuda_array_interface__, or the array itself: cuda.as_cuda_array(a)."
        )
    host = desc.get(_HOST)
    if host is None:
        raise OperationError(
            f"{shown(desc)} describes memory of a GPU, and programs run on the CPU device here. "
            "Copy it to the host, and give that: cuda.to_device(a)."
        )
    return _of_a_gpu(desc, (owner, host), sync)


def is_cuda_array(obj: Any) -> bool:
    """Whether the object is an array of the device: not one of NumPy, which has `__dlpack__`,
    too.
    """
    if hasattr(obj, "__cuda_array_interface__"):
        return True
    return hasattr(obj, "__dlpack__") and not isinstance(obj, (np.ndarray, np.generic))


def _interface(array: Any) -> dict[str, Any]:
    """What other libraries ask of an array of a GPU; the memory in it tells that it is not one."""
    return {**_told_of_a_gpu(array), _HOST: array.gpu_data}


def _transposed(a: Any, b: Any = None) -> Any:
    """`array.T`: a copy, as on a GPU, for which no kernel is compiled."""
    if b is None:
        made = np.empty(a.shape[::-1], a.dtype)
        b = devicearray.DeviceNDArray(made.shape, made.strides, a.dtype, a.stream)
    elements(b)[...] = elements(a).T
    return b


class _Assigned:
    """What assigns to a device array, `a[i] = b`, without a kernel."""

    def __init__(self, ndim: int) -> None:
        pass

    def forall(self, n: int, stream: object = 0) -> Any:
        def assign(to: Any, values: Any) -> None:
            elements(to)[...] = elements(values)

        return assign


def replacements() -> list[tuple[Any, str, Any]]:
    """What `numba.cuda`'s arrays have in the place of their own, as (module, name, value)."""
    return [
        (devicearray.DeviceNDArrayBase, "__cuda_array_interface__", property(_interface)),
        (devicearray, "_assign_kernel", _Assigned), (transpose, "transpose", _transposed),
    ]  # fmt: skip
