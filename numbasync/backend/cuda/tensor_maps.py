"""Tensor maps of a GPU: descriptors of 128 bytes, by which its copy engine moves boxes of a tensor.

Kernels get a descriptor's address. It lies in device memory of its own and is written once: the
copy engine caches descriptors, so that one written in place could be read as it was before.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from numbasync.backend.cuda.arrays import CudaArray
from numbasync.backend.cuda.driver import cu, enter, fail
from numbasync.dtypes import row_of

if TYPE_CHECKING:
    from numbasync.backend.cuda.gpu import Gpu

NBYTES = 128  # of a descriptor, and its alignment is 64
CHUNK = 128  # descriptors of one allocation
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}


class CudaTensorMap:
    """A tensor map, as kernels take it: the descriptor's address."""

    __slots__ = ("_chunk", "address", "fields", "packed")

    def __init__(self, chunk: _Chunk, address: int) -> None:
        self._chunk = chunk  # its memory is freed with the last of its descriptors
        self.address = address
        self.fields = (address,)
        self.packed = struct.pack("Q", address)


class _Chunk:
    """Device memory for some descriptors."""

    def __init__(self, device: Gpu) -> None:
        self._device = device
        stream = device.idle_stream
        result, self._pointer = cu.cuMemAllocAsync(CHUNK * NBYTES, stream)
        if result:
            fail(result, "cuMemAllocAsync")
        (result,) = cu.cuStreamSynchronize(stream)  # descriptors are copied on no stream
        if result:
            fail(result, "cuStreamSynchronize")
        self.used = 0

    def take(self) -> int:
        self.used += 1
        return int(self._pointer) + (self.used - 1) * NBYTES

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # a broken device has no memory left to release
            enter(self._device)
            cu.cuMemFreeAsync(self._pointer, self._device.idle_stream)


class TensorMaps:
    """The tensor maps of one GPU."""

    def __init__(self, device: Gpu) -> None:
        self._device = device
        self._chunk: _Chunk | None = None
        self._lock = threading.Lock()

    def encode(self, array: CudaArray, box: tuple[int, ...], swizzle: int) -> CudaTensorMap:
        """The map of boxes of `array`, whose descriptor is written before the call returns."""
        enter(self._device)  # also for the encoding: on a thread without a context it is refused
        words = _encoded(array, box, swizzle)
        # The driver refuses these calls while a stream is being captured.
        with self._lock, self._device.capturing:
            if self._chunk is None or self._chunk.used == CHUNK:
                self._chunk = _Chunk(self._device)
            chunk, address = self._chunk, self._chunk.take()
            # Not by `cuMemcpyHtoD`: it waits for whatever runs on the default stream, and returns
            # when the descriptor has been read, which may be before it has arrived.
            stream = self._device.idle_stream
            (result,) = cu.cuMemcpyHtoDAsync(
                cu.CUdeviceptr(address), words.ctypes.data, NBYTES, stream
            )
            if result:
                fail(result, "cuMemcpyHtoDAsync")
            (result,) = cu.cuStreamSynchronize(stream)
        if result:
            fail(result, "cuStreamSynchronize")
        return CudaTensorMap(chunk, address)


def _encoded(array: CudaArray, box: tuple[int, ...], swizzle: int) -> np.ndarray[Any, Any]:
    """The descriptor, as 16 words. The driver counts axes from the last one."""
    rank = len(array.shape)
    extents = [cu.cuuint64_t(n) for n in reversed(array.shape)]
    strides = [cu.cuuint64_t(n) for n in reversed(array.strides[:-1])]
    name = row_of(array.dtype).tensor_map
    result, descriptor = cu.cuTensorMapEncodeTiled(
        getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{name}"),
        rank,
        array.address,
        extents,
        strides,
        [cu.cuuint32_t(n) for n in reversed(box)],
        [cu.cuuint32_t(1)] * rank,
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[swizzle]}"),
        cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if result:
        fail(result, "cuTensorMapEncodeTiled")
    return np.array([int(word) for word in descriptor.opaque], np.uint64)
