"""What kernels print: text that front-end code describes, written to Python's standard output.

Blocks that several threads run keep their text until the launch has ended, so that it is written in
the order of blocks.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import binding

from numbasync.backend.cpu.target.printing import formatted

SYMBOL = "na.print"


class _Kept(threading.local):
    text: list[str] | None = None  # of the blocks that the thread runs, if it is kept


_kept = _Kept()


@contextmanager
def kept(text: list[str]) -> Iterator[None]:
    """Inside the block, what kernels print in this thread is appended to `text`."""
    _kept.text = text
    try:
        yield
    finally:
        _kept.text = None


@functools.cache
def ready() -> Any:
    """Register the function that kernels call, which takes the interpreter lock; it is returned,
    and lives as long as the process.
    """

    def write(form: int, values: int) -> int:
        text = formatted(form, values)
        if _kept.text is None:
            sys.stdout.write(text)
        else:
            _kept.text.append(text)
        return 0

    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
    function = prototype(write)
    binding.add_symbol(SYMBOL, ctypes.cast(function, ctypes.c_void_p).value)
    return function
