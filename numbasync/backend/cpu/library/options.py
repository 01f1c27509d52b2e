"""How the functions of this package are compiled by Numba, and how LLVM's code becomes one."""

from __future__ import annotations

from typing import Any

from numba.core import types as numba_types
from numba.extending import intrinsic

# Of type Any: type checkers do not know all of its names.
types: Any = numba_types

# Every function runs without the interpreter lock, exceptions for divisions and reference counts.
OPTIONS: dict[str, Any] = {
    "nogil": True, "error_model": "numpy", "_nrt": False,
    "forceinline": False,  # otherwise inherited from an inlined caller
}  # fmt: skip
# Only compiled code calls the functions: neither Python nor C needs a way into them.
UNWRAPPED: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
INLINED: Any = {**OPTIONS, **UNWRAPPED, "forceinline": True}
# Of type Any: the functions that it creates are called without the first parameter.
any_intrinsic: Any = intrinsic
