"""Functions that compiled kernels of the CPU device call: indices, errors, and memory of a block.

Memory of a block is passed as addresses: to create and release an array of Numba's costs two atomic
operations, in every thread of a loop.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit
from numba.core import cgutils
from numba.core import types as numba_types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

# Of type Any: type checkers do not know all of its names.
types: Any = numba_types

# Every function runs without the interpreter lock, exceptions for divisions and reference counts.
OPTIONS: dict[str, Any] = {
    "nogil": True, "error_model": "numpy", "_nrt": False,
    "forceinline": False,  # otherwise inherited from an inlined caller
}  # fmt: skip
# Only compiled code calls the functions: neither Python nor C needs a way into them.
UNWRAPPED: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
INLINED: Any = {**OPTIONS, **UNWRAPPED, "forceinline": True}

# The record of a kernel that stops: 64-bit integers, in this order.
FIELDS = ("kind", "site", "axis", "index", "extent", "block x", "y", "z", "thread x", "y", "z")
OUT_OF_RANGE, RAISED, DIVERGED = 1, 2, 3
UNWRITTEN, INPUT_WRITTEN, OUTSIDE_TILE, RACE, OVERFLOWN = 4, 5, 6, 7, 8  # in checked kernels
MISALIGNED = 9
WAITS_FOR_EVER = 10  # in checked kernels
_I64 = ir.IntType(64)
# Of type Any: the functions that they create are called without the first parameter.
any_intrinsic: Any = intrinsic
literal_intrinsic: Any = intrinsic(prefer_literal=True)


def store_record(builder: Any, record: Any, values: list[Any]) -> None:
    base = builder.inttoptr(record, _I64.as_pointer())
    for i, value in enumerate(values):
        builder.store(value, builder.gep(base, [ir.Constant(_I64, i)]))


def _stop(context: Any, builder: Any, record: Any, values: list[Any], place: Any) -> None:
    indices = cgutils.unpack_tuple(builder, place, 6)  # of the block and of the thread
    store_record(builder, record, [*values, *indices])
    context.call_conv.return_user_exc(builder, IndexError, ("stopped",))


def widened(builder: Any, value: Any, integer: Any) -> Any:
    """A value of the Numba type `integer`, with 64 bits."""
    if value.type.width >= 64:
        return value
    return builder.sext(value, _I64) if integer.signed else builder.zext(value, _I64)


# --- checked indices ---


def _check(
    context: Any, builder: Any, array: Any, axis: int, index: Any, index_type: Any,
    record: Any, site: Any, place: Any,
) -> Any:  # fmt: skip
    """`index` as an unsigned number below the extent; an index out of range stops the kernel."""
    extent = cgutils.unpack_tuple(builder, array.shape)[axis]
    wide = widened(builder, index, index_type)
    position = wide
    if index_type.signed:
        negative = builder.icmp_signed("<", wide, ir.Constant(_I64, 0))
        position = builder.select(negative, builder.add(wide, extent), wide)
    outside = builder.icmp_unsigned(">=", position, extent)
    with builder.if_then(outside, likely=False):
        values = [ir.Constant(_I64, OUT_OF_RANGE), site, ir.Constant(_I64, axis), wide, extent]
        _stop(context, builder, record, values, place)
    return position


@intrinsic(prefer_literal=True)
def check_axis(tyctx: Any, array: Any, axis: Any, index: Any, record: Any, site: Any, place: Any):  # type: ignore[no-untyped-def]
    """`index` on an axis of `array`, checked. Other objects than integers are unchanged."""
    index = types.unliteral(index)
    checked = (
        isinstance(array, types.Array)
        and isinstance(index, types.Integer)
        and axis.literal_value < array.ndim
    )
    result = types.uint64 if checked else index
    sig = result(array, axis, index, types.int64, types.int64, place)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not checked:
            return args[2]
        view = make_array(array)(context, builder, args[0])
        return _check(
            context, builder, view, axis.literal_value, args[2], index, args[3], args[4], args[5]
        )

    return sig, codegen


@any_intrinsic
def check(tyctx: Any, array: Any, index: Any, record: Any, site: Any, place: Any):  # type: ignore[no-untyped-def]
    """`index`, a number or a tuple of numbers, checked on every axis. Others are unchanged."""
    index = types.unliteral(index)
    parts = list(index) if isinstance(index, types.BaseTuple) else [index]
    checked = (
        isinstance(array, types.Array)
        and all(isinstance(types.unliteral(p), types.Integer) for p in parts)
        and len(parts) <= array.ndim
    )
    result: Any = index
    if checked and isinstance(index, types.BaseTuple):
        result = types.UniTuple(types.uint64, len(parts))
    elif checked:
        result = types.uint64
    sig = result(array, index, types.int64, types.int64, place)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not checked:
            return args[1]
        view = make_array(array)(context, builder, args[0])
        is_tuple = isinstance(index, types.BaseTuple)
        values = cgutils.unpack_tuple(builder, args[1], len(parts)) if is_tuple else [args[1]]
        positions = [
            _check(context, builder, view, i, v, types.unliteral(p), *args[2:])
            for i, (v, p) in enumerate(zip(values, parts, strict=True))
        ]
        return context.make_tuple(builder, result, positions) if is_tuple else positions[0]

    return sig, codegen


@any_intrinsic
def sure(tyctx: Any, index: Any):  # type: ignore[no-untyped-def]
    """`index`, a number or a tuple of numbers, which is in range, as unsigned numbers."""
    index = types.unliteral(index)
    is_tuple = isinstance(index, types.BaseTuple)
    parts = [types.unliteral(p) for p in index] if is_tuple else [index]
    result = types.UniTuple(types.uint64, len(parts)) if is_tuple else types.uint64

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = cgutils.unpack_tuple(builder, args[0], len(parts)) if is_tuple else [args[0]]
        wide = [widened(builder, v, p) for v, p in zip(values, parts, strict=True)]
        return context.make_tuple(builder, result, wide) if is_tuple else wide[0]

    return result(index), codegen


@any_intrinsic
def address_of(tyctx: Any, array: Any, index: Any):  # type: ignore[no-untyped-def]
    """The address of an element. The index is not checked; negative numbers count from the end."""
    index = types.unliteral(index)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = make_array(array)(context, builder, args[0])
        is_tuple = isinstance(index, types.BaseTuple)
        kinds = [types.unliteral(p) for p in index] if is_tuple else [index]
        parts = cgutils.unpack_tuple(builder, args[1], len(kinds)) if is_tuple else [args[1]]
        wide = [widened(builder, p, k) for p, k in zip(parts, kinds, strict=True)]
        pointer = cgutils.get_item_pointer(context, builder, array, view, wide, wraparound=True)
        return builder.ptrtoint(pointer, _I64)

    return types.int64(array, index), codegen


@njit(**INLINED)
def get(array, index, record, site, place):  # type: ignore[no-untyped-def]
    """The element of an array that no variable holds, such as a call's result."""
    return array[check(array, index, record, site, place)]


@literal_intrinsic
def at_literal(tyctx: Any, array: Any, index: Any, record: Any, site: Any, place: Any):  # type: ignore[no-untyped-def]
    """`array`, which may be a tuple; an array without the literal `index` stops the kernel."""
    sig = array(array, index, types.int64, types.int64, place)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if isinstance(array, types.Array):
            view = make_array(array)(context, builder, args[0])
            position = ir.Constant(_I64, index.literal_value)
            _check(context, builder, view, 0, position, types.int64, *args[2:])
        return args[0]

    return sig, codegen


@any_intrinsic
def stop(tyctx: Any, kind: Any, record: Any, site: Any, some: Any, all_: Any, place: Any):  # type: ignore[no-untyped-def]
    """Stop the kernel, with a record of the place and of two numbers, `some` and `all_`."""
    sig = types.void(types.int64, types.int64, types.int64, types.int64, types.int64, place)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = ir.Constant(_I64, 0)
        with builder.if_then(cgutils.true_bit, likely=False):
            values = [args[0], args[2], zero, args[3], args[4]]
            _stop(context, builder, args[1], values, args[5])
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def note(tyctx: Any, record: Any, site: Any, place: Any):  # type: ignore[no-untyped-def]
    """Record the block and the thread, in which an exception may follow."""
    sig = types.void(types.int64, types.int64, place)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = ir.Constant(_I64, 0)
        indices = cgutils.unpack_tuple(builder, args[2], 6)
        values = [ir.Constant(_I64, RAISED), args[1], zero, zero, zero, *indices]
        store_record(builder, args[0], values)
        return context.get_dummy_value()

    return sig, codegen


@any_intrinsic
def natural(tyctx: Any, x: Any):  # type: ignore[no-untyped-def]
    """`x`, which is not negative: LLVM may assume so."""
    sig = types.int64(types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.assume(builder.icmp_signed(">=", args[0], ir.Constant(_I64, 0)))
        return args[0]

    return sig, codegen


# --- memory of a block or a thread ---


def array_at(shape: tuple[int, ...], dtype: Any) -> Any:
    """A function that returns the array at an address."""
    array_type = types.Array(dtype, len(shape), "C")

    @any_intrinsic
    def at(tyctx: Any, address: Any):  # type: ignore[no-untyped-def]
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return _view(
                context, builder, array_type, args[0], [ir.Constant(_I64, n) for n in shape]
            )

        return array_type(types.int64), codegen

    at.made_of = ("array_at", shape, str(dtype))
    return at


def array_of_bytes(dtype: Any) -> Any:
    """A function that returns the one-dimensional array of `nbytes` bytes at an address."""
    array_type = types.Array(dtype, 1, "C")

    @any_intrinsic
    def at(tyctx: Any, address: Any, nbytes: Any):  # type: ignore[no-untyped-def]
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            size = context.get_abi_sizeof(context.get_data_type(dtype))
            count = builder.udiv(args[1], ir.Constant(_I64, size))
            return _view(context, builder, array_type, args[0], [count])

        return array_type(types.int64, types.int64), codegen

    at.made_of = ("array_of_bytes", str(dtype))
    return at


def _view(context: Any, builder: Any, array_type: Any, address: Any, shape: list[Any]) -> Any:
    item = context.get_abi_sizeof(context.get_data_type(array_type.dtype))
    strides: list[Any] = []
    step = ir.Constant(_I64, item)
    for extent in reversed(shape):
        strides.insert(0, step)
        step = builder.mul(step, extent)
    view = make_array(array_type)(context, builder)
    populate_array(
        view,
        data=builder.inttoptr(address, context.get_data_type(array_type.dtype).as_pointer()),
        shape=cgutils.pack_array(builder, shape),
        strides=cgutils.pack_array(builder, strides),
        itemsize=ir.Constant(_I64, item),
        meminfo=None,
    )
    return view._getvalue()


def element_of(dtype: Any) -> tuple[Any, Any]:
    """Functions that load and store element `i` of the elements of one type at an address."""

    @intrinsic
    def load(tyctx: Any, address: Any, i: Any):  # type: ignore[no-untyped-def]
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            base = builder.inttoptr(args[0], context.get_data_type(dtype).as_pointer())
            return context.unpack_value(builder, dtype, builder.gep(base, [args[1]]))

        return dtype(types.int64, types.int64), codegen

    @intrinsic
    def store(tyctx: Any, address: Any, i: Any, value: Any):  # type: ignore[no-untyped-def]
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            base = builder.inttoptr(args[0], context.get_data_type(dtype).as_pointer())
            context.pack_value(builder, dtype, args[2], builder.gep(base, [args[1]]))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, dtype), codegen

    return load, store
