"""Kernels in CUDA C++: compiled by NVRTC for one GPU, loaded and launched there."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numbasync.backend.cuda.arrays import CudaArray
from numbasync.backend.cuda.driver import cu, enter, fail
from numbasync.backend.protocols import Dim3, counters
from numbasync.errors import KernelCompileError, MissingExtraError

if TYPE_CHECKING:
    from numbasync.backend.cuda.gpu import Gpu, Handled


class SourceKernel:
    """A kernel of a source, on one GPU.

    Attributes:
        max_threads_per_block: of this kernel, by its registers.
    """

    engine = why = ""
    from_disk = False

    def __init__(self, device: Gpu, source: str, name: str, is_c: bool, options: Sequence[str]):
        """
        Raises:
            KernelCompileError: NVRTC refuses the source; the message is its log.
            MissingExtraError: there is no NVRTC.
        """
        enter(device)
        self._device = device
        binary, symbol = _compile(device, source, name, is_c, options)
        self._library = _checked("cuLibraryLoadData", binary, [], [], 0, [], [], 0)
        kernel = _checked("cuLibraryGetKernel", self._library, symbol)
        self._function = _checked("cuKernelGetFunction", kernel)
        counters.compiles += 1
        self.max_threads_per_block = self._attribute("MAX_THREADS_PER_BLOCK")

    def _attribute(self, name: str) -> int:
        attribute = getattr(cu.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(_checked("cuFuncGetAttribute", attribute, self._function))

    def allow_large_shared(self) -> None:
        """Let launches take as much shared memory as a block may have."""
        enter(self._device)
        attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        most = self._device.limits.max_dynamic_shared_bytes - self._attribute("SHARED_SIZE_BYTES")
        (result,) = cu.cuFuncSetAttribute(self._function, attribute, most)
        if result:
            fail(result, "cuFuncSetAttribute")

    def launch(
        self, stream: Handled, grid: Dim3, block: Dim3, shared_bytes: int, args: Sequence[Any]
    ) -> None:
        """Launch it with addresses of arrays, and with numbers of the declared types."""
        values = [
            np.asarray(a.address, np.uint64) if isinstance(a, CudaArray) else np.asarray(a)
            for a in args
        ]
        # The driver copies what these addresses lead to during the call.
        places = (ctypes.c_void_p * max(len(values), 1))(*(v.ctypes.data for v in values))
        (result,) = cu.cuLaunchKernel(
            self._function, *grid, *block, shared_bytes, stream.handle, ctypes.addressof(places), 0
        )
        if result:
            fail(result, "cuLaunchKernel")


def _checked(call: str, *args: Any) -> Any:
    """What a call of the driver gives, whose result was looked at."""
    result, value = getattr(cu, call)(*args)
    if result:
        fail(result, call)
    return value


def _compile(
    device: Gpu, source: str, name: str, is_c: bool, options: Sequence[str]
) -> tuple[bytes, bytes]:
    """The machine code of a source, and the symbol of the kernel in it."""
    major, minor = device.compute_capability
    given = [f"--gpu-architecture=sm_{major}{minor}", *_includes(), *options]
    try:
        from cuda.bindings import nvrtc

        created = nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], [])
    except (ImportError, RuntimeError) as error:  # the second: its library is not found
        raise MissingExtraError(
            f"kernel {name} is CUDA C++, for which NVRTC cannot be loaded: {error}\n"
            "pip install 'numbasync[cuda]'"
        ) from error
    result, program = created
    _expect(nvrtc, result, "nvrtcCreateProgram")
    try:
        if not is_c:
            (result,) = nvrtc.nvrtcAddNameExpression(program, name.encode())
            _expect(nvrtc, result, "nvrtcAddNameExpression")
        (result,) = nvrtc.nvrtcCompileProgram(program, len(given), [o.encode() for o in given])
        if result:
            raise KernelCompileError(f"kernel {name}: NVRTC refuses it:\n{_log(nvrtc, program)}")
        result, size = nvrtc.nvrtcGetCUBINSize(program)
        _expect(nvrtc, result, "nvrtcGetCUBINSize")
        binary = b" " * size
        (result,) = nvrtc.nvrtcGetCUBIN(program, binary)
        _expect(nvrtc, result, "nvrtcGetCUBIN")
        symbol = name.encode()
        if not is_c:
            result, symbol = nvrtc.nvrtcGetLoweredName(program, name.encode())
            _expect(nvrtc, result, "nvrtcGetLoweredName")
        return binary, bytes(symbol)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _expect(nvrtc: Any, result: Any, call: str) -> None:
    if result:
        error, text = nvrtc.nvrtcGetErrorString(result)
        raise KernelCompileError(f"{call} of NVRTC: {result if error else text.decode()}")


def _log(nvrtc: Any, program: Any) -> str:
    result, size = nvrtc.nvrtcGetProgramLogSize(program)
    text = b" " * (0 if result else size)
    nvrtc.nvrtcGetProgramLog(program, text)
    return text.decode(errors="replace").rstrip(" \0\n")


def _includes() -> list[str]:
    """Where CUDA's headers are, as cuda_fp16.h; none, if they are not installed."""
    with contextlib.suppress(Exception):  # the finder raises classes of its own
        from cuda import pathfinder

        found = pathfinder.find_nvidia_header_directory("cudart")
        return [f"--include-path={found}"] if found else []
    return []
