"""What kernels print: text that front-end code describes, written to Python's standard output."""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

from llvmlite import binding

from numbasync.backend.cpu.target.printing import formatted

SYMBOL = "na.print"


@functools.cache
def ready() -> Any:
    """Register the function that kernels call, which takes the interpreter lock; it is returned,
    and lives as long as the process.
    """

    def write(form: int, values: int) -> int:
        sys.stdout.write(formatted(form, values))
        return 0

    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
    function = prototype(write)
    binding.add_symbol(SYMBOL, ctypes.cast(function, ctypes.c_void_p).value)
    return function
