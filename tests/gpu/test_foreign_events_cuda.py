"""Events of Numba, CuPy, PyTorch and cuda.core as ours, and streams that they capture."""

from __future__ import annotations

import asyncio
import gc
import math
from functools import partial

import pytest

import numbasync as na
from numbasync.errors import (
    CallerError,
    StateError,
)
from numbasync.testing import Gate, settle
from tests.common import add_one, compiled, waited
from tests.gpu.stream_libraries import (
    LIBRARIES,
    SECONDS,
    SIZE,
    Library,
    cupy_library,
    loaded,
    torch_library,
)

pytestmark = [
    pytest.mark.cuda,
    # Numba finds small grids wasteful; here they are meant.
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, device: na.Device) -> Library:
    return loaded(request.param, device)


async def test_a_stream_captured_by_libraries_is_left_alone(device: na.Device) -> None:
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


async def test_work_in_flight_ends_during_foreign_captures(device: na.Device) -> None:
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
