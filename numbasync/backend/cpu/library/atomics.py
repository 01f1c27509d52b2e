"""Atomic operations of compiled kernels, by the processor's own: blocks run in parallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from numbasync.backend.cpu.library.entry_points import types, widened


def _pointer(
    context: Any, builder: Any, array_type: Any, array: Any, index_type: Any, index: Any
) -> Any:
    view = make_array(array_type)(context, builder, array)
    if isinstance(index_type, types.BaseTuple):
        values, each = cgutils.unpack_tuple(builder, index, len(index_type)), list(index_type)
    else:
        values, each = [index], [index_type]
    wide = [widened(builder, v, t) for v, t in zip(values, each, strict=True)]
    return cgutils.get_item_pointer(context, builder, array_type, view, wide, wraparound=True)


def _exchange(builder: Any, pointer: Any, compute: Callable[[Any], Any]) -> Any:
    """Replace a value in memory by `compute(value)`, atomically; returns the value before."""
    number = pointer.type.pointee
    word = ir.IntType(32 if isinstance(number, ir.FloatType) else 64)
    if isinstance(number, ir.IntType):
        word = number
    address = builder.bitcast(pointer, word.as_pointer())
    first = builder.load(address)
    entry = builder.block
    loop = builder.append_basic_block("exchange")
    done = builder.append_basic_block("exchanged")
    builder.branch(loop)
    builder.position_at_end(loop)
    old = builder.phi(word)
    old.add_incoming(first, entry)
    new = builder.bitcast(compute(builder.bitcast(old, number)), word)
    result = builder.cmpxchg(address, old, new, ordering="monotonic", failordering="monotonic")
    old.add_incoming(builder.extract_value(result, 0), builder.block)
    builder.cbranch(builder.extract_value(result, 1), done, loop)
    builder.position_at_end(done)
    return builder.bitcast(old, number)


_RMW = {
    "add": ("add", "add"), "sub": ("sub", "sub"), "and_": ("and", "and"), "or_": ("or", "or"),
    "xor": ("xor", "xor"), "exch": ("xchg", "xchg"), "max": ("max", "umax"),
    "min": ("min", "umin"), "nanmax": ("max", "umax"), "nanmin": ("min", "umin"),
}  # fmt: skip


def _computed(b: Any, name: str, old: Any, value: Any) -> Any:
    """The new value of an atomic operation for which the processor has no instruction."""
    if name in ("inc", "dec"):
        zero, one = ir.Constant(old.type, 0), ir.Constant(old.type, 1)
        if name == "inc":
            return b.select(b.icmp_unsigned(">=", old, value), zero, b.add(old, one))
        wraps = b.or_(b.icmp_unsigned("==", old, zero), b.icmp_unsigned(">", old, value))
        return b.select(wraps, value, b.sub(old, one))
    if name in ("add", "sub"):
        return b.fadd(old, value) if name == "add" else b.fsub(old, value)
    if name == "exch":
        return value
    # A NaN as argument is ignored. A NaN in memory stays; nanmax and nanmin replace it.
    better = b.fcmp_ordered(">" if "max" in name else "<", value, old)
    if name.startswith("nan"):
        better = b.or_(better, b.fcmp_unordered("uno", old, old))
    return b.select(better, value, old)


def _atomic(name: str) -> Any:
    @intrinsic
    def function(tyctx: Any, array: Any, index: Any, value: Any):  # type: ignore[no-untyped-def]
        if not isinstance(array, types.Array):
            return None
        dtype, index = array.dtype, types.unliteral(index)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _pointer(context, builder, array, args[0], index, args[1])
            if isinstance(dtype, types.Integer) and name in _RMW:
                instruction = _RMW[name][0 if dtype.signed else 1]
                return builder.atomic_rmw(instruction, pointer, args[2], ordering="monotonic")
            return _exchange(builder, pointer, lambda old: _computed(builder, name, old, args[2]))

        return dtype(array, index, dtype), codegen

    function.__name__ = name
    return function


@intrinsic
def atomic_cas(tyctx: Any, array: Any, index: Any, old: Any, value: Any):  # type: ignore[no-untyped-def]
    if not isinstance(array, types.Array):
        return None
    dtype, index = array.dtype, types.unliteral(index)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, array, args[0], index, args[1])
        result = builder.cmpxchg(
            pointer, args[2], args[3], ordering="monotonic", failordering="monotonic"
        )
        return builder.extract_value(result, 0)

    return dtype(array, index, dtype, dtype), codegen


ATOMICS = {name: _atomic(name) for name in [*_RMW, "inc", "dec"]}
