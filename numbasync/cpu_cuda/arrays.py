"""Device arrays of `numba.cuda` that lie in the memory of the host.

They are those of Numba's simulator, a NumPy array each, and have a tensor besides: kernels take
that.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np

from numbasync.device.device import Device, devices
from numbasync.errors import OperationError
from numbasync.tensors.import_array import as_tensor
from numbasync.tensors.tensor import Tensor

devicearray: Any = importlib.import_module("numba.cuda.simulator.cudadrv.devicearray")
Plain: Any = devicearray.FakeCUDAArray


def tensor_of(array: Any) -> Tensor:
    """The tensor in the memory of an array, which kernels take. A device array keeps it."""
    if not isinstance(array, Plain):
        return as_tensor(array, cpu())
    kept: Tensor | None = array.__dict__.get("_tensor")
    if kept is None:
        kept = array.__dict__["_tensor"] = as_tensor(array._ary, cpu())
    return kept


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


def is_cuda_array(obj: Any) -> bool:
    """Whether the object is an array of the device: not one of NumPy, which has `__dlpack__`,
    too.
    """
    is_host = isinstance(obj, (np.ndarray, np.generic))
    return isinstance(obj, Plain) or (hasattr(obj, "__dlpack__") and not is_host)


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
    if gpu_data is None:
        return Plain(np.ndarray(shape, dtype, strides=strides))
    first = gpu_data.array
    view = np.lib.stride_tricks.as_strided(first.view(dtype), shape, strides)
    return Plain(view)
