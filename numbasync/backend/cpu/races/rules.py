"""Access rules of a checked launch: records of past accesses, and the checks of new ones.

The state of a launch is an array of 64-bit integers, whose address is in word `STATE` of the
block's memory. Python fills in the first part (`shadow_memory`), compiled code the second.

Every element of an array argument, and every byte of shared memory, has a cell of three
records: its last write and its last two reads, the reads by different threads, with time and
source location. Time counts accesses. Two accesses by two threads, one of which changes the
value, are a race unless they are ordered: by a barrier of their block, a barrier of their warp,
or atomic operations of both blocks in between, which may be a flag or a counter.

This code is the same for every kernel, and most of the code of a checked kernel. Therefore it is
compiled once, and kernels call it by its symbol name.
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
    UNWRAPPED,
    UNWRITTEN,
    types,
)

STATE = 12  # word of the block's memory

# Words of the state. Those that Python fills in:
(
    THREADS, WX, WY, GX, GY, THREAD_ORDER, BLOCK_ORDER, REGIONS, N_REGIONS, RANGES, N_RANGES,
    DYNAMIC, SLAB_BYTES, STAMPS, SLAB_CELLS, ATOMIC_TIMES, WATCHES,
) = range(17)  # fmt: skip
# and those that compiled code maintains:
(
    TIME, BEGUN, BARRIER, WARP, BLOCK, OTHER, OTHER_SITE, OTHER_WROTE, SOME, ALL,
) = range(17, 27)  # fmt: skip
WORDS = 27

# The words of an array argument: addresses, item size, whether it is writable, cells, and its
# axes, longest stride first, each as stride, extent of a tile (0: none), CUDA axis.
LO, HI, ITEM, WRITABLE, CELLS, AXES_FROM = range(6)
MOST_AXES = 4
REGION_WORDS = AXES_FROM + 3 * MOST_AXES

CELL_WORDS = 9
READ, WRITE, QUIET, ATOMIC = range(4)  # a quiet write does not change the value
WARP_SIZE = 32

_get, _set = entry_points.element_of(types.int64)
_F = njit(**OPTIONS, **UNWRAPPED)


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
    """Whether a record is of another thread, and is not ordered before the present access."""
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
    """Whether an access conflicts with an earlier one. If not, the access is recorded."""
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
    """Check and record one access to `nbytes` bytes. Returns 0, or the kind of error, with details
    in `SOME` and `ALL`.
    """
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
            return _wrong(s, RACE, mode, _get(s, OTHER_WROTE))
    return 0


# --- one library for all kernels ---

_SYMBOL = "numbasync_access"
_SIGNATURE = types.int64(*[types.int64] * 8)
access: Any = types.ExternalFunction(_SYMBOL, _SIGNATURE)  # usable after `ready`
_compiled: list[Entry] = []  # keeps the memory of the compiled code alive
_compiling = threading.Lock()


def ready() -> None:
    """Register the symbol that kernels call, unless that has been done. The code is loaded from
    disk, or compiled now, which takes two seconds.
    """
    with _compiling:
        if not _compiled:
            entry = library()
            name = entry.result.fndesc.llvm_cfunc_wrapper_name
            binding.add_symbol(_SYMBOL, entry.result.library.get_pointer_to_function(name))
            _compiled.append(entry)


def library() -> Entry:
    """The compiled library, cached where Numba would cache it."""
    try:
        store = Store(_access)
    except RuntimeError:  # there is no writable folder
        store = None
    entry = None if store is None else store.load(key_of_own())
    if entry is None:
        dispatcher: Any = njit(_SIGNATURE, **OPTIONS)(_access)
        (result,) = dispatcher.overloads.values()
        entry = Entry(result, "", 0)
        if store is not None:
            store.save(key_of_own(), entry)
    return entry
