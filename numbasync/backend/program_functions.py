"""The functions of a program: which a kernel calls, and what the names in them stand for."""

from __future__ import annotations

import builtins
import dis
import types
from collections.abc import Iterator
from typing import Any, TypeAlias

from numba.core.dispatcher import Dispatcher

from numbasync.backend.declared_signatures import results
from numbasync.facts.source import nested_codes
from numbasync.kernel_names import Dispatcher as KernelDispatcher

# Types of arguments, and of a result, of a function for each declared signature.
Signatures: TypeAlias = tuple[tuple[tuple[Any, ...], Any], ...]
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")


def device_function(value: Any) -> types.FunctionType | None:
    """The Python function of a dispatcher of `cuda.jit`, or of `jit`, as in `cuda.random`; also
    of what stands for such a function, as launchers do.
    """
    function = getattr(value, "py_func", None)
    is_dispatcher = isinstance(value, KernelDispatcher | Dispatcher)
    is_dispatcher |= hasattr(type(value), "_numba_type_") and not hasattr(value, "nin")  # a ufunc
    return function if is_dispatcher and isinstance(function, types.FunctionType) else None


def declared_types(value: Any) -> Signatures:
    """The declared signatures of a device function; empty if it takes any arguments."""
    if not isinstance(value, KernelDispatcher):
        return ()
    return tuple(results(value)) if value.targetoptions.get("device") else ()


def used_values(function: types.FunctionType) -> Iterator[Any]:
    """The values of names in a function, and in the device functions that it calls."""
    return _used(function, set())


def _used(function: types.FunctionType, seen: set[types.FunctionType]) -> Iterator[Any]:
    if function in seen:
        return
    seen.add(function)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    held = {n: c.cell_contents for n, c in cells.items() if c != types.CellType()}
    known = {**vars(builtins), **function.__globals__, **held}
    for value in _named(function.__code__, known):
        inner = device_function(value)
        if inner is not None:
            yield from _used(inner, seen)
        else:
            yield value


def _named(whole: types.CodeType, known: dict[str, Any]) -> Iterator[Any]:
    for code in nested_codes(whole):
        value: Any = None  # the module that the last instruction has loaded
        for instruction in dis.get_instructions(code):
            name = instruction.argval
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
                value = known.get(name)
            elif isinstance(value, types.ModuleType) and instruction.opname in _ATTRIBUTE:
                value = getattr(value, name, None)
            elif instruction.opname != "CACHE":
                value = None
            if value is not None and not isinstance(value, types.ModuleType):
                yield value
