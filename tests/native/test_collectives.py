"""The driver's calls of a collective of several devices, on the null driver."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partialmethod
from typing import Any, cast

import numpy as np
import pytest

import numbasync as na
from numbasync import collective, native
from numbasync.backend.cuda import nccl
from numbasync.backend.protocols import counters
from numbasync.collective import all_reduce, local
from numbasync.device.device import Device
from numbasync.device.stream import Stream
from numbasync.device.submission import Submission
from numbasync.errors import DriverError
from numbasync.ops.run import enqueue_on
from tests.common import add_one
from tests.native.null_device import (
    Collected,
    NullDevice,
    collected,
    library,
    nccl_addresses,
    waits,
)

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")
COUNT = 4


class Bindings:
    """NCCL's, which note the calls of ranks as the null driver does, and may leave a context."""

    class NCCLError(Exception):
        def __init__(self, status: int) -> None:
            super().__init__(f"status {status}")
            self.status = status

    def __init__(self) -> None:
        self.calls: list[Collected] = []
        self.left = 0

    def comm_init_all(self, count: int, ordinals: Sequence[int]) -> list[int]:
        return [1000 + i for i in range(count)]

    def group_start(self) -> None:
        self.calls = []

    def group_end(self) -> None:
        if self.left:
            library().null_switch(ctypes.c_uint64(self.left))

    def _reduce(self, name: str, *call: int) -> None:
        self.calls.append(Collected(name, *call))

    def all_gather(self, send: int, recv: int, count: int, dtype: int, *ends: int) -> None:
        self._reduce("ncclAllGather", send, recv, count, dtype, 0, *ends)

    all_reduce = partialmethod(_reduce, "ncclAllReduce")
    reduce_scatter = partialmethod(_reduce, "ncclReduceScatter")
    broadcast = partialmethod(_reduce, "ncclBroadcast")


@pytest.fixture
def bindings() -> Bindings:
    return Bindings()


@pytest.fixture
def devices(
    null: na.Device, bindings: Bindings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Device]]:
    nccls = nccl.Nccl(bindings, bytes, nccl_addresses())
    monkeypatch.setattr(NullDevice, "collectives", nccls, raising=False)
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


def calls_made(on: bool, bindings: Bindings) -> list[Collected]:
    """Those of the ranks of the latest collective."""
    return collected() if on else bindings.calls


@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter", "all_gather", "broadcast"])
def test_the_calls_of_every_rank(
    on: bool, devices: list[Device], parts: list[na.Tensor], bindings: Bindings, name: str
) -> None:
    choices = {"all_reduce": ["max"], "reduce_scatter": ["avg"], "broadcast": [2]}
    copies, stream = counters.copies, devices[0].new_stream()
    results = getattr(collective, name)(parts, *choices.get(name, [])).async_on(stream)
    calls = calls_made(on, bindings)
    assert {call.function for call in calls} == {f"nccl{name.title().replace('_', '')}"}
    assert [call.send for call in calls] == [part.storage.memory.address for part in parts]
    assert [call.recv for call in calls] == [t.storage.memory.address for t in results]
    count = {"reduce_scatter": 8 // COUNT}.get(name, 8)
    choice = {"all_reduce": 2, "reduce_scatter": 4, "broadcast": 2}.get(name, 0)
    assert {call[3:6] for call in calls} == {(count, 7, choice)}
    assert [call.comm for call in calls] == [1000 + i for i in range(COUNT)]
    streams = [stream, *local._groups[tuple(devices)].streams]
    assert [call.stream for call in calls] == [s.backend.handle_number for s in streams]
    assert counters.copies - copies == COUNT
    stream.synchronize()


@pytest.mark.parametrize(("skipped", "made"), [(0, 0), (2, 1), (COUNT + 1, COUNT)])
def test_a_call_that_nccl_refuses(
    devices: list[Device], parts: list[na.Tensor], skipped: int, made: int
) -> None:
    """The group ends if it has begun, and the tensors are as if all of it were enqueued."""
    assert native.switch(True)
    stream, ended = devices[0].new_stream(), library().null_grouped()
    library().null_fail_once(3, skipped)
    with pytest.raises(DriverError, match=r"nccl all_reduce failed: status 3 \(3\)"):
        all_reduce(parts, out=parts).async_on(stream)
    assert len(collected()) == made and library().null_grouped() - ended == int(skipped > 0)
    assert all(part.storage.writer.sequence for part in parts)
    all_reduce(parts, out=parts).async_on(stream)
    stream.synchronize()


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


def test_the_first_device_is_current_for_libraries(
    on: bool, devices: list[Device], parts: list[na.Tensor], bindings: Bindings
) -> None:
    stream = devices[0].new_stream()
    bindings.left = cast(NullDevice, devices[1].backend).context
    library().null_leave(bindings.left)
    native.core.enter(devices[1].backend)
    all_reduce(parts, out=parts).async_on(stream)
    assert not on or library().null_begun() == cast(NullDevice, devices[0].backend).context
    assert context() == cast(NullDevice, devices[0].backend).context
    stream.synchronize()


def all_waits(device: Device) -> list[tuple[int, int]]:
    """Each wait of the device's streams so far, by the core or by Python."""
    own = cast(NullDevice, device.backend).waits
    return [*waits(), *own]


def test_the_first_stream_waits_once_for_each_other(
    on: bool, devices: list[Device], parts: list[na.Tensor], bindings: Bindings
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
    starts = [part.storage.memory.address for part in parts]
    calls = [(call.stream, call.send, call.recv) for call in calls_made(on, bindings)]
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
    on: bool, devices: list[Device], parts: list[na.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_owned(device: Device) -> bool:
        if not device.submit_lock.acquire(blocking=False):
            return True
        device.submit_lock.release()
        return False

    def owned() -> list[bool]:
        with ThreadPoolExecutor(1) as other:  # a thread that has a lock may take it again
            return list(other.map(is_owned, devices))

    seen: list[list[bool]] = []

    def look(stream: Stream, other: Stream, number: int) -> None:
        seen.append(owned())
        raise KeyError("an error")

    monkeypatch.setattr(Stream, "follow", look)
    with pytest.raises(KeyError):
        all_reduce(parts, out=parts).async_on(devices[0].new_stream())
    assert seen == [[True] * COUNT] and owned() == [False] * COUNT


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
    op = cast(local.LocalOp, all_reduce(parts, out=parts))
    op.consume()
    monkeypatch.setattr(parts[1], "source", object())
    assert not op.try_enqueue(Submission(devices[0].new_stream(), "all_reduce"), None)
    monkeypatch.setattr(parts[1], "source", None)
    assert op.try_enqueue(Submission(devices[0].new_stream(), "all_reduce"), None)


def test_an_event_that_the_driver_refuses(
    on: bool, devices: list[Device], parts: list[na.Tensor]
) -> None:
    """Python says what is wrong, or does it."""
    stream = devices[0].new_stream()
    all_reduce(parts, out=parts).async_on(stream)
    before = len(all_waits(devices[0]))
    library().null_fail_once(1, COUNT + 2 if on else 0)  # behind NCCL's
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
