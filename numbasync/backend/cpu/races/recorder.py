"""The functions that checked kernels call at every access to an array's elements, and at barriers.

`rules` decides whether an access is allowed; this module provides the subscripts that ask `rules`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload

from numbasync.backend.cpu.library import entry_points, vector_access
from numbasync.backend.cpu.library.entry_points import (
    INLINED,
    OPTIONS,
    OVERFLOWN,
    UNWRAPPED,
    address_of,
    check,
    stop,
    types,
)
from numbasync.backend.cpu.races.rules import access
from numbasync.backend.cpu.races.words import (
    ALL,
    ATOMIC,
    ATTEMPT,
    BEGIN,
    BLOCK_ORDER,
    FENCE,
    FENCE_BLOCK,
    MEET,
    MEET_WARP,
    QUIET,
    READ,
    SOME,
    STATE,
    THREAD_ORDER,
    TURNS,
    WATCHES,
    WRITE,
)

_get, _set = entry_points.element_of(types.int64)
_F = njit(**OPTIONS, **UNWRAPPED)


@_F
def turn(m, k):  # type: ignore[no-untyped-def]
    """The number of the thread that runs k-th in its block."""
    return _get(_get(_get(m, STATE), THREAD_ORDER), k)


@_F
def turn_of_block(m, k):  # type: ignore[no-untyped-def]
    return _get(_get(_get(m, STATE), BLOCK_ORDER), k)


@_F
def begin(m, block):  # type: ignore[no-untyped-def]
    """Begin a block: earlier accesses to the block's memory are not of this block."""
    access(m, block, 0, BEGIN, 0, 0, 0, 0)


@_F
def met(m, whole):  # type: ignore[no-untyped-def]
    """Record a barrier of the block (`whole`), or of each of its warps."""
    access(m, 0, 0, MEET if whole else MEET_WARP, 0, 0, 0, 0)


@_F
def fence(is_wide, m, site, place):  # type: ignore[no-untyped-def]
    """Record a fence: of the device (`is_wide`), or of the block."""
    _, _, _, tx, ty, tz = place
    access(m, 0, 0, FENCE if is_wide else FENCE_BLOCK, site, tx, ty, tz)


@_F
def touch(m, address, nbytes, mode, site, place):  # type: ignore[no-untyped-def]
    """Record one access to `nbytes` bytes. Stops the kernel if the access is not allowed."""
    s = _get(m, STATE)
    if mode < ATOMIC:
        _set(s, TURNS, 0)
        if not _get(s, WATCHES):
            return
    _, _, _, tx, ty, tz = place
    wrong = access(m, address, nbytes, mode, site, tx, ty, tz)
    if wrong:
        stop(wrong, m, site, _get(s, SOME), _get(s, ALL), place)


# --- replacements of subscripts ---


def _is_number(array: Any, index: Any) -> bool:
    """Whether the subscript gives a number of an array, not a row, field or item of a tuple."""
    index = types.unliteral(index)
    parts = list(index) if isinstance(index, types.BaseTuple) else [index]
    return (
        isinstance(array, types.Array)
        and isinstance(array.dtype, types.Number | types.Boolean)
        and len(parts) == array.ndim
        and all(isinstance(types.unliteral(p), types.Integer) for p in parts)
    )


def seen(array, index, record, site, place): ...  # type: ignore[no-untyped-def]


@overload(seen, jit_options=INLINED)
def _seen(array, index, record, site, place):  # type: ignore[no-untyped-def]
    """The checked index of an element that is about to be read."""
    if not _is_number(array, index):
        return lambda array, index, record, site, place: check(array, index, record, site, place)

    def seen_number(array, index, record, site, place):  # type: ignore[no-untyped-def]
        at = check(array, index, record, site, place)
        touch(record, address_of(array, at), array.itemsize, READ, site, place)
        return at

    return seen_number


def take(array, index, record, site, place): ...  # type: ignore[no-untyped-def]


@overload(take, jit_options=INLINED)
def _take(array, index, record, site, place):  # type: ignore[no-untyped-def]
    """An element of an unnamed expression."""
    return lambda array, index, record, site, place: array[seen(array, index, record, site, place)]


def at_literal(array, index, record, site, place): ...  # type: ignore[no-untyped-def]


@overload(at_literal, jit_options=INLINED)
def _at_literal(array, index, record, site, place):  # type: ignore[no-untyped-def]
    """`array` itself, as from the unchecked `at_literal`. Its element is about to be read."""
    if not isinstance(array, types.Array):
        return lambda array, index, record, site, place: array

    def at_literal_of_array(array, index, record, site, place):  # type: ignore[no-untyped-def]
        seen(array, index, record, site, place)
        return array

    return at_literal_of_array


def put(array, index, value, record, site, place): ...  # type: ignore[no-untyped-def]


@overload(put, jit_options=INLINED)
def _put(array, index, value, record, site, place):  # type: ignore[no-untyped-def]
    if not _is_number(array, index):

        def put_other(array, index, value, record, site, place):  # type: ignore[no-untyped-def]
            array[check(array, index, record, site, place)] = value

        return put_other

    def put_number(array, index, value, record, site, place):  # type: ignore[no-untyped-def]
        at = check(array, index, record, site, place)
        before = array[at]
        array[at] = value
        mode = QUIET if array[at] == before else WRITE
        touch(record, address_of(array, at), array.itemsize, mode, site, place)

    return put_number


def atomic(array, index, record, site, place): ...  # type: ignore[no-untyped-def]


@overload(atomic, jit_options=INLINED)
def _atomic(array, index, record, site, place):  # type: ignore[no-untyped-def]
    """The checked index of an element that is about to be changed atomically."""
    if not _is_number(array, index):
        return lambda array, index, record, site, place: check(array, index, record, site, place)

    def atomic_number(array, index, record, site, place):  # type: ignore[no-untyped-def]
        at = check(array, index, record, site, place)
        touch(record, address_of(array, at), array.itemsize, ATOMIC, site, place)
        return at

    return atomic_number


def compared(array, index, old, record, site, place): ...  # type: ignore[no-untyped-def]


@overload(compared, jit_options=INLINED)
def _compared(array, index, old, record, site, place):  # type: ignore[no-untyped-def]
    """The checked index of an element that is about to be changed if it is `old`."""
    if not _is_number(array, index):
        return lambda array, index, old, record, site, place: check(
            array, index, record, site, place
        )
    dtype = array.dtype

    def compared_number(array, index, old, record, site, place):  # type: ignore[no-untyped-def]
        at = check(array, index, record, site, place)
        mode = ATOMIC if array[at] == dtype(old) else ATTEMPT
        touch(record, address_of(array, at), array.itemsize, mode, site, place)
        return at

    return compared_number


def filled(array, record, site, place): ...  # type: ignore[no-untyped-def]


@overload(filled, jit_options=INLINED)
def _filled(array, record, site, place):  # type: ignore[no-untyped-def]
    """Record writes to all elements of a view that has been assigned."""
    if not isinstance(array, types.Array) or not isinstance(
        array.dtype, types.Number | types.Boolean
    ):
        return lambda array, record, site, place: None
    if array.ndim > 1:

        def filled_rows(array, record, site, place):  # type: ignore[no-untyped-def]
            for i in range(array.shape[0]):
                filled(array[i], record, site, place)

        return filled_rows

    def filled_elements(array, record, site, place):  # type: ignore[no-untyped-def]
        for i in range(array.shape[0]):
            touch(record, address_of(array, i), array.itemsize, WRITE, site, place)

    return filled_elements


def narrow(value, record, site, place): ...  # type: ignore[no-untyped-def]


@overload(narrow, jit_options=INLINED)
def _narrow(value, record, site, place):  # type: ignore[no-untyped-def]
    """An index as an int32. Stops the kernel if the index does not fit."""
    if not isinstance(types.unliteral(value), types.Integer):
        return lambda value, record, site, place: np.int32(value)

    def narrow_integer(value, record, site, place):  # type: ignore[no-untyped-def]
        if not -(2**31) <= value < 2**31:
            stop(OVERFLOWN, record, site, types.int64(value), 0, place)
        return np.int32(value)

    return narrow_integer


# --- vectors: their elements, one by one ---


def load_vector(array, index, count, record, site, place): ...  # type: ignore[no-untyped-def]


@overload(load_vector, jit_options=INLINED, prefer_literal=True)
def _load_vector(array, index, count, record, site, place):  # type: ignore[no-untyped-def]
    nbytes = vector_access.nbytes_of(array, index, count)

    def load_seen(array, index, count, record, site, place):  # type: ignore[no-untyped-def]
        address = vector_access.place_of(array, index, count, nbytes, record, site, place)
        for k in range(count):
            touch(record, address + k * array.itemsize, array.itemsize, READ, site, place)
        return vector_access.elements_at(array, address, count)

    return load_seen


def store_vector(array, index, values, record, site, place): ...  # type: ignore[no-untyped-def]


@overload(store_vector, jit_options=INLINED, prefer_literal=True)
def _store_vector(array, index, values, record, site, place):  # type: ignore[no-untyped-def]
    nbytes = vector_access.nbytes_of(array, index, values)
    count = len(values)

    def store_seen(array, index, values, record, site, place):  # type: ignore[no-untyped-def]
        address = vector_access.place_of(array, index, count, nbytes, record, site, place)
        before = vector_access.elements_at(array, address, count)
        vector_access.put_at(array, address, values)
        after = vector_access.elements_at(array, address, count)
        for k in range(count):
            mode = QUIET if after[k] == before[k] else WRITE
            touch(record, address + k * array.itemsize, array.itemsize, mode, site, place)

    return store_seen


NAMES: dict[str, Any] = {
    "_seen": seen, "_take": take, "_at_literal": at_literal, "_put": put, "_atomic": atomic,
    "_compared": compared, "_fence": fence,
    "_filled": filled, "_narrow": narrow,
    "_vector_load": load_vector, "_vector_store": store_vector,
    "_vector_is_aligned": vector_access.is_aligned,
    "_turn": turn, "_turn_of_block": turn_of_block, "_begin": begin, "_met": met,
}  # fmt: skip
