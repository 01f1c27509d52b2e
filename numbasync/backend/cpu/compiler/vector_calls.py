"""Calls of `numbasync.vectors` in a kernel's source."""

from __future__ import annotations

import ast
from typing import Any

from numbasync import vectors
from numbasync.backend.cpu.compiler.array_rules import is_literal
from numbasync.backend.cpu.compiler.names import Scope, UntranslatableError
from numbasync.backend.cpu.compiler.program import Program

_COUNTED, _STORED = ("array", "index", "count"), ("array", "index", "values")
# Their names in generated code, and the names of their parameters.
VECTORS: dict[Any, tuple[str, tuple[str, str, str]]] = {
    vectors.load: ("_vector_load", _COUNTED),
    vectors.store: ("_vector_store", _STORED),
    vectors.is_aligned: ("_vector_is_aligned", _COUNTED),
}


def is_vector_access(value: Any) -> bool:
    return any(value is each for each in VECTORS)


def of_any_site(call: ast.Call) -> ast.Call:
    """The call with a site that is no literal: a literal is a type of its own, and each access
    would have the library's function compiled anew.
    """
    call.args[-2] = ast.Call(ast.Name("_natural", ast.Load()), [call.args[-2]], [])
    return call


def arguments(
    program: Program, scope: Scope, node: ast.Call, parameters: tuple[str, str, str]
) -> list[ast.expr]:
    """What is passed for each of the parameters. A count that is known is a number, and if it is
    computed, numba-cuda must say whether it takes the count for a literal.
    """
    passed = dict(zip(parameters, node.args, strict=False))
    passed |= {k.arg or "": k.value for k in node.keywords}
    if set(passed) != set(parameters) or len(node.args) > len(parameters):
        raise UntranslatableError("a vector access with other arguments", node)
    count = scope.constant(passed.get("count"))
    if type(count) is int:
        if not is_literal(passed["count"], scope):
            program.doubtful.append(ast.unparse(node))
        passed["count"] = ast.Constant(count)
    return [passed[name] for name in parameters]
