"""How the source calls a value of Numba's code, for messages."""

from __future__ import annotations

from typing import Any

from numba.cuda.core import ir_utils

_DEEP = 6


def text_of(code: Any, variable: Any, depth: int = 0) -> str:
    """The expression of a variable: its name, or what it is made of."""
    name = getattr(variable, "name", "")
    if not name:
        return "an array"
    if not name.startswith("$"):
        return str(name).partition(".")[0]
    value = ir_utils.guard(ir_utils.get_definition, code, variable)
    if value is None or depth > _DEEP:
        return "an array"
    operation = getattr(value, "op", "")
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
    if operation == "exhaust_iter":
        return text_of(code, value.value, depth + 1)
    return str(getattr(value, "name", "")) or repr(getattr(value, "value", "an array"))
