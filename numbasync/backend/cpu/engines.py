"""Which engine runs a kernel on the CPU device: Numba's compiler, or else the interpreter."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Hashable
from typing import Any, TypeAlias

from numbasync.backend.cpu import array_calls
from numbasync.backend.cpu.compiled import Compiled
from numbasync.backend.cpu.formal import formal
from numbasync.backend.cpu.generate import type_of
from numbasync.backend.cpu.interpret import Interpreted
from numbasync.backend.cpu.names import UntranslatableError
from numbasync.backend.cpu.native import types
from numbasync.errors import CallerError, UnsupportedKernelError

Engine: TypeAlias = Compiled | Interpreted

_log = logging.getLogger("numbasync")
_told: set[tuple[str, str]] = set()
_lock = threading.Lock()


def wish() -> str:
    """NUMBASYNC_CPU_ENGINE: `auto`, or the one engine to use."""
    found = os.environ.get("NUMBASYNC_CPU_ENGINE", "auto").strip().lower() or "auto"
    if found not in ("auto", "compiled", "interpreted"):
        raise CallerError(f"NUMBASYNC_CPU_ENGINE={found!r}: write auto, compiled or interpreted.")
    return found


def prepared(
    dispatcher: Any, keys: tuple[Hashable, ...], max_threads: int, only: str, watched: bool = False
) -> Engine:
    """The kernel for arguments of these types. What cannot be compiled is interpreted, unless
    `only` says which engine it must be.

    Args:
        watched: it is going to be checked.

    Raises:
        KernelCompileError: it is declared for arguments of other types.
    """
    becomes = formal(dispatcher, keys)
    given = keys if becomes is None else becomes.keys
    array_calls.check(dispatcher.py_func, [type_of(k) for k in given])
    made = _prepared(dispatcher, given, max_threads, only, watched)
    made.formal = becomes
    made.records = tuple(i for i, k in enumerate(given) if isinstance(k, types.Record))
    return made


def _prepared(
    dispatcher: Any, keys: tuple[Hashable, ...], max_threads: int, only: str, watched: bool
) -> Engine:
    why = "NUMBASYNC_CPU_ENGINE=interpreted asks for it"
    cause: Exception | None = None
    if only != "interpreted":
        try:
            return Compiled(dispatcher, keys, max_threads, watched)
        except UntranslatableError as reason:
            if only == "compiled":
                raise
            why = str(reason)
        except CallerError:  # the kernel is wrong for these arguments, whoever runs it
            raise
        except Exception as error:  # Numba has many; the interpreter may know more, or say what
            if only == "compiled":
                raise
            why = f"{type(error).__name__}: {_first_line(error)}"
            cause = error
    try:
        made = Interpreted(dispatcher, max_threads)
    except UnsupportedKernelError as error:
        raise UnsupportedKernelError(f"{error}\nNor is it compiled: {why}.") from cause
    made.why = why
    if only == "auto":
        _tell(made)
    return made


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    useful = [line for line in lines if not line.startswith(("Failed in", "During", "No impl"))]
    return (useful or lines or [""])[0]


def _tell(made: Interpreted) -> None:
    """Once a kernel and reason, in one line."""
    with _lock:
        if (made.name, made.why) in _told:
            return
        _told.add((made.name, made.why))
    _log.info(
        "kernel %s is interpreted on the CPU device, about a hundred times slower: %s",
        made.name,
        made.why,
    )
