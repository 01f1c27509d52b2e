"""CuPy, as its manual uses it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

import numbasync as na
from benchmarks import interop
from benchmarks.alloc import CUPY_ZEROS
from benchmarks.copying import CUPY_NEW, CUPY_SET, LARGE, SMALL, numbers
from benchmarks.measure import Case, drained, per_part, timed
from benchmarks.work import BLOCKS, CUDA_SOURCE, STREAMS, THREADS, WIDTH, N, check


def of_launch(ordinal: int) -> list[Case]:
    """The launch alone, and with a wait behind it."""
    cupy = _on(ordinal)
    kernel, stream = cupy.RawKernel(CUDA_SOURCE, "saxpy"), _stream(cupy)
    z, x = cupy.zeros(N, cupy.float32), cupy.ones(N, cupy.float32)
    cupy.cuda.Device().synchronize()
    # As quick as CuPy can be: scalars are NumPy's, of the kernel's types, and built once.
    args = (z, np.float64(2.0), x, np.int32(N))

    def launch() -> None:
        kernel((BLOCKS,), (THREADS,), args, stream=stream)

    def launch_and_wait() -> None:
        kernel((BLOCKS,), (THREADS,), args, stream=stream)
        stream.synchronize()

    async def check_row() -> None:
        with stream:
            z.fill(0)
        launch_and_wait()
        check(cupy.asnumpy(z))

    return [
        Case("CuPy RawKernel: launch", timed(launch, stream.synchronize), check_row),
        Case(
            "CuPy RawKernel: launch + synchronize",
            timed(launch_and_wait, stream.synchronize), check_row,
        ),
    ]  # fmt: skip


def of_await(ordinal: int) -> list[Case]:
    """The launch with a wait behind it."""
    return of_launch(ordinal)[1:]


def of_flight(ordinal: int) -> list[Case]:
    """Launches only."""
    cupy = _on(ordinal)
    kernel = cupy.RawKernel(CUDA_SOURCE, "saxpy")
    streams = [_stream(cupy) for _ in range(STREAMS)]
    zs = [cupy.zeros(N, cupy.float32) for _ in range(WIDTH)]
    x = cupy.ones(N, cupy.float32)
    a, n = np.float64(2.0), np.int32(N)

    def launch() -> None:
        for i, z in enumerate(zs):
            kernel((BLOCKS,), (THREADS,), (z, a, x, n), stream=streams[i % STREAMS])

    def drain() -> None:
        for stream in streams:
            stream.synchronize()

    async def check_rows() -> None:
        for z in zs:
            z.fill(0)
        cupy.cuda.Device().synchronize()
        launch()
        drain()
        for z in zs:
            check(cupy.asnumpy(z))

    run = per_part(timed(launch, drain), WIDTH)
    return [Case("CuPy RawKernel: launches, drained outside", run, check_rows, WIDTH)]


def of_interop(ordinal: int) -> list[Case]:
    """CuPy's arrays in numbasync's launches, and its own sum."""
    cupy = _on(ordinal)
    ours, theirs = na.default_device().new_stream(), _stream(cupy)
    x, y = (cupy.asarray(a) for a in interop.numbers())
    z = cupy.empty_like(x)
    tx, ty, tz = (na.as_tensor(a) for a in (x, y, z))
    cupy.cuda.Device().synchronize()

    def case(name: str, call: Callable[[], object], within: Any = None) -> Case:
        return interop.case(name, call, drain, lambda: cupy.asnumpy(z), within)

    def drain() -> None:
        cupy.cuda.Device().synchronize()
        ours.synchronize()  # whose launches would else be retired in the time of the next case

    return [
        case(interop.CUPY, lambda: interop.add(z, x, y).async_on(ours)),
        case(interop.CUPY_ONCE, lambda: interop.add(tz, tx, ty).async_on(ours)),
        case(interop.CUPY_CALLER, lambda: interop.add_there(z, x, y).async_on(), theirs),
        case(interop.CUPY_ADD, lambda: cupy.add(x, y, out=z), theirs),
    ]


def of_reading(ordinal: int) -> list[Case]:
    """One of CuPy's arrays, of one axis and of two."""
    cupy = _on(ordinal)
    x, _ = interop.numbers()
    rows = x.reshape(64, -1)
    cases = [
        interop.reading("CuPy's array", cupy.asarray(x), x),
        interop.reading("CuPy's array of two axes", cupy.asarray(rows), rows),
    ]
    cupy.cuda.Device().synchronize()
    return cases


def of_alloc(ordinal: int) -> list[Case]:
    """New arrays, from CuPy's pool of the current stream."""
    cupy = _on(ordinal)
    stream = _stream(cupy)

    def empty() -> None:
        cupy.empty(N, cupy.float32)

    def zeros() -> None:
        cupy.zeros(N, cupy.float32)

    async def check_zeros() -> None:
        with stream:
            array = cupy.zeros(N, cupy.float32)
            np.testing.assert_array_equal(array.get(stream=stream), np.zeros(N, np.float32))

    return [
        Case("CuPy: empty", timed(empty, stream.synchronize, stream), check_zeros),
        Case(CUPY_ZEROS, timed(zeros, stream.synchronize, stream), check_zeros),
    ]


def of_batch_chain(ordinal: int) -> list[Case]:
    """relu, scale, add by `cupy.fuse`."""
    from benchmarks import batches

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

    async def check_array() -> None:
        y = call()
        stream.synchronize()
        np.testing.assert_array_equal(cupy.asnumpy(y), batches.expected(a))

    return [Case(batches.CUPY_CHAIN, drained(call, stream.synchronize), check_array)]


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
        array = cupy.asarray(a)
        stream.synchronize()
        return array

    def into(target: Any, array: Any) -> Callable[[], Any]:
        def call() -> Any:
            target.set(array, stream=stream)
            stream.synchronize()
            return target

        return call

    def back(array: Any) -> Callable[[], Any]:
        def call() -> Any:
            copy = source.get(stream=stream, out=array)
            stream.synchronize()
            return copy

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
    """An upload and the download of the result."""
    cupy = _on(ordinal)
    stream, a = _stream(cupy), numbers(SMALL)

    def trip() -> Any:
        copy = cupy.asarray(a).get(stream=stream)
        stream.synchronize()
        return copy

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


def _copy(cupy: Any, stream: Any, name: str, call: Callable[[], Any], expected: Any) -> Case:
    async def check_copy() -> None:
        with stream:
            copy = call()
            on_host = copy if isinstance(copy, np.ndarray) else copy.get(stream=stream)
            stream.synchronize()
        np.testing.assert_array_equal(on_host, expected)

    return Case(name, timed(call, stream.synchronize, stream), check_copy)
