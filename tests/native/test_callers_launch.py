"""Launches on the current stream of the library of their arrays, by the core and by Python."""

from __future__ import annotations

import ctypes
import gc
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import native
from numbasync.device import address_map, foreign_streams
from numbasync.errors import (
    AlreadySubmittedError,
    DriverError,
    LauncherError,
    OperationError,
    StateError,
)
from numbasync.launch.callers_launch import CallersLaunch
from numbasync.testing import counters
from tests.common import add_one
from tests.native.lending_library import Array, State
from tests.native.null_device import launches, library, waits

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")


@na.launcher(stream="caller")
@cuda.jit
def add(z: na.KernelOutput, x: na.KernelInput, a):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = x[i] + a


@pytest.fixture
def theirs(null: na.Device) -> Iterator[na.Stream]:
    """The current stream of the library."""
    stream = null.new_stream()
    State.stream = stream.backend.handle_number
    foreign_streams._kept[null, State.stream] = stream  # no identity is asked of the null driver
    yield stream
    foreign_streams._kept.clear()
    State.stream = 0


def ones(n: int = 8) -> Array:
    return Array(np.ones(n, np.float32))


def warm() -> None:
    for _ in range(3):
        add(ones(), ones(), 1.0).async_on()


def test_it_goes_onto_the_current_stream(null: na.Device, theirs: na.Stream, on: bool) -> None:
    warm()
    first, before = len(launches()), counters()
    z, x = ones(), ones()
    result = add(z, x, 2.0).async_on()
    assert (counters() - before).launches == 1
    assert result.z is z and result.x is x and type(result) is add.Result
    imported = add(na.as_tensor(z), na.as_tensor(x), 2.0)
    assert isinstance(imported, CallersLaunch)
    imported.async_on()
    assert [launch.stream for launch in launches(first)] == [State.stream] * 2
    assert waits() == [] and theirs.pending == 0  # nothing is kept or waited for
    run = add.prepare(z, x, 3.0)
    for _ in range(2):
        run(a=4.0).async_on()
    assert {launch.stream for launch in launches(first)} == {State.stream}


def test_it_follows_the_library_from_stream_to_stream(
    null: na.Device, theirs: na.Stream, on: bool
) -> None:
    other = null.new_stream()
    numbers = [s.backend.handle_number for s in (theirs, other)]
    foreign_streams._kept[null, numbers[1]] = other
    z, x = ones(), ones()
    for _ in range(2):
        for State.stream in numbers:
            add(z, x, 2.0).async_on()
    other.synchronize()
    theirs.synchronize()
    first = len(launches())
    for _ in range(2):
        for State.stream in numbers:
            add(z, x, 2.0).async_on()
    assert [launch.stream for launch in launches(first)] == numbers * 2


def test_nothing_is_kept(null: na.Device, theirs: na.Stream, on: bool) -> None:
    warm()
    theirs.synchronize()  # the first one was enqueued as any other launch
    gc.collect()
    assert State.kept == {}
    release = theirs.backend.hold()
    add(ones(), ones(), 1.0).async_on()
    gc.collect()
    assert State.kept == {}
    release()


def test_own_memory_is_kept_until_its_use_passed(
    null: na.Device, theirs: na.Stream, on: bool
) -> None:
    warm()
    theirs.synchronize()
    t = na.zeros(8).sync_on(null.new_stream())
    address_map.note(t.storage)  # as when it is lent
    at: Any = (ctypes.c_float * 8).from_address(t.storage.memory.address)
    lent = Array(np.frombuffer(at, np.float32))
    release = theirs.backend.hold()
    op = add(ones(), lent, 1.0)
    assert op._tensors[1].storage is t.storage
    op.async_on()
    alive = weakref.ref(t.storage)
    del t, op
    gc.collect()
    assert theirs.pending == 1 and alive() is not None
    release()
    theirs.synchronize()
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("way", ["sync", "spawn", "await"])
def test_its_end_can_be_waited_for(null: na.Device, theirs: na.Stream, on: bool, way: str) -> None:
    warm()
    first = len(launches())
    op = add(ones(), ones(), 1.0)
    assert op.stream is theirs
    if way == "sync":
        op.sync()
    elif way == "spawn":
        na.spawn(op)
    else:

        async def wait() -> None:
            await op

        na.run(wait())
    assert [launch.stream for launch in launches(first)] == [State.stream]
    assert theirs._sequence > 0


def test_it_becomes_part_of_a_captured_graph(null: na.Device, theirs: na.Stream, on: bool) -> None:
    warm()
    theirs.synchronize()
    x, other = na.as_tensor(ones()), null.new_stream()
    add_one(x).sync_on(other)
    release = other.backend.hold()
    add_one(x).async_on(other)
    first, count = len(launches()), len(waits())
    library().null_capture(State.stream)
    number = theirs._sequence
    for _ in range(2):
        add(ones(), ones(), 1.0).async_on()
    assert [launch.stream for launch in launches(first)] == [State.stream] * 2
    assert len(waits()) == count and theirs._sequence == number
    with pytest.raises(StateError, match="Call it once before the capture"):
        add(ones(9), ones(9), 1.0).async_on()  # not planned
    with pytest.raises(StateError, match="work on other streams uses them"):
        add(ones(), x, 1.0).async_on()
    release()
    library().null_capture(None)


def test_overlaps_that_ended_do_not_refuse_a_capture(
    null: na.Device, theirs: na.Stream, on: bool
) -> None:
    warm()
    theirs.synchronize()
    whole = ones()
    kept, part = na.as_tensor(whole), na.as_tensor(Array(whole.array[1:]))
    library().null_capture(State.stream)
    with pytest.raises(StateError, match="Call it once before the capture"):
        add(whole, ones(), 1.0).async_on()
    del part
    count = len(launches())
    add(whole, ones(), 1.0).async_on()
    assert [launch.stream for launch in launches(count)] == [State.stream] and kept.size == 8
    library().null_capture(None)


def test_work_on_other_streams_is_waited_for(null: na.Device, theirs: na.Stream, on: bool) -> None:
    warm()
    x, other = na.as_tensor(ones()), null.new_stream()
    add(ones(), x, 1.0).async_on()
    add_one(x).sync_on(other)
    release = other.backend.hold()
    add_one(x).async_on(other)
    null.backend.waits.clear()  # type: ignore[attr-defined]
    add(ones(), x, 1.0).async_on()
    assert null.backend.waits == [(State.stream, other.backend.handle_number)]  # type: ignore[attr-defined]
    release()


def test_a_call_made_elsewhere_is_ordered_behind(
    null: na.Device, theirs: na.Stream, on: bool
) -> None:
    warm()
    before = null.new_stream()
    release = before.backend.hold()
    library().cuMemcpyPeerAsync(0, 0, 0, 0, 0, before.backend.handle_number)
    State.stream = before.backend.handle_number
    op = add(ones(), ones(), 1.0)
    State.stream = theirs.backend.handle_number
    first = len(launches())
    op.async_on()
    assert [launch.stream for launch in launches(first)] == [State.stream]
    assert set(waits()) == {(State.stream, before.backend.handle_number)}
    release()


def test_a_call_that_names_a_stream_goes_there(
    null: na.Device, theirs: na.Stream, on: bool
) -> None:
    warm()
    own = null.new_stream()
    first = len(launches())
    add[(1,), (8,), own](ones(), ones(), 1.0).async_on()
    own_number = own.backend.handle_number
    assert [launch.stream for launch in launches(first)] == [own_number]


def test_mixed_arrays_go_where_the_policy_says(
    null: na.Device, theirs: na.Stream, on: bool
) -> None:
    z = na.zeros(8).sync_on(null.new_stream())
    for _ in range(2):
        op = add(z, ones(), 1.0)
        assert op.stream is None and op.home is null
        op.sync()
    op = add(z, ones(), 1.0)
    with pytest.raises(OperationError, match=r"needs a na\.Stream"):
        op.async_on()
    op.suppress_warning()
    lazy = add(na.value(ones()), na.value(ones()), 1.0)
    assert lazy.stream is None
    lazy.sync()


def test_it_runs_once(null: na.Device, theirs: na.Stream, on: bool) -> None:
    warm()
    op = add(ones(), ones(), 1.0)
    op.async_on()
    with pytest.raises(AlreadySubmittedError):
        op.async_on()
    with pytest.warns(RuntimeWarning, match="has not run"):
        add(ones(), ones(), 1.0)


def test_an_error_of_the_driver_is_raised(null: na.Device, theirs: na.Stream, on: bool) -> None:
    warm()
    op = add(ones(), ones(), 1.0)
    library().null_fail_once(1, 0)
    with pytest.raises(DriverError, match="cuLaunchKernel"):
        op.async_on()
    library().null_fail_once(0, 0)
    add(ones(), ones(), 1.0).async_on()


def test_a_launcher_is_pickled_with_its_option() -> None:
    again = pickle.loads(pickle.dumps(add))
    assert again is add
    assert again.launch_class is CallersLaunch


@pytest.mark.parametrize("wrong", ["callers", 0, True, object()])
def test_other_options_are_refused(wrong: Any) -> None:
    with pytest.raises(LauncherError, match='write stream="caller"'):
        na.launcher(stream=wrong)(add.kernel)
