"""What happens where the threads of a block or a warp meet, of arrays with an element a thread."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.core.errors import TypingError

from numbasync.backend.cpu.library.entry_points import DIVERGED, OPTIONS, any_intrinsic, stop, types

_F = njit(**OPTIONS)
WARP = 32

# --- a block ---


@_F
def all_there(there, wx, wy, wz, record, site, bx, by, bz):  # type: ignore[no-untyped-def]
    """Stop the kernel if some of the block are there and some are not."""
    n = wx * wy * wz
    present = 0
    for t in range(n):
        present += there[t]
    if present == 0 or present == n:
        return
    for t in range(n):
        if not there[t]:
            place = (bx, by, bz, t % wx, t // wx % wy, t // wx // wy)
            stop(DIVERGED, record, site, present, n, place)


@_F
def block_count(values, n):  # type: ignore[no-untyped-def]
    total = np.int32(0)
    for t in range(n):
        total += np.int32(values[t] != 0)
    return np.int32(total)


@_F
def everyone(there, wx, wy, wz, record, site, bx, by, bz):  # type: ignore[no-untyped-def]
    """Stop the kernel if not all of the block are there."""
    n = wx * wy * wz
    for t in range(n):
        if not there[t]:
            place = (bx, by, bz, t % wx, t // wx % wy, t // wx // wy)
            stop(DIVERGED, record, site, block_count(there, n), n, place)


@_F
def block_and(values, n):  # type: ignore[no-untyped-def]
    return np.int32(block_count(values, n) == n)


@_F
def block_or(values, n):  # type: ignore[no-untyped-def]
    return np.int32(block_count(values, n) > 0)


# --- a warp ---


@_F
def _is_there(there, t, n):  # type: ignore[no-untyped-def]
    if t >= n:
        return False
    if there is None:
        return True
    return there[t]


@_F
def _at(values, t, n, source):  # type: ignore[no-untyped-def]
    """Of the lane `source` of the warp; where there is none, its own."""
    lane = t - t % WARP + source
    return values[lane] if 0 <= source < WARP and lane < n else values[t]


@_F
def shfl(mask, values, lanes, t, n, there):  # type: ignore[no-untyped-def]
    return _at(values, t, n, np.int64(lanes[t]) & 31)


@_F
def shfl_up(mask, values, lanes, t, n, there):  # type: ignore[no-untyped-def]
    return _at(values, t, n, t % WARP - (np.int64(lanes[t]) & 0xFFFFFFFF))


@_F
def shfl_down(mask, values, lanes, t, n, there):  # type: ignore[no-untyped-def]
    return _at(values, t, n, t % WARP + (np.int64(lanes[t]) & 0xFFFFFFFF))


@_F
def shfl_xor(mask, values, lanes, t, n, there):  # type: ignore[no-untyped-def]
    return _at(values, t, n, t % WARP ^ (np.int64(lanes[t]) & 0xFFFFFFFF))


@_F
def _votes(mask, values, t, n, there):  # type: ignore[no-untyped-def]
    """Of the lanes that are there: which are asked, and which of them say yes."""
    first = t - t % WARP
    asked = np.int64(0)
    yes = np.int64(0)
    for lane in range(WARP):
        if (np.int64(mask[t]) >> lane) & 1 and _is_there(there, first + lane, n):
            asked |= np.int64(1) << lane
            if values[first + lane] != 0:
                yes |= np.int64(1) << lane
    return asked, yes


@_F
def all_(mask, values, t, n, there):  # type: ignore[no-untyped-def]
    asked, yes = _votes(mask, values, t, n, there)
    return asked == yes


@_F
def any_(mask, values, t, n, there):  # type: ignore[no-untyped-def]
    return _votes(mask, values, t, n, there)[1] != 0


@_F
def eq(mask, values, t, n, there):  # type: ignore[no-untyped-def]
    asked, yes = _votes(mask, values, t, n, there)
    return yes == 0 or asked == yes


@_F
def ballot(mask, values, t, n, there):  # type: ignore[no-untyped-def]
    return np.int32(_votes(mask, values, t, n, there)[1])


@_F
def _matching(mask, values, t, n, there):  # type: ignore[no-untyped-def]
    first = t - t % WARP
    asked = np.int64(0)
    same = np.int64(0)
    for lane in range(WARP):
        if (np.int64(mask[t]) >> lane) & 1 and _is_there(there, first + lane, n):
            asked |= np.int64(1) << lane
            if values[first + lane] == values[t]:
                same |= np.int64(1) << lane
    return asked, same


@_F
def match_any(mask, values, t, n, there):  # type: ignore[no-untyped-def]
    return np.int32(_matching(mask, values, t, n, there)[1])


@_F
def match_all(mask, values, t, n, there):  # type: ignore[no-untyped-def]
    asked, same = _matching(mask, values, t, n, there)
    return (np.int32(asked), True) if asked == same else (np.int32(0), False)


@_F
def activemask(t, n, there):  # type: ignore[no-untyped-def]
    first = t - t % WARP
    found = np.int64(0)
    for lane in range(WARP):
        if _is_there(there, first + lane, n):
            found |= np.int64(1) << lane
    return np.uint32(found)


# --- functions of the same types, for whoever asks for the types only ---


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
    """What a shuffle gives, of the types that it has on a GPU and no others."""
    value, whole = types.unliteral(value), (types.unliteral(mask), types.unliteral(lane))
    is_number = value in (types.int32, types.int64, types.float32, types.float64)
    if not is_number or not all(isinstance(t, types.Integer) for t in whole):
        raise TypingError(f"a shuffle of {value}, by {whole}")
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
    "_all_there": all_there, "_everyone": everyone, "_blockcount": block_count,
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
