"""The syntax tree of a function, parsed from its source."""

from __future__ import annotations
import __future__

import ast
import linecache
import types
from collections.abc import Callable, Iterator
from typing import TypeVar

from numbasync.backend.protocols import SOURCE_ATTR

T = TypeVar("T")
# The only `__future__` statement that still changes code in Python 3.11 and later.
_FUTURE = __future__.annotations.compiler_flag


def definition(function: types.FunctionType) -> tuple[ast.Module, ast.FunctionDef] | None:
    """The syntax tree of a function's file, and the function's definition in it. None if the source
    is not available, or was edited since the function was compiled.
    """
    trees = _definition(function)
    if trees is None:
        # The module may have been edited and imported again.
        linecache.checkcache(function.__code__.co_filename)
        trees = _definition(function)
    return trees


def of_lambda(function: types.FunctionType) -> ast.FunctionDef | None:
    """A lambda as a definition; None if its source is not available, or its line has several."""
    original = function.__code__
    source = "".join(linecache.getlines(original.co_filename, function.__globals__))
    try:
        tree = _again(lambda: ast.parse(source))
    except (SyntaxError, ValueError):
        return None
    same = compiled_like(tree, original)
    lambdas = [
        n for n in ast.walk(tree)
        if isinstance(n, ast.Lambda) and n.lineno == original.co_firstlineno
    ]  # fmt: skip
    if len(lambdas) != 1 or same is None or _content(same) != _content(original):
        return None
    result = ast.copy_location(ast.Return(lambdas[0].body), lambdas[0].body)
    function_def = ast.FunctionDef("lambda_", lambdas[0].args, [result], [], None, None)
    return ast.copy_location(function_def, lambdas[0])


def _definition(function: types.FunctionType) -> tuple[ast.Module, ast.FunctionDef] | None:
    original = function.__code__
    # The whole file: its `__future__` imports affect how a function is compiled.
    source = getattr(function, SOURCE_ATTR, None) or "".join(
        linecache.getlines(original.co_filename, function.__globals__)
    )
    try:
        tree = _again(lambda: ast.parse(source))
    except (SyntaxError, ValueError):
        return None
    same = compiled_like(tree, original)
    nodes = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.FunctionDef)
        and n.name == original.co_name
        and min([n.lineno, *(d.lineno for d in n.decorator_list)]) == original.co_firstlineno
    ]
    # A file that was edited since its import contains another function.
    if len(nodes) != 1 or same is None or _content(same) != _content(original):
        return None
    return tree, nodes[0]


def _again(call: Callable[[], T]) -> T:
    """`call()`, repeated if CPython's parser was re-entered.

    Python 3.11 counts the parser's depth in one global place. A finaliser that prints a traceback
    during the call parses, too, and the call then raises SystemError (CPython issue 106905).
    """
    for _ in range(3):
        try:
            return call()
        except SystemError:
            continue
    return call()


def compiled_like(tree: ast.Module, like: types.CodeType) -> types.CodeType | None:
    """The code object at the place of `like` in a compiled tree; None if there is none. Nothing is
    run.

    The tree may be a cell of a notebook or an entry of an interactive session, with `await` at its
    top level, and compiled with the `__future__` statements of earlier cells.
    """
    flags = like.co_flags & _FUTURE | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        whole = _again(lambda: compile(tree, like.co_filename, "exec", flags, dont_inherit=True))
    except (SyntaxError, ValueError):
        return None
    codes = [
        c
        for c in _codes(whole)
        if (c.co_name, c.co_firstlineno) == (like.co_name, like.co_firstlineno)
    ]
    return codes[0] if len(codes) == 1 and codes[0].co_freevars == like.co_freevars else None


def _content(code: types.CodeType) -> tuple[object, ...]:
    constants = [repr(c) for c in code.co_consts if not isinstance(c, types.CodeType)]
    return code.co_code, code.co_names, code.co_varnames, constants


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)
