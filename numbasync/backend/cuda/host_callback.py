"""A native host function that wakes an event loop: no Python runs in a driver callback.

A Python callback would need the interpreter lock while the driver holds its own, and the
thread with the interpreter lock may be waiting for the driver's. So would a compiled one that
is handed over by `cuda.bindings`, which wraps each in a function of its own that takes the
interpreter lock. So the driver is called directly here.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

_lock = threading.Lock()
_function = 0  # the compiled function's address
_keep: list[object] = []
_begun = False


def host_function() -> int:
    """The address of the compiled function, or 0 while it is being compiled on another thread.

    Its argument is the address of a word that holds an eventfd's number and one. It sets the
    word to 0, and adds one to the eventfd. It does not run behind a fault: the driver calls no
    host function of a broken context.
    """
    global _begun
    if not _function:
        with _lock:
            if not _begun:
                _begun = True
                threading.Thread(target=_compile, name="numbasync-wakeup", daemon=True).start()
    return _function


def launch(stream: Any, word: int) -> bool:
    """Have the function called with `word` behind what `stream` holds. False if it will not be:
    it is not there yet, or the driver refuses.
    """
    function = host_function()
    return bool(function) and not _launcher()(int(stream), function, word)


def _compile() -> None:
    global _function
    from numba import cfunc, types

    write = ctypes.CDLL(None).eventfd_write
    write.argtypes = (ctypes.c_int, ctypes.c_uint64)
    write.restype = ctypes.c_int

    @cfunc(types.void(types.CPointer(types.uint32)))
    def ring(word: Any) -> None:
        descriptor = word[0] - 1
        word[0] = 0  # before it rings: who is woken looks, and may give the word away
        write(descriptor, 1)

    _keep.append(ring)
    _function = ring.address


_launch: Callable[..., int] | None = None


def _launcher() -> Callable[..., int]:
    """The driver's own `cuLaunchHostFunc`. Calling it gives the interpreter away."""
    global _launch
    if _launch is None:
        found = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc
        found.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        found.restype = ctypes.c_int
        _launch = found
    return _launch
