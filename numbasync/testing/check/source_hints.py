"""Hints from a kernel's source: which parameters are arrays, with how many axes, and whether the
threads stride over the grid. The result is a guess, no better than the source is explicit.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from types import FunctionType

_OF_ARRAYS = frozenset({"shape", "size", "ndim", "strides", "dtype", "itemsize", "nbytes"})


@dataclass(frozen=True, slots=True)
class Usage:
    """How a kernel uses its parameters.

    Attributes:
        axes: the number of axes of each parameter that is used as an array.
        grid_axes: the number of axes that the kernel asks `cuda.grid` for; 1 if unknown.
        strides: a thread processes more than one element, so that any grid covers all elements.
    """

    axes: dict[str, int]
    grid_axes: int = 1
    strides: bool = False


def definition_of(function: FunctionType) -> ast.FunctionDef | None:
    """The function's syntax tree; None without source, as for functions made by `exec`."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    return tree if isinstance(tree, ast.FunctionDef) else None


def usage_of(function: FunctionType, callers: tuple[FunctionType, ...] = ()) -> Usage:
    """How `function`, called through `callers`, uses its parameters."""
    tree = None if function in callers else definition_of(function)
    if tree is None:
        return Usage({})
    names = {a.arg for a in tree.args.posonlyargs + tree.args.args}
    axes: dict[str, int] = {}
    for node in ast.walk(tree):
        for name, count in [*_seen(node), *_passed(node, function, callers)]:
            if name in names:
                axes[name] = max(axes.get(name, 1), count)
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    grids = [_number(c.args[:1]) for c in calls if _last_name(c.func) in ("grid", "gridsize")]
    attributes = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    return Usage(axes, max([1, *grids]), bool(attributes & {"gridsize", "gridDim"}))


def _seen(node: ast.AST) -> Iterable[tuple[str, int]]:
    """Names that this expression shows to be arrays, with their least numbers of axes."""
    if isinstance(node, ast.Subscript):
        base, index = node.value, node.slice
        if isinstance(base, ast.Name):
            yield base.id, _indices(index)
        elif isinstance(base, ast.Attribute) and base.attr in ("shape", "strides"):
            yield _last_name(base.value), _number([index], 0) + 1
    elif isinstance(node, ast.Attribute) and node.attr in _OF_ARRAYS:
        yield _last_name(node.value), 1
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        array = node.args[0]
        is_atomic = _last_name(node.func.value) == "atomic" and len(node.args) > 1
        if is_atomic and isinstance(array, ast.Name):
            yield array.id, _indices(node.args[1])
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute):
        target, value = node.targets[0], node.value
        if value.attr == "shape" and isinstance(target, ast.Tuple):
            yield _last_name(value.value), len(target.elts)  # rows, columns = x.shape


def _passed(
    node: ast.AST, function: FunctionType, callers: tuple[FunctionType, ...]
) -> Iterable[tuple[str, int]]:
    """As `_seen`, from the uses of arguments in a called device function."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return
    variables = inspect.getclosurevars(function)
    callee = {**variables.globals, **variables.nonlocals}.get(node.func.id)
    inner = getattr(callee, "py_func", None)
    if isinstance(inner, FunctionType):
        axes = usage_of(inner, (*callers, function)).axes
        passed = [*zip(inner.__code__.co_varnames, node.args, strict=False)]
        for parameter, value in [*passed, *((k.arg, k.value) for k in node.keywords)]:
            if isinstance(value, ast.Name) and parameter in axes:
                yield value.id, axes[parameter]


def _indices(index: ast.expr) -> int:
    return len(index.elts) if isinstance(index, ast.Tuple) else 1


def _number(args: list[ast.expr], otherwise: int = 1) -> int:
    value = getattr(args[0], "value", None) if args else None
    return value if type(value) is int and value >= 0 else otherwise


def _last_name(node: ast.expr) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))
