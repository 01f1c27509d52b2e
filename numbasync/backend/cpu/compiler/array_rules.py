"""Arrays that a kernel makes: which surely compile for a GPU, and what to write instead of others.

The shape is to be of literals, and which values are literals is for numba-cuda to say: a name of a
global is one, `TILE + 1` is not. Nearly all kernels write plain literals and types; only for the
others numba-cuda's own compiler is run, which takes a quarter of the time of the CPU compiler.
"""

from __future__ import annotations

import ast
import enum
import re
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numba import cuda

from numbasync.backend.cpu.compiler.names import MISSING, Scope, device_function
from numbasync.backend.cpu.library.entry_points import types as numba_types
from numbasync.backend.cpu.library.source import definition

_FUNCTIONS = {
    cuda.shared.array: "cuda.shared.array",
    cuda.local.array: "cuda.local.array",
    cuda.const.array_like: "cuda.const.array_like",
}
_LITERAL = (
    "an int that is written there, or a global or a variable of an enclosing function that is one"
)
_ELEMENT_TYPES = (numba_types.Number, numba_types.Boolean)
_NUMPY_TYPES = [np.dtype(code).type for code in "?bBhHiIlLqQefdFD"]  # int64 is one of l and q


def array_function(callee: Any) -> str | None:
    """The name of a function of `numba.cuda` that makes an array; None for another object."""
    try:
        return _FUNCTIONS.get(callee)
    except TypeError:  # the object has no hash
        return None


def surely_compiles(node: ast.Call, scope: Scope) -> bool:
    """Whether the call of an array function has plain arguments: a shape of positive literals and
    a type of numbers, or a global array. False: numba-cuda must decide.
    """
    callee = scope.resolve(node.func)
    if callee is cuda.const.array_like:
        (array,) = node.args if len(node.args) == 1 and not node.keywords else (None,)
        return isinstance(_outer_value(array, scope), np.ndarray)
    arguments = _shape_and_dtype(node)
    if len(node.args) + len(node.keywords) != 2 or set(arguments) != {"shape", "dtype"}:
        return False
    shape, dtype = arguments["shape"], arguments["dtype"]
    is_dynamic = callee is cuda.shared.array and ast.unparse(shape) == "0"
    extents = shape.elts if isinstance(shape, ast.Tuple) else [shape]
    has_literals = bool(extents) and all(is_literal(e, scope) for e in extents)
    return (is_dynamic or has_literals) and _is_element_type(dtype, scope)


def advice_on_arrays(
    kernel: types.FunctionType, argument_types: Sequence[Any], refusal: str
) -> list[str]:
    """What to write instead of the arrays of a kernel, and of functions that it calls, which
    numba-cuda refuses.

    Args:
        argument_types: Numba's types of the kernel's arguments.
        refusal: what numba-cuda says. Only arrays in the lines that it names are looked at.
    """
    lines = set(re.findall(r"line (\d+)|\((\d+)\)", refusal))
    numbers = {int(a or b) for a, b in lines}
    return [
        advice(call, scope)
        for call, scope in _array_calls(kernel, argument_types, set())
        if call.lineno in numbers and not surely_compiles(call, scope)
    ]


def _array_calls(
    function: types.FunctionType, argument_types: Sequence[Any], seen: set[types.FunctionType]
) -> Iterator[tuple[ast.Call, Scope]]:
    source = None if function in seen else definition(function)
    seen.add(function)
    if source is None:
        return
    scope = Scope(function, source[1])
    scope.parameter_types = dict(zip(function.__code__.co_varnames, argument_types, strict=False))
    for call in (n for n in ast.walk(source[1]) if isinstance(n, ast.Call)):
        callee = scope.resolve(call.func)
        inner = device_function(callee)
        if inner is not None:
            yield from _array_calls(inner, (), seen)
        elif array_function(callee) is not None:
            yield call, scope


def advice(node: ast.Call, scope: Scope) -> str:
    """What is probably wrong with a call that numba-cuda refuses, and what to write."""
    callee = scope.resolve(node.func)
    subject = f"{_FUNCTIONS[callee]}, line {node.lineno}"
    if callee is cuda.const.array_like:
        return f"{subject}: it takes one array, such as a global np.array(...)"
    arguments = _shape_and_dtype(node)
    shape, dtype = arguments.get("shape"), arguments.get("dtype")
    extents = shape.elts if isinstance(shape, ast.Tuple) else [] if shape is None else [shape]
    is_shared = callee is cuda.shared.array
    for extent in extents:
        value = scope.constant(extent)
        if type(value) is int and value <= 0:
            more = "; of one axis, 0 means: as many as the launch brings" if is_shared else ""
            return f"{subject}: the shape {ast.unparse(arguments['shape'])} has no elements{more}"
        if not is_literal(extent, scope):
            return f"{subject}: {_extent_advice(extent, value, scope, is_shared)}"
    if dtype is not None and not _is_element_type(dtype, scope):
        return f"{subject}: the dtype is {ast.unparse(dtype)}; write a type, such as float32"
    return (
        f"{subject}: it takes a shape, a dtype, and perhaps an alignment: a power of two, 8 or more"
    )


def _extent_advice(extent: ast.expr, value: Any, scope: Scope, is_shared: bool) -> str:
    text, outer = ast.unparse(extent), _outer_value(extent, scope)
    typed = value if outer is MISSING else outer
    if isinstance(typed, np.integer | enum.Enum):
        return (
            f"the shape is of type {type(typed).__module__}.{type(typed).__name__}, and is to be a "
            f"plain int, as SIZE = int({text}) at module level"
        )
    said = f"in the shape, {text} is no literal: a GPU's compiler takes {_LITERAL}."
    if value is not MISSING:
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


def _shape_and_dtype(node: ast.Call) -> dict[str, ast.expr]:
    positional = dict(zip(("shape", "dtype"), node.args, strict=False))
    return positional | {k.arg or "": k.value for k in node.keywords}


def _outer_value(node: ast.expr | None, scope: Scope) -> Any:
    """The value of a global, or of a variable of an enclosing function; else MISSING."""
    is_outer = isinstance(node, ast.Name) and not scope.is_bound(node.id)
    return scope.find(node.id) if is_outer else MISSING  # type: ignore[union-attr]


def is_literal(node: ast.expr, scope: Scope) -> bool:
    """Whether Numba surely takes an expression for a literal: one or several positive ints."""
    # Python itself computes what is written in numbers alone, such as `32 + 2`.
    is_written = not any(isinstance(n, ast.Name | ast.Call) for n in ast.walk(node))
    value = scope.constant(node) if is_written else _outer_value(node, scope)
    extents = value if type(value) is tuple and value else (value,)
    return all(type(extent) is int and extent > 0 for extent in extents)


def _is_element_type(node: ast.expr, scope: Scope) -> bool:
    is_attribute = isinstance(node, ast.Attribute)
    if is_attribute and node.attr == "dtype":  # type: ignore[attr-defined]
        return isinstance(scope.constant(node), _ELEMENT_TYPES)  # of a kernel's argument
    value = scope.resolve(node) if is_attribute else _outer_value(node, scope)
    return isinstance(value, _ELEMENT_TYPES) or any(value is each for each in _NUMPY_TYPES)
