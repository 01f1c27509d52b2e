"""The driver's floor: `cuLaunchKernel` called in a compiled loop, with no Python in between."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

from numba import njit

from numbasync.tools.bench.measure import Case
from numbasync.tools.bench.peers import driver
from numbasync.tools.bench.work import BLOCKS, THREADS, check

# Pointers as integers of their size: those are what a compiled loop is given.
SIGNATURE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_size_t, *[ctypes.c_uint] * 7, *[ctypes.c_size_t] * 3
)


def compiled_loop(call: Any) -> Callable[..., int]:
    """A loop around `call`, which is of `SIGNATURE`; gives the results, all or-ed."""

    @njit
    def loop(count, function, blocks, threads, stream, extra):  # type: ignore[no-untyped-def]
        results = 0
        for _ in range(count):
            results |= call(function, blocks, 1, 1, threads, 1, 1, 0, stream, 0, extra)
        return results

    found: Callable[..., int] = loop
    return found


def native() -> Any:
    """The driver's own function, of `SIGNATURE`."""
    found = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    return SIGNATURE(ctypes.cast(found, ctypes.c_void_p).value or 0)


def of_launch(ordinal: int) -> list[Case]:
    """The launch, with its arguments packed once."""
    raw = driver.of(ordinal)
    loop = compiled_loop(native())
    stream, buffer = raw.stream(), driver.Buffer()
    z, x = raw.row(0), raw.row(1)
    buffer.pack(z, x)
    function, queue = int(raw.function), int(stream)

    def launches(count: int) -> None:
        result = loop(count, function, BLOCKS, THREADS, queue, buffer.extra)
        if result:
            raise RuntimeError(f"cuLaunchKernel says {result}")

    async def run(calls: int) -> float:
        began = time.perf_counter()
        launches(calls)
        seconds = time.perf_counter() - began
        raw.synchronize(stream)
        return seconds

    async def right() -> None:
        raw.fill(z, 0)
        launches(1)
        raw.synchronize(stream)
        check(raw.read(z))

    return [Case("driver: launch in a compiled loop", run, right)]
