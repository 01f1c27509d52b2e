"""What one writes with `cuda.bindings` alone: the driver's calls from Python, arguments packed."""

from __future__ import annotations

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from numbasync.tools.bench.measure import Case, timed
from numbasync.tools.bench.peers import driver
from numbasync.tools.bench.work import STREAMS, WIDTH, N, check

SYNCED = "cuda.bindings: packed launch + synchronize"


def of_launch(ordinal: int) -> list[Case]:
    """The launch, and what a completion word costs."""
    raw = driver.of(ordinal)
    one = _One(raw)
    word = _Word(raw)
    return [
        Case("cuda.bindings: packed launch", timed(one.launch, one.drain), one.right),
        Case(SYNCED, timed(one.launch_and_wait, one.drain), one.right),
        Case("cuda.bindings: cuStreamWriteValue32", timed(word.write, word.drain), word.right),
    ]


def of_await(ordinal: int) -> list[Case]:
    """The floor: launch and block; and the same on a thread of an executor."""
    import asyncio

    raw = driver.of(ordinal)
    one = _One(raw)
    # A thread needs the context, too.
    pool = ThreadPoolExecutor(1, initializer=lambda: raw.ok(raw.cu.cuCtxSetCurrent(raw.context)))

    async def executor(calls: int) -> float:
        loop = asyncio.get_running_loop()
        began = time.perf_counter()
        for _ in range(calls):
            one.launch()
            await loop.run_in_executor(pool, one.drain)
        return time.perf_counter() - began

    return [
        Case(SYNCED, timed(one.launch_and_wait, one.drain), one.right),
        Case("cuda.bindings: packed launch, run_in_executor", executor, one.right, calls=100),
    ]


def of_flight(ordinal: int) -> list[Case]:
    """Launching only: nobody is told that they are done."""
    raw = driver.of(ordinal)
    rows = Rows(raw)

    async def run(calls: int) -> float:
        began = time.perf_counter()
        for i, z in enumerate(rows.zs):
            rows.launch(z, rows.x, rows.streams[i % STREAMS])
        seconds = time.perf_counter() - began
        rows.drain()
        return seconds

    async def right() -> None:
        rows.clear()
        await run(WIDTH)
        rows.check()

    return [Case("cuda.bindings: packed launches, drained outside", run, right, WIDTH)]


def of_alloc(ordinal: int) -> list[Case]:
    """The driver's own pool, there and back."""
    raw = driver.of(ordinal)
    cu, stream = raw.cu, raw.stream()

    def allocate() -> None:
        (result, pointer) = cu.cuMemAllocAsync(4 * N, stream)
        (freed,) = cu.cuMemFreeAsync(pointer, stream)
        if result or freed:
            raise RuntimeError(f"the driver says {result!r}, {freed!r}")

    async def right() -> None:
        allocate()
        raw.synchronize(stream)

    return [
        Case(
            "cuda.bindings: cuMemAllocAsync + cuMemFreeAsync",
            timed(allocate, lambda: raw.synchronize(stream)), right,
        ),
    ]  # fmt: skip


def of_batch_small(ordinal: int) -> list[Case]:
    """A round trip: a row there, one launch, and back, in page-locked memory, waited for."""
    import numpy as np

    from numbasync.tools.bench.batches import RAW_TRIP

    raw = driver.of(ordinal)
    cu, stream, z, x, call = raw.cu, raw.stream(), raw.row(0), raw.row(1), raw.packed()
    address = raw.ok(cu.cuMemHostAlloc(4 * N, 3))
    host = np.ctypeslib.as_array((ctypes.c_float * N).from_address(int(address)))

    def trip() -> None:
        raw.ok(cu.cuMemcpyHtoDAsync(z, int(address), 4 * N, stream))
        call(z, x, stream)
        raw.ok(cu.cuMemcpyDtoHAsync(int(address), z, 4 * N, stream))
        raw.synchronize(stream)

    async def right() -> None:
        host[:] = 0
        trip()
        check(host)

    return [Case(RAW_TRIP, timed(trip, lambda: raw.synchronize(stream)), right)]


class _One:
    """One row, launched on again and again."""

    def __init__(self, raw: driver.Driver) -> None:
        self._raw = raw
        stream, z, x, call = raw.stream(), raw.row(0), raw.row(1), raw.packed()
        wait = raw.cu.cuStreamSynchronize

        def launch() -> None:
            call(z, x, stream)

        def launch_and_wait() -> None:
            call(z, x, stream)
            (result,) = wait(stream)
            if result:
                raise RuntimeError(f"cuStreamSynchronize says {result!r}")

        self.launch, self.launch_and_wait = launch, launch_and_wait
        self._stream, self._z = stream, z

    def drain(self) -> None:
        self._raw.synchronize(self._stream)

    async def right(self) -> None:
        self._raw.fill(self._z, 0)
        self.launch()
        self.drain()
        check(self._raw.read(self._z))


class Rows:
    """A row for each of the operations in flight, and the streams that they go to."""

    def __init__(self, raw: driver.Driver) -> None:
        self._raw = raw
        self.zs = [raw.row(0) for _ in range(WIDTH)]
        self.x = raw.row(1)
        self.streams = [raw.stream() for _ in range(STREAMS)]
        self.launch = raw.packed()

    def drain(self) -> None:
        for stream in self.streams:
            self._raw.synchronize(stream)

    def clear(self) -> None:
        for z in self.zs:
            self._raw.fill(z, 0)

    def check(self) -> None:
        for z in self.zs:
            check(self._raw.read(z))


class _Word:
    """A word of page-locked memory that the device writes."""

    def __init__(self, raw: driver.Driver) -> None:
        self._raw, cu = raw, raw.cu
        flags = int(cu.CU_MEMHOSTALLOC_PORTABLE) | int(cu.CU_MEMHOSTALLOC_DEVICEMAP)
        self._host = int(raw.ok(cu.cuMemHostAlloc(64, flags)))
        address: Any = raw.ok(cu.cuMemHostGetDevicePointer(self._host, 0))
        self._stream = stream = raw.stream()
        call = cu.cuStreamWriteValue32
        self._value = 0

        def write() -> None:
            self._value += 1
            (result,) = call(stream, address, self._value, 0)
            if result:
                raise RuntimeError(f"cuStreamWriteValue32 says {result!r}")

        self.write = write

    def drain(self) -> None:
        self._raw.synchronize(self._stream)

    async def right(self) -> None:
        import ctypes

        self.write()
        self.drain()
        assert ctypes.c_uint32.from_address(self._host).value == self._value  # a right answer
