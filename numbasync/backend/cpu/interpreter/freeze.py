"""A kernel's functions with the values of their names, as they were when it was compiled.

Numba compiles globals and closures in as constants; so the values are taken once, and every
worker thread binds the same. What has state of its own for each thread, which is `cuda` and
what is in it, is a `Place` until then.
"""

from __future__ import annotations

import dis
import math
import types
from operator import attrgetter
from typing import Any

import numpy as np

from numbasync.backend.cpu.compiler.extensions import Intrinsic
from numbasync.backend.cpu.compiler.names import declared_types
from numbasync.backend.cpu.interpreter.arrays import typed
from numbasync.backend.cpu.interpreter.constants import (
    BUILTINS,
    TYPE_MODULES,
    Module,
    NumbaModule,
    is_numba_type,
    strict,
    unsupported,
)
from numbasync.backend.cpu.interpreter.cuda_module import (
    BARRIERS,
    INSTANCE_NAMES,
    NESTED,
    Intrinsics,
)
from numbasync.backend.cpu.interpreter.integers import MASK
from numbasync.backend.cpu.interpreter.math_module import MATH
from numbasync.backend.cpu.interpreter.rewrite import HELPERS, rewritten
from numbasync.backend.protocols import GENERATED
from numbasync.errors import NumbasyncError, UnsupportedKernelError

# Bit functions whose result depends on how wide their argument is.
BIT_FUNCTIONS = frozenset({"popc", "clz", "brev"})

# Modules whose C functions do the same for a kernel's numbers as for Python's.
_PURE = frozenset({None, "builtins", "_operator", "operator"})


class Place:
    """Where a value is in a worker thread's `cuda`; the empty path is `cuda` itself."""

    def __init__(self, path: str) -> None:
        self.path = path

    def find(self, cuda: Intrinsics) -> Any:
        return attrgetter(self.path)(cuda) if self.path else cuda


class Numba:
    """The module `numba`, which has `cuda` in it."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module = module

    def find(self, cuda: Intrinsics) -> NumbaModule:
        return NumbaModule(self.module, cuda=cuda)


class Namespace:
    """A module of the user's: the names that the kernel might ask for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[str, Any] = {}
        self.refused: dict[str, NumbasyncError] = {}


class Frozen:
    """One function: its code, and what its names, defaults and closure hold."""

    def __init__(self, function: types.FunctionType) -> None:
        self.function = function
        self.code = function.__code__
        self.names: dict[str, Any] = {}
        self.cells: list[Any] = []


class Program:
    """A kernel and all device functions that it may call.

    Attributes:
        main: the kernel.
        files: where the functions are written, but for those that numbasync writes.
        has_barriers: whether one of the functions holds a barrier.
        tags: kinds of integers, "i" and "u", whose elements must know their type.
    """

    def __init__(self, kernel: types.FunctionType) -> None:
        self._functions: dict[types.FunctionType, Frozen] = {}
        self.tags = ""
        self.has_barriers = False
        self.main = self._freeze(kernel)
        self.files = {f.__code__.co_filename for f in self._functions} - {GENERATED}

    def _freeze(self, function: types.FunctionType) -> Frozen:
        found = self._functions.get(function)
        if found is None:
            found = self._functions[function] = Frozen(function)
            self._rewrite(found)
            used = set(_used(function.__code__))
            self.has_barriers |= bool(used & BARRIERS)
            if used & BIT_FUNCTIONS:
                self._tag("iu")
            found.names.update(BUILTINS)
            found.names.update(HELPERS)
            for name in _loaded(function.__code__):
                if name in function.__globals__:
                    found.names[name] = self._value(name, function.__globals__[name], used)
            for name, cell in zip(
                function.__code__.co_freevars, function.__closure__ or (), strict=True
            ):
                found.cells.append(self._value(name, cell.cell_contents, used))
        return found

    def _rewrite(self, frozen: Frozen) -> None:
        changed = rewritten(frozen.function)
        if changed is not None:
            frozen.code, signs_matter = changed
            if signs_matter:
                self._tag("u")
        else:
            self._tag("u")
            operations = {i.opname for i in dis.get_instructions(frozen.code)}
            if "UNARY_INVERT" in operations:
                raise UnsupportedKernelError(
                    f"{frozen.function.__name__} uses ~, and its source is not at hand: the CPU "
                    "device needs it to tell a bool's ~ from an integer's."
                )
        frozen.code = _strict_constants(frozen.code)

    def _tag(self, kinds: str) -> None:
        self.tags = "".join(sorted({*self.tags, *kinds}))

    # --- values ---

    def _value(self, name: str, value: Any, used: set[str]) -> Any:
        if isinstance(value, types.ModuleType):
            return self._module(value, used)
        if isinstance(value, np.ndarray):
            return FrozenArray(value)
        function = getattr(value, "py_func", None)
        home = str(getattr(value, "__module__", None) or "")
        if isinstance(function, types.FunctionType):
            if function.__module__.split(".")[0] == "numba":
                raise unsupported(f"{function.__module__}.{function.__name__}")
            if declared_types(value):
                raise UnsupportedKernelError(
                    f"{name} is declared with fixed signatures; the interpreter of the CPU device "
                    "does not convert what a device function is given."
                )
            return self._freeze(function)
        if isinstance(value, Intrinsic) and home.split(".")[0] != "numba":
            raise UnsupportedKernelError(
                f"{name} is an @intrinsic, which is made of instructions for a compiler."
            )
        if is_numba_type(value):
            return strict(value)
        if home.split(".")[0] == "numba" and not isinstance(value, (np.generic, int, float)):
            return self._numba_object(name, value, home)
        if isinstance(value, types.FunctionType):
            raise UnsupportedKernelError(
                f"{name} is a Python function, which Numba cannot call from a kernel.\n"
                f"Decorate it with @cuda.jit(device=True)."
            )
        if isinstance(value, types.BuiltinFunctionType):
            return _builtin(name, value)
        return strict(value)

    def _numba_object(self, name: str, value: Any, home: str) -> Any:
        path = _intrinsic_path(value)
        if path is None:
            raise unsupported(f"{home}.{getattr(value, '__name__', name)}")
        self.has_barriers |= path in BARRIERS
        if path in BIT_FUNCTIONS:
            self._tag("iu")
        return Place(path)

    def _module(self, module: types.ModuleType, used: set[str]) -> Any:
        name = module.__name__
        if module is math:
            return MATH
        if module is np:
            return Module(np)
        if name == "numba":
            return Numba(module)
        if name == "numba.cuda":
            return Place("")
        if name in TYPE_MODULES:
            return NumbaModule(module)
        if name.split(".")[0] in ("numba", "numpy"):
            raise unsupported(name)
        space = Namespace(name)
        for attribute in used & vars(module).keys():
            try:
                space.values[attribute] = self._value(attribute, vars(module)[attribute], used)
            except NumbasyncError as error:  # the name may be meant for another object
                space.refused[attribute] = error
        return space


class FrozenArray:
    """A copy of an array that a kernel uses as a constant; typed when all is known."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.copy = array.copy()
        self.copy.flags.writeable = False

    def typed(self, tags: str) -> Any:
        return typed(self.copy, tags)


def _builtin(name: str, value: types.BuiltinFunctionType) -> Any:
    for known, function in vars(math).items():
        if function is value:
            return getattr(MATH, known)
    if value.__module__ not in _PURE:
        raise unsupported(f"{value.__module__}.{value.__name__}")
    return value


def _intrinsic_path(value: Any) -> str | None:
    """Where in `cuda` an object is that was imported or stored under a name of its own."""
    from numba import cuda

    homes = [("", cuda), *((f"{n}.", getattr(cuda, n)) for n in NESTED)]
    for prefix, home in homes:
        name: str
        for name, known in vars(home).items():
            if known is value and (prefix or hasattr(Intrinsics, name) or name in INSTANCE_NAMES):
                return prefix + name
    return None


# --- what the code of a function says -------------------------------------------------


def _loaded(code: types.CodeType) -> set[str]:
    """Names that `code`, or a function nested in it, loads as globals."""
    found = {
        i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _loaded(constant)
    return found


def _used(code: types.CodeType) -> set[str]:
    """Global and attribute names used by `code` and by functions nested in it."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _used(constant)
    return found


def _strict_constants(code: types.CodeType) -> types.CodeType:
    """`code` with constants of Numba's types."""

    def constant(value: Any) -> Any:
        if isinstance(value, types.CodeType):
            return _strict_constants(value)
        # Folding leaves intermediate results behind, such as 2**64 in 2**64 - 1.
        return value if type(value) is int and abs(value) > MASK else strict(value)

    return code.replace(co_consts=tuple(constant(c) for c in code.co_consts))
