"""The syntax tree of a function, parsed from its source."""

from __future__ import annotations

import ast
import types

from numbasync.backend.kernel_source import compiled_like as compiled_like
from numbasync.backend.kernel_source import find_source


def definition(function: types.FunctionType) -> tuple[ast.Module, ast.FunctionDef] | None:
    """The syntax tree of the file that a function is in, and the function in it. None if
    `find_source` does not find the file.
    """
    source = find_source(function)
    if source is None:
        return None
    code, tree = function.__code__, source[1]
    nodes = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.FunctionDef)
        and n.name == code.co_name
        and min([n.lineno, *(d.lineno for d in n.decorator_list)]) == code.co_firstlineno
    ]
    return (tree, nodes[0]) if len(nodes) == 1 else None


def of_lambda(function: types.FunctionType) -> ast.FunctionDef | None:
    """A lambda as a definition; None if its source is not found, or its line has several."""
    source = find_source(function)
    if source is None:
        return None
    first_line = function.__code__.co_firstlineno
    nodes = [n for n in ast.walk(source[1]) if isinstance(n, ast.Lambda) and n.lineno == first_line]
    if len(nodes) != 1:
        return None
    result = ast.copy_location(ast.Return(nodes[0].body), nodes[0].body)
    definition = ast.FunctionDef("lambda_", nodes[0].args, [result], [], None, None)
    return ast.copy_location(definition, nodes[0])
