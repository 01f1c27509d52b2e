"""Shared and local arrays of a kernel, as parts of the block's memory."""

from __future__ import annotations

import ast
import math
from typing import Any

from numbasync.backend.cpu.compiler.array_rules import advice
from numbasync.backend.cpu.compiler.names import (
    MISSING,
    Scope,
    UntranslatableError,
    array_arguments,
    element_type,
)
from numbasync.backend.cpu.compiler.program import (
    MOST_THREADS,
    Call,
    Program,
    item_alignment,
    item_bytes,
    parsed,
)
from numbasync.backend.cpu.library import entry_points
from numbasync.backend.shared_layout import SharedLayout
from numbasync.errors import KernelCompileError

MOST_ALIGNMENT = 16  # that an access needs
MOST_LOCAL_BYTES = 2**26  # of all threads of a block


def array_expression(
    program: Program, scope: Scope, node: ast.Call, shared: bool, per_thread: bool
) -> Any:
    """The expression for a call of `cuda.shared.array` or `cuda.local.array`.

    Args:
        per_thread: whether every thread has an array of its own, since the kernel has barriers.
    """
    arguments = array_arguments(node)
    shape = scope.constant(arguments.get("shape"))
    if shape is MISSING and program.array_shapes is not None:
        shape = program.array_shapes.shape_at(scope.function, node.lineno)
    numba_type = element_type(scope.constant(arguments.get("dtype")))
    shape = (shape,) if isinstance(shape, int) else shape
    if numba_type is MISSING or not isinstance(shape, tuple):
        raise UntranslatableError(
            "an array whose shape or dtype is not known before the kernel runs (write the shape as "
            "ints or global ints, and the dtype as a type)",
            node,
        )
    if any(isinstance(n, int) and n < 0 for n in shape):  # which only NVVM refuses
        raise KernelCompileError(
            f"kernel {program.name} cannot be compiled: {advice(node, scope)}"
        ) from ValueError(f"shape {shape}")
    if not all(isinstance(n, int) for n in shape):
        raise UntranslatableError("an array whose shape is no constant", node)
    if shape == ():
        raise UntranslatableError("an array of no axes (give it the shape 1)", node)
    if shared and shape == (0,):
        make = program.bind(entry_points.array_of_bytes(numba_type), "dynamic")
        program.pure.add(make)
        return parsed(f"{make}(_m + _fixed, _d)")
    nbytes = math.prod(shape) * item_bytes(numba_type)
    make = program.bind(entry_points.array_at(shape, numba_type), "array")
    program.pure.add(make)
    if shared and scope.call is not None and program.array_shapes is not None:
        place = scope.function, node.lineno, node.col_offset, numba_type, nbytes
        offset = _of_earlier_call(program, scope, node, program.shared_of_functions.get(place, []))
        if offset is None:
            offset = _take_shared(program, scope, arguments, numba_type, nbytes)
            program.shared_of_functions.setdefault(place, []).append((scope.call, offset))
        return parsed(f"{make}(_m + {offset})")
    if shared:
        return parsed(f"{make}(_m + {_take_shared(program, scope, arguments, numba_type, nbytes)})")
    if not per_thread:
        return parsed(f"{make}(_m + {program.take(nbytes)})")
    each = -(-max(nbytes, 1) // 16) * 16
    if each * MOST_THREADS > MOST_LOCAL_BYTES:
        raise UntranslatableError("a large local array in a kernel with barriers", node)
    offset = program.take(each * MOST_THREADS)
    lane = "(_tx + _wx * (_ty + _wy * _tz))"
    return parsed(f"{make}(_m + {offset} + {each} * {lane})")


def _take_shared(
    program: Program, scope: Scope, arguments: dict[str, ast.expr], numba_type: Any, nbytes: int
) -> int:
    """Room for a shared array; its offset."""
    alignment = scope.constant(arguments.get("alignment"))
    if not isinstance(alignment, int):
        alignment = item_alignment(numba_type)
    if program.has_vectors and alignment < MOST_ALIGNMENT:
        # Not aligned better than a GPU aligns it.
        offset = program.take(nbytes + alignment) + alignment
    else:
        offset = program.take(nbytes)
    program.shared.append((offset, nbytes))
    return offset


def _of_earlier_call(
    program: Program, scope: Scope, node: ast.Call, earlier: list[tuple[Call, int]]
) -> int | None:
    """The offset of a device function's array, if the function was called before with arguments of
    the same types. As on a GPU, it has one array for all of these calls.
    """
    known, function = program.array_shapes, scope.function
    assert known is not None  # by the caller
    if scope.call.caller is None:
        if known.has_several_types(function):
            raise UntranslatableError(
                f"{function.__name__}, which has a shared array and is called with arguments of "
                "several types, of which each has an array of its own (write a function for each)",
                node,
            )
        return None
    if not earlier:
        return None
    calls = [scope.call, *(call for call, _ in earlier)]
    of_calls = [known.types_of_call(call.caller, call.line, function) for call in calls]
    if MISSING in of_calls:
        line = calls[of_calls.index(MISSING)].line
        raise UntranslatableError(
            f"{function.__name__}, which has a shared array and is called with arguments of "
            f"several types in line {line}, of which each has an array of its own (write each call "
            "in a line of its own)",
            node,
        )
    offsets = [offset for (_, offset), t in zip(earlier, of_calls[1:], strict=True)
               if t == of_calls[0]]  # fmt: skip
    return offsets[0] if offsets else None


def layout_array(program: Program, layout: SharedLayout, node: ast.Attribute) -> Any:
    """The expression for an array of a shared layout."""
    array = layout.find(node.attr)
    if array is None:
        raise UntranslatableError(f"{node.attr}, which is no array of the shared layout", node)
    make = program.bind(entry_points.array_at(array.shape, element_type(array.dtype)), "array")
    program.pure.add(make)
    return parsed(f"{make}(_m + _fixed + {array.offset})")
