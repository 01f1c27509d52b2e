"""Compiled driver calls: a launch, and the poll and the wait that belong to it.

Through `cuda.bindings` a launch costs about 0.6 us more than the driver needs: eleven arguments
are converted, and the result becomes an object. A compiled call converts one number, the address
of a record that holds the eleven. The interpreter lock is released during each call, as in
`cuda.bindings`, because the holder of the driver's lock may wait for the interpreter lock.

Numba compiles these calls on a thread, and caches them on disk. Until they are compiled, and
where compilation fails, `cuda.bindings` makes the calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

# A record holds these 64-bit numbers: the function, the grid, the block, bytes of shared memory,
# the stream, and the address of the driver's five words that describe the argument buffer.
RECORD_WORDS = 10


class Calls(NamedTuple):
    """The calls. Each takes addresses and handles as numbers, and returns the driver's result."""

    launch: Callable[[int], int]  # a record's address
    write_word: Callable[[int, int, int], int]  # a stream, a word's address on the device, a number
    query: Callable[[int], int]  # a stream
    spin_poll: Callable[[int], int]  # the same, several times until it is idle
    synchronize: Callable[[int], int]  # a stream
    # A device address, bytes of the pattern (1, 2, 4), the pattern, its repetitions, a stream.
    fill: Callable[[int, int, int, int, int], int]
    upload: Callable[[int, int, int, int], int]  # to, from, bytes, a stream; page-locked memory
    download: Callable[[int, int, int, int], int]  # as `upload`
    replay: Callable[[int, int], int]  # an executable graph, a stream


_calls: Calls | None = None
_lock = threading.Lock()
_thread: threading.Thread | None = None
_why_not = "nothing has needed them"


def calls() -> Calls | None:
    """The compiled calls; None until they are compiled."""
    return _calls


def begin() -> None:
    """Start to compile the calls, unless compilation has been started before, or no thread can be
    started now.
    """
    global _thread, _why_not
    with _lock:
        if _thread is None:
            _why_not = "they are being compiled"
            thread = threading.Thread(target=_make, name="numbasync-native", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                _why_not = f"{type(error).__name__}: {error}"
            else:
                _thread = thread


def ready() -> str:
    """Wait for the compilation. Returns the reason if it failed, else an empty string."""
    begin()
    if _thread is not None:
        _thread.join()
    return _why_not


def _make() -> None:
    global _calls, _why_not
    try:
        _calls = _compiled()
        _why_not = ""
    except Exception as error:  # any failure of the compiler or of the driver's library
        _why_not = f"{type(error).__name__}: {error}"


def _compiled() -> Calls:
    import llvmlite.binding as llvm

    # Numba's compiled code finds the driver's functions by their names, also when the code is
    # loaded from the disk cache.
    llvm.load_library_permanently("libcuda.so.1")
    from numbasync.backend.cuda import fast_calls_compiled

    return Calls(*(_entry(getattr(fast_calls_compiled, name)) for name in Calls._fields))


def _entry(function: Any) -> Callable[..., int]:
    """The compiled function itself, which takes plain numbers. Numba's dispatcher would examine
    their types at each call.
    """
    (variant,) = function.overloads.values()
    entry: Callable[..., int] = variant.entry_point
    return entry
