"""Functions of a frozen program, with one worker thread's stand-ins where their names are."""

from __future__ import annotations

import types
from typing import Any

from numbasync.backend.cpu.interpreter.constants import strict
from numbasync.backend.cpu.interpreter.cuda_module import Intrinsics
from numbasync.backend.cpu.interpreter.freeze import (
    Frozen,
    FrozenArray,
    Namespace,
    Numba,
    Place,
    Program,
)
from numbasync.errors import KernelError, NumbasyncError


class Binding:
    """Binds the functions of one program for one thread."""

    def __init__(self, program: Program, cuda: Intrinsics) -> None:
        self._tags = program.tags
        self._cuda = cuda
        self._made: dict[Frozen, types.FunctionType] = {}

    def function(self, frozen: Frozen) -> types.FunctionType:
        found = self._made.get(frozen)
        if found is None:
            original = frozen.function
            names: dict[str, Any] = {"__builtins__": original.__globals__["__builtins__"]}
            cells = tuple(types.CellType() for _ in frozen.cells)
            found = types.FunctionType(
                frozen.code, names, original.__name__, strict(original.__defaults__), cells or None
            )
            found.__kwdefaults__ = original.__kwdefaults__
            self._made[frozen] = found  # before its names: it may call itself
            names.update({name: self._value(value) for name, value in frozen.names.items()})
            for cell, value in zip(cells, frozen.cells, strict=True):
                cell.cell_contents = self._value(value)
        return found

    def _value(self, value: Any) -> Any:
        if isinstance(value, Frozen):
            return self.function(value)
        if isinstance(value, (Place, Numba)):
            return value.find(self._cuda)
        if isinstance(value, FrozenArray):
            return value.typed(self._tags)
        if isinstance(value, Namespace):
            values = {name: self._value(v) for name, v in value.values.items()}
            return BoundNamespace(value.name, values, value.refused)
        return value


class BoundNamespace:
    """A module of the user's, as a kernel sees it."""

    def __init__(
        self, name: str, values: dict[str, Any], refused: dict[str, NumbasyncError]
    ) -> None:
        self.__dict__.update(values)
        self._name = name
        self._refused = refused

    def __getattr__(self, name: str) -> Any:
        if name in self._refused:
            error = self._refused[name]
            raise type(error)(*error.args)
        raise KernelError(f"module {self._name} had no {name!r} when the kernel was compiled")
