"""The values of names in a kernel's source, as far as they are known before the kernel runs."""

from __future__ import annotations

import ast
import builtins
import importlib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numba import cuda
from numba.core import types as _types
from numba.core.dispatcher import Dispatcher

from numbasync.backend.bfloat16_type import from_dtype
from numbasync.backend.cpu.library.small_floats import known
from numbasync.backend.declared_signatures import results
from numbasync.backend.shared_layout import SharedLayout

numba_types: Any = _types
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
    """A construct that is not translated.

    Attributes:
        what: the construct, for a message.
        line: where it is in its file.
        file: the name of that; empty if it is the kernel's.
    """

    def __init__(self, what: str, node: ast.AST | None = None) -> None:
        self.what = what
        self.line = getattr(node, "lineno", 0)
        self.file: str = getattr(node, "file", "")
        super().__init__(f"{what}, line {self.line}" if self.line else what)


@dataclass(frozen=True, eq=False)
class Closure:
    """A function that is defined in another one.

    Attributes:
        scope: the names of the enclosing function, to which free variables belong.
    """

    node: ast.FunctionDef
    scope: Scope


class Scope:
    """The names of one function.

    Args:
        bound: parameters that stand for a constant or a function, where it is called.

    Attributes:
        locals: names of variables, its own and those of a function around it.
        own: its own among them.
        outer: the names of the function around it; None if there is none.
        owner: what writes the function's statements.
        parameter_types: Numba's types of its parameters, as far as they are known.
        call: of a device function, the call for which it is written (`program.Call`).
    """

    call: Any = None
    outer: Scope | None = None
    owner: Any = None

    def __init__(
        self,
        function: types.FunctionType,
        node: ast.FunctionDef,
        bound: dict[str, Any] | None = None,
    ) -> None:
        code = function.__code__
        self.function = function
        self._bound = bound or {}
        self._closures = {n: Closure(f, self) for n, f in _inner_functions(node).items()}
        own = {*code.co_varnames, *code.co_cellvars, *_stored(node)}
        self.own = self.locals = frozenset(own) - set(self._bound) - set(self._closures)
        self._cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self._globals = function.__globals__
        self._constants = _constants(node)
        self._changed = _stored(node)
        self.parameter_types: dict[str, Any] = {}

    def find(self, name: str) -> Any:
        """The value of a name that is no variable of the function."""
        if name in self.locals:
            return MISSING
        if name in self._bound:
            return self._bound[name]
        if name in self._closures:
            return self._closures[name]
        if name in self._cells:
            try:
                return self._cells[name].cell_contents
            except ValueError:
                return MISSING  # not assigned yet
        return self._globals.get(name, getattr(builtins, name, MISSING))

    def is_bound(self, name: str) -> bool:
        """Whether a parameter of this name, here or around, stands for a constant."""
        return name in self._bound or (self.outer is not None and self.outer.is_bound(name))

    def resolve(self, node: ast.AST) -> Any:
        """The value of an expression of names and attributes; MISSING if it is computed."""
        if isinstance(node, ast.Name):
            return self.find(node.id)
        if isinstance(node, ast.Lambda):
            return Closure(_as_definition(node, "lambda"), self)
        if isinstance(node, ast.Attribute):
            owner = self.resolve(node.value)
            if owner is cuda and node.attr == "fp16":
                return importlib.import_module("numba.cuda.fp16")  # as numba-cuda does
            if isinstance(owner, types.ModuleType | type):
                return getattr(owner, node.attr, MISSING)
        return MISSING

    def constant(self, node: ast.AST | None) -> Any:
        """The value of an expression of constants; MISSING for other expressions."""
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
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._is_none(node.left, node.ops[0], node.comparators[0])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self.constant(node.operand)
            return -value if isinstance(value, int) else MISSING
        if isinstance(node, ast.Call) and not node.keywords and len(node.args) == 1:
            value = self.constant(node.args[0])
            if self.resolve(node.func) is np.dtype:
                return element_type(value)
            return value if self.resolve(node.func) is int and isinstance(value, int) else MISSING
        if isinstance(node, ast.Name) and node.id in self._constants:
            return self.constant(self._constants[node.id])
        if isinstance(node, ast.Attribute) and node.attr == "dtype":
            numba_type = self.type_of(node.value)
            if isinstance(numba_type, numba_types.Array):
                return numba_type.dtype
            array = self.constant(node.value)
            if isinstance(array, np.ndarray):
                return array.dtype
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            of, part = self.constant(node.value), node.slice
            bounds = [None if b is None else self.constant(b) for b in (part.lower, part.upper)]
            is_part = isinstance(of, tuple) and part.step is None and MISSING not in bounds
            return of[slice(*bounds)] if is_part else MISSING
        if isinstance(node, ast.Attribute) and node.attr == "type":  # of a dtype
            numba_type = self.constant(node.value)
            if isinstance(numba_type, numba_types.Type):
                return numba_type
        value = self.resolve(node) if node is not None else MISSING
        if isinstance(value, property):
            return MISSING  # `cuda.threadIdx.x`, of which every thread has its own
        return int(value) if isinstance(value, np.integer) else value

    def _is_none(self, value: ast.expr, operator: ast.cmpop, other: ast.expr) -> Any:
        """The value of `value is None`, or of `is not`, if the type of a parameter tells it."""
        is_test = isinstance(operator, ast.Is | ast.IsNot)
        if not (is_test and isinstance(other, ast.Constant) and other.value is None):
            return MISSING
        numba_type = self.type_of(value)
        if numba_type is MISSING or isinstance(numba_type, numba_types.Optional):
            return MISSING
        return isinstance(numba_type, numba_types.NoneType) == isinstance(operator, ast.Is)

    def type_of(self, node: ast.AST) -> Any:
        """Numba's type of an expression of parameters; MISSING if it is not known."""
        if isinstance(node, ast.Name):
            if node.id in self._constants:
                return self.type_of(self._constants[node.id])
            return (
                MISSING if node.id in self._changed else self.parameter_types.get(node.id, MISSING)
            )
        if isinstance(node, ast.Call) and is_array_function(self.resolve(node.func)):
            numba_type = element_type(self.constant(array_arguments(node).get("dtype")))
            return MISSING if numba_type is MISSING else numba_types.Array(numba_type, 1, "C")
        if isinstance(node, ast.Attribute):
            layout = self.resolve(node.value)
            array = layout.find(node.attr) if isinstance(layout, SharedLayout) else None
            if array is None:
                return MISSING
            return numba_types.Array(element_type(array.dtype), len(array.shape), "C")
        if not isinstance(node, ast.Subscript):
            return MISSING
        of = self.type_of(node.value)
        if hasattr(of, "types"):  # a tuple
            index = self.constant(node.slice)
            known = isinstance(index, int) and -len(of.types) <= index < len(of.types)
            return of.types[index] if known else MISSING
        if isinstance(of, numba_types.Array):  # a part of it, unless it is an element
            indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            is_part = len(indices) < of.ndim or any(isinstance(i, ast.Slice) for i in indices)
            return of if is_part else MISSING
        return MISSING


class InnerScope(Scope):
    """The names of a function that is defined in another one, where it is called."""

    def __init__(self, closure: Closure, bound: dict[str, Any]) -> None:
        node, outer = closure.node, closure.scope
        self.function = outer.function
        self.outer = outer
        self._bound = bound
        self._closures = {n: Closure(f, self) for n, f in _inner_functions(node).items()}
        elsewhere = {n for e in own_nodes(node) if isinstance(e, ast.Nonlocal) for n in e.names}
        self.own = frozenset(
            (_stored(node) | set(parameters(node))) - elsewhere - set(bound) - set(self._closures)
        )
        self._here = self.own | set(bound) | set(self._closures)
        self.locals = self.own | (outer.locals - self._here)
        self._constants = {k: v for k, v in _constants(node).items() if k in self._here}
        self._changed = _stored(node)
        self.parameter_types = {}

    def find(self, name: str) -> Any:
        if name in self._here:
            return self._bound.get(name, self._closures.get(name, MISSING))
        assert self.outer is not None  # as of every inner function
        return self.outer.find(name)

    def constant(self, node: ast.AST | None) -> Any:
        if isinstance(node, ast.Name) and node.id not in self._here:
            assert self.outer is not None  # as of every inner function
            return self.outer.constant(node)
        return super().constant(node)

    def type_of(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Name) and node.id not in self._here:
            assert self.outer is not None  # as of every inner function
            return self.outer.type_of(node)
        return super().type_of(node)


def user_name(name: str) -> str:
    """What a variable of generated code is called in the user's."""
    return name.removeprefix("_own_").rpartition("_")[0]


def parameters(node: ast.FunctionDef) -> list[str]:
    """Names of all parameters of a definition."""
    a = node.args
    stars = [s for s in (a.vararg, a.kwarg) if s is not None]
    return [p.arg for p in [*a.posonlyargs, *a.args, *a.kwonlyargs, *stars]]


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a definition, without those of functions inside."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield from own_nodes(child)


def _stored(node: ast.AST) -> set[str]:
    names = (n for n in own_nodes(node) if isinstance(n, ast.Name))
    return {n.id for n in names if isinstance(n.ctx, ast.Store)}


def _inner_functions(node: ast.AST) -> dict[str, ast.FunctionDef]:
    """Functions that are defined inside a definition, by name."""
    functions: dict[str, ast.FunctionDef] = {}
    for each in own_nodes(node):
        if isinstance(each, ast.FunctionDef):
            if each.name in functions or each.name in _stored(node):
                raise UntranslatableError(f"{each.name}, which is defined twice", each)
            functions[each.name] = each
    for name, value in _constants(node).items():
        if isinstance(value, ast.Lambda):
            functions[name] = _as_definition(value, name)
    return functions


def _as_definition(node: ast.Lambda, name: str) -> ast.FunctionDef:
    result = ast.copy_location(ast.Return(node.body), node.body)
    return ast.copy_location(ast.FunctionDef(name, node.args, [result], [], None, None), node)


def _constants(node: ast.AST) -> dict[str, ast.expr]:
    """Variables that are assigned once, by an assignment of their own."""
    stores: dict[str, int] = {}
    assigned: dict[str, ast.expr] = {}
    for each in ast.walk(node):
        if isinstance(each, ast.Nonlocal):
            stores |= dict.fromkeys(each.names, 2)
    for each in own_nodes(node):
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


def is_array_function(callee: Any) -> bool:
    """Whether a function is `cuda.shared.array` or `cuda.local.array`."""
    return any(callee is maker for maker in (cuda.shared.array, cuda.local.array))


def array_arguments(node: ast.Call) -> dict[str, ast.expr]:
    """The arguments of a call of an array function, by name."""
    names = ("shape", "dtype", "alignment")
    arguments: dict[str, ast.expr] = dict(zip(names, node.args, strict=False))
    return arguments | {k.arg: k.value for k in node.keywords if k.arg is not None}


def element_type(value: Any) -> Any:
    """Numba's type for what a kernel writes as an array's `dtype`; MISSING if it is none."""
    if isinstance(value, numba_types.Type):
        return known(value)
    try:
        return known(from_dtype(np.dtype(value)))
    except Exception:
        return MISSING


def device_function(value: Any) -> types.FunctionType | None:
    """The Python function of a dispatcher of `cuda.jit`, or of `jit`, as in `cuda.random`; also
    of what stands for such a function, as launchers do.
    """
    function = getattr(value, "py_func", None)
    is_dispatcher = isinstance(value, cuda.dispatcher.CUDADispatcher | Dispatcher)
    is_dispatcher |= hasattr(type(value), "_numba_type_") and not hasattr(value, "nin")  # a ufunc
    return function if is_dispatcher and isinstance(function, types.FunctionType) else None


def declared_types(value: Any) -> Signatures:
    """The declared signatures of a device function; empty if it takes any arguments."""
    if not isinstance(value, cuda.dispatcher.CUDADispatcher):
        return ()
    return tuple(results(value)) if value.targetoptions.get("device") else ()
