"""Compiled calls of the driver: a launch, and the look and the wait that go with it.

Through `cuda.bindings` a launch costs about 0.6 us more than the driver needs: eleven arguments
are converted, and a result becomes an object. Here one number is converted, the address of a
record that holds the eleven. The interpreter is given away during each call, as `cuda.bindings`
does: whoever has the driver's lock may wait for the interpreter.

Numba compiles them on a thread, and keeps them on disk; until they are there, and where they
cannot be made, `cuda.bindings` does the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

# What a record holds, as 64-bit numbers: the function, the grid, the block, bytes of shared memory,
# the stream, and the address of the driver's five words that describe the argument buffer.
RECORD_WORDS = 10


class Calls(NamedTuple):
    """The calls; each takes addresses and handles as numbers, and gives the driver's result."""

    launch: Callable[[int], int]  # a record's address
    mark: Callable[[int, int, int], int]  # a stream, a word's address on the device, a number
    query: Callable[[int], int]  # a stream
    spin_poll: Callable[[int], int]  # the same, several times until it is idle
    synchronize: Callable[[int], int]  # a stream
    # An address on the device, bytes of the pattern (1, 2, 4), it, how often, a stream.
    fill: Callable[[int, int, int, int, int], int]
    upload: Callable[[int, int, int, int], int]  # to, from, bytes, a stream; page-locked memory
    download: Callable[[int, int, int, int], int]  # as there
    replay: Callable[[int, int], int]  # an executable graph, a stream


_calls: Calls | None = None
_lock = threading.Lock()
_thread: threading.Thread | None = None
_why_not = "nothing has needed them"


def calls() -> Calls | None:
    """The compiled calls; None as long as they are not there."""
    return _calls


def begin() -> None:
    """Start to compile them, unless that has been done."""
    global _thread, _why_not
    with _lock:
        if _thread is None:
            _why_not = "they are being compiled"
            _thread = threading.Thread(target=_make, name="numbasync-native", daemon=True)
            _thread.start()


def ready() -> str:
    """Wait until they are there, or cannot be made: then why not, else an empty text."""
    begin()
    if _thread is not None:
        _thread.join()
    return _why_not


def _make() -> None:
    global _calls, _why_not
    try:
        _calls = _compiled()
        _why_not = ""
    except Exception as error:  # whatever is wrong with the compiler or the driver's library
        _why_not = f"{type(error).__name__}: {error}"


def _compiled() -> Calls:
    import llvmlite.binding as llvm

    # Numba's compiled code finds the driver's functions by their names, also when it comes from
    # the disk cache.
    llvm.load_library_permanently("libcuda.so.1")
    from numbasync.backend.cuda import fast_calls_compiled

    return Calls(*(_entry(getattr(fast_calls_compiled, name)) for name in Calls._fields))


def _entry(function: Any) -> Callable[..., int]:
    """The compiled function itself, which takes plain numbers: Numba's dispatcher in front of it
    looks at their types first.
    """
    (variant,) = function.overloads.values()
    entry: Callable[..., int] = variant.entry_point
    return entry
