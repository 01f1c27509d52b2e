"""What to write instead of an array that a kernel makes, and Numba refuses.

The shape is to be of literals, and Numba says which values are: a name of a global is one,
`TILE + 1` is not.
"""

from __future__ import annotations

import ast
import builtins
import enum
import operator
import re
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
from numba.core import types as _types

from numbasync.backend.program_functions import device_function
from numbasync.facts.source import captured, find_definition
from numbasync.kernel_names import cuda

_numba_types: Any = _types
_MISSING: Any = object()
_FUNCTIONS = {
    cuda.shared.array: "cuda.shared.array",
    cuda.local.array: "cuda.local.array",
    cuda.const.array_like: "cuda.const.array_like",
}
_LITERAL = (
    "an int that is written there, or a global or a variable of an enclosing function that is one"
)
_ELEMENT_TYPES = (_numba_types.Number, _numba_types.Boolean)
_OPERATIONS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
    ast.USub: operator.neg,
}  # fmt: skip
_NUMPY_TYPES = [np.dtype(code).type for code in "?bBhHiIlLqQefdFD"]  # int64 is one of l and q


def advice_on_arrays(kernel: types.FunctionType, refusal: str) -> list[str]:
    """What to write instead of the arrays of a kernel, and of functions that it calls, which
    Numba refuses.

    Args:
        refusal: what Numba says. Only arrays in the lines that it names are looked at.
    """
    numbers = {int(a or b) for a, b in re.findall(r"line (\d+)|\((\d+)\)", refusal)}
    found = (
        _advice(call, names)
        for call, names in _array_calls(kernel, set())
        if call.lineno in numbers
    )
    return [text for text in found if text]


class _Names:
    """The values of names in a function, as far as they are known before it runs."""

    def __init__(self, function: types.FunctionType, node: ast.FunctionDef) -> None:
        code = function.__code__
        self._locals = {*code.co_varnames, *code.co_cellvars}
        self._outer = {**vars(builtins), **function.__globals__, **captured(function)}
        stored = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) if _is_store(n)]
        self._assigned = {
            target.id: each.value
            for each in ast.walk(node)
            if isinstance(each, ast.Assign)
            for target in each.targets
            if isinstance(target, ast.Name) and stored.count(target.id) == 1
        }

    def outer(self, node: ast.AST | None) -> Any:
        """The value of a global, or of a variable of an enclosing function; else missing."""
        is_outer = isinstance(node, ast.Name) and node.id not in self._locals
        return self._outer.get(node.id, _MISSING) if is_outer else _MISSING  # type: ignore[union-attr]

    def resolve(self, node: ast.AST) -> Any:
        """The value of an expression of outer names and attributes; missing if it is another."""
        if isinstance(node, ast.Attribute):
            owner = self.resolve(node.value)
            return _MISSING if owner is _MISSING else getattr(owner, node.attr, _MISSING)
        return self.outer(node)

    def constant(self, node: ast.expr) -> Any:
        """The value of an expression that Python could compute before the kernel runs."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and node.id in self._assigned:
            return self.constant(self._assigned[node.id])
        if isinstance(node, ast.Tuple):
            parts = tuple(self.constant(e) for e in node.elts)
            return _MISSING if _MISSING in parts else parts
        if isinstance(node, ast.UnaryOp | ast.BinOp):
            operands = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr)]
            values = [self.constant(n) for n in operands]
            if not all(type(v) is int for v in values):
                return _MISSING
            operation = _OPERATIONS.get(type(node.op))
            try:
                return _MISSING if operation is None else operation(*values)
            except (ArithmeticError, ValueError):
                return _MISSING
        return self.resolve(node)

    def is_literal(self, node: ast.expr) -> bool:
        """Whether Numba surely takes an expression for a literal: one or several positive ints."""
        # Python itself computes what is written in numbers alone, such as `32 + 2`.
        is_written = not any(isinstance(n, ast.Name | ast.Call) for n in ast.walk(node))
        value = self.constant(node) if is_written else self.outer(node)
        extents = value if type(value) is tuple and value else (value,)
        return all(type(extent) is int and extent > 0 for extent in extents)

    def is_element_type(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Attribute) and node.attr == "dtype":
            return True  # of an argument; others are refused by another text
        value = self.resolve(node)
        return isinstance(value, _ELEMENT_TYPES) or any(value is each for each in _NUMPY_TYPES)


def _is_store(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _array_calls(
    function: types.FunctionType, seen: set[types.FunctionType]
) -> Iterator[tuple[ast.Call, _Names]]:
    found = None if function in seen else find_definition(function)
    seen.add(function)
    if found is None:
        return
    node = found[1]
    names = _Names(function, node)
    for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
        callee = names.resolve(call.func)
        inner = device_function(callee)
        if inner is not None:
            yield from _array_calls(inner, seen)
        elif any(callee is maker for maker in _FUNCTIONS):
            yield call, names


def _advice(node: ast.Call, names: _Names) -> str:
    """What is probably wrong with a call, and what to write; empty if it looks right."""
    callee = names.resolve(node.func)
    subject = f"{_FUNCTIONS[callee]}, line {node.lineno}"
    if callee is cuda.const.array_like:
        (array,) = node.args if len(node.args) == 1 and not node.keywords else (None,)
        is_right = isinstance(names.outer(array), np.ndarray)
        return "" if is_right else f"{subject}: it takes one array, such as a global np.array(...)"
    positional = dict(zip(("shape", "dtype"), node.args, strict=False))
    arguments = positional | {k.arg or "": k.value for k in node.keywords}
    shape, dtype = arguments.get("shape"), arguments.get("dtype")
    extents = shape.elts if isinstance(shape, ast.Tuple) else [] if shape is None else [shape]
    is_shared = callee is cuda.shared.array
    is_dynamic = is_shared and shape is not None and ast.unparse(shape) == "0"
    for extent in extents:
        value = names.constant(extent)
        if type(value) is int and value <= 0 and not is_dynamic:
            more = "; of one axis, 0 means: as many as the launch brings" if is_shared else ""
            return f"{subject}: the shape {ast.unparse(arguments['shape'])} has no elements{more}"
        if not (is_dynamic or names.is_literal(extent)):
            return f"{subject}: {_extent_advice(extent, value, names, is_shared)}"
    if dtype is not None and not names.is_element_type(dtype):
        return f"{subject}: the dtype is {ast.unparse(dtype)}; write a type, such as float32"
    if len(node.args) + len(node.keywords) == 2 and set(arguments) == {"shape", "dtype"}:
        return ""
    return (
        f"{subject}: it takes a shape, a dtype, and perhaps an alignment: a power of two, 8 or more"
    )


def _extent_advice(extent: ast.expr, value: Any, names: _Names, is_shared: bool) -> str:
    text, outer = ast.unparse(extent), names.outer(extent)
    typed = value if outer is _MISSING else outer
    if isinstance(typed, np.integer | enum.Enum):
        return (
            f"the shape is of type {type(typed).__module__}.{type(typed).__name__}, and is to be a "
            f"plain int, as SIZE = int({text}) at module level"
        )
    said = f"in the shape, {text} is no literal: a GPU's compiler takes {_LITERAL}."
    if value is not _MISSING:
        return (
            f"{said} Compute it before:\n    SIZE = {text}  # at module level\n"
            "and write SIZE in the kernel."
        )
    if is_shared:
        return (
            f"{said} As large as a launch says is dynamic shared memory:\n"
            "    cuda.shared.array(0, dtype)"
        )
    return said
