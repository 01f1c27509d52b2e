"""A native host function that wakes an event loop: no Python runs in a driver callback.

A Python callback would need the interpreter lock while the driver holds its own lock, and the
thread with the interpreter lock may be waiting for the driver's. So would a compiled callback
passed through `cuda.bindings`, which wraps each in a function that takes the interpreter lock.
Therefore this module calls the driver directly.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_lock = threading.Lock()
_function = 0  # the compiled function's address
_keep: list[object] = []
_thread: threading.Thread | None = None


def host_function() -> int:
    """The address of the compiled function, or 0 while another thread compiles it, or until that
    thread can be started.

    The function's argument is the address of a word that holds an eventfd's number plus one. The
    function sets the word to 0, and adds one to the eventfd. It does not run behind a fault: the
    driver calls no host function of a broken context.
    """
    global _thread
    if not _function:
        with _lock:
            if _thread is None:
                thread = threading.Thread(target=_compile, name="numbasync-wakeup", daemon=True)
                with suppress(RuntimeError):  # no thread can be started now; the loop polls
                    thread.start()
                    _thread = thread
    return _function


def ready() -> None:
    """Wait for the compilation."""
    host_function()
    if _thread is not None:
        _thread.join()


def launch(stream: Any, word: int) -> bool:
    """Enqueue a call of the function with `word` behind the work of `stream`. False if there is no
    call: the function is not compiled yet, or the driver refuses.
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
    def notify(word: Any) -> None:
        descriptor = word[0] - 1
        word[0] = 0  # before the write: the woken thread polls, and may reuse the word
        write(descriptor, 1)

    _keep.append(notify)
    _function = notify.address


_launch: Callable[..., int] | None = None


def _launcher() -> Callable[..., int]:
    """The driver's own `cuLaunchHostFunc`. The call releases the interpreter lock."""
    global _launch
    if _launch is None:
        launch_host_func = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc
        launch_host_func.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        launch_host_func.restype = ctypes.c_int
        _launch = launch_host_func
    return _launch
