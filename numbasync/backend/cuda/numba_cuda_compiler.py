"""numba-cuda as a compiler of kernels: its variants, their disk cache, and its own launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numba.cuda import types

from numbasync.backend.compile_errors import compile_error
from numbasync.backend.cuda.arrays import CudaArray, OrderedView
from numbasync.backend.cuda.checked_cache import check_cache
from numbasync.backend.cuda.compiled_kernel import AS_NUMBA_CUDA
from numbasync.backend.cuda.debug_exceptions import ExceptionReport
from numbasync.backend.cuda.module_cleanup import leave_modules_to_the_driver
from numbasync.backend.declared_signatures import resolved
from numbasync.backend.protocols import Dim3
from numbasync.errors import KernelError, NumbasyncError

if TYPE_CHECKING:
    from numbasync.backend.cuda.gpu import Gpu, Handled


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


class NumbaCudaKernel:
    """A kernel that numba-cuda has compiled; see `CompiledKernel`."""

    passes = AS_NUMBA_CUDA

    def __init__(self, device: Gpu, compiled: Any, name: str, from_disk: bool) -> None:
        function = compiled._codelibrary.get_cufunc()
        leave_modules_to_the_driver(device.ordinal)
        self.kernel = function.kernel
        self.argument_types: tuple[Any, ...] = compiled.argument_types
        self.from_disk = from_disk
        self._compiled = compiled
        self._name = name  # a kernel from a disk cache has lost its name
        # Numba's own launch also checks a debug kernel's exceptions, but it does not wait for a
        # non-blocking stream, and therefore sees them only by chance.
        self.report = ExceptionReport(device, compiled, function, name) if compiled.debug else None

    @property
    def why_not_packed(self) -> str:
        if self._compiled.cooperative:
            return "cooperative kernels are launched by Numba"
        if any(e is not _Unused for e in self._compiled.extensions):
            return "the kernel has argument extensions"
        return ""

    def expect_own_launches(self) -> None:
        if _Unused not in self._compiled.extensions:
            self._compiled.extensions = [_Unused, *self._compiled.extensions]

    def launch(
        self, stream: Handled, grid: Dim3, block: Dim3, shared_bytes: int, args: Sequence[Any]
    ) -> None:
        values = [_for_numba(a) for a in args]
        try:
            self._compiled.launch(values, grid, block, stream.native, shared_bytes)
        except Exception as error:
            # A debug kernel that was already done when Numba checked has raised here.
            if not self._compiled.debug or isinstance(error, NumbasyncError):
                raise
            raise KernelError(f"kernel {self._name}: {type(error).__name__}: {error}") from error

    def ptx(self) -> str:
        return str(self._compiled.inspect_asm(None))

    def cubin(self) -> bytes:
        return bytes(self._compiled.library.get_cubin().code)


def compiled(device: Gpu, dispatcher: Any, actual: tuple[Any, ...]) -> NumbaCudaKernel:
    """The kernel compiled for arguments of these types, and loaded on the device, whose context is
    current.
    """
    check_cache(dispatcher)
    try:
        loaded = _loaded(dispatcher, actual)
        variant = _overload(dispatcher, actual)
        variant.bind()
        name = dispatcher.py_func.__name__
        return NumbaCudaKernel(device, variant, name, _loaded(dispatcher, actual) > loaded)
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
