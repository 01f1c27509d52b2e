"""`numba.cuda.libdevice` for the processor, by the C library where it has a function."""

from __future__ import annotations

from typing import Any

from numba import njit
from numba.cuda import libdevice
from numba.cuda.libdevicefuncs import functions as signatures

from numbasync.backend.cpu.library import (
    arithmetic,
    entry_points,
    libdevice_bits,
    libdevice_rounding,
    libdevice_special,
)
from numbasync.backend.cpu.library.entry_points import types


def _of_c(name: str, result: Any, arguments: list[Any]) -> Any:
    """The C library's function of these types; None if it has none."""
    if any(a.is_ptr for a in arguments):
        return None
    kinds = tuple(a.ty for a in arguments)
    if types.float32 not in kinds and types.float64 not in kinds:
        return None  # a name such as `abs` means another width there
    return arithmetic.of_c(name.removeprefix("fast_"), result, kinds)


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
    own = {**libdevice_bits.FUNCTIONS, **libdevice_special.FUNCTIONS}
    functions: dict[Any, Any] = {}
    for long_name, (result, arguments) in signatures.items():
        name = long_name.removeprefix("__nv_")
        types_in = tuple(a.ty for a in arguments if not a.is_ptr)
        function = own.get(name) or libdevice_rounding.function(name, result, types_in)
        if function is None:
            function = _of_c(name, result, arguments)
        else:
            function = _typed(name, function, result, arguments)
        if function is not None:
            functions[getattr(libdevice, name)] = function
    return functions


FUNCTIONS = _all()
