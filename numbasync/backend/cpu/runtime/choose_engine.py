"""Chooses the engine of a kernel on the CPU device: Numba's compiler; or the interpreter, by
request or with a warning. Neither engine runs kernels that Numba's compiler for GPUs refuses.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Hashable
from types import FunctionType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from numbasync.backend.cpu.compiler import numba_cuda
from numbasync.backend.cpu.compiler.kernel import Compiled
from numbasync.backend.cpu.compiler.names import UntranslatableError
from numbasync.backend.cpu.interpreter.interpret import Interpreted
from numbasync.backend.cpu.library.declared_arguments import formal
from numbasync.backend.cpu.library.entry_points import types
from numbasync.errors import CallerError, InterpretedKernelWarning, UnsupportedKernelError

Engine: TypeAlias = Compiled | Interpreted

SWITCH = "NUMBASYNC_CPU_ENGINE"
_warned: WeakKeyDictionary[FunctionType, set[str]] = WeakKeyDictionary()


def wish() -> str:
    """The engine that NUMBASYNC_CPU_ENGINE requests: `auto`, `compiled` or `interpreted`."""
    requested = os.environ.get(SWITCH, "auto").strip().lower() or "auto"
    if requested not in ("auto", "compiled", "interpreted"):
        raise CallerError(f"{SWITCH}={requested!r}: write auto, compiled or interpreted.")
    return requested


def prepared(
    dispatcher: Any, keys: tuple[Hashable, ...], max_threads: int, only: str, watched: bool = False
) -> Engine:
    """The kernel for arguments of these types. A kernel that Numba compiles for a GPU, but not
    for the processor, is interpreted, with a warning, unless `only` requests an engine.

    Args:
        watched: compile a checked kernel.

    Raises:
        KernelCompileError: Numba's compiler for GPUs refuses the kernel, or the kernel is declared
            for arguments of other types.
        UnsupportedKernelError: the requested engine does not support the kernel.
    """
    formal_arguments = formal(dispatcher, keys)
    argument_keys = keys if formal_arguments is None else formal_arguments.keys
    kernel = _prepared(dispatcher, argument_keys, max_threads, only, watched)
    kernel.formal = formal_arguments
    kernel.records = tuple(i for i, k in enumerate(argument_keys) if isinstance(k, types.Record))
    return kernel


def _prepared(
    dispatcher: Any, keys: tuple[Hashable, ...], max_threads: int, only: str, watched: bool
) -> Engine:
    why = f"{SWITCH}=interpreted asks for it"
    cause: Exception | None = None
    if only != "interpreted":
        try:
            return Compiled(dispatcher, keys, max_threads, watched)
        except CallerError:  # the kernel is wrong for these arguments, on any engine
            raise
        except UntranslatableError as reason:
            why, cause = str(reason), reason
        except Exception as error:  # Numba raises many classes
            why, cause = f"{type(error).__name__}: {_first_line(error)}", error
    numba_cuda.check(dispatcher, keys)  # the interpreter would run even a refused kernel
    if only == "compiled":
        raise UnsupportedKernelError(
            f"kernel {dispatcher.py_func.__name__} is not compiled on the CPU device: {why}.\n"
            f"{SWITCH}=auto would interpret it."
        ) from cause
    try:
        kernel = Interpreted(dispatcher, max_threads)
    except UnsupportedKernelError as error:
        raise UnsupportedKernelError(f"{error}\nNor is it compiled: {why}.") from cause
    kernel.why = why
    if only == "auto":
        _warn(kernel)
    return kernel


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    useful = [line for line in lines if not line.startswith(("Failed in", "During", "No impl"))]
    return (useful or lines or [""])[0]


def _warn(made: Interpreted) -> None:
    """Warn at the kernel's line, once for each kernel and reason."""
    reasons = _warned.setdefault(made.function, set())
    if made.why in reasons:
        return
    code = made.function.__code__
    warnings.warn_explicit(
        f"kernel {made.name} is interpreted on the CPU device, about a hundred times slower: "
        f"{made.why}",
        InterpretedKernelWarning,
        code.co_filename,
        code.co_firstlineno,
    )
    reasons.add(made.why)
