"""The driver through `cuda.bindings`, with nothing around it, for the peers that call it.

Its packages are imported when a device is asked for, so that this module can be imported without
them. Memory and streams live as long as the process.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.work import BLOCKS, CUDA_SOURCE, THREADS, N

LAYOUT = "@QdQi"  # z, a, x, n, as a C compiler lays them out


class Driver:
    """One device's primary context, and the kernel, streams and rows in it.

    Attributes:
        cu: the module of the driver's functions.
        core: the device, of `cuda.core`.
        context: its primary context, which is current on this thread.
    """

    def __init__(self, ordinal: int) -> None:
        self.cu: Any = importlib.import_module("cuda.bindings.driver")
        self._library: Any = importlib.import_module("cuda.core")
        self.core = self._library.Device(ordinal)
        self.core.set_current()
        self.context = self.ok(self.cu.cuCtxGetCurrent())

    @functools.cached_property
    def kernel(self) -> Any:
        """`saxpy` as a kernel of `cuda.core`, compiled from CUDA C++ on first use."""
        # The object code must outlive the kernel.
        self._code = self._library.Program(CUDA_SOURCE, "c++").compile("cubin")
        return self._code.get_kernel("saxpy")

    @functools.cached_property
    def function(self) -> Any:
        """The kernel, as the driver's own handle."""
        return self.ok(self.cu.cuKernelGetFunction(self.kernel.handle))

    def ok(self, answer: tuple[Any, ...]) -> Any:
        """The value of a call that succeeded."""
        result, *values = answer
        if int(result):
            raise RuntimeError(f"the driver says {result!r}")
        return values[0] if values else None

    def stream(self) -> Any:
        """A stream that does not wait for the legacy default stream."""
        return self.ok(self.cu.cuStreamCreate(int(self.cu.CUstream_flags.CU_STREAM_NON_BLOCKING)))

    def synchronize(self, stream: Any) -> None:
        self.ok(self.cu.cuStreamSynchronize(stream))

    def row(self, value: float) -> int:
        """The address of a new row of `N` float32 elements."""
        pointer = self.ok(self.cu.cuMemAlloc(4 * N))
        self.fill(int(pointer), value)
        return int(pointer)

    def fill(self, address: int, value: float) -> None:
        """Set the row, and wait."""
        (bits,) = struct.unpack("I", struct.pack("f", value))
        self.ok(self.cu.cuMemsetD32(self.cu.CUdeviceptr(address), bits, N))
        self.ok(self.cu.cuCtxSynchronize())

    def read(self, address: int) -> np.ndarray[Any, Any]:
        """The row; no launch may be writing it."""
        row = np.empty(N, np.float32)
        pointer = self.cu.CUdeviceptr(address)
        self.ok(self.cu.cuMemcpyDtoH(row.ctypes.data, pointer, row.nbytes))
        return row

    def packed(self) -> Callable[[int, int, Any], None]:
        """A function that launches `saxpy(z, 2.0, x)` for the addresses of z and x, on a stream.

        Every call packs the arguments into one buffer.
        """
        call, function, into = (
            self.cu.cuLaunchKernel,
            self.function,
            struct.Struct(LAYOUT).pack_into,
        )
        buffer = Buffer()
        data, extra = buffer.data, buffer.extra

        def launch(z: int, x: int, stream: Any, keep: Buffer = buffer) -> None:
            into(data, 0, z, 2.0, x, N)
            (result,) = call(function, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, 0, extra)
            if result:
                raise RuntimeError(f"cuLaunchKernel says {result!r}")

        return launch


class Buffer:
    """Bytes for the arguments of `saxpy`, and the driver's description of them.

    Attributes:
        data: the bytes.
        extra: the address of the description.
    """

    def __init__(self) -> None:
        self.data = bytearray(struct.calcsize(LAYOUT))
        place = (ctypes.c_char * len(self.data)).from_buffer(self.data)
        size = ctypes.c_size_t(len(self.data))
        # CU_LAUNCH_PARAM_BUFFER_POINTER is 1, CU_LAUNCH_PARAM_BUFFER_SIZE 2 (whose value is an
        # address too), CU_LAUNCH_PARAM_END 0.
        list_of = (ctypes.c_void_p * 5)(1, ctypes.addressof(place), 2, ctypes.addressof(size), 0)
        self._keep = place, size, list_of
        self.extra = ctypes.addressof(list_of)

    def pack(self, z: int, x: int) -> None:
        struct.pack_into(LAYOUT, self.data, 0, z, 2.0, x, N)


@functools.cache
def of(ordinal: int) -> Driver:
    """The driver for this device, current on this thread."""
    return Driver(ordinal)
