"""Numba, as its manual uses it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

import numbasync as na
from benchmarks import interop
from benchmarks.copying import SMALL, numbers
from benchmarks.measure import Case, per_part, timed
from benchmarks.peers import driver
from benchmarks.work import BLOCKS, STREAMS, THREADS, WIDTH, N, body, check


def of_launch(ordinal: int) -> list[Case]:
    """The launch alone, and with a wait behind it."""
    launch, stream, check_row = _one(ordinal)

    def launch_and_wait() -> None:
        launch()
        stream.synchronize()

    return [
        Case("Numba: launch", timed(launch, stream.synchronize), check_row),
        Case("Numba: launch + synchronize", timed(launch_and_wait, stream.synchronize), check_row),
    ]


def of_interop(ordinal: int) -> list[Case]:
    """Numba's arrays in numbasync's launches, and its own launch of the same kernel."""
    cuda.select_device(ordinal)
    ours, theirs = na.default_device().new_stream(), cuda.stream()
    x, y = (cuda.to_device(a, stream=theirs) for a in interop.numbers())
    z = cuda.device_array(interop.SIZE, np.float32, stream=theirs)
    cuda.synchronize()
    kernel = interop.add.kernel[(interop.SIZE + 127) // 128, 128, theirs]

    def case(name: str, call: Callable[[], object]) -> Case:
        return interop.case(name, call, drain, z.copy_to_host)

    def drain() -> None:
        cuda.synchronize()
        ours.synchronize()  # whose launches would else be retired in the time of the next case

    return [
        case(interop.NUMBA, lambda: interop.add(z, x, y).async_on(ours)),
        case(interop.NUMBA_LAUNCH, lambda: kernel(z, x, y)),
    ]


def of_reading(ordinal: int) -> list[Case]:
    """One of Numba's arrays."""
    cuda.select_device(ordinal)
    x, _ = interop.numbers()
    array = cuda.to_device(x)
    cuda.synchronize()
    return [interop.reading("Numba's array", array, x)]


def of_await(ordinal: int) -> list[Case]:
    """The launch with a wait behind it."""
    return of_launch(ordinal)[1:]


def of_flight(ordinal: int) -> list[Case]:
    """Launches only."""
    streams = [_stream(ordinal) for _ in range(STREAMS)]
    kernels = [_configured(stream) for stream in streams]
    zs = [cuda.to_device(np.zeros(N, np.float32)) for _ in range(WIDTH)]
    x = cuda.to_device(np.ones(N, np.float32))
    cuda.synchronize()

    def launch() -> None:
        for i, z in enumerate(zs):
            kernels[i % STREAMS](z, 2.0, x)

    def drain() -> None:
        for stream in streams:
            stream.synchronize()

    async def check_rows() -> None:
        for z in zs:
            z.copy_to_device(np.zeros(N, np.float32))
        cuda.synchronize()  # the streams do not wait for the copies
        launch()
        drain()
        for z in zs:
            check(z.copy_to_host())

    run = per_part(timed(launch, drain), WIDTH)
    return [Case("Numba: launches, drained outside", run, check_rows, WIDTH)]


def of_chain(ordinal: int, length: int) -> list[Case]:
    """`length` launches, and one wait."""
    stream = _stream(ordinal)
    kernel = _configured(stream)
    z, x = cuda.to_device(np.zeros(N, np.float32)), cuda.to_device(np.ones(N, np.float32))
    cuda.synchronize()

    def chain() -> None:
        for _ in range(length):
            kernel(z, 2.0, x)
        stream.synchronize()

    async def check_chain() -> None:
        z.copy_to_device(np.zeros(N, np.float32))
        cuda.synchronize()  # the stream does not wait for the copy
        chain()
        check(z.copy_to_host(), length)

    return [
        Case("Numba: launches + one synchronize", timed(chain, stream.synchronize), check_chain)
    ]


def of_alloc(ordinal: int) -> list[Case]:
    """New arrays. Numba has no pool; it frees memory from time to time."""
    stream = _stream(ordinal)

    def allocate() -> None:
        cuda.device_array(N, np.float32, stream=stream)

    async def check_shape() -> None:
        assert cuda.device_array(N, np.float32, stream=stream).shape == (N,)

    return [Case("Numba: device_array", timed(allocate, stream.synchronize), check_shape)]


def of_trip(ordinal: int) -> list[Case]:
    """An upload and the download of the result, on one stream."""
    stream, a = _stream(ordinal), numbers(SMALL)

    def trip() -> Any:
        copy = cuda.to_device(a, stream=stream).copy_to_host(stream=stream)
        stream.synchronize()
        return copy

    async def check_copy() -> None:
        np.testing.assert_array_equal(trip(), a)

    name = "Numba: to_device, copy_to_host, synchronize"
    return [Case(name, timed(trip, stream.synchronize), check_copy)]


def of_batch_host(ordinal: int) -> list[Case]:
    """Three kernels, each called with arrays of the host, which Numba uploads and downloads."""
    from benchmarks import batches

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

    async def check_array() -> None:
        np.testing.assert_array_equal(eager(), batches.expected(a))

    return [Case(batches.NUMBA_HOST, timed(eager, cuda.synchronize), check_array)]


def _stream(ordinal: int) -> Any:
    """A stream that, unlike Numba's own, does not wait for the legacy default stream."""
    cuda.select_device(ordinal)
    return cuda.external_stream(int(driver.of(ordinal).stream()))


def _configured(stream: Any) -> Callable[..., None]:
    with warnings.catch_warnings():
        # Numba warns of a small grid when the configuration is made.
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

    async def check_row() -> None:
        z.copy_to_device(np.zeros(N, np.float32))
        cuda.synchronize()  # the stream does not wait for the copy
        launch()
        stream.synchronize()
        check(z.copy_to_host())

    return launch, stream, check_row
