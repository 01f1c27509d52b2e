"""The accesses of a checked launch: which were made by whom, and which may be made.

The state of a launch is an array of 64-bit integers, whose address stands in word `STATE` of
the block's memory. Python fills in the first part (`shadow`), compiled code the second.

Every element of an array argument, and every byte of shared memory, has a cell of three
records: its last write and its last two reads, each by another thread, with time and place.
Time counts accesses. Two accesses by two threads, one of which writes another value than
there was, are a race unless something orders them: a barrier of their block, a meeting of
their warp, or atomic operations of both blocks in between, which may be a flag or a counter.

It is the same for every kernel, and most of the code of a checked one, so it is compiled once,
and kernels call it by its name.
"""

from __future__ import annotations

import threading
from typing import Any

from llvmlite import binding
from numba import njit

from numbasync.backend.cpu.library import entry_points
from numbasync.backend.cpu.library.disk_cache import Entry, Store, key_of_own
from numbasync.backend.cpu.library.entry_points import (
    INPUT_WRITTEN,
    OPTIONS,
    OUTSIDE_TILE,
    RACE,
    UNWRITTEN,
    types,
)

STATE = 12  # word of the block's memory

# Words of the state. What Python fills in:
(
    THREADS, WX, WY, GX, GY, THREAD_ORDER, BLOCK_ORDER, REGIONS, N_REGIONS, RANGES, N_RANGES,
    DYNAMIC, SLAB_BYTES, STAMPS, SLAB_CELLS, ATOMIC_TIMES, WATCHES,
) = range(17)  # fmt: skip
# and what compiled code keeps there:
(
    TIME, BEGUN, BARRIER, WARP, BLOCK, OTHER, OTHER_SITE, OTHER_WROTE, SOME, ALL,
) = range(17, 27)  # fmt: skip
WORDS = 27

# An array argument, in words: addresses, item size, rights, cells, and its axes, longest stride
# first: stride, extent of a tile (0: none), CUDA axis.
LO, HI, ITEM, WRITABLE, CELLS, AXES_FROM = range(6)
MOST_AXES = 4
REGION_WORDS = AXES_FROM + 3 * MOST_AXES

CELL_WORDS = 9
READ, WRITE, QUIET, ATOMIC = range(4)  # a quiet write leaves what was there
WARP_SIZE = 32

_get, _set = entry_points.element_of(types.int64)
_F = njit(**OPTIONS)


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
def _wrong(s, kind, some, all_):  # type: ignore[no-untyped-def]
    _set(s, SOME, some)
    _set(s, ALL, all_)
    return kind


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


def _access(m, address, nbytes, mode, site, tx, ty, tz):  # type: ignore[no-untyped-def]
    """One access to `nbytes` bytes: 0, or what is wrong with it, with more in `SOME` and `ALL`."""
    s = _get(m, STATE)
    now = _get(s, TIME) + 1
    _set(s, TIME, now)
    me = _get(s, BLOCK) * _get(s, THREADS) + tx + _get(s, WX) * (ty + _get(s, WY) * tz)
    offset = address - m
    if 0 <= offset < _get(s, SLAB_BYTES):
        shared = _is_shared(s, offset)
        stamp = _get(s, BLOCK) + 1 if shared else -1 - me
        stamps = _get(s, STAMPS) + 8 * offset
        if mode in (READ, ATOMIC):
            for i in range(nbytes):
                if _get(stamps, i) != stamp:
                    return _wrong(s, UNWRITTEN, 1 if shared else 0, 0)
        else:
            for i in range(nbytes):
                _set(stamps, i, stamp)
        if shared:
            cell = _get(s, SLAB_CELLS) + 8 * CELL_WORDS * offset
            if _race(s, cell, mode, me, now, site, True):
                return _wrong(s, RACE, mode, _get(s, OTHER_WROTE))
        return 0
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
        return 0
    if mode != READ:
        if not _get(found, WRITABLE):
            return _wrong(s, INPUT_WRITTEN, 0, 0)
        if _outside_tile(s, found, address):
            return _wrong(s, OUTSIDE_TILE, 0, 0)
    cells = _get(found, CELLS)
    if cells:
        cell = cells + 8 * CELL_WORDS * ((address - _get(found, LO)) // _get(found, ITEM))
        if _race(s, cell, mode, me, now, site, False):
            return _wrong(s, RACE, mode, _get(s, OTHER_WROTE))
    return 0


# --- one library for all kernels ---

_SYMBOL = "numbasync_access"
_SIGNATURE = types.int64(*[types.int64] * 8)
access: Any = types.ExternalFunction(_SYMBOL, _SIGNATURE)  # once it is `ready`
_compiled: list[Entry] = []  # which the code's memory belongs to
_compiling = threading.Lock()


def ready() -> None:
    """Make known what kernels call, unless that has been done: from disk, or compiled now, which
    takes two seconds.
    """
    with _compiling:
        if not _compiled:
            entry = library()
            name = entry.result.fndesc.llvm_cfunc_wrapper_name
            binding.add_symbol(_SYMBOL, entry.result.library.get_pointer_to_function(name))
            _compiled.append(entry)


def library() -> Entry:
    """The library, kept where Numba would keep it."""
    try:
        store = Store(_access)
    except RuntimeError:  # there is no folder that could be written to
        store = None
    entry = None if store is None else store.load(key_of_own())
    if entry is None:
        dispatcher: Any = njit(_SIGNATURE, **OPTIONS)(_access)
        (result,) = dispatcher.overloads.values()
        entry = Entry(result, "", 0)
        if store is not None:
            store.save(key_of_own(), entry)
    return entry
