"""Loads and stores of neighbouring elements by one instruction, imported by generated kernels.

A GPU moves up to 16 bytes per thread by one instruction. Numba writes one element at a time, and
its compiler may not merge the writes, since it does not know the alignment of an array.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from numbasync.intrinsics import elements_by_one, intrinsic
from numbasync.kernel_names import extending, types

WIDTH = 4  # elements
# part of the sources: compiled kernels are looked up by source, which does not show these functions
FORM = 1
MOST_BYTES = 16  # per instruction; more bytes take several

_api: Any = extending


def _bytes(context: Any, array: Any) -> int:
    """The alignment in bytes that `WIDTH` elements need."""
    element_type = context.data_model_manager[array.dtype].get_data_type()
    return min(MOST_BYTES, WIDTH * int(context.get_abi_sizeof(element_type)))


def _place(context: Any, builder: Any, array: Any, value: Any, at: Any, number: Any) -> Any:
    """A pointer to the elements as one vector value."""
    data = context.make_array(array)(context, builder, value).data
    index = context.cast(builder, number, at, types.intp)
    element_type = context.data_model_manager[array.dtype].get_data_type()
    return builder.bitcast(
        builder.gep(data, [index]), ir.VectorType(element_type, WIDTH).as_pointer()
    )


def _loaded(array, i):  # type: ignore[no-untyped-def]
    return lambda array, i: (array[i], array[i + 1], array[i + 2], array[i + 3])


def _stored(array, i, values):  # type: ignore[no-untyped-def]
    return elements_by_one(array, i, WIDTH, is_store=True)


@intrinsic(_loaded)
def load4(typingctx: Any, array: Any, i: Any):  # type: ignore[no-untyped-def]
    """The elements `i` to `i + 3` of a contiguous array with one axis, as a tuple. The first
    element must be aligned as the four elements together are; bounds are not checked.
    """
    out = types.UniTuple(array.dtype, WIDTH)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _place(context, builder, array, args[0], i, args[1])
        vector = builder.load(pointer, align=_bytes(context, array))
        model = context.data_model_manager[array.dtype]
        elements = [builder.extract_element(vector, ir.IntType(32)(k)) for k in range(WIDTH)]
        return context.make_tuple(builder, out, [model.from_data(builder, e) for e in elements])

    return out(array, i), codegen


@intrinsic(_stored)
def store4(typingctx: Any, array: Any, i: Any, values: Any):  # type: ignore[no-untyped-def]
    """Write the elements `i` to `i + 3`, as `load4` reads them."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        model = context.data_model_manager[array.dtype]
        vector = ir.Constant(ir.VectorType(model.get_data_type(), WIDTH), ir.Undefined)
        for k in range(WIDTH):
            value = builder.extract_value(args[2], k)
            value = context.cast(builder, value, values.types[k], array.dtype)
            data = model.as_data(builder, value)
            vector = builder.insert_element(vector, data, ir.IntType(32)(k))
        pointer = _place(context, builder, array, args[0], i, args[1])
        builder.store(vector, pointer, align=_bytes(context, array))
        return context.get_dummy_value()

    return types.void(array, i, values), codegen


@intrinsic(lambda array: lambda array: False)
def is_aligned(typingctx: Any, array: Any):  # type: ignore[no-untyped-def]
    """Whether the first element is aligned for `load4`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        data = context.make_array(array)(context, builder, args[0]).data
        rest = builder.and_(builder.ptrtoint(data, word), word(_bytes(context, array) - 1))
        return builder.icmp_unsigned("==", rest, word(0))

    return types.boolean(array), codegen
