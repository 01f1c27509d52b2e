"""Functions of numbers of which those of `libdevice` are made: the C library's, and others."""

from __future__ import annotations

import ctypes
import math
import os
from typing import Any

import numpy as np
from llvmlite import binding
from numba.extending import intrinsic, overload

from numbasync.backend.cpu.library.options import INLINED, types


@intrinsic
def fma(tyctx: Any, a: Any, b: Any, c: Any):  # type: ignore[no-untyped-def]
    result = types.float32 if {a, b, c} == {types.float32} else types.float64

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return result(result, result, result), codegen


_C = ctypes.CDLL("ucrtbase" if os.name == "nt" else None)

_C_TYPES: dict[Any, Any] = {
    types.float32: ctypes.c_float, types.float64: ctypes.c_double, types.int32: ctypes.c_int,
    types.int64: ctypes.c_longlong,
}  # fmt: skip


def of_c(name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
    """The C library's function `name` of these Numba types; None if the library has none."""
    function = getattr(_C, name, None)
    if function is None or not {result, *arguments} <= set(_C_TYPES):
        return None
    if binding.address_of_symbol(name):
        # By name, not by address: another process may load the compiled code from disk.
        return types.ExternalFunction(name, result(*arguments))
    function.argtypes = tuple(_C_TYPES[a] for a in arguments)
    function.restype = _C_TYPES[result]
    return function


_remainder = of_c("remainder", types.float64, (types.float64, types.float64))
_remainderf = of_c("remainderf", types.float32, (types.float32, types.float32))


def remainder(a, b): ...  # type: ignore[no-untyped-def]


@overload(remainder, jit_options=INLINED)
def _remainder_of(a, b):  # type: ignore[no-untyped-def]
    if a == b == types.float32:
        return lambda a, b: np.float32(_remainderf(a, b))
    return lambda a, b: _remainder(a, b)


def modf(x): ...  # type: ignore[no-untyped-def]


@overload(modf, jit_options=INLINED)
def _modf(x):  # type: ignore[no-untyped-def]
    zero = np.float32(0) if x == types.float32 else np.float64(0)
    return lambda x: (np.copysign(zero, x), x) if math.isinf(x) else (x - np.trunc(x), np.trunc(x))
