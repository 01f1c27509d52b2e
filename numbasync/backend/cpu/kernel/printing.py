"""What kernels print: text that front-end code describes, written to Python's standard output.

Blocks that several threads run keep their text until the launch has ended, so that it is written in
the order of blocks. The environment variable NUMBASYNC_PRINT_THREADS says whether each text begins
with the block and the thread that print it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import binding

from numbasync.arguments import shown
from numbasync.errors import CallerError

SYMBOL = "na.print"
NAME = "NUMBASYNC_PRINT_THREADS"


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

    def write(form: int, values: int, *place: int) -> int:
        text = formatted(form, values)
        if has_places():
            text = f"block {place[:3]}, thread {place[3:]}: {text}"
        if _kept.text is None:
            sys.stdout.write(text)
        else:
            _kept.text.append(text)
        return 0

    place = [ctypes.c_int32] * 6
    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *place)
    function = prototype(write)
    binding.add_symbol(SYMBOL, ctypes.cast(function, ctypes.c_void_p).value)
    has_places()  # now, where an error reaches the caller
    return function


@functools.cache
def has_places() -> bool:
    """Whether texts begin with who prints them.

    Raises:
        CallerError: the environment variable says neither.
    """
    setting = os.environ.get(NAME, "")
    if setting not in ("", "0", "1"):
        raise CallerError(f"{NAME} is {shown(setting)}: write 0 or 1, or leave it out.")
    return setting == "1"


_ITEM = re.compile(r"%(lld|llu|f|s|d|%)")
_KINDS: dict[str, Any] = {
    "lld": ctypes.c_int64, "llu": ctypes.c_uint64, "f": ctypes.c_double, "s": ctypes.c_char_p,
    "d": ctypes.c_int32,
}  # fmt: skip


def formatted(format_address: int, values_address: int) -> str:
    """The text of one `print`, which ends with a line feed.

    Args:
        format_address: of a C string, with one of `%lld`, `%llu`, `%f`, `%s`, `%d` for each value.
        values_address: of a C structure of the values.
    """
    text = ctypes.string_at(format_address).decode()
    place = values_address

    def value(match: re.Match[str]) -> str:
        nonlocal place
        if match[1] == "%":
            return "%"
        kind = _KINDS[match[1]]
        place = -(-place // ctypes.sizeof(kind)) * ctypes.sizeof(kind)
        found = kind.from_address(place).value
        place += ctypes.sizeof(kind)
        if isinstance(found, bytes):
            return found.decode()
        return f"{found:f}" if match[1] == "f" else str(found)

    return _ITEM.sub(value, text)
