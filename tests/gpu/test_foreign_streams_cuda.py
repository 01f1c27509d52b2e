"""Streams of Numba, CuPy, PyTorch and cuda.core as ours: their work before, between and after
ours, one `Stream` for a handle. Lifetimes, default streams and events have files of their own.

Kernels of both sides are loaded, and memory is there, before any gate is shut. Numba's streams and
CuPy's are blocking ones: while one is held, nothing may use the legacy default stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import (
    AccessConflictError,
    OperationError,
)
from numbasync.testing import Gate, settle
from tests.common import add_one, compiled, copy_to, waited
from tests.gpu.stream_libraries import (
    LIBRARIES,
    SECONDS,
    SIZE,
    Library,
    Other,
    loaded,
    numba_library,
    twice,
)

pytestmark = [
    pytest.mark.cuda,
    # Numba finds small grids wasteful; here they are meant.
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, device: na.Device) -> Library:
    return loaded(request.param, device)


# --- one stream, in order ------------------------------------------------------------------


def test_there_is_one_stream_for_a_handle(device: na.Device, library: Library) -> None:
    s = library.stream()
    ours = na.Stream.of(s)
    number = ours.backend.handle_number
    assert ours is na.Stream.of(s) is na.Stream.of(s, device) is na.Stream.of(Other(s))
    assert ours is na.Stream.of(cuda.external_stream(number)) is na.Stream.of(ours.numba)
    assert ours.device is device and ours in device.streams
    assert ours.__cuda_stream__() == (0, number)
    assert na.Stream.of(library.stream()) is not ours
    own = device.new_stream()
    assert na.Stream.of(own) is own is na.Stream.of(Other(own)) is na.Stream.of(own.numba)
    assert own.numba is own.numba


Enqueue = Callable[[], Awaitable[Any] | None]


def _async_on(t: na.Tensor, s: Any) -> Enqueue:
    def enqueue() -> None:
        twice(t).async_on(s)

    return enqueue


def _graph_on(t: na.Tensor, s: Any) -> Enqueue:
    graph = twice(t).graph_on(s)
    return lambda: na.spawn(graph.launch())


def _scope(t: na.Tensor, s: Any) -> Enqueue:
    with na.CudaGraph.scope(s) as scope:
        scope.record(twice(t))
    graph = scope.graph
    return lambda: na.spawn(graph.launch())


def _strict(t: na.Tensor, s: Any) -> Enqueue:
    def enqueue() -> None:
        with na.ordering("strict"):
            twice(t).async_on(Other(s))

    return enqueue


WAYS: dict[str, Callable[[na.Tensor, Any], Enqueue]] = {
    "brackets": lambda t, s: lambda: na.spawn(twice[4, 256, s](t)),
    "forall": lambda t, s: lambda: na.spawn(twice.forall(SIZE, 0, s)(t)),
    "spawn": lambda t, s: lambda: na.spawn(twice(t), s),
    "async_on": _async_on,
    "graph_on": _graph_on,
    "scope": _scope,
    "strict": _strict,
}


@pytest.mark.parametrize("way", WAYS)
async def test_work_of_both_runs_in_enqueuing_order(
    device: na.Device, library: Library, way: str
) -> None:
    s, x = library.stream(), library.ones()
    ours, futures = na.Stream.of(s), []
    with library.on(s):
        t = na.as_tensor(x)
        enqueue = WAYS[way](t, s)
        with Gate(ours):
            for _ in range(2):
                library.add_one(x, s)
                futures.append(enqueue())
            library.add_one(x, s)
            await settle(device)
            assert not ours.query()
        await asyncio.wait_for(ours.done(), SECONDS)
        for future in futures:
            if future is not None:
                await future
        assert (library.host(x) == ((1 + 1) * 2 + 1) * 2 + 1).all()


async def test_what_waits_waits_for_the_work_before(device: na.Device, library: Library) -> None:
    s, x = library.stream(), library.ones()
    with library.on(s):
        t = na.as_tensor(x)
        library.add_one(x, s)
        twice(t).sync_on(s)
        library.add_one(x, s)
        await twice(t).schedule(s)
        assert (library.host(x) == 10).all()
        library.add_one(x, s)
        device.policy, policy = s, device.policy  # type: ignore[assignment]
        try:
            await twice(t)
        finally:
            device.policy = policy
        assert (library.host(x) == 22).all()


async def test_an_await_ends_before_the_work_behind_it(device: na.Device, library: Library) -> None:
    """Its point is that of the operation, however much the library has enqueued since."""
    s, x = library.stream(), library.ones()
    ours = na.Stream.of(s)
    with library.on(s):
        t = na.as_tensor(x)
        gate = Gate(ours)
        gate.close()
        try:
            library.add_one(x, s)
            future = na.spawn(twice(t), s)
            task = asyncio.ensure_future(waited(future))
            await settle(device)
            assert not task.done() and not ours.query()
            second = Gate(ours)
            second.close()
            try:
                library.add_one(x, s)
                gate.open()
                await asyncio.wait_for(task, SECONDS)
                # Only work of the library is left, which the driver knows of.
                assert not ours.query()
                done = asyncio.ensure_future(ours.done())
                await settle(device)
                assert not done.done()
            finally:
                second.open()
            await asyncio.wait_for(done, SECONDS)
            ours.synchronize()
            assert ours.query()
        finally:
            gate.open()
        assert (library.host(x) == 5).all()


def test_brackets_and_the_caller_name_the_same_stream(library: Library) -> None:
    s, z = library.stream(), na.ones(SIZE).sync()
    twice[4, 256, s](z).sync_on(Other(s))
    op = twice[4, 256, s](z)
    with pytest.raises(OperationError, match="in its brackets"):
        op.sync_on(library.stream())
    op.sync_on(s)
    assert (z.to_host().sync_on(s) == 4).all()


# --- order with other streams -----------------------------------------------------------------


@pytest.mark.parametrize("first", ["theirs", "ours"])
async def test_conflicts_are_ordered_across_streams(
    device: na.Device, library: Library, first: str
) -> None:
    s, own = library.stream(), device.new_stream()
    one, two = (s, own) if first == "theirs" else (own, s)
    z, out = await na.zeros(SIZE), await na.zeros(SIZE)
    with Gate(na.Stream.of(one)):
        add_one(z).async_on(one)
        copy_to(out, z).async_on(two)
        add_one(z).async_on(one)  # behind the copy, again
        await settle(device)
        assert not na.Stream.of(two).query()
    await asyncio.wait_for(na.Stream.of(one).done(), SECONDS)
    assert (await out.to_host() == 1).all() and (await z.to_host() == 2).all()


async def test_strict_ordering_knows_the_stream(device: na.Device, library: Library) -> None:
    s, own, z = library.stream(), device.new_stream(), await na.zeros(SIZE)
    with na.ordering("strict"), Gate(na.Stream.of(s)):
        add_one(z).async_on(s)
        add_one(z).async_on(Other(s))  # the same stream: in order
        with pytest.raises(AccessConflictError):
            add_one(z).async_on(own)
    await na.Stream.of(s).done()
    assert (await z.to_host() == 2).all()


async def test_wait_for_takes_their_streams(device: na.Device, library: Library) -> None:
    s, own, z = library.stream(), device.new_stream(), await na.zeros(SIZE)
    with Gate(na.Stream.of(s)):
        own.wait_for(s)  # type: ignore[arg-type]
        add_one(z).async_on(own)
        await settle(device)
        assert not own.query()
    await asyncio.wait_for(own.done(), SECONDS)


async def test_numbas_own_calls_on_our_stream(device: na.Device) -> None:
    numba_library(device)
    compiled()
    stream = device.new_stream()
    d, source = cuda.device_array(SIZE, np.float32), cuda.pinned_array(SIZE, np.float32)
    source[:] = 3
    add_one.kernel[4, 256](d)
    t = na.as_tensor(d)
    out = [await na.zeros(SIZE) for _ in range(2)]
    copy_to(out[0], t).sync()
    cuda.synchronize()
    with Gate(stream):
        d.copy_to_device(source, stream=stream.numba)
        copy_to(out[0], t).async_on(stream)
        add_one.kernel[4, 256, stream.numba](d)
        copy_to(out[1], t).async_on(stream)
        await settle(device)
        assert not stream.query()
    await asyncio.wait_for(stream.done(), SECONDS)
    assert [(await each.to_host())[-1] for each in out] == [3, 4]
    type(add_one.kernel).configure.cache_clear()  # Numba keeps the streams of recent launches
