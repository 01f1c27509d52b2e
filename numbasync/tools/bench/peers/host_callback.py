"""The way of Numba's `Stream.async_done`: a Python function that the driver calls, which hands
the future over to the loop. Written on `cuda.bindings`, since Numba's own fails with it.
"""

from __future__ import annotations

import asyncio
import ctypes
import time
from typing import Any

from numbasync.tools.bench.measure import Case
from numbasync.tools.bench.peers import driver, raw
from numbasync.tools.bench.work import STREAMS, WIDTH, check


class Callbacks:
    """Futures of one loop that the driver settles."""

    def __init__(self, cu: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._launch = cu.cuLaunchHostFunc
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._last = 0
        # Kept: the driver has only its address.
        self._native = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._called)
        self._function = cu.CUhostFn(init_value=ctypes.cast(self._native, ctypes.c_void_p).value)

    def done(self, stream: Any) -> asyncio.Future[None]:
        """A future of all that `stream` holds now."""
        self._last += 1
        future = self._waiting[self._last] = self._loop.create_future()
        (result,) = self._launch(stream, self._function, self._last)
        if result:
            raise RuntimeError(f"cuLaunchHostFunc says {result!r}")
        return future

    def _called(self, number: int) -> None:
        self._loop.call_soon_threadsafe(self._settle, number)

    def _settle(self, number: int) -> None:
        future = self._waiting.pop(number)
        if not future.done():
            future.set_result(None)


def of_await(ordinal: int) -> list[Case]:
    """A packed launch, and its future."""
    found = driver.of(ordinal)
    launch, stream, z, x = found.packed(), found.stream(), found.row(0), found.row(1)
    callbacks = Callbacks(found.cu)

    async def run(calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            launch(z, x, stream)
            await callbacks.done(stream)
        return time.perf_counter() - began

    async def right() -> None:
        found.fill(z, 0)
        await run(1)
        check(found.read(z))

    return [Case("Python host callback: packed launch + await", run, right)]


def of_flight(ordinal: int) -> list[Case]:
    """A packed launch and a future for each."""
    found = driver.of(ordinal)
    rows = raw.Rows(found)
    callbacks = Callbacks(found.cu)

    async def run(calls: int) -> float:
        began = time.perf_counter()
        futures = []
        for i, z in enumerate(rows.zs):
            stream = rows.streams[i % STREAMS]
            rows.launch(z, rows.x, stream)
            futures.append(callbacks.done(stream))
        await asyncio.gather(*futures)
        return time.perf_counter() - began

    async def right() -> None:
        rows.clear()
        await run(WIDTH)
        rows.check()

    return [Case("Python host callback: launches + asyncio.gather", run, right, WIDTH)]
