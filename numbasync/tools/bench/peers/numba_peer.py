"""The same by Numba, as its manual writes it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from numbasync.tools.bench.copying import SMALL, numbers
from numbasync.tools.bench.measure import Case, timed
from numbasync.tools.bench.peers import driver
from numbasync.tools.bench.work import BLOCKS, STREAMS, THREADS, WIDTH, N, body, check


def of_launch(ordinal: int) -> list[Case]:
    """The launch, and with a wait behind it."""
    launch, stream, right = _one(ordinal)

    def launch_and_wait() -> None:
        launch()
        stream.synchronize()

    return [
        Case("Numba: launch", timed(launch, stream.synchronize), right),
        Case("Numba: launch + synchronize", timed(launch_and_wait, stream.synchronize), right),
    ]


def of_await(ordinal: int) -> list[Case]:
    """The blocking form."""
    return of_launch(ordinal)[1:]


def of_flight(ordinal: int) -> list[Case]:
    """Launching only."""
    streams = [_stream(ordinal) for _ in range(STREAMS)]
    kernels = [_configured(stream) for stream in streams]
    zs = [cuda.to_device(np.zeros(N, np.float32)) for _ in range(WIDTH)]
    x = cuda.to_device(np.ones(N, np.float32))
    cuda.synchronize()

    async def run(calls: int) -> float:
        began = time.perf_counter()
        for i, z in enumerate(zs):
            kernels[i % STREAMS](z, 2.0, x)
        seconds = time.perf_counter() - began
        for stream in streams:
            stream.synchronize()
        return seconds

    async def right() -> None:
        for z in zs:
            z.copy_to_device(np.zeros(N, np.float32))
        cuda.synchronize()  # the streams do not wait for the copies
        await run(WIDTH)
        for z in zs:
            check(z.copy_to_host())

    return [Case("Numba: launches, drained outside", run, right, WIDTH)]


def of_chain(ordinal: int, length: int) -> list[Case]:
    """So many launches, and one wait."""
    stream = _stream(ordinal)
    kernel = _configured(stream)
    z, x = cuda.to_device(np.zeros(N, np.float32)), cuda.to_device(np.ones(N, np.float32))
    cuda.synchronize()

    def chain() -> None:
        for _ in range(length):
            kernel(z, 2.0, x)
        stream.synchronize()

    async def right() -> None:
        z.copy_to_device(np.zeros(N, np.float32))
        cuda.synchronize()  # the stream does not wait for the copy
        chain()
        check(z.copy_to_host(), length)

    return [Case("Numba: launches + one synchronize", timed(chain, stream.synchronize), right)]


def of_alloc(ordinal: int) -> list[Case]:
    """Numba has no pool; memory is given back now and then."""
    stream = _stream(ordinal)

    def allocate() -> None:
        cuda.device_array(N, np.float32, stream=stream)

    async def right() -> None:
        assert cuda.device_array(N, np.float32, stream=stream).shape == (N,)  # a right answer

    return [Case("Numba: device_array", timed(allocate, stream.synchronize), right)]


def of_trip(ordinal: int) -> list[Case]:
    """There and back, on one stream."""
    stream, a = _stream(ordinal), numbers(SMALL)

    def trip() -> Any:
        found = cuda.to_device(a, stream=stream).copy_to_host(stream=stream)
        stream.synchronize()
        return found

    async def right() -> None:
        np.testing.assert_array_equal(trip(), a)

    return [
        Case("Numba: to_device, copy_to_host, synchronize", timed(trip, stream.synchronize), right)
    ]


def of_batch_host(ordinal: int) -> list[Case]:
    """Three kernels, each called with arrays of the host, which Numba copies there and back."""
    from numbasync.tools.bench import batches

    cuda.select_device(ordinal)
    a = batches.numbers(batches.LARGE)
    one, two, three = (np.empty_like(a) for _ in range(3))
    grid = -(-batches.LARGE // 256)
    kernels = [cuda.jit(k.py_func) for k in (batches.relu, batches.scale, batches.add)]

    def eager() -> Any:
        relu, scale, add = kernels
        relu[grid, 256](one, a)
        scale[grid, 256](two, one, np.float32(2))
        add[grid, 256](three, two, a)
        return three

    async def right() -> None:
        np.testing.assert_array_equal(eager(), batches.wanted(a))

    return [Case(batches.NUMBA_HOST, timed(eager, cuda.synchronize), right)]


def _stream(ordinal: int) -> Any:
    """Numba's own streams wait for the legacy default stream; this one does not."""
    cuda.select_device(ordinal)
    return cuda.external_stream(int(driver.of(ordinal).stream()))


def _configured(stream: Any) -> Callable[..., None]:
    with warnings.catch_warnings():
        # Said once, when the configuration is made: a small grid is what is measured.
        warnings.simplefilter("ignore")
        kernel: Callable[..., None] = _kernel[BLOCKS, THREADS, stream]
    return kernel


_kernel: Any = cuda.jit(body)


def _one(ordinal: int) -> tuple[Callable[[], None], Any, Any]:
    stream = _stream(ordinal)
    _configured(stream)
    z, x = cuda.to_device(np.zeros(N, np.float32)), cuda.to_device(np.ones(N, np.float32))

    def launch() -> None:
        _kernel[BLOCKS, THREADS, stream](z, 2.0, x)

    async def right() -> None:
        z.copy_to_device(np.zeros(N, np.float32))
        cuda.synchronize()  # the stream does not wait for the copy
        launch()
        stream.synchronize()
        check(z.copy_to_host())

    return launch, stream, right
