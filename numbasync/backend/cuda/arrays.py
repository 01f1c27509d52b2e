"""Arrays of a GPU, as kernels take them: the parameters for an array, as numbers and bytes.

numba-cuda passes every array as separate parameters: two unused pointers, element count, element
size, address, extents, strides. numba-cuda-mlir passes a memref; see `CudaArray.memref`.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from numbasync.backend.cuda.compiled_kernel import AS_NUMBA_CUDA
from numbasync.backend.cuda.driver import cu
from numbasync.backend.pitched_rows import NARROWEST, NO_ROWS, Rows, rows
from numbasync.backend.protocols import ArrayKey
from numbasync.dtypes import bits_of, dtype_key
from numbasync.native import known


@known
class CudaArray:
    """An array of one GPU: its address, and its parameters for numba-cuda, as numbers and bytes."""

    packed: bytes

    __slots__ = (
        "_rows", "address", "dtype", "fields", "nbytes", "packed", "shape", "strides",
    )  # fmt: skip

    def __init__(
        self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        size = 1
        for extent in shape:
            size *= extent
        self.address = address
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.nbytes = size * dtype.itemsize
        self._rows: Rows | None = None
        self.fields = (0, 0, size, dtype.itemsize, address, *shape, *strides)

    def __getattr__(self, name: str) -> Any:
        # `packed` is computed on first use: most launches need it, arrays only copied never do.
        if name != "packed":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.packed = struct.pack(AS_NUMBA_CUDA.array_format(len(self.shape)), *self.fields)
        return self.packed

    @property
    def memref(self) -> tuple[int, ...]:
        """numba-cuda-mlir's parameters: the address twice, no offset, extents, and strides in
        elements.
        """
        step = self.dtype.itemsize
        return (self.address, self.address, 0, *self.shape, *(s // step for s in self.strides))

    @property
    def pointer(self) -> Any:
        """The address, as `cuda.bindings` takes it."""
        return cu.CUdeviceptr(self.address)

    def key(self) -> ArrayKey:
        contiguous = self.is_contiguous()
        return ArrayKey(dtype_key(self.dtype), len(self.shape), "C" if contiguous else "A")

    def is_contiguous(self) -> bool:
        step = self.dtype.itemsize
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != step:
                return False
            step *= extent
        return True

    @property
    def rows(self) -> Rows:
        """The array as rows that the driver can copy; of height 0 if it has no such form."""
        if self._rows is None:
            pitched = rows(self.shape, self.strides, self.dtype.itemsize)
            if pitched is not None and pitched.height > 1 and pitched.width < NARROWEST:
                pitched = None
            self._rows = pitched or NO_ROWS
        return self._rows

    def cuda_array_interface(self, stream: int | None, readonly: bool = False) -> dict[str, Any]:
        """Version 3; of a dtype that it cannot name, the bits. A reader must be ordered behind the
        work of `stream`.
        """
        return {
            "version": 3, "shape": self.shape, "strides": self.strides,
            "typestr": bits_of(self.dtype).str, "stream": stream,
            "data": (self.address if self.nbytes else 0, readonly),
        }  # fmt: skip


class OrderedView:
    """An array as Numba and other libraries accept it, where the caller orders their work."""

    def __init__(self, array: CudaArray) -> None:
        self.__cuda_array_interface__ = array.cuda_array_interface(None)


class HostArray(CudaArray):
    """An array in page-locked host memory. Kernels access it, and so do copies whose other end is
    on the device; the driver's copies between two places of the host would wait for the device.
    """

    __slots__ = ()

    @property
    def rows(self) -> Rows:
        return NO_ROWS
