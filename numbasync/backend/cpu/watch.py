"""What checked kernels call at every access to an array's elements, and where threads meet.

The state of a launch is an array of 64-bit integers, whose address stands in word `STATE` of
the block's memory. Python fills in the first part (`shadow`), compiled code the second.

Every element of an array argument, and every byte of shared memory, has a cell of three
records: its last write and its last two reads, each by another thread, with time and place.
Time counts accesses. Two accesses by two threads, one of which writes another value than
there was, are a race unless something orders them: a barrier of their block, a meeting of
their warp, or atomic operations of both blocks in between, which may be a flag or a counter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils
from numba.extending import overload
from numba.np.arrayobj import make_array

from numbasync.backend.cpu import native
from numbasync.backend.cpu.native import (
    INLINED,
    INPUT_WRITTEN,
    OPTIONS,
    OUTSIDE_TILE,
    OVERFLOWN,
    RACE,
    UNWRITTEN,
    check,
    stop,
    types,
    widened,
)

STATE = 12  # word of the block's memory

# Words of the state. What Python fills in:
(
    THREADS, WX, WY, GX, GY, THREAD_ORDER, BLOCK_ORDER, REGIONS, N_REGIONS, RANGES, N_RANGES,
    DYNAMIC, SLAB_BYTES, STAMPS, SLAB_CELLS, ATOMIC_TIMES, WATCHES,
) = range(17)  # fmt: skip
# and what compiled code keeps there:
TIME, BEGUN, BARRIER, WARP, BLOCK, OTHER, OTHER_SITE, OTHER_WROTE = range(17, 25)
WORDS = 25

# An array argument, in words: addresses, item size, rights, cells, and its axes, longest stride
# first: stride, extent of a tile (0: none), CUDA axis.
LO, HI, ITEM, WRITABLE, CELLS, AXES_FROM = range(6)
MOST_AXES = 4
REGION_WORDS = AXES_FROM + 3 * MOST_AXES

CELL_WORDS = 9
READ, WRITE, QUIET, ATOMIC = range(4)  # a quiet write leaves what was there
WARP_SIZE = 32

_get, _set = native.element_of(types.int64)
_F = njit(**OPTIONS)


@_F
def turn(m, k):  # type: ignore[no-untyped-def]
    """The thread of the block whose turn is the k-th."""
    return _get(_get(_get(m, STATE), THREAD_ORDER), k)


@_F
def turn_of_block(m, k):  # type: ignore[no-untyped-def]
    return _get(_get(_get(m, STATE), BLOCK_ORDER), k)


@_F
def begin(m, block):  # type: ignore[no-untyped-def]
    """A block begins: nothing of another one lies before it in its memory."""
    s = _get(m, STATE)
    now = _get(s, TIME) + 1
    for word in (TIME, BEGUN, BARRIER, WARP):
        _set(s, word, now)
    _set(s, BLOCK, block)


@_F
def met(m, whole):  # type: ignore[no-untyped-def]
    """The threads of the block have met, or those of its warps."""
    s = _get(m, STATE)
    now = _get(s, TIME) + 1
    _set(s, TIME, now)
    _set(s, WARP, now)
    if whole:
        _set(s, BARRIER, now)


@_F
def _is_shared(s, offset):  # type: ignore[no-untyped-def]
    if offset >= _get(s, DYNAMIC):
        return True
    ranges = _get(s, RANGES)
    for i in range(_get(s, N_RANGES)):
        if _get(ranges, 2 * i) <= offset < _get(ranges, 2 * i + 1):
            return True
    return False


@_F
def _conflict(s, cell, record, me, is_atomic, in_block):  # type: ignore[no-untyped-def]
    """Whether a record is of another thread, and nothing orders it before now."""
    other = _get(cell, 3 * record) - 1
    if other < 0 or other == me:
        return False
    site = _get(cell, 3 * record + 2)
    if is_atomic and site & 1:
        return False
    then = _get(cell, 3 * record + 1)
    if then <= _get(s, BARRIER) and in_block:
        return False
    n = _get(s, THREADS)
    if other // n == me // n:
        if then <= _get(s, BARRIER):
            return False
        same_warp = other % n // WARP_SIZE == me % n // WARP_SIZE
        if same_warp and then <= _get(s, WARP):
            return False
    elif (
        _get(_get(s, ATOMIC_TIMES), other // n) > then and _get(_get(s, ATOMIC_TIMES), me // n) > 0
    ):
        return False
    _set(s, OTHER, other)
    _set(s, OTHER_SITE, site >> 1)
    _set(s, OTHER_WROTE, 1 if record == 0 else 0)
    return True


@_F
def _remember(cell, record, me, now, site, is_atomic):  # type: ignore[no-untyped-def]
    if record > 0 and _get(cell, 3) != me + 1:
        for word in range(3):
            _set(cell, 6 + word, _get(cell, 3 + word))
    _set(cell, 3 * record, me + 1)
    _set(cell, 3 * record + 1, now)
    _set(cell, 3 * record + 2, 2 * site + is_atomic)


@_F
def _race(s, cell, mode, me, now, site, in_block):  # type: ignore[no-untyped-def]
    """Whether an access conflicts with an earlier one; it is remembered."""
    if mode == QUIET:
        return False
    is_atomic = 1 if mode == ATOMIC else 0
    if _conflict(s, cell, 0, me, is_atomic, in_block):
        return True
    if mode == READ:
        _remember(cell, 1, me, now, site, 0)
        return False
    for record in (1, 2):
        if _conflict(s, cell, record, me, is_atomic, in_block):
            return True
    _remember(cell, 0, me, now, site, is_atomic)
    return False


@_F
def _outside_tile(s, region, address):  # type: ignore[no-untyped-def]
    """Whether an element is not of the block's tile."""
    rest = address - _get(region, LO)
    block, gx, gy = _get(s, BLOCK), _get(s, GX), _get(s, GY)
    for k in range(MOST_AXES):
        axis = region + 8 * (AXES_FROM + 3 * k)
        stride, tile = _get(axis, 0), _get(axis, 1)
        if stride > 0:
            index = rest // stride
            rest -= index * stride
            along = _get(axis, 2)
            at = block % gx if along == 0 else block // gx % gy if along == 1 else block // gx // gy
            if tile > 0 and index // tile != at:
                return True
    return False


@_F
def touch(m, address, nbytes, mode, site, place):  # type: ignore[no-untyped-def]
    """One access to `nbytes` bytes. Stops the kernel if it must not be."""
    s = _get(m, STATE)
    if not _get(s, WATCHES):
        return
    now = _get(s, TIME) + 1
    _set(s, TIME, now)
    _, _, _, tx, ty, tz = place
    me = _get(s, BLOCK) * _get(s, THREADS) + tx + _get(s, WX) * (ty + _get(s, WY) * tz)
    offset = address - m
    if 0 <= offset < _get(s, SLAB_BYTES):
        shared = _is_shared(s, offset)
        stamp = _get(s, BLOCK) + 1 if shared else -1 - me
        stamps = _get(s, STAMPS) + 8 * offset
        if mode in (READ, ATOMIC):
            for i in range(nbytes):
                if _get(stamps, i) != stamp:
                    stop(UNWRITTEN, m, site, 1 if shared else 0, 0, place)
        else:
            for i in range(nbytes):
                _set(stamps, i, stamp)
        if shared:
            cell = _get(s, SLAB_CELLS) + 8 * CELL_WORDS * offset
            if _race(s, cell, mode, me, now, site, True):
                stop(RACE, m, site, mode, _get(s, OTHER_WROTE), place)
        return
    if mode == ATOMIC:
        _set(_get(s, ATOMIC_TIMES), _get(s, BLOCK), now)
    found = types.int64(0)
    for i in range(_get(s, N_REGIONS)):
        region = _get(s, REGIONS) + 8 * REGION_WORDS * i
        is_inside = _get(region, LO) <= address < _get(region, HI)
        # The same memory may be an input and an output.
        if is_inside and (found == 0 or _get(region, WRITABLE)):
            found = region
    if found == 0:
        return
    if mode != READ:
        if not _get(found, WRITABLE):
            stop(INPUT_WRITTEN, m, site, 0, 0, place)
        if _outside_tile(s, found, address):
            stop(OUTSIDE_TILE, m, site, 0, 0, place)
    cells = _get(found, CELLS)
    if cells:
        cell = cells + 8 * CELL_WORDS * ((address - _get(found, LO)) // _get(found, ITEM))
        if _race(s, cell, mode, me, now, site, False):
            stop(RACE, m, site, mode, _get(s, OTHER_WROTE), place)


# --- in place of subscripts ---


@native.any_intrinsic
def _address(tyctx: Any, array: Any, index: Any):  # type: ignore[no-untyped-def]
    """Of an element; `index` has been checked."""
    index = types.unliteral(index)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = make_array(array)(context, builder, args[0])
        is_tuple = isinstance(index, types.BaseTuple)
        kinds = list(index) if is_tuple else [index]
        parts = cgutils.unpack_tuple(builder, args[1], len(kinds)) if is_tuple else [args[1]]
        wide = [widened(builder, p, k) for p, k in zip(parts, kinds, strict=True)]
        pointer = cgutils.get_item_pointer(context, builder, array, view, wide, wraparound=False)
        return builder.ptrtoint(pointer, ir.IntType(64))

    return types.int64(array, index), codegen


def _is_number(array: Any, index: Any) -> bool:
    """Whether it is an element that is a number, and no row, field or item of a tuple."""
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
    """The checked index of what is about to be read."""
    if not _is_number(array, index):
        return lambda array, index, record, site, place: check(array, index, record, site, place)

    def seen_number(array, index, record, site, place):  # type: ignore[no-untyped-def]
        at = check(array, index, record, site, place)
        touch(record, _address(array, at), array.itemsize, READ, site, place)
        return at

    return seen_number


def take(array, index, record, site, place): ...  # type: ignore[no-untyped-def]


@overload(take, jit_options=INLINED)
def _take(array, index, record, site, place):  # type: ignore[no-untyped-def]
    """An element of something that has no name."""
    return lambda array, index, record, site, place: array[seen(array, index, record, site, place)]


def at_literal(array, index, record, site, place): ...  # type: ignore[no-untyped-def]


@overload(at_literal, jit_options=INLINED)
def _at_literal(array, index, record, site, place):  # type: ignore[no-untyped-def]
    """`array` as it is, as `native.at_literal` gives it; its element is about to be read."""
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
        touch(record, _address(array, at), array.itemsize, mode, site, place)

    return put_number


def atomic(array, index, record, site, place): ...  # type: ignore[no-untyped-def]


@overload(atomic, jit_options=INLINED)
def _atomic(array, index, record, site, place):  # type: ignore[no-untyped-def]
    """The checked index of an element that is about to be changed at one stroke."""
    if not _is_number(array, index):
        return lambda array, index, record, site, place: check(array, index, record, site, place)

    def atomic_number(array, index, record, site, place):  # type: ignore[no-untyped-def]
        at = check(array, index, record, site, place)
        touch(record, _address(array, at), array.itemsize, ATOMIC, site, place)
        return at

    return atomic_number


def filled(array, record, site, place): ...  # type: ignore[no-untyped-def]


@overload(filled, jit_options=INLINED)
def _filled(array, record, site, place):  # type: ignore[no-untyped-def]
    """All of a view has been assigned."""
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
            touch(record, _address(array, i), array.itemsize, WRITE, site, place)

    return filled_elements


def narrow(value, record, site, place): ...  # type: ignore[no-untyped-def]


@overload(narrow, jit_options=INLINED)
def _narrow(value, record, site, place):  # type: ignore[no-untyped-def]
    """An index as an int32, which it must fit into."""
    if not isinstance(types.unliteral(value), types.Integer):
        return lambda value, record, site, place: np.int32(value)

    def narrow_integer(value, record, site, place):  # type: ignore[no-untyped-def]
        if not -(2**31) <= value < 2**31:
            stop(OVERFLOWN, record, site, types.int64(value), 0, place)
        return np.int32(value)

    return narrow_integer


NAMES: dict[str, Any] = {
    "_seen": seen, "_take": take, "_at_literal": at_literal, "_put": put, "_atomic": atomic,
    "_filled": filled, "_narrow": narrow,
    "_turn": turn, "_turn_of_block": turn_of_block, "_begin": begin, "_met": met,
}  # fmt: skip
