"""The least that a launch costs: `cuLaunchKernel` in a compiled loop, with no Python in it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from numba import njit

from benchmarks.measure import Case, prepared
from benchmarks.peers import driver
from benchmarks.work import BLOCKS, THREADS, check

# Pointers are integers of their size, since a compiled loop takes no others.
SIGNATURE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_size_t, *[ctypes.c_uint] * 7, *[ctypes.c_size_t] * 3
)


def compiled_loop(call: Any) -> Callable[..., int]:
    """A loop around `call`, a function of `SIGNATURE`; gives the bitwise or of its results."""

    @njit
    def loop(count, function, blocks, threads, stream, extra):  # type: ignore[no-untyped-def]
        results = 0
        for _ in range(count):
            results |= call(function, blocks, 1, 1, threads, 1, 1, 0, stream, 0, extra)
        return results

    compiled: Callable[..., int] = loop
    return compiled


def native() -> Any:
    """The driver's own function, of `SIGNATURE`."""
    function = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    return SIGNATURE(ctypes.cast(function, ctypes.c_void_p).value or 0)


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

    def drain() -> None:
        raw.synchronize(stream)

    async def check_row() -> None:
        raw.fill(z, 0)
        launches(1)
        drain()
        check(raw.read(z))

    run = prepared(lambda calls: lambda: launches(calls), drain)
    return [Case("driver: launch in a compiled loop", run, check_row)]
