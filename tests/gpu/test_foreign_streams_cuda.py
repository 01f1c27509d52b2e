"""Streams and events of Numba, CuPy, PyTorch and cuda.core as ours: their work before, between and
after ours, one `Stream` for a handle, lifetimes, default streams, captures.

Kernels of both sides are loaded, and memory is there, before any gate is shut. Numba's streams and
CuPy's are blocking ones: while one is held, nothing may use the legacy default stream.
"""

from __future__ import annotations

import asyncio
import gc
import math
import weakref
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import (
    AccessConflictError,
    CallerError,
    DeviceMismatchError,
    OperationError,
    StateError,
)
from numbasync.testing import Gate, settle
from tests.common import add_one, compiled, copy_to, waited

pytestmark = [
    pytest.mark.cuda,
    # Numba finds small grids wasteful; here they are meant.
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]

SIZE = 1024
SECONDS = 60


@na.launcher
@cuda.jit
def twice(z: na.KernelOutput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = 2 * z[i]


@dataclass
class Library:
    """One of them, by what the tests do with it."""

    stream: Callable[[], Any]
    default: Callable[[], Any]
    ones: Callable[[], Any]
    host: Callable[[Any], np.ndarray]
    add_one: Callable[[Any, Any], None]  # to an array, on a stream
    on: Callable[[Any], AbstractContextManager[Any]]  # its current stream
    event: Callable[[bool], Any]  # with timing
    record: Callable[[Any, Any], None]  # an event, on a stream
    wait: Callable[[Any, Any], None]  # a stream for an event
    passed: Callable[[Any], bool]


def numba_library(device: na.Device) -> Library:
    cuda.select_device(device.ordinal)

    def add(x: Any, stream: Any) -> None:
        add_one.kernel[4, 256, stream](x)

    def ones() -> Any:
        x = cuda.to_device(np.ones(SIZE, np.float32))
        cuda.synchronize()  # the copy from memory that is not page-locked may be under way
        return x

    return Library(
        cuda.stream, cuda.default_stream, ones,
        lambda x: x.copy_to_host(), add, lambda s: nullcontext(),
        lambda timing: cuda.event(timing=timing), lambda e, s: e.record(s),
        lambda s, e: e.wait(s), lambda e: e.query(),
    )  # fmt: skip


def core_library(device: na.Device) -> Library:
    """cuda.core has streams and events, and no arrays: Numba's kernels on its streams."""
    core = pytest.importorskip("cuda.core")
    gpu = core.Device(device.ordinal)
    gpu.set_current()
    numba = numba_library(device)
    return Library(
        gpu.create_stream, lambda: core.LEGACY_DEFAULT_STREAM, numba.ones, numba.host,
        numba.add_one, numba.on,
        lambda timing: gpu.create_event(core.EventOptions(timing_enabled=timing)),
        lambda e, s: s.record(e), lambda s, e: s.wait(e), lambda e: e.is_done,
    )  # fmt: skip


def cupy_library(device: na.Device) -> Library:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    cupy.cuda.Device(device.ordinal).use()

    def add(x: Any, stream: Any) -> None:
        with stream:
            x += 1

    def ones() -> Any:
        x = cupy.ones(SIZE, cupy.float32)
        cupy.cuda.get_current_stream().synchronize()  # it is used on other streams
        return x

    return Library(
        cupy.cuda.Stream, lambda: cupy.cuda.Stream.null, ones, cupy.asnumpy, add, lambda s: s,
        lambda timing: cupy.cuda.Event(disable_timing=not timing), lambda e, s: e.record(s),
        lambda s, e: s.wait_event(e), lambda e: e.done,
    )  # fmt: skip


def torch_library(device: na.Device) -> Library:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch has no CUDA")
    torch.cuda.set_device(device.ordinal)

    def add(x: Any, stream: Any) -> None:
        with torch.cuda.stream(stream):
            x += 1

    def ones() -> Any:
        x = torch.ones(SIZE, device="cuda")
        torch.cuda.current_stream().synchronize()  # it is used on other streams
        return x

    return Library(
        torch.cuda.Stream, torch.cuda.default_stream, ones,
        lambda x: x.cpu().numpy(), add, torch.cuda.stream,
        lambda timing: torch.cuda.Event(enable_timing=timing), lambda e, s: e.record(s),
        lambda s, e: s.wait_event(e), lambda e: e.query(),
    )  # fmt: skip


LIBRARIES = {
    "numba": numba_library, "cupy": cupy_library, "torch": torch_library, "cuda.core": core_library,
}  # fmt: skip


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, device: na.Device) -> Library:
    """Each of them, with everything loaded that a test does while a gate is shut."""
    found = LIBRARIES[request.param](device)
    compiled()
    x, s = found.ones(), found.stream()
    found.add_one(x, s)
    t = na.as_tensor(x)
    for op in (twice(t), add_one(t), copy_to(na.zeros(SIZE), t)):
        op.sync_on(s)
    assert (found.host(x) == 5).all()
    spare = [device.new_stream() for _ in range(4)]  # to make one may wait for a shut gate
    device.synchronize()
    del spare
    gc.collect()
    return found


class Other:
    """An object with the protocol, and nothing else."""

    def __init__(self, stream: Any) -> None:
        self._number = na.Stream.of(stream).backend.handle_number

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._number


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
async def test_work_of_both_runs_in_the_order_in_which_it_was_enqueued(
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


# --- lifetimes ---------------------------------------------------------------------------


async def test_their_stream_lives_as_long_as_our_work(device: na.Device, library: Library) -> None:
    # By a weak reference to ours, which holds theirs: not every library's streams take one, and
    # PyTorch's leave it behind when they go.
    s, z = library.stream(), await na.zeros(SIZE)
    ours = na.Stream.of(s)
    kind, there = type(s), weakref.ref(ours)
    number, release = ours.number, ours.backend.hold()
    try:
        add_one(z).async_on(s)
        del s, ours
        gc.collect()
        await settle(device)
        kept: Any = there()
        assert kept is not None and kept.number == number
        assert [type(owner) for owner in kept._owners.values()] == [kind]
        del kept
    finally:
        release()
    device.synchronize()
    assert (await z.to_host() == 1).all()
    na.fill(z, 1).sync()  # what it wrote last is on another stream
    gc.collect()
    assert there() is None
    again = library.stream()
    assert na.Stream.of(again).number > number  # also with the same handle
    add_one(z).sync_on(again)
    assert (await z.to_host() == 2).all()


def test_our_stream_keeps_the_owner_that_came_second(device: na.Device) -> None:
    cupy = pytest.importorskip("cupy")
    cupy_library(device)
    s = cupy.cuda.Stream()
    ours = na.Stream.of(Other(s))
    na.Stream.of(s)
    there = weakref.ref(s)
    del s
    gc.collect()
    assert there() is not None
    add_one(na.zeros(SIZE)).sync_on(ours)
    del ours
    gc.collect()
    assert there() is None


def test_a_handle_that_comes_again_is_another_stream(device: na.Device) -> None:
    cupy = pytest.importorskip("cupy")
    cupy_library(device)
    z, s = na.zeros(SIZE).sync(), cupy.cuda.Stream()
    number = s.ptr
    old = na.Stream.of(cuda.external_stream(number))  # does not own it
    add_one(z).sync_on(old)
    old.synchronize()
    del s  # destroyed
    gc.collect()
    kept = []
    for _ in range(200):
        kept.append(cupy.cuda.Stream())
        if kept[-1].ptr == number:
            break
    else:
        pytest.skip("the driver has given no handle twice")
    new = na.Stream.of(kept[-1])
    assert new is not old and new.backend.handle_number == number
    add_one(z).sync_on(new)
    assert (z.to_host().sync() == 2).all()


def test_streams_that_come_and_go_need_no_more_pages(
    device: na.Device, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = pytest.importorskip("numbasync.backend.cuda.completion_words")
    z, pages, page = na.zeros(SIZE).sync(), [], words.CompletionCounters._page
    monkeypatch.setattr(
        words.CompletionCounters, "_page", staticmethod(lambda: pages.append(1) or page())
    )
    for _ in range(200):
        add_one(z).sync_on(library.stream())
    assert len(pages) <= 1
    assert (z.to_host().sync() == 200).all()


def test_our_queue_is_nobody_elses_as_long_as_numba_has_it(device: na.Device) -> None:
    stream = device.new_stream()
    number, theirs = stream.backend.handle_number, stream.numba
    del stream
    gc.collect()
    others = [device.new_stream() for _ in range(8)]
    assert number not in [each.backend.handle_number for each in others]
    assert na.Stream.of(theirs).backend.handle_number == number
    del theirs
    gc.collect()
    # Dropped, and asked for by its handle: the queue itself, for the only one who has it.
    again = na.Stream.of(cuda.external_stream(number))
    assert type(again) is na.Stream
    others += [device.new_stream() for _ in range(8)]
    assert number not in [each.backend.handle_number for each in others]


# --- default streams ------------------------------------------------------------------------


def test_the_legacy_default_stream_is_one(device: na.Device, library: Library) -> None:
    ours = na.Stream.of(library.default())
    assert ours is na.Stream.of(cuda.default_stream()) is na.Stream.of(cuda.legacy_default_stream())
    assert ours is na.Stream.of(library.default(), device)
    assert ours.backend.handle_number == 1
    x = library.ones()
    t = na.as_tensor(x)
    library.add_one(x, library.default())
    twice(t).sync_on(library.default())
    twice[4, 256, library.default()](t).sync()
    na.spawn(twice(t).graph_on(library.default()).launch()).sync()
    op = twice[4, 256, 0](t)
    assert op.stream is None  # the policy's, as always
    op.sync()
    assert (library.host(x) == 32).all()


async def test_the_legacy_default_stream_is_awaited(device: na.Device, library: Library) -> None:
    x = library.ones()
    t = na.as_tensor(x)
    library.add_one(x, library.default())
    assert (await twice(t).schedule(library.default())).z is t
    assert await na.Stream.of(library.default()).done() is na.Stream.of(library.default())
    assert (library.host(x) == 4).all()
    await asyncio.to_thread(na.Stream.of(library.default()).synchronize)
    assert await asyncio.to_thread(na.Stream.of(library.default()).query)


@pytest.mark.isolated
async def test_the_driver_orders_the_legacy_default_stream_with_blocking_ones(
    device: na.Device,
) -> None:
    numba_library(device)
    compiled()
    blocking, legacy, own = cuda.stream(), na.Stream.of(cuda.default_stream()), device.new_stream()
    z, y = await na.zeros(SIZE), await na.zeros(SIZE)
    device.synchronize()
    with Gate(na.Stream.of(blocking)):
        future = na.spawn(add_one(z), legacy)
        await asyncio.wait_for(waited(na.spawn(add_one(y), own)), SECONDS)
        await settle(device)
        assert own.query() and not legacy.query() and not future.done()
    await asyncio.wait_for(waited(future), SECONDS)
    assert (await z.to_host() == 1).all() and (await y.to_host() == 1).all()


def test_the_per_thread_default_stream_is_refused(device: na.Device) -> None:
    numba_library(device)
    stream, op = cuda.per_thread_default_stream(), na.value(3)
    for refused in (lambda: op.sync_on(stream), lambda: add_one[4, 256, stream]):
        with pytest.raises(CallerError, match="another stream on each thread"):
            refused()
    assert op.sync() == 3


@pytest.mark.cuda(devices=2)
def test_a_stream_of_another_gpu_is_refused(device: na.Device) -> None:
    cupy = pytest.importorskip("cupy")
    cupy_library(device)
    other = next(d for d in na.devices("cuda") if d is not device)
    z = na.zeros(SIZE).sync()
    with cupy.cuda.Device(other.ordinal):
        s = cupy.cuda.Stream()
    assert na.Stream.of(s).device is other
    with pytest.raises(DeviceMismatchError, match=device.label):
        na.Stream.of(s, device)
    with pytest.raises(DeviceMismatchError, match=other.label):
        add_one(z).sync_on(s)
    torch = pytest.importorskip("torch")
    theirs = torch.cuda.default_stream(other.ordinal)
    assert na.Stream.of(theirs).device is other
    with pytest.raises(DeviceMismatchError, match=device.label):
        na.Stream.of(theirs, device)
    with pytest.raises(DeviceMismatchError, match="cpu:0"), na.use_device("cpu"):
        na.Stream.of(cuda.default_stream())


# --- captures of others -------------------------------------------------------------------------


async def test_a_stream_that_another_library_captures_is_left_alone(device: na.Device) -> None:
    cupy = pytest.importorskip("cupy")
    library = cupy_library(device)
    compiled()
    x, z, s = library.ones(), await na.zeros(SIZE), cupy.cuda.Stream(non_blocking=True)
    library.add_one(x, s)
    s.synchronize()
    ours, event = na.Stream.of(s), device.new_event()
    with Gate(ours) as gate:
        before = na.spawn(add_one(z), s)
        task = asyncio.ensure_future(waited(before))
        await settle(device)
        s.begin_capture()
        try:
            library.add_one(x, s)
            op = add_one(z)  # refused before it is used
            for run in (op.async_on, op.sync_on, partial(na.spawn, op)):
                with pytest.raises(StateError, match="captures the stream"):
                    run(s)
            op.suppress_warning()
            for refused in (ours.synchronize, lambda: event.record(s), lambda: event.wait(s)):
                with pytest.raises(StateError, match="captures the stream"):
                    refused()
            # Looks neither end the capture nor get into it.
            await settle(device)
            device.ask()
            assert not ours.query() and not task.done()
        finally:
            gate.open()  # to make a graph may wait for a shut one
            graph = s.end_capture()
    await asyncio.wait_for(task, SECONDS)
    graph.launch(s)
    add_one(z).sync_on(s)
    assert (library.host(x) == 3).all() and (await z.to_host() == 2).all()


async def test_what_was_in_flight_ends_while_another_library_captures(device: na.Device) -> None:
    cupy = pytest.importorskip("cupy")
    cupy_library(device)
    compiled()
    z, s = await na.zeros(SIZE), cupy.cuda.Stream(non_blocking=True)
    gate = Gate(na.Stream.of(s))
    gate.close()
    try:
        task = asyncio.ensure_future(waited(na.spawn(add_one(z), s)))
        await settle(device)
        s.begin_capture()
        try:
            gate.open()
            await asyncio.wait_for(task, SECONDS)
        finally:
            s.end_capture()
    finally:
        gate.open()
    assert (await z.to_host() == 1).all()


# --- events ------------------------------------------------------------------------------


async def test_their_event_on_their_stream_holds_ours(device: na.Device, library: Library) -> None:
    s, own, event = library.stream(), device.new_stream(), library.event(True)
    x, z = library.ones(), await na.zeros(SIZE)
    library.record(event, s)
    mark = na.Event.of(event)
    assert mark.device is device and na.Event.of(mark) is mark
    await asyncio.wait_for(waited(mark), SECONDS)
    assert mark.query()
    with Gate(na.Stream.of(s)):
        library.add_one(x, s)
        library.record(event, s)  # again, and not by us
        assert not mark.query() and "pending" in repr(mark)
        mark.wait(own)
        add_one(z).async_on(own)
        task = asyncio.ensure_future(waited(mark))
        await settle(device)
        assert not own.query() and not task.done()
    assert await asyncio.wait_for(task, SECONDS) is mark
    await asyncio.wait_for(own.done(), SECONDS)
    mark.synchronize()
    assert mark.query() and library.passed(event) and "passed" in repr(mark)


async def test_their_event_on_our_stream_holds_theirs(device: na.Device, library: Library) -> None:
    s, own, event = library.stream(), device.new_stream(), library.event(False)
    x, z = library.ones(), await na.zeros(SIZE)
    library.record(event, s)
    mark = na.Event.of(event)
    with Gate(own):
        add_one(z).async_on(own)
        assert mark.record(own) is mark
        library.wait(s, event)
        library.add_one(x, s)
        await settle(device)
        assert not library.passed(event) and not na.Stream.of(s).query()
    await asyncio.wait_for(waited(mark), SECONDS)
    await asyncio.wait_for(na.Stream.of(s).done(), SECONDS)
    assert (library.host(x) == 2).all() and (await z.to_host() == 1).all()
    del mark
    gc.collect()
    library.record(event, s)  # it is still there
    na.Stream.of(s).synchronize()
    assert library.passed(event)


def test_device_time_between_their_events_and_ours(device: na.Device, library: Library) -> None:
    s, own = library.stream(), device.new_event()
    begin, end = library.event(True), library.event(True)
    x = library.ones()
    library.record(begin, s)
    library.add_one(x, s)
    own.record(s)
    library.record(end, s)
    one, two = na.Event.of(begin), na.Event.of(end)
    with Gate(na.Stream.of(s)):
        library.record(end, s)
        with pytest.raises(StateError, match="elapsed_ms"):
            one.elapsed_ms(two)
    two.synchronize()
    for first, second in ((one, two), (one, own), (own, two)):
        assert 0 <= first.elapsed_ms(second) < math.inf
    untimed = library.event(False)
    library.record(untimed, s)
    na.Stream.of(s).synchronize()
    with pytest.raises(StateError, match="elapsed_ms"):
        one.elapsed_ms(na.Event.of(untimed))
    with pytest.raises(CallerError, match="takes an event of any library"):
        na.Event.of(s)


def test_pytorchs_event_is_there_when_it_was_recorded(device: na.Device) -> None:
    torch = pytest.importorskip("torch")
    torch_library(device)
    with pytest.raises(StateError, match="first recorded"):
        na.Event.of(torch.cuda.Event())
