"""Kernels on a GPU: typing, compiling by either compiler, and the packed argument buffer.

Both compilers pass every array as separate parameters; see `CudaArray` and `compiled_kernel`. Those
are private conventions. Each compiled kernel's real parameters are compared with the convention,
offset by offset; a kernel that does not fit, or has arguments of other types, is launched by Numba
itself. How many threads a block gets where the caller names none is `suggested_threads` here.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from numbasync import dtypes
from numbasync.arguments import shown
from numbasync.backend.cuda import mlir_compiler
from numbasync.backend.cuda.compiled_kernel import CompiledKernel, Passing
from numbasync.backend.cuda.debug_exceptions import Found
from numbasync.backend.cuda.driver import cu, enter, fail
from numbasync.backend.cuda.resources import assembly_of, use_of
from numbasync.backend.declared_signatures import refuse_in_tuples, type_of
from numbasync.backend.executables import Language, Resources
from numbasync.backend.protocols import Dim3, counters
from numbasync.compilers import ONLY_MLIR
from numbasync.errors import DTypeError, UnsupportedKernelError
from numbasync.kernel_names import typeof, types  # pyright: ignore[reportAttributeAccessIssue]

if TYPE_CHECKING:
    from numbasync.backend.cuda.gpu import Gpu, Handled

_EXTENSIONS = {numba_type: name for name, numba_type in dtypes.extension_types().items()}
_PACK = {
    dtypes.numba_type(np.dtype(name)): row.packed
    for name, row in dtypes.TABLE.items()
    if name not in dtypes.EXTENSIONS
} | {numba_type: dtypes.TABLE[name].packed for numba_type, name in _EXTENSIONS.items()}
_SCALARS: dict[type, Any] = {
    float: types.float64, bool: types.boolean, complex: types.complex128, type(None): types.none,
}  # fmt: skip


def scalar_type(value: object) -> Any:
    """Numba's type of a host value."""
    cls = type(value)
    if cls is int:
        return types.int64 if -(2**63) <= value < 2**63 else types.uint64  # type: ignore[operator]
    numba_type = _SCALARS.get(cls)
    if numba_type is not None:
        return numba_type
    try:
        return typeof(value)
    except Exception as error:
        raise DTypeError(
            f"a kernel cannot take a {cls.__name__} ({shown(value)}): {error}"
        ) from error


def compile_kernel(device: Gpu, dispatcher: Any, keys: tuple[Hashable, ...]) -> CudaExecutable:
    """The kernel compiled for arguments with these keys, and loaded on the device."""
    enter(device)
    actual = tuple(type_of(k) for k in keys)
    refuse_in_tuples(actual)
    name = dispatcher.py_func.__name__
    compiled: CompiledKernel | None = mlir_compiler.compiled(dispatcher, actual)
    if compiled is None and ONLY_MLIR:
        raise UnsupportedKernelError(
            f"kernel {name} of ({', '.join(map(str, actual))}) is compiled by numba-cuda, which is "
            "not installed: numba-cuda-mlir is given kernels of arrays and real numbers that are "
            "neither cooperative nor for debugging.\nWrite: pip install numba-cuda"
        )
    if compiled is None:
        compiled = _by_numba_cuda(device, dispatcher, actual)
    counters.compiles += not compiled.from_disk
    return CudaExecutable(device, compiled, name)


def _by_numba_cuda(device: Gpu, dispatcher: Any, actual: tuple[Any, ...]) -> CompiledKernel:
    from numbasync.backend import numba_cuda_arrays
    from numbasync.backend.bfloat16_type import register
    from numbasync.backend.cuda import numba_cuda_compiler, unsigned_indices

    numba_cuda_arrays.load()
    register()
    converted = unsigned_indices.with_unsigned_indices(dispatcher)
    if converted is not None:
        with contextlib.suppress(Exception):  # the kernel as written gives the error, if it is one
            return numba_cuda_compiler.compiled(device, converted, actual)
    return numba_cuda_compiler.compiled(device, dispatcher, actual)


def _bits(value: Any, name: str) -> int:
    """The bits of a number as one of a type that `struct` cannot pack."""
    dtype = dtypes.of_name(name)
    return int(np.asarray(value, dtype).view(dtypes.bits_of(dtype)))


def _plain(numba_type: Any) -> Any:
    """The type of an argument, without the value of a literal."""
    return types.unliteral(numba_type)


def _is_handle(numba_type: Any) -> bool:
    """Whether arguments of the type are objects of this package, with `fields` and `packed`."""
    return isinstance(numba_type, types.Array) or _is_device_address(numba_type)


def _is_device_address(numba_type: Any) -> bool:
    return getattr(numba_type, "is_device_address", False)


def _handle_format(numba_type: Any, passes: Passing) -> str:
    return "Q" if _is_device_address(numba_type) else passes.array_format(numba_type.ndim)


class BufferLayout(NamedTuple):
    """The argument buffer of a launch.

    Attributes:
        parts: for each argument its `struct` code, "s" or "m" for an array (`Passing.array`), or
            "" for one of None, and its offset.
        nbytes: of the buffer.
    """

    parts: list[tuple[str, int]]
    nbytes: int


class CudaExecutable:
    """A kernel of one GPU, ready to be launched.

    Attributes:
        from_disk: the kernel was loaded from a disk cache, not compiled.
        packed: launches use one argument buffer; else Numba launches, for the reason `why_not`.
    """

    def __init__(self, device: Gpu, compiled: CompiledKernel, name: str) -> None:
        self.from_disk = compiled.from_disk
        self._compiled = compiled
        self._device = device
        self._core = compiled.kernel
        attributes = self._core.attributes
        self.max_threads_per_block = int(attributes.max_threads_per_block)
        self.static_shared_bytes = int(attributes.shared_size_bytes)
        result, self._function = cu.cuKernelGetFunction(self._core.handle)
        if result:
            fail(result, "cuKernelGetFunction")
        self.why_not = self._plan()
        self.packed = not self.why_not
        unknown = [_EXTENSIONS[t] for t in compiled.argument_types if t in _EXTENSIONS]
        if self.why_not and unknown:
            raise DTypeError(
                f"kernel {name}: {self.why_not}, which cannot pass a number of {unknown[0]}.\n"
                "Pass np.float32(x), or an array of one element."
            )
        if self.why_not:
            compiled.expect_own_launches()
        self._buffers: list[tuple[bytearray, Any, int]] = []

    engine = why = ""

    @property
    def argument_types(self) -> Sequence[object]:
        return self._compiled.argument_types

    def resources(self, block: Dim3, shared_bytes: int) -> Resources:
        return use_of(self._device, self._compiled, block, shared_bytes)

    def assembly(self, language: Language) -> str:
        return assembly_of(self._device, self._compiled, language)

    def suggested_threads(self) -> int:
        return self._suggested

    @cached_property
    def _suggested(self) -> int:
        enter(self._device)  # called before any enqueueing, perhaps on a new thread
        occupancy = self._core.occupancy.max_potential_block_size(0, self.max_threads_per_block)
        # More than 256 threads were never faster for memory-bound work with one element per
        # thread: 128 / 256 / 512 / 1024 threads moved 2,485 / 3,331 / 3,124 / 2,841 GB/s (H200).
        return min(256, int(occupancy.max_block_size))

    def allow_large_shared(self) -> None:
        # Always to the maximum: no later launch, on whichever thread, has to raise or lower it. The
        # attribute is a limit only; what a launch takes depends on what it requests.
        nbytes = self._device.limits.max_dynamic_shared_bytes - self.static_shared_bytes
        self._set("MAX_DYNAMIC_SHARED_SIZE_BYTES", nbytes)

    def launch_in_clusters(self, cluster: Dim3) -> None:
        # An attribute of the kernel, so that every way to launch it does so: by Numba, by a record,
        # and as a part of a graph.
        for axis, extent in zip(("WIDTH", "HEIGHT", "DEPTH"), cluster, strict=True):
            self._set(f"REQUIRED_CLUSTER_{axis}", extent)

    def _set(self, name: str, value: int) -> None:
        attribute = getattr(cu.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        enter(self._device)
        if self.packed:
            (result,) = cu.cuFuncSetAttribute(self._function, attribute, value)
        else:  # Numba launches by the kernel's other handle, and does not set the attribute
            ordinal = self._device.ordinal
            (result,) = cu.cuKernelSetAttribute(attribute, value, self._core.handle, ordinal)
        if result:
            fail(result, f"set CU_FUNC_ATTRIBUTE_{name}")

    def _plan(self) -> str:
        """Lay out the argument buffer. Returns why it cannot be used, or an empty string."""
        if self._compiled.why_not_packed:
            return self._compiled.why_not_packed
        codes, passes = ["@"], self._compiled.passes
        fields = []
        for i, numba_type in enumerate(self.argument_types):
            array = _is_handle(numba_type)
            code = _handle_format(numba_type, passes) if array else _PACK.get(_plain(numba_type))
            if numba_type == types.none:
                codes.append(passes.none)
                fields += ["0"] * len(passes.none)
                continue
            if isinstance(numba_type, types.Record):  # passed by its address
                codes.append("Q")
                fields.append(f"a[{i}].address")
                continue
            if code is None:
                return f"arguments of type {numba_type} are packed by Numba"
            codes.append(code)
            if array:
                fields.append(f"*a[{i}].{passes.array_fields}")
            elif numba_type in _EXTENSIONS:
                fields.append(f"bits(a[{i}], {_EXTENSIONS[numba_type]!r})")
            elif isinstance(numba_type, types.Complex):
                fields.append(f"a[{i}].real, a[{i}].imag")
            else:
                fields.append(f"a[{i}]")
        packed_as = "".join(codes)
        expected = []
        for i in range(2, len(packed_as) + 1):
            size = struct.calcsize("@" + packed_as[i - 1])
            expected.append((struct.calcsize(packed_as[:i]) - size, size))
        actual = [(int(p.offset), int(p.size)) for p in self._core.arguments_info]
        if actual != expected:
            return f"the kernel's parameters are at {actual}, not at {expected}"
        self._struct = struct.Struct(packed_as)
        # One expression for this kernel's arguments: a loop over them costs four times more.
        flatten = f"lambda a: ({', '.join(fields)}{',' if fields else ''})"
        self._flatten: Callable[[Sequence[Any]], tuple[Any, ...]] = eval(flatten, {"bits": _bits})  # noqa: S307
        return ""

    @cached_property
    def buffer_layout(self) -> BufferLayout | None:
        """The argument buffer of a record; None if launches cannot use one."""
        if not self.packed or self._compiled.report is not None:
            return None
        parts, offset = list[tuple[str, int]](), 0
        passes = self._compiled.passes
        for numba_type in self.argument_types:
            if numba_type in _EXTENSIONS or isinstance(numba_type, types.Complex | types.Record):
                return None
            array, unused = _is_handle(numba_type), numba_type == types.none
            code = passes.none
            if not unused:
                code = _handle_format(numba_type, passes) if array else _PACK[_plain(numba_type)]
            size = struct.calcsize(code)
            gap = -offset % (8 if array else size or 1)
            parts.append(("" if unused else passes.array if array else code, offset + gap))
            offset += gap + size
        return BufferLayout(parts, offset)

    @property
    def function(self) -> int:
        """The driver's handle of the kernel."""
        return int(self._function)

    def _buffer(self) -> tuple[bytearray, Any, int]:
        """A buffer for the arguments, the objects that describe it to the driver, and their
        address.
        """
        try:
            return self._buffers.pop()
        except IndexError:
            pass
        data = bytearray(max(self._struct.size, 1))
        buffer = (ctypes.c_char * len(data)).from_buffer(data)
        size = ctypes.c_size_t(self._struct.size)
        # CU_LAUNCH_PARAM_BUFFER_POINTER, the buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, its size's
        # address, CU_LAUNCH_PARAM_END.
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
        return data, (buffer, size, extra), ctypes.addressof(extra)

    def launch(
        self, stream: Handled, grid: Dim3, block: Dim3, shared_bytes: int, args: Sequence[Any]
    ) -> Found | None:
        """Launch the kernel. For a debug kernel, returns the reader of its exception."""
        if self._compiled.report is not None:
            return self._compiled.report.around(
                stream, lambda: self._launch(stream, grid, block, shared_bytes, args)
            )
        self._launch(stream, grid, block, shared_bytes, args)
        return None

    def _launch(
        self, stream: Handled, grid: Dim3, block: Dim3, shared_bytes: int, args: Sequence[Any]
    ) -> None:
        if not self.packed:
            self._compiled.launch(stream, grid, block, shared_bytes, args)
            return
        self.launch_packed(stream.handle, grid, block, shared_bytes, args)

    def launch_packed(
        self, stream: Any, grid: Dim3, block: Dim3, shared_bytes: int, args: Sequence[Any]
    ) -> None:
        """Launch with one argument buffer, on the stream of that handle, whose device is current.

        Raises:
            DTypeError: an argument does not fit the kernel's type.
        """
        buffer = self._buffer()
        data, _, address = buffer
        try:
            self._struct.pack_into(data, 0, *self._flatten(args))
        except (struct.error, OverflowError) as error:
            raise DTypeError(f"an argument does not fit the kernel's type: {error}") from error
        (result,) = cu.cuLaunchKernel(
            self._function, *grid, *block, shared_bytes, stream, 0, address
        )
        self._buffers.append(buffer)  # the driver has copied the arguments
        if result:
            fail(result, "cuLaunchKernel")
