"""The driver's calls of a collective of several devices, on the null driver."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest

import numbasync as na
from numbasync import native
from numbasync.collective import all_reduce, local, together
from numbasync.device.device import Device
from numbasync.device.submission import Submission
from numbasync.errors import DriverError
from numbasync.ops.run import enqueue_on
from tests.common import add_one
from tests.native.null_device import NullDevice, library, waits

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")
COUNT = 4


class Library:
    """A library of collectives that does nothing but enter the first device, as NCCL does."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, int]] = []  # each one's stream, and what it was given

    def takes(self, dtype: Any, op: str | None = None) -> bool:
        return True

    def ranks(self, devices: Any) -> list[Rank]:
        return [Rank(self, device) for device in devices]

    def make(self, calls: Sequence[Callable[[], object]], rank: Rank) -> None:
        self.calls = []
        native.core.enter(rank.device)
        for call in calls:
            call()


class Rank:
    def __init__(self, own: Library, device: NullDevice) -> None:
        self._library, self.device = own, device

    def all_reduce(self, stream: Any, send: Any, recv: Any, op: str) -> Callable[[], object]:
        starts = [array.array.ctypes.data for array in (send, recv)]
        return lambda: self._library.calls.append((stream.handle_number, *starts))


@pytest.fixture
def devices(null: na.Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Device]]:
    monkeypatch.setattr(NullDevice, "collectives", Library(), raising=False)
    monkeypatch.setattr(local, "_groups", {})
    others = [Device(NullDevice(100 + i)) for i in range(COUNT - 1)]
    yield [null, *others]
    for other in others:
        other.backend._engine.stop()  # type: ignore[attr-defined]


@pytest.fixture
def parts(devices: list[Device]) -> list[na.Tensor]:
    """A part on each device, of a group that is known."""
    parts = []
    for device in devices:
        with na.use_device(device):
            parts.append(na.zeros(8).sync())
    all_reduce(parts, out=parts).sync()
    return parts


def context() -> int | None:
    """The context that is current on this thread."""
    current = ctypes.c_void_p()
    library().cuCtxGetCurrent(ctypes.byref(current))
    return current.value


def test_other_devices_ends_need_no_switch(
    on: bool, devices: list[Device], parts: list[na.Tensor]
) -> None:
    """Without the core each is, once, and then the first one."""
    stream = devices[0].new_stream()
    all_reduce(parts, out=parts).async_on(stream)
    before = library().null_switched()
    all_reduce(parts, out=parts).async_on(stream)
    assert library().null_switched() - before == (0 if on else COUNT)
    near = cast(NullDevice, devices[0].backend)
    assert context() == near.context, "on which the await goes on"
    stream.synchronize()


def test_the_first_device_is_current_after_libraries(
    on: bool, devices: list[Device], parts: list[na.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, make = devices[0].new_stream(), Library.make

    def leave(self: Library, calls: Sequence[Callable[[], object]], rank: Rank) -> None:
        make(self, calls, rank)
        native.core.enter(devices[1].backend)

    monkeypatch.setattr(Library, "make", leave)
    all_reduce(parts, out=parts).async_on(stream)
    assert context() == cast(NullDevice, devices[0].backend).context
    stream.synchronize()


def all_waits(device: Device) -> list[tuple[int, int]]:
    """Each wait of the device's streams so far, by the core or by Python."""
    own = cast(NullDevice, device.backend).waits
    return [*waits(), *own]


def test_the_first_stream_waits_once_for_each_other(
    on: bool, devices: list[Device], parts: list[na.Tensor]
) -> None:
    stream = devices[0].new_stream()
    before = len(all_waits(devices[0]))
    for _ in range(2):
        all_reduce(parts, out=parts).async_on(stream)
    group = local._groups[tuple(devices)]
    numbers = [s.backend.handle_number for s in group.streams]
    first = stream.backend.handle_number
    done = all_waits(devices[0])[before:]
    assert sorted(done) == sorted(2 * [(first, number) for number in numbers])
    calls = devices[0].backend.collectives.calls  # type: ignore[union-attr]
    starts = [part.storage.memory.address for part in parts]
    assert calls == [(n, at, at) for n, at in zip([first, *numbers], starts, strict=True)]
    assert all(stream.follows(other, other._sequence) for other in group.streams)
    assert not any(stream.follows(other, other._sequence + 1) for other in group.streams)
    for device in devices:
        spare = cast(NullDevice, device.backend).events.numbers
        own = [number // 8 == device.ordinal % 8 for number in spare]
        assert own == [True] * int(on and device is not devices[0])
    stream.synchronize()


def test_reads_and_writes_are_recorded(
    on: bool, devices: list[Device], parts: list[na.Tensor]
) -> None:
    stream = devices[0].new_stream()
    group = local._groups[tuple(devices)]
    for i, device in enumerate(devices):  # a reader, which the writer comes behind
        parts[i].to_host().sync_on(device.new_stream())
    results = all_reduce(parts).async_on(stream)
    every = [result.storage.writer for result in results]
    for submission, at, part, result in zip(
        every, [stream, *group.streams], parts, results, strict=True
    ):
        assert submission.stream is at and submission.sequence == at._sequence
        assert part.storage.readers[at] is submission and not result.storage.readers
        assert {part.storage, result.storage} <= set(submission.keep_alive)
    first, *others = every
    assert first.dependencies == others and stream.has_dependencies
    all_reduce(parts, out=parts).async_on(stream)
    assert all(not part.storage.readers for part in parts)
    assert [part.storage.writer.stream for part in parts] == [stream, *group.streams]
    stream.synchronize()
    for other in group.streams:
        other.synchronize()
    stream.poll()
    assert all(s.done and not s.keep_alive for s in every)
    assert not stream.has_dependencies


def test_new_tensors_come_from_every_devices_pool(
    on: bool, devices: list[Device], parts: list[na.Tensor]
) -> None:
    stream, own = devices[0].new_stream(), devices[0].new_pool()

    def used() -> list[int]:
        return [pool.stats().used_current for pool in (own, *(d.pool for d in devices))]

    def look(pool: Any) -> None:
        """At the results of a collective that allocates from a pool, or the device's."""
        before, chosen = used(), [pool or devices[0].pool, *(d.pool for d in devices[1:])]
        submission, results = enqueue_on(all_reduce(parts), stream, pool)
        every = [result.storage.writer for result in results]
        assert every[0] is submission and [s.nbytes for s in every] == [32] * COUNT
        assert [result.storage.pool for result in results] == chosen
        assert [result.device for result in results] == devices
        for result in results:
            assert (result.shape, result.dtype, result.spec) == ((8,), np.float32, parts[0].spec)
            assert result.storage.holders == 1 and not result.storage.readers
        more = [after - n for after, n in zip(used(), before, strict=True)]
        assert more == [256 * (pool is own), 256 * (pool is None), *[256] * (COUNT - 1)]
        stream.synchronize()

    first = used()
    for pool in (None, own, own):
        look(pool)
        for device in devices:
            device.synchronize()
        assert used() == first


def test_all_devices_are_locked_meanwhile(
    on: bool, devices: list[Device], parts: list[na.Tensor]
) -> None:
    def is_owned(device: Device) -> bool:
        if not device.submit_lock.acquire(blocking=False):
            return True
        device.submit_lock.release()
        return False

    def owned() -> list[bool]:
        with ThreadPoolExecutor(1) as other:  # a thread that has a lock may take it again
            return list(other.map(is_owned, devices))

    assert together.under_locks(devices, owned) == [True] * COUNT
    with pytest.raises(KeyError):
        together.under_locks(devices, lambda: {}["an error"])
    assert owned() == [False] * COUNT


@pytest.mark.parametrize("busy", [0, 2])
@pytest.mark.parametrize("what", ["read", "written", "read and new"])
def test_other_streams_of_the_devices_are_waited_for(
    on: bool, devices: list[Device], parts: list[na.Tensor], busy: int, what: str
) -> None:
    stream, other = devices[0].new_stream(), devices[busy].new_stream()
    held, device = other.backend.handle_number, devices[busy]
    release = other.backend.hold()
    if what == "written":
        with na.use_device(device):
            add_one(parts[busy]).async_on(other)
    else:
        parts[busy].to_host().async_on(other)
    before = len(all_waits(device))
    all_reduce(parts, out=None if what == "read and new" else parts).async_on(stream)
    waited = held in [number for _, number in all_waits(device)[before:]]
    assert waited == (what != "read and new")
    release()
    for one in (other, stream):
        one.synchronize()


def test_foreign_memory_is_not_used_at_once(
    on: bool, devices: list[Device], parts: list[na.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its streams are to be asked, which copies do."""
    group = local._groups[tuple(devices)]
    streams = [devices[0].new_stream(), *group.streams]
    every = [Submission(stream, "all_reduce") for stream in streams]
    assert together.are_free(every, parts, to_write=True)
    monkeypatch.setattr(parts[1], "source", object())
    assert not together.are_free(every, parts, to_write=True)


def test_an_event_that_the_driver_refuses(
    on: bool, devices: list[Device], parts: list[na.Tensor]
) -> None:
    """Python says what is wrong, or does it."""
    stream = devices[0].new_stream()
    all_reduce(parts, out=parts).async_on(stream)
    before = len(all_waits(devices[0]))
    library().null_fail_once(1, 0)
    all_reduce(parts, out=parts).async_on(stream)
    library().null_fail_once(0, 0)
    assert len(all_waits(devices[0])) - before >= COUNT - 1
    for device in devices[1:]:
        spare = cast(NullDevice, device.backend).events.numbers
        assert len(spare) == int(on)
    stream.synchronize()


def test_an_error_of_another_device_is_the_collectives(
    on: bool, devices: list[Device], parts: list[na.Tensor]
) -> None:
    stream = devices[0].new_stream()
    results = all_reduce(parts).async_on(stream)
    first, second, third, _ = [result.storage.writer for result in results]
    na.zeros(8).async_on(second.stream)
    behind = second.stream.submissions[-1]
    error = DriverError("cuLaunchKernel", 1, "", "")
    second.stream.break_with(error)
    with pytest.raises(DriverError):
        stream.synchronize()
    assert (first.done, second.done, third.done) == (True, True, True)
    assert first.error is error is second.error and third.error is None
    assert not behind.done, "only what it depends on is known to be over"
