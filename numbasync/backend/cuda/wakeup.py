"""A native host function that wakes an event loop: no Python runs in a driver callback.

A Python callback would need the interpreter lock while the driver holds its own, and the
thread with the interpreter lock may be waiting for the driver's.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from numbasync.backend.cuda.driver import cu

_lock = threading.Lock()
_function: Any = None  # the driver's handle of the compiled function
_keep: list[object] = []
_begun = False


def host_function() -> Any:
    """The compiled function, or None while it is being compiled on another thread.

    Its argument is an eventfd, to which it adds one.
    """
    global _begun
    if _function is None:
        with _lock:
            if not _begun:
                _begun = True
                threading.Thread(target=_compile, name="numbasync-wakeup", daemon=True).start()
    return _function


def _compile() -> None:
    global _function
    from numba import cfunc

    write = ctypes.CDLL(None).eventfd_write
    write.argtypes = (ctypes.c_int, ctypes.c_uint64)
    write.restype = ctypes.c_int

    # A driver's host function takes a pointer; this one takes the descriptor in its place.
    @cfunc("void(uintp)")
    def ring(descriptor: int) -> None:
        write(descriptor, 1)

    _keep.append(ring)
    _function = cu.CUhostFn(ring.address)
