"""Arrays of other libraries for tests, on every device: what lends its memory and is no tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

import numbasync as na


class Lent:
    """A NumPy array that shows DLPack and nothing else, as libraries did before versions."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __getitem__(self, index: Any) -> Lent:
        return Lent(self.array[index])


class Versioned(Lent):
    """`Lent` of a library of today, which can say that it is for reading only."""

    def __dlpack__(self, *, stream: int | None = None, max_version: Any = None) -> Any:
        return self.array.__dlpack__(max_version=max_version)


class OnGpu(Lent):
    """A NumPy array that says it is on another kind of device."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 63


class ReadOnly:
    """An array with `__cuda_array_interface__` that is not to be written."""

    def __init__(self, array: Any) -> None:
        self._array = array
        address, _ = array.__cuda_array_interface__["data"]
        self.__cuda_array_interface__ = {  # the elements come on Numba's default stream, 1
            **array.__cuda_array_interface__, "data": (address, True), "stream": 1
        }  # fmt: skip


def lend(device: na.Device, values: Any) -> Any:
    """An array of another library in the device's memory, with a copy of `values`; its slices are
    views.
    """
    if device.kind == "cpu":
        return Lent(np.array(values))
    from numba import cuda

    return cuda.to_device(np.ascontiguousarray(values))


def memory_of(lent: Any) -> Any:
    """The object that keeps the memory of what `lend` gave."""
    return lent.array if isinstance(lent, Lent) else lent.gpu_data


def lend_readonly(device: na.Device, values: Any) -> Any:
    lent = lend(device, values)
    if device.kind != "cpu":
        return ReadOnly(lent)
    lent.array.flags.writeable = False
    return Versioned(lent.array)


def seen(lent: Any) -> np.ndarray:
    """What its own library sees in it."""
    return lent.array.copy() if isinstance(lent, Lent) else lent.copy_to_host()
