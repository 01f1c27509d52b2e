"""Numba kernels on a GPU: typing, compiling, and the packed argument buffer.

Numba passes every array as separate parameters: two unused pointers, element count, element
size, address, extents, strides. That is a private convention of Numba, and only this module
knows it. Each compiled kernel's real parameters are compared with the convention, offset by
offset; a kernel that does not fit, or has arguments of other types, is launched by Numba itself.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.cuda import types
from numba.cuda.np.numpy_support import from_dtype

from numbasync.backend.compile_errors import compile_error
from numbasync.backend.cuda.debug_exceptions import ExceptionReport, Found
from numbasync.backend.cuda.driver import cu, enter, fail
from numbasync.backend.cuda.resources import assembly_of, use_of
from numbasync.backend.declared_signatures import resolved
from numbasync.backend.executables import Language, Resources
from numbasync.backend.pitched_rows import NARROWEST, NO_ROWS, Rows, rows
from numbasync.backend.protocols import ArrayKey, Dim3, counters
from numbasync.errors import DTypeError, KernelError, NumbasyncError
from numbasync.layout import dtype_key

if TYPE_CHECKING:
    from numbasync.backend.cuda.gpu import Gpu, Handled

_PACK = {
    types.boolean: "?", types.int8: "b", types.uint8: "B", types.int16: "h", types.uint16: "H",
    types.int32: "i", types.uint32: "I", types.int64: "q", types.uint64: "Q",
    types.float16: "e", types.float32: "f", types.float64: "d",
    types.complex64: "ff", types.complex128: "dd",
}  # fmt: skip
_SCALARS: dict[type, Any] = {
    float: types.float64, bool: types.boolean, complex: types.complex128, type(None): types.none,
}  # fmt: skip


class CudaArray:
    """An array of one GPU: its address, and Numba's parameters for it, as numbers and bytes."""

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
        self.packed = struct.pack(array_format(len(self.shape)), *self.fields)
        return self.packed

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
        """Version 3. A reader must be ordered behind the work of `stream`."""
        return {
            "version": 3, "shape": self.shape, "strides": self.strides,
            "typestr": self.dtype.str, "data": (self.address if self.nbytes else 0, readonly),
            "stream": stream,
        }  # fmt: skip


class HostArray(CudaArray):
    """An array in page-locked host memory. Kernels access it, and so do copies whose other end is
    on the device; the driver's copies between two places of the host would wait for the device.
    """

    __slots__ = ()

    @property
    def rows(self) -> Rows:
        return NO_ROWS


def array_format(ndim: int) -> str:
    """Numba's parameters for an array of rank `ndim`, as a `struct` format."""
    return "QQqqQ" + "qq" * ndim


class _ForNumba:
    """An array as Numba's own launch accepts it."""

    def __init__(self, array: CudaArray) -> None:
        self.__cuda_array_interface__ = array.cuda_array_interface(None)


def _for_numba(argument: Any) -> Any:
    if isinstance(argument, tuple) and any(isinstance(a, CudaArray | tuple) for a in argument):
        return tuple(map(_for_numba, argument))
    return _ForNumba(argument) if isinstance(argument, CudaArray) else argument


def scalar_type(value: object) -> Any:
    """Numba's type of a host value."""
    cls = type(value)
    if cls is int:
        return types.int64 if -(2**63) <= value < 2**63 else types.uint64  # type: ignore[operator]
    numba_type = _SCALARS.get(cls)
    if numba_type is not None:
        return numba_type
    from numba.cuda.typing.typeof import Purpose, typeof

    try:
        return typeof(value, Purpose.argument)
    except Exception as error:
        raise DTypeError(
            f"a kernel cannot take a {cls.__name__} ({value!r:.60}): {error}"
        ) from error


def compile_kernel(device: Gpu, dispatcher: Any, keys: tuple[Hashable, ...]) -> CudaExecutable:
    """The kernel compiled for arguments with these keys, and loaded on the device."""
    enter(device)
    actual = tuple(_type_of(k) for k in keys)
    name = dispatcher.py_func.__name__
    try:
        loaded = _loaded(dispatcher, actual)
        compiled = _overload(dispatcher, actual)
        compiled.bind()
        executable = CudaExecutable(device, compiled, name, _loaded(dispatcher, actual) > loaded)
    except NumbasyncError:
        raise
    except Exception as error:
        if dispatcher._can_compile:  # Numba keeps a kernel that could not be linked
            dispatcher.overloads.pop(actual, None)
        raise compile_error(dispatcher.py_func, actual, error) from error
    counters.compiles += not executable.from_disk
    return executable


def _loaded(dispatcher: Any, actual: tuple[Any, ...]) -> int:
    """How often Numba has loaded this variant from the kernel's disk cache (`cache=True`)."""
    hits: int = dispatcher.stats.cache_hits[actual]
    return hits


def _type_of(key: Hashable) -> Any:
    if isinstance(key, ArrayKey):
        return types.Array(from_dtype(np.dtype(key.dtype)), key.ndim, key.order)
    if isinstance(key, tuple):  # the key of a tuple that holds arrays
        return types.BaseTuple.from_types([_type_of(k) for k in key])
    return key


def _plain(numba_type: Any) -> Any:
    """The type of an argument, without the value of a literal."""
    return types.unliteral(numba_type)


def _overload(dispatcher: Any, actual: tuple[Any, ...]) -> Any:
    """Numba's compiled kernel; with declared signatures, the variant of the one that fits."""
    if dispatcher._can_compile:
        return dispatcher.compile(actual)
    return dispatcher.overloads[resolved(dispatcher, actual)]


class CudaExecutable:
    """A kernel of one GPU, ready to be launched.

    Attributes:
        numba: Numba's compiled kernel.
        from_disk: the kernel was loaded from Numba's disk cache, not compiled.
        packed: launches use one argument buffer; else Numba launches, for the reason `why_not`.
    """

    def __init__(self, device: Gpu, compiled: Any, name: str, from_disk: bool = False) -> None:
        self.numba = compiled
        self.from_disk = from_disk
        self._name = name  # a kernel from a disk cache has lost its name
        self._device = device
        function = compiled._codelibrary.get_cufunc()
        self._core = function.kernel
        self.max_threads_per_block = int(function.attrs.maxthreads)
        self.static_shared_bytes = int(function.attrs.shared)
        result, self._function = cu.cuKernelGetFunction(self._core.handle)
        if result:
            fail(result, "cuKernelGetFunction")
        self.why_not = self._plan()
        self.packed = not self.why_not
        self._buffers: list[tuple[bytearray, Any, int]] = []
        # Numba's own launch also checks a debug kernel's exceptions, but it does not wait for a
        # non-blocking stream, and therefore sees them only by chance.
        self._report = ExceptionReport(device, compiled, function, name) if compiled.debug else None

    engine = why = ""

    @property
    def argument_types(self) -> Sequence[object]:
        types_of_arguments: tuple[object, ...] = self.numba.argument_types
        return types_of_arguments

    def resources(self, block: Dim3, shared_bytes: int) -> Resources:
        return use_of(self._device, self.numba, self._core, block, shared_bytes)

    def assembly(self, language: Language) -> str:
        return assembly_of(self._device, self.numba, language)

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
        attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        enter(self._device)
        if self.packed:
            (result,) = cu.cuFuncSetAttribute(self._function, attribute, nbytes)
        else:  # Numba launches by the kernel's other handle, and does not set the attribute
            ordinal = self._device.ordinal
            (result,) = cu.cuKernelSetAttribute(attribute, nbytes, self._core.handle, ordinal)
        if result:
            fail(result, "set CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES")

    def _plan(self) -> str:
        """Lay out the argument buffer. Returns why it cannot be used, or an empty string."""
        if self.numba.cooperative:
            return "cooperative kernels are launched by Numba"
        if self.numba.extensions:
            return "the kernel has argument extensions"
        codes = ["@"]
        fields = []
        for i, numba_type in enumerate(self.numba.argument_types):
            array = isinstance(numba_type, types.Array)
            code = array_format(numba_type.ndim) if array else _PACK.get(_plain(numba_type))
            if numba_type == types.none:  # passed by Numba as an unused pointer
                codes.append("Q")
                fields.append("0")
                continue
            if isinstance(numba_type, types.Record):  # passed by its address
                codes.append("Q")
                fields.append(f"a[{i}].address")
                continue
            if code is None:
                return f"arguments of type {numba_type} are packed by Numba"
            codes.append(code)
            if array:
                fields.append(f"*a[{i}].fields")
            elif isinstance(numba_type, types.Complex):
                fields.append(f"a[{i}].real, a[{i}].imag")
            else:
                fields.append(f"a[{i}]")
        layout = "".join(codes)
        expected = []
        for i in range(2, len(layout) + 1):
            size = struct.calcsize("@" + layout[i - 1])
            expected.append((struct.calcsize(layout[:i]) - size, size))
        actual = [(int(p.offset), int(p.size)) for p in self._core.arguments_info]
        if actual != expected:
            return f"Numba's parameters are at {actual}, not at {expected}"
        self._struct = struct.Struct(layout)
        # One expression for this kernel's arguments: a loop over them costs four times more.
        flatten = f"lambda a: ({', '.join(fields)}{',' if fields else ''})"
        self._flatten: Callable[[Sequence[Any]], tuple[Any, ...]] = eval(flatten)  # noqa: S307
        return ""

    @cached_property
    def buffer_format(self) -> str:
        """The `struct` format of the whole argument buffer, with each array as one bytes field;
        empty if launches cannot use a record.
        """
        if not self.packed or self._report is not None:
            return ""
        codes, offset = ["="], 0
        for numba_type in self.numba.argument_types:
            if numba_type == types.none or isinstance(numba_type, types.Complex | types.Record):
                return ""
            array = isinstance(numba_type, types.Array)
            code = array_format(numba_type.ndim) if array else _PACK[_plain(numba_type)]
            size = struct.calcsize(code)
            gap = -offset % (8 if array else size)
            codes.append(f"{gap}x{size}s" if array else f"{gap}x{code}")
            offset += gap + size
        return "".join(codes)

    @property
    def function(self) -> int:
        """The driver's handle of the kernel."""
        return int(self._function)

    @property
    def takes_arrays(self) -> list[bool]:
        """For each argument, whether it is an array."""
        return [isinstance(numba_type, types.Array) for numba_type in self.numba.argument_types]

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
        if self._report is not None:
            return self._report.around(
                stream, lambda: self._launch(stream, grid, block, shared_bytes, args)
            )
        self._launch(stream, grid, block, shared_bytes, args)
        return None

    def _launch(
        self, stream: Handled, grid: Dim3, block: Dim3, shared_bytes: int, args: Sequence[Any]
    ) -> None:
        if not self.packed:
            values = [_for_numba(a) for a in args]
            try:
                self.numba.launch(values, grid, block, stream.native, shared_bytes)
            except Exception as error:
                # A debug kernel that was already done when Numba checked has raised here.
                if not self.numba.debug or isinstance(error, NumbasyncError):
                    raise
                raise KernelError(
                    f"kernel {self._name}: {type(error).__name__}: {error}"
                ) from error
            return
        buffer = self._buffer()
        data, _, address = buffer
        try:
            self._struct.pack_into(data, 0, *self._flatten(args))
        except (struct.error, OverflowError) as error:
            raise DTypeError(f"an argument does not fit the kernel's type: {error}") from error
        (result,) = cu.cuLaunchKernel(
            self._function, *grid, *block, shared_bytes, stream.handle, 0, address
        )
        self._buffers.append(buffer)  # the driver has copied the arguments
        if result:
            fail(result, "cuLaunchKernel")
