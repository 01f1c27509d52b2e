"""`numba.cuda.libdevice` for the processor: the functions that the C library has, too."""

from __future__ import annotations

import math
from typing import Any

from numba import njit
from numba.cuda import libdevice
from numba.cuda.libdevicefuncs import functions

from numbasync.backend.cpu import arithmetic, native
from numbasync.backend.cpu.native import types

# Where the C library has another name.
_NAMES = {
    "fast_sinf": "sinf", "fast_cosf": "cosf", "fast_tanf": "tanf", "fast_expf": "expf",
    "fast_logf": "logf", "fast_log2f": "log2f", "fast_log10f": "log10f", "fast_powf": "powf",
    "fast_exp10f": "exp10f",
}  # fmt: skip


@njit(**native.INLINED)
def _rsqrt(x):  # type: ignore[no-untyped-def]
    return 1 / math.sqrt(x)


@njit(**native.INLINED)
def _saturate(x):  # type: ignore[no-untyped-def]
    return min(max(x, types.float32(0)), types.float32(1))


_OWN: dict[str, Any] = {
    "rsqrt": _rsqrt, "rsqrtf": _rsqrt, "popc": arithmetic.popc, "popcll": arithmetic.popc,
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


def _all() -> dict[Any, Any]:
    made = {}
    for long_name, (result, arguments) in functions.items():
        name = long_name.removeprefix("__nv_")
        function = getattr(libdevice, name, None)
        here = _OWN.get(name) or _of_c(name, result, arguments)
        if function is not None and here is not None:
            made[function] = here
    return made


FUNCTIONS = _all()
