"""Copies of functions in which the names of `numba.cuda` mean the stand-ins for Python. The code
object is the function's own, and the user's function and module are not changed.
"""

from __future__ import annotations

import dis
import importlib
import sys
import types
from typing import Any

import numpy as np
from numba import cuda
from numba.core.types import Type

from numbasync import dtypes
from numbasync.backend.cpu.interpreter import together, waiting
from numbasync.backend.cpu.interpreter.cuda_module import CUDA, LayoutArrays, unavailable
from numbasync.backend.cpu.target.twins import twin_of
from numbasync.backend.program_functions import device_function, used_values
from numbasync.backend.shared_layout import SharedLayout
from numbasync.errors import UnsupportedKernelError
from numbasync.facts.source import nested_codes

_Intrinsic: Any = importlib.import_module("numba.cuda.extending")._Intrinsic
_BREAKPOINTS = frozenset({"breakpoint", "print", "set_trace"})
_OPERATIONS = "numbasync.tensor_cores.ptx"
_PLAIN_MODULES = frozenset({"math", "numpy"})  # they have nothing of `numba.cuda` in them


class Binding:
    """Binds a kernel and the device functions that it uses.

    Attributes:
        files: the functions' source files.
        has_barriers: whether one of the functions contains a barrier, or another call at which
            threads wait for one another.
        has_breakpoints: whether one of them stops in a debugger, or prints: what Numba compiles of
            this is less than what a programmer writes while debugging.
    """

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.has_barriers = self.has_breakpoints = False
        self._functions: dict[types.FunctionType, types.FunctionType] = {}
        self._stand_ins = _stand_ins()

    def function(self, original: types.FunctionType) -> types.FunctionType:
        """The copy of a function. Its globals have the values that they have now.

        Raises:
            UnsupportedKernelError: a name means something that does not run as Python.
        """
        copy = self._functions.get(original)
        if copy is not None:
            return copy
        code = original.__code__
        # Only what is used: a copy of all globals would keep arrays alive.
        names = {name: original.__globals__.get(name) for name in ("__builtins__", "__name__")}
        cells = tuple(types.CellType() for _ in code.co_freevars)
        copy = types.FunctionType(code, names, original.__name__, original.__defaults__, cells)
        copy.__kwdefaults__ = original.__kwdefaults__
        self._functions[original] = copy  # before its names: a function may call itself
        self.files.add(code.co_filename)
        for inner in nested_codes(code):
            self.has_barriers |= not waiting.FUNCTIONS.isdisjoint(inner.co_names)
            self.has_breakpoints |= not _BREAKPOINTS.isdisjoint(inner.co_names)
            for instruction in dis.get_instructions(inner):
                name = instruction.argval
                if instruction.opname == "LOAD_GLOBAL" and name in original.__globals__:
                    names[name] = self.value(name, original.__globals__[name])
        for name, cell, given in zip(
            code.co_freevars, cells, original.__closure__ or (), strict=True
        ):
            if given != types.CellType():  # a variable that is not assigned yet
                cell.cell_contents = self.value(name, given.cell_contents)
        return copy

    def value(self, name: str, value: Any) -> Any:
        """What a name means in a copy."""
        if value is cuda:
            return CUDA
        if isinstance(value, SharedLayout):
            return LayoutArrays(value)
        if isinstance(value, types.ModuleType):
            return value if value.__name__ in _PLAIN_MODULES else _Module(value, self)
        if type(value).__module__ == _OPERATIONS:
            from numbasync.backend.cpu.interpreter.tensor_cores.meanings import MEANINGS

            return MEANINGS[value._name]
        inner = device_function(value) or twin_of(value)
        if inner is not None:
            return self.function(inner)
        if id(value) in together.FUNCTIONS:
            return together.FUNCTIONS[id(value)][1]
        cuda_name, stand_in = self._stand_ins.get(id(value), ("", None))
        if stand_in is not None:
            self.has_barriers |= cuda_name in waiting.FUNCTIONS
            return stand_in
        home = str(getattr(value, "__module__", None) or "")
        is_value = isinstance(value, Type | np.generic | np.ndarray)
        if home.startswith("numba.cuda") and not is_value:
            raise unavailable(f"{home.removeprefix('numba.')}.{getattr(value, '__name__', name)}")
        if isinstance(value, _Intrinsic):
            raise UnsupportedKernelError(
                f"{name} is an @intrinsic, which is made of instructions for a compiler."
            )
        return value


def uses_tensor_cores(function: types.FunctionType) -> bool:
    """Whether a kernel, or a device function of it, uses operations of `numbasync.tensor_cores`.
    Where none has been imported, there are none.
    """
    module = sys.modules.get(_OPERATIONS)
    return module is not None and any(
        isinstance(value, module.Operation) for value in used_values(function)
    )


def combines_values(function: types.FunctionType) -> bool:
    """Whether a kernel, or a device function of it, uses `numbasync.block` or `numbasync.warp`."""
    return any(id(value) in together.FUNCTIONS for value in used_values(function))


class _Module:
    """A module of the user's, or of Numba's, whose names mean what they do in a copy."""

    def __init__(self, module: types.ModuleType, binding: Binding) -> None:
        self._module, self._binding = module, binding

    def __getattr__(self, name: str) -> Any:
        value = self._binding.value(name, getattr(self._module, name))
        self.__dict__[name] = value
        return value

    def __repr__(self) -> str:
        return repr(self._module)


def _stand_ins() -> dict[int, tuple[str, Any]]:
    """The name and the stand-in of each function of `numba.cuda`, by the function's identity:
    programs also import the functions one by one, and under other names.
    """
    names = [n for n in dir(CUDA) if n != "laneid" and not n.startswith("_") and hasattr(cuda, n)]
    stand_ins = {id(getattr(cuda, name)): (name, getattr(CUDA, name)) for name in names}
    for name, numba_type in dtypes.extension_types().items():
        # As types of Numba they convert nothing outside of kernels.
        stand_ins[id(numba_type)] = name, dtypes.of_name(name).type
    return stand_ins
