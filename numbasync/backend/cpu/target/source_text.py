"""How the source calls a value of Numba's code, for messages."""

from __future__ import annotations

from typing import Any

from numba.cuda.core import ir as _ir
from numba.cuda.core import ir_utils

ir: Any = _ir  # type checkers do not know all of its names
_DEEP = 6


def text_of(code: Any, variable: Any, depth: int = 0) -> str:
    """The expression of a variable: its name, or what it is made of."""
    name = getattr(variable, "name", "")
    if not name:
        return "an array"
    own = name.partition(".")[0]
    written = code.func_id.code
    if own in {*written.co_varnames, *written.co_cellvars, *written.co_freevars}:
        return str(own)
    value = ir_utils.guard(ir_utils.get_definition, code, variable)
    if value is None or depth > _DEEP:
        return "an array"
    if isinstance(value, ir.Var):
        return text_of(code, value, depth + 1)
    if not isinstance(value, ir.Expr):  # a global, or a constant
        return str(getattr(value, "name", None) or getattr(value, "value", "an array"))
    operation = value.op
    if operation == "getattr":
        return f"{text_of(code, value.value, depth + 1)}.{value.attr}"
    if operation == "static_getitem":
        return f"{text_of(code, value.value, depth + 1)}[{value.index!r}]"
    if operation in ("getitem", "typed_getitem"):
        return f"{text_of(code, value.value, depth + 1)}[{text_of(code, value.index, depth + 1)}]"
    if operation == "call":
        return f"{text_of(code, value.func, depth + 1)}(...)"
    if operation == "build_tuple":
        return ", ".join(text_of(code, item, depth + 1) for item in value.items)
    if operation in ("exhaust_iter", "getiter", "cast"):
        return text_of(code, value.value, depth + 1)
    return "an array"
