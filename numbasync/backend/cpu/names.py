"""What the names in a kernel's source stand for, as far as that is known before it runs."""

from __future__ import annotations

import ast
import builtins
import importlib
import types
from typing import Any, TypeAlias

import numpy as np
from numba import cuda
from numba.core import types as numba_types
from numba.core.dispatcher import Dispatcher
from numba.np.numpy_support import from_dtype

from numbasync.backend.cpu.half import known
from numbasync.backend.declared import results

MISSING: Any = object()

# Types of arguments, and of a result, of a function for each declared signature.
Signatures: TypeAlias = tuple[tuple[tuple[Any, ...], Any], ...]

_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b, ast.Mod: lambda a, b: a % b,
    ast.LShift: lambda a, b: a << b, ast.RShift: lambda a, b: a >> b,
    ast.Pow: lambda a, b: a**b if 0 <= b < 64 else MISSING,
}  # fmt: skip


class UntranslatableError(Exception):
    """A construct that the compiled engine does not have.

    Attributes:
        what: the construct, for a message.
        line: where it is in its file.
    """

    def __init__(self, what: str, node: ast.AST | None = None) -> None:
        self.what = what
        self.line = getattr(node, "lineno", 0)
        super().__init__(f"{what}, line {self.line}" if self.line else what)


class Scope:
    """The names of one function.

    Args:
        bound: parameters that stand for a constant or a function, where it is called.
    """

    def __init__(
        self,
        function: types.FunctionType,
        node: ast.FunctionDef,
        bound: dict[str, Any] | None = None,
    ) -> None:
        code = function.__code__
        self.function = function
        self._bound = bound or {}
        stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and _is_stored(n)}
        own = {*code.co_varnames, *code.co_cellvars, *stored}  # also of recovered statements
        self.locals = frozenset(own) - set(self._bound)
        self._cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self._globals = function.__globals__
        self._constants = _constants(node)

    def find(self, name: str) -> Any:
        """The value of a name that is no variable of the function."""
        if name in self.locals:
            return MISSING
        if name in self._bound:
            return self._bound[name]
        if name in self._cells:
            try:
                return self._cells[name].cell_contents
            except ValueError:
                return MISSING  # not assigned yet
        return self._globals.get(name, getattr(builtins, name, MISSING))

    def resolve(self, node: ast.AST) -> Any:
        """What an expression of names and attributes stands for; MISSING if it is computed."""
        if isinstance(node, ast.Name):
            return self.find(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.resolve(node.value)
            if owner is cuda and node.attr == "fp16":
                return importlib.import_module("numba.cuda.fp16")  # which a GPU's compiler does
            if isinstance(owner, types.ModuleType | type):
                return getattr(owner, node.attr, MISSING)
        return MISSING

    def constant(self, node: ast.AST | None) -> Any:
        """The value of an expression of constants; MISSING if it is none."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Tuple):
            parts = tuple(self.constant(e) for e in node.elts)
            return MISSING if MISSING in parts else parts
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            a, b = self.constant(node.left), self.constant(node.right)
            if isinstance(a, int) and isinstance(b, int):
                return _OPERATORS[type(node.op)](a, b)
            return MISSING
        if isinstance(node, ast.Call) and not node.keywords and len(node.args) == 1:
            value = self.constant(node.args[0])
            return value if self.resolve(node.func) is int and isinstance(value, int) else MISSING
        if isinstance(node, ast.Name) and node.id in self._constants:
            return self.constant(self._constants[node.id])
        found = self.resolve(node) if node is not None else MISSING
        if isinstance(found, property):
            return MISSING  # `cuda.threadIdx.x`, which every thread has its own of
        return int(found) if isinstance(found, np.integer) else found


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _constants(node: ast.FunctionDef) -> dict[str, ast.expr]:
    """Variables that are assigned once, by an assignment of their own."""
    stores: dict[str, int] = {}
    assigned: dict[str, ast.expr] = {}
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            stores[each.id] = stores.get(each.id, 0) + 1
        elif isinstance(each, ast.arg):
            stores[each.arg] = 2
        if isinstance(each, ast.Assign) and len(each.targets) == 1:
            target = each.targets[0]
            if isinstance(target, ast.Name):
                assigned[target.id] = each.value
    return {name: value for name, value in assigned.items() if stores[name] == 1}


def is_reassigned(name: str, node: ast.FunctionDef) -> bool:
    """Whether a parameter of a function is also a variable of it."""
    return any(
        isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)
        for n in ast.walk(node)
    )


def element_type(value: Any) -> Any:
    """Numba's type for what a kernel writes as an array's `dtype`; MISSING if it is none."""
    if isinstance(value, numba_types.Type):
        return known(value)
    try:
        return known(from_dtype(np.dtype(value)))
    except Exception:
        return MISSING


def device_function(value: Any) -> types.FunctionType | None:
    """The code of what `cuda.jit` has made, or Numba's `jit`, as parts of `cuda.random` are."""
    found = getattr(value, "py_func", None)
    is_dispatcher = isinstance(value, cuda.dispatcher.CUDADispatcher | Dispatcher)
    return found if is_dispatcher and isinstance(found, types.FunctionType) else None


def declared_types(value: Any) -> Signatures:
    """What a device function is declared for; nothing if it takes any arguments."""
    if not isinstance(value, cuda.dispatcher.CUDADispatcher):
        return ()
    return tuple(results(value)) if value.targetoptions.get("device") else ()
