"""Barriers of a block and operations of a warp, computed of arrays with one element per thread.

After a barrier region has run for every thread, the values that its threads pass to the barrier or
to the warp operation are in arrays. `present` tells which threads have arrived there; None: all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.core.errors import TypingError

from numbasync.backend.cpu.library.entry_points import (
    DIVERGED,
    OPTIONS,
    UNWRAPPED,
    any_intrinsic,
    stop,
    types,
)

_F = njit(**OPTIONS, **UNWRAPPED)
WARP = 32

# --- a block ---


@_F
def all_or_none(present, wx, wy, wz, record, site, bx, by, bz):  # type: ignore[no-untyped-def]
    """Stop the kernel if some threads of the block have arrived and others have not."""
    n = wx * wy * wz
    arrived = 0
    for t in range(n):
        arrived += present[t]
    if arrived == 0 or arrived == n:
        return
    for t in range(n):
        if not present[t]:
            place = (bx, by, bz, t % wx, t // wx % wy, t // wx // wy)
            stop(DIVERGED, record, site, arrived, n, place)


@_F
def block_count(values, n):  # type: ignore[no-untyped-def]
    total = np.int32(0)
    for t in range(n):
        total += np.int32(values[t] != 0)
    return np.int32(total)


@_F
def all_arrived(present, wx, wy, wz, record, site, bx, by, bz):  # type: ignore[no-untyped-def]
    """Stop the kernel if not all threads of the block have arrived."""
    n = wx * wy * wz
    for t in range(n):
        if not present[t]:
            place = (bx, by, bz, t % wx, t // wx % wy, t // wx // wy)
            stop(DIVERGED, record, site, block_count(present, n), n, place)


@_F
def block_and(values, n):  # type: ignore[no-untyped-def]
    return np.int32(block_count(values, n) == n)


@_F
def block_or(values, n):  # type: ignore[no-untyped-def]
    return np.int32(block_count(values, n) > 0)


# --- a warp ---


@_F
def _has_arrived(present, t, n):  # type: ignore[no-untyped-def]
    if t >= n:
        return False
    if present is None:
        return True
    return present[t]


@_F
def _of_lane(values, t, n, source):  # type: ignore[no-untyped-def]
    """The value of the lane `source` of the warp; the thread's own if there is no such lane."""
    lane = t - t % WARP + source
    return values[lane] if 0 <= source < WARP and lane < n else values[t]


@_F
def shfl(mask, values, lanes, t, n, present):  # type: ignore[no-untyped-def]
    return _of_lane(values, t, n, np.int64(lanes[t]) & 31)


@_F
def shfl_up(mask, values, lanes, t, n, present):  # type: ignore[no-untyped-def]
    return _of_lane(values, t, n, t % WARP - (np.int64(lanes[t]) & 0xFFFFFFFF))


@_F
def shfl_down(mask, values, lanes, t, n, present):  # type: ignore[no-untyped-def]
    return _of_lane(values, t, n, t % WARP + (np.int64(lanes[t]) & 0xFFFFFFFF))


@_F
def shfl_xor(mask, values, lanes, t, n, present):  # type: ignore[no-untyped-def]
    return _of_lane(values, t, n, t % WARP ^ (np.int64(lanes[t]) & 0xFFFFFFFF))


@_F
def _votes(mask, values, t, n, present):  # type: ignore[no-untyped-def]
    """Two masks: the lanes of `mask[t]` that have arrived, and those of them with a value other
    than 0.
    """
    first = t - t % WARP
    voting = np.int64(0)
    in_favour = np.int64(0)
    for lane in range(WARP):
        if (np.int64(mask[t]) >> lane) & 1 and _has_arrived(present, first + lane, n):
            voting |= np.int64(1) << lane
            if values[first + lane] != 0:
                in_favour |= np.int64(1) << lane
    return voting, in_favour


@_F
def all_(mask, values, t, n, present):  # type: ignore[no-untyped-def]
    voting, in_favour = _votes(mask, values, t, n, present)
    return voting == in_favour


@_F
def any_(mask, values, t, n, present):  # type: ignore[no-untyped-def]
    return _votes(mask, values, t, n, present)[1] != 0


@_F
def eq(mask, values, t, n, present):  # type: ignore[no-untyped-def]
    voting, in_favour = _votes(mask, values, t, n, present)
    return in_favour == 0 or voting == in_favour


@_F
def ballot(mask, values, t, n, present):  # type: ignore[no-untyped-def]
    return np.int32(_votes(mask, values, t, n, present)[1])


@_F
def _matching(mask, values, t, n, present):  # type: ignore[no-untyped-def]
    """Two masks: the lanes of `mask[t]` that have arrived, and those of them with the thread's
    value.
    """
    first = t - t % WARP
    members = np.int64(0)
    same = np.int64(0)
    for lane in range(WARP):
        if (np.int64(mask[t]) >> lane) & 1 and _has_arrived(present, first + lane, n):
            members |= np.int64(1) << lane
            if values[first + lane] == values[t]:
                same |= np.int64(1) << lane
    return members, same


@_F
def match_any(mask, values, t, n, present):  # type: ignore[no-untyped-def]
    return np.int32(_matching(mask, values, t, n, present)[1])


@_F
def match_all(mask, values, t, n, present):  # type: ignore[no-untyped-def]
    members, same = _matching(mask, values, t, n, present)
    return (np.int32(members), True) if members == same else (np.int32(0), False)


@_F
def activemask(t, n, present):  # type: ignore[no-untyped-def]
    first = t - t % WARP
    active = np.int64(0)
    for lane in range(WARP):
        if _has_arrived(present, first + lane, n):
            active |= np.int64(1) << lane
    return np.uint32(active)


# --- functions of the same types, by which the types of a kernel's variables are inferred ---


@_F
def _none():  # type: ignore[no-untyped-def]
    return None


@_F
def _none_of(mask=0):  # type: ignore[no-untyped-def]
    return None


@_F
def _word(value):  # type: ignore[no-untyped-def]
    return np.int32(0)


@any_intrinsic
def _value(tyctx: Any, mask: Any, value: Any, lane: Any):  # type: ignore[no-untyped-def]
    """The result of a shuffle; its types are those of a GPU, and no others."""
    value, integers = types.unliteral(value), (types.unliteral(mask), types.unliteral(lane))
    is_number = value in (types.int32, types.int64, types.float32, types.float64)
    if not is_number or not all(isinstance(t, types.Integer) for t in integers):
        raise TypingError(f"a shuffle of {value}, by {integers}")
    return value(mask, value, lane), lambda context, builder, signature, args: args[1]


@_F
def _truth(mask, value):  # type: ignore[no-untyped-def]
    return True


@_F
def _bits(mask, value):  # type: ignore[no-untyped-def]
    return np.int32(0)


@_F
def _bits_and_truth(mask, value):  # type: ignore[no-untyped-def]
    return np.int32(0), True


@_F
def _lanes():  # type: ignore[no-untyped-def]
    return np.uint32(0)


NAMES: dict[str, Any] = {
    "_all_there": all_or_none, "_everyone": all_arrived, "_blockcount": block_count,
    "_blockand": block_and, "_blockor": block_or, "_warpshfl": shfl, "_warpshfl_up": shfl_up,
    "_warpshfl_down": shfl_down, "_warpshfl_xor": shfl_xor, "_warpall": all_, "_warpany": any_,
    "_warpeq": eq, "_warpballot": ballot, "_warpmatch_any": match_any,
    "_warpmatch_all": match_all, "_warpactivemask": activemask,
    "_typebarrier": _none, "_typegrid": _none, "_typewarp": _none_of,
    "_typecount": _word, "_typeand": _word, "_typeor": _word,
    "_typeshfl": _value, "_typeshfl_up": _value, "_typeshfl_down": _value,
    "_typeshfl_xor": _value, "_typeall": _truth, "_typeany": _truth, "_typeeq": _truth,
    "_typeballot": _bits, "_typematch_any": _bits, "_typematch_all": _bits_and_truth,
    "_typeactivemask": _lanes,
}  # fmt: skip
