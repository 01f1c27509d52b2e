"""The key of a kernel in the cache on disk: everything of which its code is made.

That is the bytecode of the kernel and of the functions that it calls, with the lines, and the
values of the names in them.
"""

from __future__ import annotations

import dis
import enum
import hashlib
import types
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import numpy as np
from numba.core.types import Type

from numbasync.backend.cpu.disk_cache import key_of_own
from numbasync.backend.program_functions import declared_types, device_function
from numbasync.backend.shared_layout import SharedLayout

# Modules whose versions are in the key.
_VERSIONED = ("numba", "numpy", "builtins", "math", "operator", "cmath", "ctypes")


class _NamelessError(Exception):
    """A value has no description that is the same in every process."""


def key_of(
    function: types.FunctionType, argument_types: Iterable[Any], options: Iterable[object]
) -> Hashable | None:
    """The key of the code of a kernel. None if it refers to an object without a lasting name."""
    parts = [repr(key_of_own()), *map(repr, options), *map(str, argument_types)]
    try:
        parts += _function(function, set())
    except _NamelessError:
        return None
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _function(function: types.FunctionType, seen: set[types.FunctionType]) -> Iterator[str]:
    if function in seen:
        return
    seen.add(function)
    code = function.__code__
    yield from _code(code)
    yield _value(function.__defaults__, "", set(), seen)
    names, globals_named = set(_names(code)), set(_globals(code))
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():
            yield _value(cell.cell_contents, name, names, seen)
    for name in sorted(globals_named & function.__globals__.keys()):
        yield _value(function.__globals__[name], name, names, seen)


def _code(code: types.CodeType) -> Iterator[str]:
    yield f"{code.co_filename} {code.co_name} {code.co_firstlineno} {code.co_code.hex()}"
    yield f"{code.co_linetable.hex()} {code.co_exceptiontable.hex()} {code.co_flags}"
    yield f"{code.co_varnames} {code.co_names} {code.co_freevars} {code.co_cellvars}"
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant)
        else:
            yield f"{type(constant).__name__} {constant!r}"


def _globals(code: types.CodeType) -> Iterator[str]:
    """The names of globals in a function, and in those within it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals(constant)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _value(value: Any, name: str, names: set[str], seen: set[types.FunctionType]) -> str:
    """What a name stands for.

    Args:
        names: every name in the function that has this one, among them attributes of modules.
    """
    if isinstance(value, types.ModuleType):
        return _module(value, name, names, seen)
    called = device_function(value)
    if called is not None:
        return f"{name}={declared_types(value)} {' '.join(_function(called, seen))}"
    if isinstance(value, type) and issubclass(value, enum.Enum):
        return f"{name}={value.__qualname__} {[(m.name, repr(m.value)) for m in value]}"
    if isinstance(value, enum.Enum):
        return f"{name}={value!r}"
    if isinstance(value, SharedLayout):
        return f"{name}={value.__reduce__()}"
    description = _described(value)
    if description is None:
        raise _NamelessError
    return f"{name}={description}"


def _module(
    module: types.ModuleType, name: str, names: set[str], seen: set[types.FunctionType]
) -> str:
    if module.__name__.split(".")[0] in _VERSIONED:
        return f"{name}={module.__name__}"
    parts = {n: vars(module)[n] for n in names & vars(module).keys()}
    if module.__name__.split(".")[0] == "numbasync":  # parts of it come when they are asked for
        parts |= {n: getattr(module, n) for n in names if hasattr(module, n)}
    inner = [_value(part, n, names - {n}, seen) for n, part in sorted(parts.items())]
    return f"{name}={module.__name__} {inner}"


def _described(value: Any) -> str | None:
    """A description of a value, the same in every process; None if there is none."""
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
        parts = [_described(part) for part in value]
        return None if None in parts else f"{type(value).__qualname__}{parts}"
    if isinstance(value, Type):
        return f"type {value}"
    return _name_of(value)


def _name_of(value: Any) -> str | None:
    """The qualified name of a function or class; None for users' own, which may change."""
    name = getattr(value, "__name__", None)
    module = getattr(value, "__module__", None) or type(value).__module__
    if not isinstance(name, str) or not isinstance(module, str):
        return None
    if module.split(".")[0] not in ("numbasync", *_VERSIONED):
        return None
    return f"{module} {getattr(value, '__qualname__', '')} {name}"
