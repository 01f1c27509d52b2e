"""`numba.cuda.libdevice` for the processor, by the C library where it has a function."""

from __future__ import annotations

import math
from typing import Any

from numba import njit
from numba.cuda import libdevice
from numba.cuda.libdevicefuncs import functions

from numbasync.backend.cpu.library import (
    arithmetic,
    entry_points,
    libdevice_bits,
    libdevice_rounding,
    libdevice_special,
)
from numbasync.backend.cpu.library.entry_points import types

# Where the C library has another name.
_NAMES = {
    "fast_sinf": "sinf", "fast_cosf": "cosf", "fast_tanf": "tanf", "fast_expf": "expf",
    "fast_logf": "logf", "fast_log2f": "log2f", "fast_log10f": "log10f", "fast_powf": "powf",
    "fast_exp10f": "exp10f",
}  # fmt: skip


@njit(**entry_points.INLINED)
def _rsqrt(x):  # type: ignore[no-untyped-def]
    return 1 / math.sqrt(x)


@njit(**entry_points.INLINED)
def _saturate(x):  # type: ignore[no-untyped-def]
    return min(max(x, types.float32(0)), types.float32(1))


_OWN: dict[str, Any] = {
    "rsqrt": _rsqrt, "rsqrtf": _rsqrt, "frsqrt_rn": _rsqrt,
    "popc": arithmetic.popc, "popcll": arithmetic.popc,
    "clz": arithmetic.clz, "clzll": arithmetic.clz,
    "brev": arithmetic.brev, "brevll": arithmetic.brev,
    "ffs": arithmetic.ffs, "ffsll": arithmetic.ffs, "saturatef": _saturate,
}  # fmt: skip


def _of_c(name: str, result: Any, arguments: list[Any]) -> Any:
    """The C library's function of these types; None if it has none."""
    if any(a.is_ptr for a in arguments):
        return None
    kinds = tuple(a.ty for a in arguments)
    if types.float32 not in kinds and types.float64 not in kinds:
        return None  # a name such as `abs` means another width there
    return arithmetic.of_c(_NAMES.get(name, name), result, kinds)


def _typed(name: str, function: Any, result: Any, arguments: list[Any]) -> Any:
    """`function` with the types that it has on a GPU; several results are left as they are."""
    kinds = [a.ty for a in arguments if not a.is_ptr]
    a, b, c = (*kinds, *[kinds[-1]] * (3 - len(kinds)))[:3]
    give = result if len(kinds) == len(arguments) else _same
    made: Any = {
        1: lambda x: give(function(a(x))),
        2: lambda x, y: give(function(a(x), b(y))),
        3: lambda x, y, z: give(function(a(x), b(y), c(z))),
    }[len(kinds)]
    made.__name__ = name  # which is how compiled code on disk knows it
    return njit(**entry_points.INLINED)(made)


@njit(**entry_points.INLINED)
def _same(x):  # type: ignore[no-untyped-def]
    return x


def _all() -> dict[Any, Any]:
    made = {}
    own = {
        **libdevice_bits.FUNCTIONS,
        **libdevice_special.FUNCTIONS,
        **libdevice_rounding.FUNCTIONS,
        **_OWN,
    }
    for long_name, (result, arguments) in functions.items():
        name = long_name.removeprefix("__nv_")
        function = getattr(libdevice, name, None)
        if name in own:
            here = _typed(name, own[name], result, arguments)
        else:
            here = _of_c(name, result, arguments)
        if function is not None and here is not None:
            made[function] = here
    return made


FUNCTIONS = _all()
