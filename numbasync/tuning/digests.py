"""Digests by which stored measurements are recognised: of a kernel's code, of a configuration."""

from __future__ import annotations

import hashlib
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from numbasync.facts.source import captured

_CONSTANTS = (bool, int, float, complex, str, bytes, np.generic)
_LIBRARIES = frozenset(("numbasync", "numba", "numpy"))  # known by their versions


def digest(*texts: str) -> str:
    """A short name for these texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:20]


def of_function(function: FunctionType) -> str:
    """A digest of a function's bytecode, and of the functions and constants that it uses, directly
    and through other functions. Comments and the places of lines do not enter.
    """
    parts: list[str] = []
    seen: list[FunctionType] = []
    todo: list[Any] = [function]
    while todo:
        used = getattr(value := todo.pop(), "py_func", value)
        if isinstance(used, FunctionType):
            if used not in seen and _package(used) not in _LIBRARIES:
                seen.append(used)
                names = _code(used.__code__, parts)
                todo += [used.__globals__[name] for name in names if name in used.__globals__]
                todo += [*(used.__defaults__ or ()), *(used.__kwdefaults__ or {}).values()]
                todo += captured(used).values()
        elif isinstance(used, tuple):
            todo += used
        elif isinstance(used, _CONSTANTS):
            parts.append(repr(used))
    return digest(*parts)


def _code(code: CodeType, parts: list[str]) -> list[str]:
    """Append the description of a code object and of those in it; the names that they use."""
    names = list(code.co_names)
    parts += [code.co_code.hex(), repr(code.co_names), repr(code.co_varnames)]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _code(constant, parts)
        elif isinstance(constant, frozenset):  # whose order differs from process to process
            parts.append(repr(sorted(map(repr, constant))))
        else:
            parts.append(repr(constant))
    return names


def _package(function: FunctionType) -> str:
    module: str | None = function.__module__  # None for functions that `exec` defines without one
    return (module or "").partition(".")[0]


def described(value: Any) -> str:
    """A value of a configuration as text: equal for equal values, in every process."""
    if isinstance(value, FunctionType):
        return f"{value.__name__} {of_function(value)[:8]}"
    return repr(value)
