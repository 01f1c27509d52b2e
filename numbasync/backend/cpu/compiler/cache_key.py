"""The key of a program in the cache on disk: everything that its code depends on."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from numbasync.backend.cpu.compiler.program import Program
from numbasync.backend.cpu.library.disk_cache import key_of_own
from numbasync.backend.cpu.library.entry_points import types


def key_of(
    program: Program, argument_types: Iterable[Any], options: dict[str, Any]
) -> Hashable | None:
    """The key of the code. None if it refers to an object without a lasting name."""
    parts: list[str] = [repr(key_of_own()), repr(sorted(options.items()))]
    parts += [str(numba_type) for numba_type in argument_types]
    parts += [ast.dump(statement) for statement in program.body]
    parts += [*program.functions, *program.parameters, program.prologue, repr(program.shared)]
    parts += [repr(program.declared), *program.doubtful]
    for name, value in program.names.items():
        description = described(value)
        if description is None:
            return None
        parts.append(f"{name}={description}")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def described(value: Any) -> str | None:
    """A description of a value, the same in every process; None if there is none."""
    made_of = getattr(value, "made_of", None)
    if made_of is not None:
        return repr(made_of)
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject:
            return None
        array = np.asarray(value)
        order = (array.flags.c_contiguous, array.flags.f_contiguous)
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        return f"{type(value).__name__} {array.dtype.descr} {array.shape} {order} {digest}"
    if isinstance(value, tuple):
        parts = [described(part) for part in value]
        return None if None in parts else f"{type(value).__qualname__}{parts}"
    if isinstance(value, types.Type):
        return f"type {value}"
    return _name_of(value)


def _name_of(value: Any) -> str | None:
    """The qualified name of a function or class; None for users' own, which may change."""
    name = getattr(value, "__name__", None)
    module = getattr(value, "__module__", None) or type(value).__module__
    if not isinstance(name, str) or not isinstance(module, str):
        return None
    known = ("numbasync", "numba", "numpy", "builtins", "math", "operator", "cmath", "ctypes")
    if module.split(".")[0] not in known:
        return None
    return f"{module} {getattr(value, '__qualname__', '')} {name}"
