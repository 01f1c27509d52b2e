"""Arrays that a kernel makes: shared by a block, or a thread's own, as parts of its memory."""

from __future__ import annotations

import ast
import math
from typing import Any

from numbasync.backend.cpu.compiler.literals import OPEN, Code, Computed, Fact, Known, items
from numbasync.backend.cpu.compiler.names import (
    MISSING,
    Scope,
    UntranslatableError,
    arguments_of_maker,
    element_type,
    is_maker,
)
from numbasync.backend.cpu.compiler.program import MOST_THREADS, Program, item_bytes, parsed
from numbasync.backend.cpu.library import entry_points
from numbasync.backend.cpu.library.entry_points import types

MOST_LOCAL_BYTES = 2**26  # of all threads of a block


def made_array(program: Program, scope: Scope, node: ast.Call, shared: bool, kept: bool) -> Any:
    """What `cuda.shared.array` or `cuda.local.array` becomes.

    Args:
        kept: whether every thread has its own, since they take turns.
    """
    given = arguments_of_maker(node)
    shape = scope.constant(given.get("shape"))
    if shape is MISSING:
        shape = _literal_shape(scope, node.lineno)
    kind = element_type(scope.constant(given.get("dtype")))
    shape = (shape,) if isinstance(shape, int) else shape
    if kind is MISSING or not isinstance(shape, tuple):
        raise UntranslatableError(
            "an array whose shape or dtype is not known before the kernel runs (write the shape as "
            "ints or global ints, and the dtype as a type)",
            node,
        )
    if not all(isinstance(n, int) and n >= 0 for n in shape):
        raise UntranslatableError("an array whose shape is no constant", node)
    if shape == ():
        raise UntranslatableError("an array of no axes (give it the shape 1)", node)
    if shared and shape == (0,):
        make = program.bind(entry_points.array_of_bytes(kind), "dynamic")
        program.pure.add(make)
        return parsed(f"{make}(_m + _fixed, _d)")
    nbytes = math.prod(shape) * item_bytes(kind)
    make = program.bind(entry_points.array_at(shape, kind), "array")
    program.pure.add(make)
    if not kept:
        at = program.take(nbytes)
        if shared:
            program.shared.append((at, nbytes))
        return parsed(f"{make}(_m + {at})")
    each = -(-max(nbytes, 1) // 16) * 16
    if each * MOST_THREADS > MOST_LOCAL_BYTES:
        raise UntranslatableError("a large local array of threads that meet", node)
    at = program.take(each * MOST_THREADS)
    lane = "(_tx + _wx * (_ty + _wy * _tz))"
    return parsed(f"{make}(_m + {at} + {each} * {lane})")


def _literal_shape(scope: Scope, line: int) -> Any:
    """The shape of the arrays that are created on a line, as Numba's front end knows it; MISSING
    if it does not, or if they have several.
    """
    while scope.outer is not None:  # functions in it are read as parts of it
        scope = scope.outer
    code = scope.function.__code__
    names = code.co_varnames[: code.co_argcount]
    facts = [Computed(n) if (known := scope.find(n)) is MISSING else Known(known) for n in names]
    kinds = [scope.kinds.get(name, types.unknown) for name in names]
    try:
        calls = list(Code(scope.function, facts, kinds).calls())
    except Exception:  # Numba has many; and says itself what it does not have
        return MISSING
    shapes = [
        _value(call.positional[0] if call.positional else call.keywords.get("shape", OPEN))
        for call in calls
        if call.line == line and is_maker(call.callee)
    ]
    return shapes[0] if shapes and all(shape == shapes[0] for shape in shapes) else MISSING


def _value(fact: Fact) -> Any:
    parts = items(fact)
    if parts is None:
        return fact.value if isinstance(fact, Known) else MISSING
    values = tuple(map(_value, parts))
    return MISSING if MISSING in values else values
