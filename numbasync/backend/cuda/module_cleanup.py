"""The end of a process leaves Numba's modules to the driver, which frees them.

Numba unloads a module once for each GPU that it is loaded on, though the driver has it once, so
with two GPUs the second time frees freed memory (numba-cuda 0.30.4; with more than ten modules, as
fewer wait in a list that nobody empties).
"""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from functools import cache

from numba import cuda

_deferred = ExitStack()


@cache
def leave_modules_to_the_driver(ordinal: int) -> None:
    """Let Numba unload nothing of this GPU, whose context is current, when the process ends.

    Called after Numba has loaded a module: what is registered later is called earlier.
    """
    atexit.register(_deferred.enter_context, cuda.current_context().defer_cleanup())
