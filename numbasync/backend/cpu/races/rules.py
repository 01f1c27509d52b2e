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
from numbasync.backend.cpu.races import order, words
from numbasync.backend.cpu.races.order import F as _F
from numbasync.backend.cpu.races.order import get as _get
from numbasync.backend.cpu.races.order import put as _set
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
    if offset >= _get(s, words.DYNAMIC):
        return True
    ranges = _get(s, words.RANGES)
    for i in range(_get(s, words.N_RANGES)):
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
    if (in_block and then <= _get(s, words.BARRIER)) or order.is_over(s, me, other, then):
        return False
    _set(s, words.OTHER, other)
    _set(s, words.OTHER_SITE, _get(cell, record + 2))
    _set(
        s,
        words.OTHER_DID,
        words.WRITE
        if record == words.LAST_WRITE
        else words.READ
        if record < words.LAST_ATOMIC
        else words.ATOMIC,
    )
    return True


@_F
def _remember(cell, record, me, now, site):  # type: ignore[no-untyped-def]
    if record != words.LAST_WRITE and _get(cell, record) != me + 1:
        for word in range(record, record + 3):
            _set(cell, word + 3, _get(cell, word))
    _set(cell, record, me + 1)
    _set(cell, record + 1, now)
    _set(cell, record + 2, site)


@_F
def _race(s, cell, mode, me, now, site, in_block):  # type: ignore[no-untyped-def]
    """Whether an access conflicts with an earlier one. If not, the access is recorded."""
    if mode == words.QUIET:
        return False
    if _conflict(s, cell, words.LAST_WRITE, me, in_block):
        return True
    if mode < words.ATOMIC:
        for record in (words.LAST_ATOMIC, words.ATOMIC_BEFORE):
            if _conflict(s, cell, record, me, in_block):
                return True
    if mode == words.READ:
        _remember(cell, words.LAST_READ, me, now, site)
        return False
    for record in (words.LAST_READ, words.READ_BEFORE):
        if _conflict(s, cell, record, me, in_block):
            return True
    if mode == words.WRITE:
        _remember(cell, words.LAST_WRITE, me, now, site)
        order.stored(cell)
    else:
        _remember(cell, words.LAST_ATOMIC, me, now, site)
        order.atomic(s, cell, me, mode == words.ATOMIC)
    return False


@_F
def _waits(s, address, nbytes, me):  # type: ignore[no-untyped-def]
    """Whether a thread has long done nothing but atomic operations on one element, which leave it
    as it is: only one thread runs at a time, so nobody else will change it.
    """
    if nbytes not in (4, 8):
        return False
    value = types.int64(_get_32(address, 0)) if nbytes == 4 else _get(address, 0)
    if (
        _get(s, words.WAITING) == me
        and _get(s, words.WAITS_AT) == address
        and _get(s, words.WAITS_WHILE) == value
    ):
        _set(s, words.TURNS, _get(s, words.TURNS) + 1)
        return _get(s, words.TURNS) > words.MOST_TURNS
    _set(s, words.WAITING, me)
    _set(s, words.WAITS_AT, address)
    _set(s, words.WAITS_WHILE, value)
    _set(s, words.TURNS, 0)
    return False


@_F
def _wrong(s, kind, some, all_):  # type: ignore[no-untyped-def]
    _set(s, words.SOME, some)
    _set(s, words.ALL, all_)
    return kind


@_F
def _outside_tile(s, region, address):  # type: ignore[no-untyped-def]
    """Whether an element lies outside of the block's tile."""
    remaining = address - _get(region, words.LO)
    block, gx, gy = _get(s, words.BLOCK), _get(s, words.GX), _get(s, words.GY)
    for k in range(words.MOST_AXES):
        axis = region + 8 * (words.AXES_FROM + 3 * k)
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
    s = _get(m, words.STATE)
    if mode == words.BEGIN:
        order.begin(s, address)
        return 0
    if mode in (words.MEET, words.MEET_WARP):
        order.meet(s, mode == words.MEET)
        return 0
    me = (
        _get(s, words.BLOCK) * _get(s, words.THREADS)
        + tx
        + _get(s, words.WX) * (ty + _get(s, words.WY) * tz)
    )
    if mode in (words.FENCE, words.FENCE_BLOCK):
        order.fence(s, me, mode == words.FENCE)
        return 0
    if mode >= words.ATOMIC and _waits(s, address, nbytes, me):
        return _wrong(s, WAITS_FOR_EVER, 0, 0)
    if not _get(s, words.WATCHES):
        return 0
    now = _get(s, words.TIME) + 1
    _set(s, words.TIME, now)
    offset = address - m
    if 0 <= offset < _get(s, words.SLAB_BYTES):
        shared = _is_shared(s, offset)
        stamp = _get(s, words.BLOCK) + 1 if shared else -1 - me
        stamps = _get(s, words.STAMPS) + 8 * offset
        if mode in (words.READ, words.ATOMIC, words.ATTEMPT):
            for i in range(nbytes):
                if _get(stamps, i) != stamp:
                    return _wrong(s, UNWRITTEN, 1 if shared else 0, 0)
        else:
            for i in range(nbytes):
                _set(stamps, i, stamp)
        if shared:
            cell = _get(s, words.SLAB_CELLS) + 8 * words.CELL_WORDS * offset
            if _race(s, cell, mode, me, now, site, True):
                return _wrong(s, RACE, mode, 0)
        return 0
    if mode in (words.WRITE, words.ATOMIC):
        _set(order.of_thread(s, me), words.WROTE, now)
    owner = types.int64(0)
    for i in range(_get(s, words.N_REGIONS)):
        region = _get(s, words.REGIONS) + 8 * words.REGION_WORDS * i
        is_inside = _get(region, words.LO) <= address < _get(region, words.HI)
        # The same memory may be an input and an output.
        if is_inside and (owner == 0 or _get(region, words.WRITABLE)):
            owner = region
    if owner == 0:
        return 0
    if mode != words.READ:
        if not _get(owner, words.WRITABLE):
            return _wrong(s, INPUT_WRITTEN, 0, 0)
        if _outside_tile(s, owner, address):
            return _wrong(s, OUTSIDE_TILE, 0, 0)
    cells = _get(owner, words.CELLS)
    if cells:
        cell = cells + 8 * words.CELL_WORDS * (
            (address - _get(owner, words.LO)) // _get(owner, words.ITEM)
        )
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
