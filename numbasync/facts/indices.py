"""Indices of a kernel's source that are certainly not negative.

Numba tests every signed index, since a negative one counts from the end of its axis. A kernel whose
indices are sums and products of positions, extents, loop variables and constants needs no such
tests, which can be half of its instructions. `mark` finds these indices and wraps each in a call.

IR does not say at which place of a line an expression stands. So each index is wrapped in a call
that has a number, the kernel so changed is read by `ir`, and only the calls whose index cannot be
negative stay, without the number. The kernel in between is never run:

    z[i - 1] = x[i]                                         # as written
    z[unsigned(z, i - 1, 0)] = x[unsigned(x, i, 1)]         # read
    z[i - 1] = x[unsigned(i)]                               # marked
"""

from __future__ import annotations

import ast
from types import FunctionType
from typing import Any

from numbasync.errors import LauncherError
from numbasync.facts.bounds import Integers
from numbasync.facts.ir import read
from numbasync.facts.source import compiled_like

__all__ = ["mark"]


def mark(tree: ast.Module, definition: ast.FunctionDef, function: FunctionType, name: str) -> int:
    """Wrap the indices of a kernel that are certainly not negative in calls of `name`, in place.

    Only indices of arrays that have a name are wrapped, of parameters and of shared and local
    arrays, and no constants, which cost nothing. A kernel that Numba cannot read stays as it is.

    Args:
        tree: the syntax tree that `definition` of `function` is a part of; see `find_definition`.

    Returns:
        The number of wrapped indices.
    """
    numbered = _Numbered(name)
    definition.body = [numbered.visit(statement) for statement in definition.body]
    code = compiled_like(tree, function.__code__) if numbered.calls else None
    proven: set[int] = set()
    if code is not None:
        scope = {**function.__globals__, name: _numbered}
        probe = FunctionType(code, scope, function.__name__, None, function.__closure__)
        proven = _proven(probe)
    unwrapped = _Unwrapped(numbered.calls, proven)
    definition.body = [unwrapped.visit(statement) for statement in definition.body]
    return len(proven)


def _numbered(array: Any, index: Any, number: int) -> None:
    """Stands for `name` in the kernel that is read."""


def _proven(probe: FunctionType) -> set[int]:
    """The numbers of the calls whose index is not negative, and whose array is one."""
    try:
        names = read(probe)
    except LauncherError:
        return set()
    integers = Integers(names)
    verdicts: dict[int, bool] = {}
    for statement in names.statements:
        call: Any = getattr(statement, "value", None)
        if getattr(call, "op", "") == "call" and names.callees(call.func) == [_numbered]:
            array, index, number = call.args
            verdict = integers.is_array(array) and integers.is_nonnegative(index)
            key = names.constant(number)
            # Numba may have copied the code, such as the body of a `with` or `finally`.
            verdicts[key] = verdict and verdicts.get(key, True)
    return {number for number, verdict in verdicts.items() if verdict}


class _Numbered(ast.NodeTransformer):
    """Wraps all indices in calls that have a number. `calls`: so far, by number."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.calls: list[ast.Call] = []

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name):
            if isinstance(node.slice, ast.Tuple):
                node.slice.elts = [self._wrapped(node.value.id, e) for e in node.slice.elts]
            else:
                node.slice = self._wrapped(node.value.id, node.slice)
        return node

    def _wrapped(self, array: str, index: ast.expr) -> ast.expr:
        if isinstance(index, ast.Constant | ast.Slice | ast.Starred):
            return index
        arguments = [ast.Name(array, ast.Load()), index, ast.Constant(len(self.calls))]
        call = ast.Call(ast.Name(self._name, ast.Load()), arguments, [])
        self.calls.append(ast.fix_missing_locations(ast.copy_location(call, index)))
        return call


class _Unwrapped(ast.NodeTransformer):
    """Leaves the calls of proven indices, without array and number, and removes the others."""

    def __init__(self, calls: list[ast.Call], proven: set[int]) -> None:
        self._is_proven = {id(call): number in proven for number, call in enumerate(calls)}

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if id(node) not in self._is_proven:
            return node
        index = node.args[1]
        node.args = [index]
        return node if self._is_proven[id(node)] else index
