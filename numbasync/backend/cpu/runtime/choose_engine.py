"""Which engine runs a kernel on the CPU device: Numba's compiler; or the interpreter, by choice
or with a warning. Neither runs what Numba's compiler for GPUs refuses.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Hashable
from types import FunctionType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from numbasync.backend.cpu.compiler import array_rules, numba_cuda
from numbasync.backend.cpu.compiler.generate import type_of
from numbasync.backend.cpu.compiler.kernel import Compiled
from numbasync.backend.cpu.compiler.names import UntranslatableError
from numbasync.backend.cpu.interpreter.interpret import Interpreted
from numbasync.backend.cpu.library.declared_arguments import formal
from numbasync.backend.cpu.library.entry_points import types
from numbasync.errors import CallerError, InterpretedKernelWarning, UnsupportedKernelError

Engine: TypeAlias = Compiled | Interpreted

SWITCH = "NUMBASYNC_CPU_ENGINE"
_told: WeakKeyDictionary[FunctionType, set[str]] = WeakKeyDictionary()


def wish() -> str:
    """NUMBASYNC_CPU_ENGINE: `auto`, or the one engine to use."""
    found = os.environ.get(SWITCH, "auto").strip().lower() or "auto"
    if found not in ("auto", "compiled", "interpreted"):
        raise CallerError(f"{SWITCH}={found!r}: write auto, compiled or interpreted.")
    return found


def prepared(
    dispatcher: Any, keys: tuple[Hashable, ...], max_threads: int, only: str, watched: bool = False
) -> Engine:
    """The kernel for arguments of these types. What Numba compiles for a GPU, and not for the
    processor, is interpreted, with a warning, unless `only` says which engine it must be.

    Args:
        watched: it is going to be checked.

    Raises:
        KernelCompileError: Numba's compiler for GPUs refuses it, or it is declared for arguments
            of other types.
        UnsupportedKernelError: the engine that it must be does not have it.
    """
    becomes = formal(dispatcher, keys)
    given = keys if becomes is None else becomes.keys
    array_rules.check(dispatcher.py_func, [type_of(k) for k in given])
    made = _prepared(dispatcher, given, max_threads, only, watched)
    made.formal = becomes
    made.records = tuple(i for i, k in enumerate(given) if isinstance(k, types.Record))
    return made


def _prepared(
    dispatcher: Any, keys: tuple[Hashable, ...], max_threads: int, only: str, watched: bool
) -> Engine:
    why = f"{SWITCH}=interpreted asks for it"
    cause: Exception | None = None
    if only != "interpreted":
        try:
            return Compiled(dispatcher, keys, max_threads, watched)
        except CallerError:  # the kernel is wrong for these arguments, whoever runs it
            raise
        except UntranslatableError as reason:
            why, cause = str(reason), reason
        except Exception as error:  # Numba has many
            why, cause = f"{type(error).__name__}: {_first_line(error)}", error
    numba_cuda.check(dispatcher, keys)  # the interpreter would give something
    if only == "compiled":
        raise UnsupportedKernelError(
            f"kernel {dispatcher.py_func.__name__} is not compiled on the CPU device: {why}.\n"
            f"{SWITCH}=auto would interpret it."
        ) from cause
    try:
        made = Interpreted(dispatcher, max_threads)
    except UnsupportedKernelError as error:
        raise UnsupportedKernelError(f"{error}\nNor is it compiled: {why}.") from cause
    made.why = why
    if only == "auto":
        _warn(made)
    return made


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    useful = [line for line in lines if not line.startswith(("Failed in", "During", "No impl"))]
    return (useful or lines or [""])[0]


def _warn(made: Interpreted) -> None:
    """Once a kernel and reason, in one line, at the kernel's."""
    told = _told.setdefault(made.function, set())
    if made.why in told:
        return
    code = made.function.__code__
    warnings.warn_explicit(
        f"kernel {made.name} is interpreted on the CPU device, about a hundred times slower: "
        f"{made.why}",
        InterpretedKernelWarning,
        code.co_filename,
        code.co_firstlineno,
    )
    told.add(made.why)
