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

    Its argument is the host address of a word that holds an eventfd's number and one. It sets
    the word to 0, and adds one to the eventfd. It does not run behind a fault: the driver calls
    no host function of a broken context.
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
    _function = cu.CUhostFn(ring.address)
