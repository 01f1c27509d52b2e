"""Numba kernels on a GPU: typing, compiling, and the packed argument buffer.

Numba passes every array as separate parameters: two unused pointers, element count, element
size, address, extents, strides. That is a private convention of Numba, and only this module
knows it. Each compiled kernel's real parameters are compared with the convention, offset by
offset; a kernel that does not fit, or has arguments of other types, is launched by Numba itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba.cuda import types

from numbasync import dtypes
from numbasync.arguments import shown
from numbasync.backend.bfloat16_type import register
from numbasync.backend.compile_errors import compile_error
from numbasync.backend.cuda.arrays import CudaArray, OrderedView, array_format
from numbasync.backend.cuda.checked_cache import check_cache
from numbasync.backend.cuda.debug_exceptions import ExceptionReport, Found
from numbasync.backend.cuda.driver import cu, enter, fail
from numbasync.backend.cuda.module_cleanup import leave_modules_to_the_driver
from numbasync.backend.cuda.resources import assembly_of, use_of
from numbasync.backend.cuda.unsigned_indices import with_unsigned_indices
from numbasync.backend.declared_signatures import refuse_in_tuples, resolved, type_of
from numbasync.backend.executables import Language, Resources
from numbasync.backend.protocols import Dim3, counters
from numbasync.errors import DTypeError, KernelError, NumbasyncError

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


class _Unused:
    """None for Numba's own launch, which does not know it: the pointer that stands for it there."""

    @staticmethod
    def prepare_args(numba_type: Any, value: Any, **_: Any) -> tuple[Any, Any]:
        return (types.uint64, 0) if numba_type == types.none else (numba_type, value)


def _for_numba(argument: Any) -> Any:
    if isinstance(argument, tuple) and any(isinstance(a, CudaArray | tuple) for a in argument):
        members = tuple(map(_for_numba, argument))
        return type(argument)(*members) if hasattr(argument, "_fields") else members
    return OrderedView(argument) if isinstance(argument, CudaArray) else argument


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
            f"a kernel cannot take a {cls.__name__} ({shown(value)}): {error}"
        ) from error


def compile_kernel(device: Gpu, dispatcher: Any, keys: tuple[Hashable, ...]) -> CudaExecutable:
    """The kernel compiled for arguments with these keys, and loaded on the device."""
    enter(device)
    register()
    actual = tuple(type_of(k) for k in keys)
    refuse_in_tuples(actual)
    converted = with_unsigned_indices(dispatcher)
    executable = None
    if converted is not None:
        with contextlib.suppress(Exception):  # the kernel as written gives the error, if it is one
            executable = _compiled(device, converted, actual)
    if executable is None:
        executable = _compiled(device, dispatcher, actual)
    counters.compiles += not executable.from_disk
    return executable


def _compiled(device: Gpu, dispatcher: Any, actual: tuple[Any, ...]) -> CudaExecutable:
    name = dispatcher.py_func.__name__
    check_cache(dispatcher)
    try:
        loaded = _loaded(dispatcher, actual)
        compiled = _overload(dispatcher, actual)
        compiled.bind()
        return CudaExecutable(device, compiled, name, _loaded(dispatcher, actual) > loaded)
    except NumbasyncError:
        raise
    except Exception as error:
        if dispatcher._can_compile:  # Numba keeps a kernel that could not be linked
            dispatcher.overloads.pop(actual, None)
        raise compile_error(dispatcher.py_func, actual, error) from error


def _loaded(dispatcher: Any, actual: tuple[Any, ...]) -> int:
    """How often Numba has loaded this variant from the kernel's disk cache (`cache=True`)."""
    hits: int = dispatcher.stats.cache_hits[actual]
    return hits


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


def _handle_format(numba_type: Any) -> str:
    return "Q" if _is_device_address(numba_type) else array_format(numba_type.ndim)


def _overload(dispatcher: Any, actual: tuple[Any, ...]) -> Any:
    """Numba's compiled kernel; with declared signatures, the variant of the one that fits."""
    if dispatcher._can_compile:
        try:
            return dispatcher.compile(actual)
        except RuntimeError as error:
            if "linking files" not in str(error):
                raise
            # Numba does not keep a kernel on disk that is linked with functions of other sources,
            # as those of `dtypes.EXTENSIONS` are. The next process compiles it again.
            return type(dispatcher)(dispatcher.py_func, dispatcher.targetoptions).compile(actual)
    return dispatcher.overloads[resolved(dispatcher, actual)]


class BufferLayout(NamedTuple):
    """The argument buffer of a launch.

    Attributes:
        parts: for each argument its `struct` code, "s" for an array, or "" for one of None, and its
            offset.
        nbytes: of the buffer.
    """

    parts: list[tuple[str, int]]
    nbytes: int


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
        leave_modules_to_the_driver(device.ordinal)
        self._core = function.kernel
        self.max_threads_per_block = int(function.attrs.maxthreads)
        self.static_shared_bytes = int(function.attrs.shared)
        result, self._function = cu.cuKernelGetFunction(self._core.handle)
        if result:
            fail(result, "cuKernelGetFunction")
        self.why_not = self._plan()
        self.packed = not self.why_not
        if self.why_not and _Unused not in compiled.extensions:
            compiled.extensions = [_Unused, *compiled.extensions]
        unknown = [_EXTENSIONS[t] for t in compiled.argument_types if t in _EXTENSIONS]
        if self.why_not and unknown:
            raise DTypeError(
                f"kernel {name}: {self.why_not}, which cannot pass a number of {unknown[0]}.\n"
                "Pass np.float32(x), or an array of one element."
            )
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
        if self.numba.cooperative:
            return "cooperative kernels are launched by Numba"
        if any(e is not _Unused for e in self.numba.extensions):
            return "the kernel has argument extensions"
        codes = ["@"]
        fields = []
        for i, numba_type in enumerate(self.numba.argument_types):
            array = _is_handle(numba_type)
            code = _handle_format(numba_type) if array else _PACK.get(_plain(numba_type))
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
            return f"Numba's parameters are at {actual}, not at {expected}"
        self._struct = struct.Struct(packed_as)
        # One expression for this kernel's arguments: a loop over them costs four times more.
        flatten = f"lambda a: ({', '.join(fields)}{',' if fields else ''})"
        self._flatten: Callable[[Sequence[Any]], tuple[Any, ...]] = eval(flatten, {"bits": _bits})  # noqa: S307
        return ""

    @cached_property
    def buffer_layout(self) -> BufferLayout | None:
        """The argument buffer of a record; None if launches cannot use one."""
        if not self.packed or self._report is not None:
            return None
        parts, offset = list[tuple[str, int]](), 0
        for numba_type in self.numba.argument_types:
            if numba_type in _EXTENSIONS or isinstance(numba_type, types.Complex | types.Record):
                return None
            array, unused = _is_handle(numba_type), numba_type == types.none
            code = "Q"  # of a pointer, which is not used
            if not unused:
                code = _handle_format(numba_type) if array else _PACK[_plain(numba_type)]
            size = struct.calcsize(code)
            gap = -offset % (8 if array else size)
            parts.append(("" if unused else "s" if array else code, offset + gap))
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
