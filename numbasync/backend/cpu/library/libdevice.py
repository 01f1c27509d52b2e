"""`numba.cuda.libdevice` for the processor: functions of this package and of the C library.

Every function has the types of Numba's table of signatures, to which arguments are converted.
"""

from __future__ import annotations

from typing import Any

from numba import njit
from numba.cuda import libdevice
from numba.cuda.libdevicefuncs import functions as signatures

from numbasync.backend.cpu.library import (
    arithmetic,
    libdevice_bits,
    libdevice_rounding,
    libdevice_special,
)
from numbasync.backend.cpu.library.options import INLINED, types


def _of_c(name: str, result: Any, arguments: list[Any]) -> Any:
    """The C library's function of these types; None if the library has none."""
    if any(a.is_ptr for a in arguments):
        return None
    argument_types = tuple(a.ty for a in arguments)
    if types.float32 not in argument_types and types.float64 not in argument_types:
        return None  # C's function of that name, such as `abs`, may take integers of another width
    return arithmetic.of_c(name.removeprefix("fast_"), result, argument_types)


def _typed(name: str, function: Any, result: Any, arguments: list[Any]) -> Any:
    """`function` with the types of the signature; a tuple of several results stays unchanged."""
    inputs = [a.ty for a in arguments if not a.is_ptr]
    a, b, c = (*inputs, *[inputs[-1]] * (3 - len(inputs)))[:3]
    convert = result if len(inputs) == len(arguments) else _unchanged
    converting: Any = {
        1: lambda x: convert(function(a(x))),
        2: lambda x, y: convert(function(a(x), b(y))),
        3: lambda x, y, z: convert(function(a(x), b(y), c(z))),
    }[len(inputs)]
    converting.__name__ = name  # identifies the function in compiled code on disk
    return njit(**INLINED)(converting)


@njit(**INLINED)
def _unchanged(x):  # type: ignore[no-untyped-def]
    return x


def _all() -> dict[Any, Any]:
    own = {**libdevice_bits.FUNCTIONS, **libdevice_special.FUNCTIONS}
    functions: dict[Any, Any] = {}
    for long_name, (result, arguments) in signatures.items():
        name = long_name.removeprefix("__nv_")
        inputs = tuple(a.ty for a in arguments if not a.is_ptr)
        function = own.get(name) or libdevice_rounding.function(name, result, inputs)
        if function is None:
            function = _of_c(name, result, arguments)
        else:
            function = _typed(name, function, result, arguments)
        if function is not None:
            functions[getattr(libdevice, name)] = function
    return functions


FUNCTIONS = _all()
