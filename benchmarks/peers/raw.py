"""The driver called through `cuda.bindings` alone, with packed arguments."""

from __future__ import annotations

import asyncio
import ctypes
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.batches import RAW_TRIP
from benchmarks.measure import Case, awaited, per_part, timed
from benchmarks.peers import driver
from benchmarks.work import STREAMS, WIDTH, N, check

SYNCED = "cuda.bindings: packed launch + synchronize"


def of_launch(ordinal: int) -> list[Case]:
    """The launch alone, with a wait behind it, and the write of a completion counter."""
    raw = driver.of(ordinal)
    row, counter = _Row(raw), _Counter(raw)
    return [
        Case("cuda.bindings: packed launch", timed(row.launch, row.drain), row.check),
        Case(SYNCED, timed(row.launch_and_wait, row.drain), row.check),
        Case(
            "cuda.bindings: cuStreamWriteValue32",
            timed(counter.write, counter.drain), counter.check,
        ),
    ]  # fmt: skip


def of_await(ordinal: int) -> list[Case]:
    """The launch with a wait behind it: on this thread, and on one of an executor."""
    raw, loop = driver.of(ordinal), asyncio.get_running_loop()
    row = _Row(raw)
    # A thread needs the context, too.
    pool = ThreadPoolExecutor(1, initializer=lambda: raw.ok(raw.cu.cuCtxSetCurrent(raw.context)))

    async def in_executor() -> None:
        row.launch()
        await loop.run_in_executor(pool, row.drain)

    return [
        Case(SYNCED, timed(row.launch_and_wait, row.drain), row.check),
        Case(
            "cuda.bindings: packed launch, run_in_executor", awaited(in_executor), row.check,
            calls=100,
        ),
    ]  # fmt: skip


def of_flight(ordinal: int) -> list[Case]:
    """Launches only."""
    rows = Rows(driver.of(ordinal))

    def launch() -> None:
        for i, z in enumerate(rows.zs):
            rows.launch(z, rows.x, rows.streams[i % STREAMS])

    async def check_rows() -> None:
        rows.clear()
        launch()
        rows.drain()
        rows.check()

    run = per_part(timed(launch, rows.drain), WIDTH)
    return [Case("cuda.bindings: packed launches, drained outside", run, check_rows, WIDTH)]


def of_alloc(ordinal: int) -> list[Case]:
    """An allocation from the driver's own pool, and its release."""
    raw = driver.of(ordinal)
    cu, stream = raw.cu, raw.stream()

    def allocate() -> None:
        (result, pointer) = cu.cuMemAllocAsync(4 * N, stream)
        (freed,) = cu.cuMemFreeAsync(pointer, stream)
        if result or freed:
            raise RuntimeError(f"the driver says {result!r}, {freed!r}")

    async def check_results() -> None:
        allocate()
        raw.synchronize(stream)

    return [
        Case(
            "cuda.bindings: cuMemAllocAsync + cuMemFreeAsync",
            timed(allocate, lambda: raw.synchronize(stream)), check_results,
        ),
    ]  # fmt: skip


def of_batch_small(ordinal: int) -> list[Case]:
    """An upload from page-locked memory, one launch and the download, waited for."""
    raw = driver.of(ordinal)
    cu, stream, z, x, call = raw.cu, raw.stream(), raw.row(0), raw.row(1), raw.packed()
    address = raw.ok(cu.cuMemHostAlloc(4 * N, 3))
    host = np.ctypeslib.as_array((ctypes.c_float * N).from_address(int(address)))

    def trip() -> None:
        raw.ok(cu.cuMemcpyHtoDAsync(z, int(address), 4 * N, stream))
        call(z, x, stream)
        raw.ok(cu.cuMemcpyDtoHAsync(int(address), z, 4 * N, stream))
        raw.synchronize(stream)

    async def check_row() -> None:
        host[:] = 0
        trip()
        check(host)

    return [Case(RAW_TRIP, timed(trip, lambda: raw.synchronize(stream)), check_row)]


class _Row:
    """One row, on which every launch works."""

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

    async def check(self) -> None:
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


class _Counter:
    """A completion counter: 4 bytes of page-locked memory that the device writes."""

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

    async def check(self) -> None:
        self.write()
        self.drain()
        assert ctypes.c_uint32.from_address(self._host).value == self._value
