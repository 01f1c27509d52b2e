"""Kernels whose indices are unsigned where they cannot be negative; see `facts/indices.py`.

Numba leaves out its test of an index only if the index's type is unsigned. The kernel's source is
compiled with such indices converted, which changes no number; its name and its lines stay.
"""

from __future__ import annotations

import ast
from types import FunctionType
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from numbasync.facts.indices import mark
from numbasync.facts.source import compiled_like, find_definition

_NAME = "__numbasync_unsigned"
_ATTRIBUTE = "__numbasync_unsigned_indices__"  # of a dispatcher: the converted one, or None


@intrinsic  # type: ignore[untyped-decorator]
def unsigned(typing_context: Any, index: Any) -> Any:
    """An index that is not negative, as an unsigned integer; other types as they are."""
    index = types.unliteral(index)
    is_signed = isinstance(index, types.Integer) and index.signed

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (value,) = args
        return builder.sext(value, ir.IntType(64)) if is_signed else value

    return (types.uint64 if is_signed else index)(index), generate


def with_unsigned_indices(dispatcher: Any) -> Any:
    """The kernel with unsigned indices where they cannot be negative; None if there are none, or
    its source is not at hand.
    """
    try:
        return getattr(dispatcher, _ATTRIBUTE)
    except AttributeError:
        pass
    options = dispatcher.targetoptions
    function = None
    if dispatcher._can_compile and not options.get("debug") and options.get("opt", True):
        function = _converted(dispatcher.py_func)
    converted = None
    if function is not None:
        converted = type(dispatcher)(function, options)
        if type(dispatcher._cache).__name__ != "NullCache":
            converted.enable_caching()
    setattr(dispatcher, _ATTRIBUTE, converted)
    return converted


def _converted(function: FunctionType) -> FunctionType | None:
    found = find_definition(function)
    if found is None or _has_inner(found[1]) or not mark(*found, function, _NAME):
        return None
    code = compiled_like(found[0], function.__code__)
    if code is None:
        return None
    # Numba reads globals when it compiles a variant: the module's own dictionary, not a copy.
    scope = function.__globals__
    scope[_NAME] = unsigned
    converted = FunctionType(
        code, scope, function.__name__, function.__defaults__, function.__closure__
    )
    converted.__module__, converted.__qualname__ = function.__module__, function.__qualname__
    converted.__kwdefaults__ = function.__kwdefaults__
    return converted


def _has_inner(definition: ast.FunctionDef) -> bool:
    """Whether a function or a class is defined inside."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.comprehension)
    return any(isinstance(n, inner) for s in definition.body for n in ast.walk(s))
