"""Prepares kernels of the CPU device: compiled for the processor; or run as Python, those that use
operations of `numbasync.tensor_cores` always, others where NUMBASYNC_CPU_ENGINE asks for it, for
debugging. No kernel falls back from one to the other, and neither engine runs kernels that Numba's
compiler for GPUs refuses.
"""

from __future__ import annotations

import linecache
import os
import warnings
from collections.abc import Hashable
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

from numbasync.backend.cpu.compiler import numba_cuda
from numbasync.backend.cpu.compiler.generate import type_of
from numbasync.backend.cpu.compiler.kernel import Compiled
from numbasync.backend.cpu.compiler.names import UntranslatableError
from numbasync.backend.cpu.interpreter.bind import uses_tensor_cores
from numbasync.backend.cpu.interpreter.kernel import Interpreted
from numbasync.backend.cpu.library.declared_arguments import formal
from numbasync.backend.cpu.library.entry_points import types
from numbasync.errors import CallerError, InterpretedKernelWarning, UnsupportedKernelError

if TYPE_CHECKING:
    from numbasync.backend.cpu.lowered.kernel import Lowered

Engine: TypeAlias = "Compiled | Interpreted | Lowered"

SWITCH = "NUMBASYNC_CPU_ENGINE"
LINES = "lowered-lines"  # and coverage.py is told which lines threads pass
_has_warned = False


def requested_engine() -> str:
    """The engine that NUMBASYNC_CPU_ENGINE names: `compiled`, the default, or `interpreted`. Under
    trial is `lowered`, which is to become `compiled`.
    """
    name = os.environ.get(SWITCH, "").strip().lower() or "compiled"
    if name not in ("compiled", "interpreted", "lowered", LINES):
        raise CallerError(f"{SWITCH}={name!r}: write compiled or interpreted.")
    return name


def prepare_kernel(
    dispatcher: Any,
    keys: tuple[Hashable, ...],
    max_threads: int,
    engine: str = "compiled",
    watched: bool = False,
) -> Engine:
    """The kernel for arguments of these types, on the engine of this name.

    Args:
        watched: compile a checked kernel.

    Raises:
        KernelCompileError: Numba's compiler for GPUs refuses the kernel, or the kernel is declared
            for arguments of other types.
        UnsupportedKernelError: the engine does not support a construct of the kernel.
    """
    formal_arguments = formal(dispatcher, keys)
    argument_keys = keys if formal_arguments is None else formal_arguments.keys
    kernel: Engine
    if engine == "interpreted" or uses_tensor_cores(dispatcher.py_func):
        kernel = _interpreted(dispatcher, argument_keys, max_threads, engine)
    elif engine in ("lowered", LINES):
        from numbasync.backend.cpu.lowered.kernel import Lowered  # whose imports take a while

        kernel = Lowered(dispatcher, argument_keys, max_threads, watched, engine == LINES)
    else:
        kernel = _compiled(dispatcher, argument_keys, max_threads, watched)
    kernel.formal = formal_arguments
    kernel.argument_types = tuple(type_of(k) for k in argument_keys)
    kernel.records = tuple(i for i, k in enumerate(argument_keys) if isinstance(k, types.Record))
    return kernel


def _compiled(
    dispatcher: Any, keys: tuple[Hashable, ...], max_threads: int, watched: bool
) -> Compiled:
    try:
        return Compiled(dispatcher, keys, max_threads, watched)
    except CallerError:  # the kernel is wrong for these arguments, on any device
        raise
    except Exception as error:  # Numba raises many classes
        numba_cuda.check(dispatcher, keys)  # a refusal on a GPU is the better reason
        raise UnsupportedKernelError(
            f"kernel {dispatcher.py_func.__name__} is not compiled on the CPU device, though it is "
            f"for a GPU: {_reason(error)}."
            f"{_line(dispatcher.py_func, error)}"
        ) from error


def _interpreted(
    dispatcher: Any, keys: tuple[Hashable, ...], max_threads: int, engine: str
) -> Interpreted:
    try:
        kernel = Interpreted(dispatcher, max_threads)
    except UnsupportedKernelError:
        numba_cuda.check(dispatcher, keys)
        raise
    if not (kernel.has_breakpoints and engine == "interpreted"):
        numba_cuda.check(dispatcher, keys)
    if kernel.uses_tensor_cores:  # it runs so whatever is asked for
        return kernel
    global _has_warned
    if not _has_warned:
        _has_warned = True
        code = kernel.function.__code__
        warnings.warn_explicit(
            f"kernel {kernel.name}, and every other, runs as Python on the CPU device "
            f"({SWITCH}=interpreted), about a hundred times slower than compiled. Its numbers are "
            "Python's and NumPy's, not a GPU's: their widths and rounding differ.",
            InterpretedKernelWarning,
            code.co_filename,
            code.co_firstlineno,
        )
    return kernel


def _line(kernel: FunctionType, error: Exception) -> str:
    """The line of the source that an error is about; empty if it is not known."""
    line = getattr(error, "line", 0)
    file = getattr(error, "file", "") or kernel.__code__.co_filename
    source = linecache.getline(file, line).strip() if line else ""
    return f"\n  {os.path.basename(file)}, line {line}: {source}" if source else ""


def _reason(error: Exception) -> str:
    if isinstance(error, UntranslatableError):
        return str(error)
    if "NRT required" in str(error):
        return "it allocates an array (create it with cuda.local.array, or pass it)"
    if "Only accept returning of array" in str(error):
        return "a part of a part of an array (write the indices in one, x[i, j], or name the first)"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    useful = [line for line in lines if not line.startswith(("Failed in", "During", "No impl"))]
    return f"{type(error).__name__}: {(useful or lines or [''])[0]}"
