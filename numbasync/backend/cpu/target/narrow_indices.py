"""Indices of checked kernels that the source cuts to 32 bits: numbers that do not fit are noted."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.cuda.core import ir as _ir
from numba.cuda.core import ir_utils

from numbasync.backend.cpu.record import OVERFLOWN
from numbasync.backend.cpu.target.builder import Builder
from numbasync.backend.cpu.target.module import I64, types

ir: Any = _ir  # type checkers do not know all of its names


def conversions(code: Any) -> set[Any]:
    """The calls of `np.int32` and `int32` in a function's code whose results become indices."""
    waiting = list(_indices(code))
    found: set[Any] = set()
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for value in code._definitions.get(name, ()):
            if isinstance(value, ir.Var):
                waiting.append(value.name)
            elif isinstance(value, ir.Expr):
                if value.op == "call" and len(value.args) == 1 and _is_int32(code, value.func):
                    found.add(value)
                waiting += [v.name for v in value.list_vars()]
    return found


def _indices(code: Any) -> Any:
    for block in code.blocks.values():
        for statement in block.body:
            if isinstance(statement, ir.SetItem):
                yield statement.index.name
        for expression in block.find_exprs("getitem"):
            yield expression.index.name


def _is_int32(code: Any, function: Any) -> bool:
    value = ir_utils.guard(code.infer_constant, function)
    return value is np.int32 or value == types.int32


def check(builder: Builder, value: Any, integer: Any, what: str) -> None:
    """Stop the thread if an integer does not fit into 32 bits."""
    if value.type.width <= 32 and integer.signed:
        return
    wide = value
    if value.type.width < 64:
        wide = builder.zext(value, I64)
    shifted = builder.add(wide, I64(2**31))
    is_wide = builder.icmp_unsigned(">=", shifted, I64(2**32))
    with builder.if_then(is_wide, likely=False):
        builder.session.note(builder, OVERFLOWN, builder.lower.site(what), I64(0), wide, I64(0))
