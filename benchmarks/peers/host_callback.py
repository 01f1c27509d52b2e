"""Futures settled by a Python function that the driver calls, as by Numba's `Stream.async_done`.

Written on `cuda.bindings`, with whose present versions Numba's own function fails.
"""

from __future__ import annotations

import asyncio
import ctypes
from typing import Any

from benchmarks.measure import Case, awaited, per_part
from benchmarks.peers import driver, raw
from benchmarks.work import STREAMS, WIDTH, check


class Callbacks:
    """Futures of the running event loop that the driver settles."""

    def __init__(self, cu: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._launch = cu.cuLaunchHostFunc
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._last = 0
        # Kept alive here: the driver has only the address.
        self._native = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._called)
        self._function = cu.CUhostFn(init_value=ctypes.cast(self._native, ctypes.c_void_p).value)

    def done(self, stream: Any) -> asyncio.Future[None]:
        """A future that is done when `stream` has passed all that it holds now."""
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
    native = driver.of(ordinal)
    launch, stream, z, x = native.packed(), native.stream(), native.row(0), native.row(1)
    callbacks = Callbacks(native.cu)

    async def launch_and_wait() -> None:
        launch(z, x, stream)
        await callbacks.done(stream)

    async def check_row() -> None:
        native.fill(z, 0)
        await launch_and_wait()
        check(native.read(z))

    name = "Python host callback: packed launch + await"
    return [Case(name, awaited(launch_and_wait), check_row)]


def of_flight(ordinal: int) -> list[Case]:
    """A packed launch and a future for each."""
    native = driver.of(ordinal)
    rows = raw.Rows(native)
    callbacks = Callbacks(native.cu)

    async def launch_and_wait() -> None:
        futures = []
        for i, z in enumerate(rows.zs):
            stream = rows.streams[i % STREAMS]
            rows.launch(z, rows.x, stream)
            futures.append(callbacks.done(stream))
        await asyncio.gather(*futures)

    async def check_rows() -> None:
        rows.clear()
        await launch_and_wait()
        rows.check()

    name = "Python host callback: launches + asyncio.gather"
    return [Case(name, per_part(awaited(launch_and_wait), WIDTH), check_rows, WIDTH)]
