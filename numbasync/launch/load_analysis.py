"""The parameters of which a kernel reads elements, for estimates of its memory traffic."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from numbasync.errors import LauncherError
from numbasync.facts.callees import is_atomic
from numbasync.facts.ir import Names


def elements_read(function: FunctionType) -> frozenset[int]:
    """Positions of the parameters of which the function's own code reads elements, by an index or
    an atomic operation. Reads by device functions that it calls are not found.
    """
    from numba.core import ir

    try:
        names = Names(function)
    except LauncherError:  # the code cannot be read
        return frozenset()
    statements: list[Any] = names.statements
    stores = (s for s in statements if isinstance(s, ir.SetItem | ir.StaticSetItem))
    # x[i][j] = 1 takes the row x[i] only to store to it
    rows = {id(origin) for s in stores for origin in names.origins(s.target)}
    positions = set()
    for statement in statements:
        value: Any = getattr(statement, "value", None)
        if not isinstance(value, ir.Expr):
            continue
        sources = []
        if value.op in ("getitem", "static_getitem", "typed_getitem") and id(value) not in rows:
            sources = [value.value]
        elif value.op == "call" and any(map(is_atomic, names.callees(value.func))):
            sources = value.args[:1]
        origins = (origin for source in sources for origin in names.origins(source))
        positions |= {origin.index for origin in origins if isinstance(origin, ir.Arg)}
    return frozenset(positions)
