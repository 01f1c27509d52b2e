"""Access rules of a checked launch: records of past accesses, and the checks of new ones.

The state of a launch is an array of 64-bit integers (`words`). Python fills in the first part
(`shadow_memory`), compiled code the second.

Every element of an array argument, and every byte of shared memory, has a cell of five records: its
last write, and the last two reads and atomic operations, each two by different threads, with time
and source location. Time counts accesses. Two accesses by two threads, one of which changes the
value, and one of which is not atomic, are a race unless `order` says that the first one is over.

This code is the same for every kernel, and most of the code of a checked kernel. Therefore it is
compiled once, and kernels call it by its symbol name.
"""

from __future__ import annotations

import threading
from typing import Any

from llvmlite import binding
from numba import njit

from numbasync.backend.cpu.disk_cache import Store, key_of_own
from numbasync.backend.cpu.library.options import OPTIONS, types
from numbasync.backend.cpu.races import order
from numbasync.backend.cpu.races.order import F as _F
from numbasync.backend.cpu.races.order import get as _get
from numbasync.backend.cpu.races.order import put as _set
from numbasync.backend.cpu.races.words import (
    ALL,
    ATOMIC,
    ATOMIC_BEFORE,
    ATTEMPT,
    AXES_FROM,
    BARRIER,
    BEGIN,
    BLOCK,
    CELL_WORDS,
    CELLS,
    DYNAMIC,
    FENCE,
    FENCE_BLOCK,
    GX,
    GY,
    HI,
    ITEM,
    LAST_ATOMIC,
    LAST_READ,
    LAST_WRITE,
    LO,
    MEET,
    MEET_WARP,
    MOST_AXES,
    MOST_TURNS,
    N_RANGES,
    N_REGIONS,
    OTHER,
    OTHER_DID,
    OTHER_SITE,
    QUIET,
    RANGES,
    READ,
    READ_BEFORE,
    REGION_WORDS,
    REGIONS,
    SLAB_BYTES,
    SLAB_CELLS,
    SOME,
    STAMPS,
    STATE,
    THREADS,
    TIME,
    TURNS,
    WAITING,
    WAITS_AT,
    WAITS_WHILE,
    WATCHES,
    WRITABLE,
    WRITE,
    WROTE,
    WX,
    WY,
)
from numbasync.backend.cpu.record import (
    INPUT_WRITTEN,
    OUTSIDE_TILE,
    RACE,
    UNWRITTEN,
    WAITS_FOR_EVER,
)

_get_32, _ = order.element_of(types.int32)


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
def _conflict(s, cell, record, me, in_block):  # type: ignore[no-untyped-def]
    """Whether a record is of another thread, whose access may not be over."""
    other = _get(cell, record) - 1
    if other < 0 or other == me:
        return False
    then = _get(cell, record + 1)
    if (in_block and then <= _get(s, BARRIER)) or order.is_over(s, me, other, then):
        return False
    _set(s, OTHER, other)
    _set(s, OTHER_SITE, _get(cell, record + 2))
    _set(s, OTHER_DID, WRITE if record == LAST_WRITE else READ if record < LAST_ATOMIC else ATOMIC)
    return True


@_F
def _remember(cell, record, me, now, site):  # type: ignore[no-untyped-def]
    if record != LAST_WRITE and _get(cell, record) != me + 1:
        for word in range(record, record + 3):
            _set(cell, word + 3, _get(cell, word))
    _set(cell, record, me + 1)
    _set(cell, record + 1, now)
    _set(cell, record + 2, site)


@_F
def _race(s, cell, mode, me, now, site, in_block):  # type: ignore[no-untyped-def]
    """Whether an access conflicts with an earlier one. If not, the access is recorded."""
    if mode == QUIET:
        return False
    if _conflict(s, cell, LAST_WRITE, me, in_block):
        return True
    if mode < ATOMIC:
        for record in (LAST_ATOMIC, ATOMIC_BEFORE):
            if _conflict(s, cell, record, me, in_block):
                return True
    if mode == READ:
        _remember(cell, LAST_READ, me, now, site)
        return False
    for record in (LAST_READ, READ_BEFORE):
        if _conflict(s, cell, record, me, in_block):
            return True
    if mode == WRITE:
        _remember(cell, LAST_WRITE, me, now, site)
        order.stored(cell)
    else:
        _remember(cell, LAST_ATOMIC, me, now, site)
        order.atomic(s, cell, me, mode == ATOMIC)
    return False


@_F
def _waits(s, address, nbytes, me):  # type: ignore[no-untyped-def]
    """Whether a thread has long done nothing but atomic operations on one element, which leave it
    as it is: only one thread runs at a time, so nobody else will change it.
    """
    if nbytes not in (4, 8):
        return False
    value = types.int64(_get_32(address, 0)) if nbytes == 4 else _get(address, 0)
    if _get(s, WAITING) == me and _get(s, WAITS_AT) == address and _get(s, WAITS_WHILE) == value:
        _set(s, TURNS, _get(s, TURNS) + 1)
        return _get(s, TURNS) > MOST_TURNS
    _set(s, WAITING, me)
    _set(s, WAITS_AT, address)
    _set(s, WAITS_WHILE, value)
    _set(s, TURNS, 0)
    return False


@_F
def _wrong(s, kind, some, all_):  # type: ignore[no-untyped-def]
    _set(s, SOME, some)
    _set(s, ALL, all_)
    return kind


@_F
def _outside_tile(s, region, address):  # type: ignore[no-untyped-def]
    """Whether an element lies outside of the block's tile."""
    remaining = address - _get(region, LO)
    block, gx, gy = _get(s, BLOCK), _get(s, GX), _get(s, GY)
    for k in range(MOST_AXES):
        axis = region + 8 * (AXES_FROM + 3 * k)
        stride, tile = _get(axis, 0), _get(axis, 1)
        if stride > 0:
            index = remaining // stride
            remaining -= index * stride
            cuda_axis = _get(axis, 2)
            position = (
                block % gx
                if cuda_axis == 0
                else block // gx % gy
                if cuda_axis == 1
                else block // gx // gy
            )
            if tile > 0 and index // tile != position:
                return True
    return False


def _access(m, address, nbytes, mode, site, tx, ty, tz):  # type: ignore[no-untyped-def]
    """Check and record one access to `nbytes` bytes, or another event; of `BEGIN`, the address is
    the block's number. Returns 0, or the kind of error, with details in `SOME` and `ALL`.
    """
    s = _get(m, STATE)
    if mode == BEGIN:
        order.begin(s, address)
        return 0
    if mode in (MEET, MEET_WARP):
        order.meet(s, mode == MEET)
        return 0
    me = _get(s, BLOCK) * _get(s, THREADS) + tx + _get(s, WX) * (ty + _get(s, WY) * tz)
    if mode in (FENCE, FENCE_BLOCK):
        order.fence(s, me, mode == FENCE)
        return 0
    if mode >= ATOMIC and _waits(s, address, nbytes, me):
        return _wrong(s, WAITS_FOR_EVER, 0, 0)
    if not _get(s, WATCHES):
        return 0
    now = _get(s, TIME) + 1
    _set(s, TIME, now)
    offset = address - m
    if 0 <= offset < _get(s, SLAB_BYTES):
        shared = _is_shared(s, offset)
        stamp = _get(s, BLOCK) + 1 if shared else -1 - me
        stamps = _get(s, STAMPS) + 8 * offset
        if mode in (READ, ATOMIC, ATTEMPT):
            for i in range(nbytes):
                if _get(stamps, i) != stamp:
                    return _wrong(s, UNWRITTEN, 1 if shared else 0, 0)
        else:
            for i in range(nbytes):
                _set(stamps, i, stamp)
        if shared:
            cell = _get(s, SLAB_CELLS) + 8 * CELL_WORDS * offset
            if _race(s, cell, mode, me, now, site, True):
                return _wrong(s, RACE, mode, 0)
        return 0
    if mode in (WRITE, ATOMIC):
        _set(order.of_thread(s, me), WROTE, now)
    owner = types.int64(0)
    for i in range(_get(s, N_REGIONS)):
        region = _get(s, REGIONS) + 8 * REGION_WORDS * i
        is_inside = _get(region, LO) <= address < _get(region, HI)
        # The same memory may be an input and an output.
        if is_inside and (owner == 0 or _get(region, WRITABLE)):
            owner = region
    if owner == 0:
        return 0
    if mode != READ:
        if not _get(owner, WRITABLE):
            return _wrong(s, INPUT_WRITTEN, 0, 0)
        if _outside_tile(s, owner, address):
            return _wrong(s, OUTSIDE_TILE, 0, 0)
    cells = _get(owner, CELLS)
    if cells:
        cell = cells + 8 * CELL_WORDS * ((address - _get(owner, LO)) // _get(owner, ITEM))
        if _race(s, cell, mode, me, now, site, False):
            return _wrong(s, RACE, mode, 0)
    return 0


# --- one library for all kernels ---

SYMBOL = "numbasync_access"
_SIGNATURE = types.int64(*[types.int64] * 8)
_compiled: list[Any] = []  # keeps the memory of the compiled code alive
_compiling = threading.Lock()


def ready() -> None:
    """Register the symbol that kernels call, unless that has been done. The code is loaded from
    disk, or compiled now, which takes two seconds.
    """
    with _compiling:
        if not _compiled:
            result = library()
            name = result.fndesc.llvm_cfunc_wrapper_name
            binding.add_symbol(SYMBOL, result.library.get_pointer_to_function(name))
            _compiled.append(result)


def library() -> Any:
    """Numba's result of compiling the library, cached where Numba would cache it."""
    try:
        store = Store(_access)
    except RuntimeError:  # there is no writable folder
        store = None
    result = None if store is None else store.load_result(key_of_own())
    if result is None:
        dispatcher: Any = njit(_SIGNATURE, **OPTIONS)(_access)
        (result,) = dispatcher.overloads.values()
        if store is not None:
            store.save_result(key_of_own(), result)
    return result
