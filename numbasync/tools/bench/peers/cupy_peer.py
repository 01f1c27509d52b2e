"""The same by CuPy, as its manual writes it."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from numbasync.tools.bench.copying import CUPY_NEW, CUPY_SET, LARGE, SMALL, numbers
from numbasync.tools.bench.measure import Case, timed
from numbasync.tools.bench.work import BLOCKS, CUDA_SOURCE, STREAMS, THREADS, WIDTH, N, check


def of_launch(ordinal: int) -> list[Case]:
    """The launch, and with a wait behind it."""
    cupy = _on(ordinal)
    kernel, stream = cupy.RawKernel(CUDA_SOURCE, "saxpy"), _stream(cupy)
    z, x = cupy.zeros(N, cupy.float32), cupy.ones(N, cupy.float32)
    cupy.cuda.Device().synchronize()
    # A fair call: scalars as NumPy scalars of the kernel's types, made once.
    args = (z, np.float64(2.0), x, np.int32(N))

    def launch() -> None:
        kernel((BLOCKS,), (THREADS,), args, stream=stream)

    def launch_and_wait() -> None:
        kernel((BLOCKS,), (THREADS,), args, stream=stream)
        stream.synchronize()

    async def right() -> None:
        with stream:
            z.fill(0)
        launch_and_wait()
        check(cupy.asnumpy(z))

    return [
        Case("CuPy RawKernel: launch", timed(launch, stream.synchronize), right),
        Case(
            "CuPy RawKernel: launch + synchronize",
            timed(launch_and_wait, stream.synchronize), right,
        ),
    ]  # fmt: skip


def of_await(ordinal: int) -> list[Case]:
    """The blocking form."""
    return of_launch(ordinal)[1:]


def of_flight(ordinal: int) -> list[Case]:
    """Launching only."""
    cupy = _on(ordinal)
    kernel = cupy.RawKernel(CUDA_SOURCE, "saxpy")
    streams = [_stream(cupy) for _ in range(STREAMS)]
    zs = [cupy.zeros(N, cupy.float32) for _ in range(WIDTH)]
    x = cupy.ones(N, cupy.float32)
    a, n = np.float64(2.0), np.int32(N)

    async def run(calls: int) -> float:
        began = time.perf_counter()
        for i, z in enumerate(zs):
            kernel((BLOCKS,), (THREADS,), (z, a, x, n), stream=streams[i % STREAMS])
        seconds = time.perf_counter() - began
        for stream in streams:
            stream.synchronize()
        return seconds

    async def right() -> None:
        for z in zs:
            z.fill(0)
        cupy.cuda.Device().synchronize()
        await run(WIDTH)
        for z in zs:
            check(cupy.asnumpy(z))

    return [Case("CuPy RawKernel: launches, drained outside", run, right, WIDTH)]


def of_alloc(ordinal: int) -> list[Case]:
    """From CuPy's pool of the current stream."""
    cupy = _on(ordinal)
    stream = _stream(cupy)

    def empty() -> None:
        cupy.empty(N, cupy.float32)

    def zeros() -> None:
        cupy.zeros(N, cupy.float32)

    async def right() -> None:
        with stream:
            found = cupy.zeros(N, cupy.float32)
            np.testing.assert_array_equal(found.get(stream=stream), np.zeros(N, np.float32))

    return [
        Case("CuPy: empty", timed(empty, stream.synchronize, stream), right),
        Case("CuPy: zeros", timed(zeros, stream.synchronize, stream), right),
    ]


def of_batch_chain(ordinal: int) -> list[Case]:
    """relu, scale, add by `cupy.fuse`."""
    from numbasync.tools.bench import batches

    cupy = _on(ordinal)
    a = batches.numbers(batches.LARGE)
    x = cupy.asarray(a)
    cupy.cuda.Device().synchronize()
    stream = _stream(cupy)
    two, zero = np.float32(2), np.float32(0)

    @cupy.fuse()
    def fused(x: Any) -> Any:
        return cupy.maximum(x, zero) * two + x

    def call() -> Any:
        with stream:
            return fused(x)

    async def right() -> None:
        y = call()
        stream.synchronize()
        np.testing.assert_array_equal(cupy.asnumpy(y), batches.wanted(a))

    return [batches.case(batches.CUPY_CHAIN, call, stream.synchronize, right)]


def of_copy(ordinal: int) -> list[Case]:
    """Uploads and downloads, waited for."""
    cupy = _on(ordinal)
    stream, a = _stream(cupy), numbers(LARGE)
    with stream:
        source = cupy.asarray(a)
        first, second = (cupy.zeros(LARGE, cupy.float32) for _ in range(2))
    stream.synchronize()
    locked, locked_out = (_locked(cupy, LARGE) for _ in range(2))
    locked[:] = a
    out = np.zeros_like(a)

    def new() -> Any:
        found = cupy.asarray(a)
        stream.synchronize()
        return found

    def into(target: Any, array: Any) -> Callable[[], Any]:
        def call() -> Any:
            target.set(array, stream=stream)
            stream.synchronize()
            return target

        return call

    def back(array: Any) -> Callable[[], Any]:
        def call() -> Any:
            found = source.get(stream=stream, out=array)
            stream.synchronize()
            return found

        return call

    return [
        _copy(cupy, stream, CUPY_NEW, new, a),
        _copy(cupy, stream, CUPY_SET, into(first, a), a),
        _copy(cupy, stream, f"{CUPY_SET}, page-locked", into(second, locked), a),
        _copy(cupy, stream, "CuPy: get, new array", back(None), a),
        _copy(cupy, stream, "CuPy: get into an array", back(out), a),
        _copy(cupy, stream, "CuPy: get into an array, page-locked", back(locked_out), a),
    ]


def of_trip(ordinal: int) -> list[Case]:
    """There and back."""
    cupy = _on(ordinal)
    stream, a = _stream(cupy), numbers(SMALL)

    def trip() -> Any:
        found = cupy.asarray(a).get(stream=stream)
        stream.synchronize()
        return found

    return [_copy(cupy, stream, "CuPy: asarray, get", trip, a)]


def _on(ordinal: int) -> Any:
    cupy: Any = importlib.import_module("cupy")
    cupy.cuda.Device(ordinal).use()
    return cupy


def _stream(cupy: Any) -> Any:
    return cupy.cuda.Stream(non_blocking=True)


def _locked(cupy: Any, count: int) -> Any:
    memory = cupy.cuda.alloc_pinned_memory(4 * count)
    return np.frombuffer(memory, np.float32, count)


def _copy(cupy: Any, stream: Any, name: str, call: Callable[[], Any], wanted: Any) -> Case:
    async def right() -> None:
        with stream:
            found = call()
            on_host = found if isinstance(found, np.ndarray) else found.get(stream=stream)
            stream.synchronize()
        np.testing.assert_array_equal(on_host, wanted)

    return Case(name, timed(call, stream.synchronize, stream), right)
