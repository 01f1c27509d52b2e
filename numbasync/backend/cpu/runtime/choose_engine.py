"""Prepares kernels of the CPU device: compiled for the processor; or run as Python, those that use
operations of `numbasync.tensor_cores` always, others where NUMBASYNC_CPU_ENGINE asks for it, for
debugging. No kernel falls back from one to the other, and neither engine runs kernels that Numba's
compiler for GPUs refuses.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Hashable
from typing import Any, TypeAlias

from numbasync.backend.cpu.declared_arguments import formal
from numbasync.backend.cpu.interpreter.bind import uses_tensor_cores
from numbasync.backend.cpu.interpreter.kernel import Interpreted
from numbasync.backend.cpu.kernel.compiled import Compiled
from numbasync.backend.cpu.library.options import types
from numbasync.backend.cpu.target.refusals import check
from numbasync.backend.declared_signatures import type_of
from numbasync.errors import CallerError, InterpretedKernelWarning, UnsupportedKernelError

Engine: TypeAlias = Compiled | Interpreted

SWITCH = "NUMBASYNC_CPU_ENGINE"
LINES = "compiled-lines"  # and coverage.py is told which lines threads pass
_has_warned = False


def requested_engine() -> str:
    """The engine that NUMBASYNC_CPU_ENGINE names: `compiled`, the default, or `interpreted`."""
    name = os.environ.get(SWITCH, "").strip().lower() or "compiled"
    if name not in ("compiled", "interpreted", LINES):
        raise CallerError(f"{SWITCH}={name!r}: write compiled or interpreted.")
    return name


# Scalars that come as arrays of no axes.
_IN_MEMORY = (types.Record, types.NPDatetime, types.NPTimedelta)


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
    argument_types = tuple(
        map(type_of, keys if formal_arguments is None else formal_arguments.keys)
    )
    kernel: Engine
    if engine == "interpreted" or uses_tensor_cores(dispatcher.py_func):
        kernel = _interpreted(dispatcher, argument_types, max_threads, engine)
    else:
        kernel = Compiled(dispatcher, argument_types, max_threads, watched, engine == LINES)
    if formal_arguments is not None and not formal_arguments.is_plain:
        kernel.formal = formal_arguments
    kernel.argument_types = argument_types
    kernel.records = tuple(i for i, t in enumerate(argument_types) if isinstance(t, _IN_MEMORY))
    return kernel


def _interpreted(
    dispatcher: Any, argument_types: tuple[Any, ...], max_threads: int, engine: str
) -> Interpreted:
    try:
        kernel = Interpreted(dispatcher, max_threads)
    except UnsupportedKernelError:
        check(dispatcher.py_func, argument_types)
        raise
    if not (kernel.has_breakpoints and engine == "interpreted"):
        check(dispatcher.py_func, argument_types)
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
