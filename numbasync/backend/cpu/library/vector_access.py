"""Loads and stores of `numbasync.vectors` for the processor: several neighbouring elements, whose
indices and alignment are checked.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import overload

from numbasync import vectors
from numbasync.backend.cpu.library.entry_points import (
    INLINED,
    MISALIGNED,
    address_of,
    any_intrinsic,
    check,
    literal_intrinsic,
    natural,
    stop,
    types,
)

_I64 = ir.IntType(64)


def load(array, index, count, record, site, place): ...  # type: ignore[no-untyped-def]


def store(array, index, values, record, site, place): ...  # type: ignore[no-untyped-def]


def is_aligned(array, index, count, record, site, place): ...  # type: ignore[no-untyped-def]


def nbytes_of(array: Any, index: Any, count: Any) -> int:
    """The bytes of an access, from Numba's types; `count` may be a tuple of values.

    Raises:
        TypingError: there is no such access.
    """
    count = len(count) if isinstance(count, types.BaseTuple) else count
    why = vectors.refusal(array, types.unliteral(index), count)
    if why:
        raise TypingError(why)
    number = count if isinstance(count, int) else count.literal_value
    return int(number) * vectors.item_bytes(array.dtype)


@any_intrinsic
def _last(tyctx: Any, index: Any, more: Any):  # type: ignore[no-untyped-def]
    """A checked index, whose last number is `more` greater."""
    is_tuple = isinstance(index, types.BaseTuple)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        numbers = cgutils.unpack_tuple(builder, args[0]) if is_tuple else [args[0]]
        numbers[-1] = builder.add(numbers[-1], args[1])
        return context.make_tuple(builder, index, numbers) if is_tuple else numbers[0]

    return index(index, types.int64), codegen


@any_intrinsic
def _along(tyctx: Any, index: Any):  # type: ignore[no-untyped-def]
    """The last number of a checked index."""
    is_tuple = isinstance(index, types.BaseTuple)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return cgutils.unpack_tuple(builder, args[0])[-1] if is_tuple else args[0]

    return types.int64(index), codegen


# Called with numbers that are `natural`: a literal is a type of its own, and each access would have
# this compiled anew.
@njit(**INLINED)
def place_of(array, index, count, nbytes, record, site, place):  # type: ignore[no-untyped-def]
    """The address of the first of `count` elements. Stops the kernel if one is outside of the
    array, or the address is no multiple of `nbytes`.
    """
    first = check(array, index, record, site, place)
    check(array, _last(first, count - 1), record, site, place)
    address = address_of(array, first)
    if address % nbytes:
        stop(MISALIGNED, record, site, _along(first), nbytes, place)
    return address


@literal_intrinsic
def elements_at(tyctx: Any, array: Any, address: Any, count: Any):  # type: ignore[no-untyped-def]
    """The `count` elements at an address, as a tuple."""
    dtype, number = array.dtype, count.literal_value
    out = types.UniTuple(dtype, number)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        base = builder.inttoptr(args[1], context.get_data_type(dtype).as_pointer())
        places = [builder.gep(base, [_I64(k)]) for k in range(number)]
        elements = [context.unpack_value(builder, dtype, place) for place in places]
        return context.make_tuple(builder, out, elements)

    return out(array, address, count), codegen


@any_intrinsic
def put_at(tyctx: Any, array: Any, address: Any, values: Any):  # type: ignore[no-untyped-def]
    """Write `values` to the elements at an address."""
    dtype = array.dtype

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        base = builder.inttoptr(args[1], context.get_data_type(dtype).as_pointer())
        parts = cgutils.unpack_tuple(builder, args[2])
        for k, (part, part_type) in enumerate(zip(parts, values, strict=True)):
            element = context.cast(builder, part, part_type, dtype)
            context.pack_value(builder, dtype, element, builder.gep(base, [_I64(k)]))
        return context.get_dummy_value()

    return types.void(array, types.int64, values), codegen


@overload(load, jit_options=INLINED, prefer_literal=True)
def _load(array, index, count, record, site, place):  # type: ignore[no-untyped-def]
    nbytes = nbytes_of(array, index, count)

    def load_elements(array, index, count, record, site, place):  # type: ignore[no-untyped-def]
        address = place_of(array, index, natural(count), natural(nbytes), record, site, place)
        return elements_at(array, address, count)

    return load_elements


@overload(store, jit_options=INLINED, prefer_literal=True)
def _store(array, index, values, record, site, place):  # type: ignore[no-untyped-def]
    nbytes = nbytes_of(array, index, values)

    def store_elements(array, index, values, record, site, place):  # type: ignore[no-untyped-def]
        address = place_of(array, index, natural(len(values)), natural(nbytes), record, site, place)
        put_at(array, address, values)

    return store_elements


@overload(is_aligned, jit_options=INLINED, prefer_literal=True)
def _is_aligned(array, index, count, record, site, place):  # type: ignore[no-untyped-def]
    nbytes = nbytes_of(array, index, count)
    return lambda array, index, count, record, site, place: address_of(array, index) % nbytes == 0


NAMES = {"_vector_load": load, "_vector_store": store, "_vector_is_aligned": is_aligned}
