"""The core's own calls of a driver, beside those of Python: bytes, records, errors, retiring."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any, cast

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import native
from numbasync.backend.cpu.runtime.memory import CpuPool
from numbasync.backend.protocols import counters
from numbasync.device.in_flight import LOOK_EVERY, MAX_UNSIGNALLED
from numbasync.device.submission import Submission
from numbasync.errors import DeviceLostError, DriverError, DTypeError
from tests.common import add_one, saxpy
from tests.native.null_device import (
    LOST,
    CudaStream,
    NullDevice,
    launches,
    library,
)

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")


@na.launcher
@cuda.jit
def of_scalars(z: na.KernelOutput, a, b, c, d, e, f, g, h=None):
    z[0] = 0


def test_every_type_of_scalar_of_a_call(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    z = na.zeros(1).sync_on(stream)
    rows = [
        (np.int8(-1), np.uint8(255), np.int16(-2), np.uint16(65535), np.int32(-3), np.uint32(7), 1),
        (np.int64(-(2**63)), np.uint64(2**64 - 1), np.float16(0.1), np.float32(0.1), 0.1, True, -5),
    ]
    for row in rows:
        for _ in range(3):
            of_scalars(z, *row).async_on(stream)
    kernels = null.backend.kernels  # type: ignore[attr-defined]
    got = [launch.described(kernels, {z.storage.memory.address: "z"})[3:] for launch in launches()]
    wanted = [[[0, 0, 1, 4, "z"], *((v,) for v in row)] for row in rows for _ in range(3)]
    assert got == wanted


def test_a_number_that_does_not_fit_launches_nothing(
    null: na.Device, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a kernel that was declared for 32 bits: the plan is that of every `int`."""
    key = NullDevice.scalar_key
    monkeypatch.setattr(
        NullDevice, "scalar_key", lambda self, v: key(self, np.int32(1) if type(v) is int else v)
    )
    stream = null.new_stream()
    z, x = na.zeros(8).sync_on(stream), na.ones(8).sync_on(stream)
    for a in (1, 2, 2**31 - 1):
        saxpy(z, a, x).async_on(stream)
    before, writer, number = counters.launches, z.storage.writer, stream._sequence
    with pytest.raises(DTypeError, match="an argument does not fit the kernel's type"):
        saxpy(z, 2**31, x).async_on(stream)
    assert (counters.launches, z.storage.writer) == (before, writer)
    assert [reader.sequence for reader in x.storage.readers.values()] == [number]
    saxpy(z, 3, x).async_on(stream)
    assert counters.launches == before + 1


# --- access records, and what is kept ---


def test_a_launch_is_recorded_kept_and_released_once(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    z, x = na.zeros(8).sync_on(stream), na.ones(8).sync_on(stream)
    saxpy(z, 1.0, x).sync_on(stream)
    release = stream.backend.hold()
    before, number = counters.launches, stream._sequence
    saxpy(z, 1.0, x).async_on(stream)
    submission = z.storage.writer
    assert counters.launches == before + 1
    assert submission.sequence == number + 1 == stream._sequence
    assert submission.launched == ("saxpy",)
    assert x.storage.readers == {stream: submission} and not z.storage.readers
    assert submission.keep_alive == [z.storage, x.storage]
    assert (submission.done, submission.signalled) == (False, False)
    assert stream in null.busy
    alive = [weakref.ref(z.storage), weakref.ref(x.storage)]
    del z, x
    stream.poll()  # asks the driver, and enqueues a signal
    assert not submission.done and submission.signalled
    assert all(ref() is not None for ref in alive)
    release()
    stream.poll()
    assert submission.done and submission.keep_alive == [] and stream not in null.busy
    writer = submission
    del submission, writer
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


def test_only_what_has_passed_is_retired(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    stream.backend.hold()
    submissions = []
    for _ in range(4):
        add_one(z).async_on(stream)
        submissions.append(z.storage.writer)
    word: Any = stream.backend._word  # type: ignore[attr-defined]
    for passed in range(5):
        word.value = submissions[0].sequence - 1 + passed
        assert stream.advance() == word.value
        assert [s.done for s in submissions] == [i < passed for i in range(4)]
        assert stream.in_flight_count == 4 - passed


def test_a_writer_waits_for_readers_on_other_streams(null: na.Device, on: bool) -> None:
    """Which the fast path never does: it gives the call back, to be ordered by an event."""
    first, second = null.new_stream(), null.new_stream()
    z, x, y = (na.zeros(8).sync_on(first) for _ in range(3))
    for stream in (first, second):
        saxpy(z, 1.0, x).sync_on(stream)
        add_one(x).sync_on(stream)
        add_one(y).sync_on(stream)
    waits = null.backend.waits  # type: ignore[attr-defined]
    numbers = second.backend.handle_number, first.backend.handle_number
    waits.clear()
    for held, other in ((saxpy(z, 1.0, x), x), (add_one(x), x), (add_one(z), z)):
        release = first.backend.hold()
        held.async_on(first)
        add_one(y).async_on(second)  # of no shared storage
        assert not waits
        add_one(other).async_on(second)
        assert waits.pop() == numbers and not waits
        release()
        null.synchronize()


def test_many_readers_are_forgotten_when_they_are_done(null: na.Device, on: bool) -> None:
    x = na.ones(8).sync()
    pairs = [(s := null.new_stream(), na.zeros(8).sync_on(s)) for _ in range(12)]
    for stream, z in pairs:
        saxpy(z, 1.0, x).sync_on(stream)
        saxpy(z, 1.0, x).async_on(stream)
        stream.synchronize()
    assert 1 <= len(x.storage.readers) <= 9


# --- signals ---


@pytest.mark.parametrize("count", [LOOK_EVERY - 1, LOOK_EVERY])
def test_a_queue_without_awaiters_is_signalled(null: na.Device, on: bool, count: int) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    for _ in range(count):
        add_one(z).async_on(stream)
    assert stream.in_flight_count == count % LOOK_EVERY


def test_numbers_without_a_signal_are_bounded(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    stream._sequence = stream._signalled + MAX_UNSIGNALLED - 2
    add_one(z).async_on(stream)
    assert stream.in_flight_count == 1
    add_one(z).async_on(stream)
    assert stream._signalled == stream._sequence and not stream.in_flight_count


def test_numbers_go_on_past_the_counters_bits(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    for target in (2**31, 2**32 - 3, 2**33 - 2):
        while stream._sequence < target:
            stream._sequence += min(2**31, target - stream._sequence)
            assert stream.enqueue_signal() == stream.advance()
        for _ in range(5):
            add_one(z).async_on(stream)
            # By the counter alone: the driver is not asked.
            assert stream.enqueue_signal() == stream.advance() == z.storage.writer.sequence + 1
            assert z.storage.writer.done


# --- errors of the driver ---


def test_a_launch_that_the_driver_refuses(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    before, writer, number = counters.launches, z.storage.writer, stream._sequence
    library().null_fail(1, 0)
    with pytest.raises(DriverError, match="cuLaunchKernel"):
        add_one(z).async_on(stream)
    library().null_fail(0, 0)
    assert (counters.launches, z.storage.writer) == (before, writer), "no record of it"
    # It is numbered: an error may come after the work was enqueued.
    assert (stream._sequence, stream.in_flight_count) == (number + 1, 1)
    add_one(z).sync_on(stream)
    assert not stream.in_flight_count


@pytest.mark.parametrize("good", [0, 1, 2, 3])
def test_launches_together_of_which_one_is_refused(null: na.Device, on: bool, good: int) -> None:
    """Those before it are recorded, and nothing behind it is launched."""
    stream = null.new_stream()
    tensors = [na.zeros(8).sync_on(stream) for _ in range(4)]
    for z in tensors:
        add_one(z).sync_on(stream)
    before, first = counters.launches, len(launches())
    library().null_fail(1, good)
    with pytest.raises(DriverError, match="cuLaunchKernel"):
        na.zip(*(add_one(z) for z in tensors)).async_on(stream)
    library().null_fail(0, 0)
    number = stream._sequence
    writers = [z.storage.writer.sequence == number for z in tensors]
    assert writers == [i < good for i in range(4)]
    assert counters.launches - before == len(launches(first)) == good
    submission = tensors[0].storage.writer if good else None
    if submission is not None:
        assert {z.storage for z in tensors[:good]} <= set(submission.keep_alive)
    stream.synchronize()
    assert not stream.in_flight_count


@pytest.mark.parametrize("good", [0, 35, 40])
def test_a_list_of_launches(null: na.Device, on: bool, good: int) -> None:
    """More than go together, of which one is refused, or does not fit: those before it are made."""
    stream = null.new_stream()
    z, x = na.zeros(8).sync_on(stream), na.ones(8).sync_on(stream)
    saxpy(z, 0.0, x).sync_on(stream)
    (plan,) = (p for (device, *_), p in saxpy.planner.plans.items() if device is null.backend)
    calls = [(plan.work, (z.handle, float(i), x.handle)) for i in range(40)]
    before, first = counters.launches, len(launches())
    submission = Submission(stream, "a list")
    if good == 40:
        calls.append((plan.work, (z.handle, "a", x.handle)))
        with pytest.raises(DTypeError, match="does not fit"):
            submission.launch_all(calls)
    else:
        library().null_fail(1, good)
        with pytest.raises(DriverError, match="cuLaunchKernel"):
            submission.launch_all(calls)
        library().null_fail(0, 0)
    assert counters.launches - before == len(launches(first)) == good
    kernels: Any = null.backend
    got = [launch.described(kernels.kernels, {})[4] for launch in launches(first)]
    assert got == [(float(i),) for i in range(good)]
    submission.launch_all([])


@pytest.mark.parametrize("way", ["async_on", "sync_on", "await", "gather"])
def test_a_launch_reporting_a_fault_loses_the_device(null: na.Device, on: bool, way: str) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync()
    library().null_fail(LOST, 0)

    async def awaited() -> None:
        await (add_one(z) if way == "await" else na.gather(add_one(z), add_one(z)))

    with pytest.raises(DeviceLostError, match=r"At work then was.*:\n.*add_one"):
        na.run(awaited()) if way in ("await", "gather") else getattr(add_one(z), way)(stream)
    assert null.lost is not None
    with pytest.raises(DeviceLostError):
        add_one(z).async_on(stream)


@pytest.mark.parametrize("result", [1, LOST])
def test_a_wait_that_reports_an_error(null: na.Device, on: bool, result: int) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    add_one(z).async_on(stream)
    library().null_fail(result, 1)  # after the launch
    kind = DriverError if result == 1 else DeviceLostError
    with pytest.raises(kind, match="cuStream"):
        add_one(z).sync_on(stream)
    with pytest.raises(kind, match="cuStream"):  # of the work without a future
        stream.report()


def test_an_awaits_poll_that_reports_a_fault(null: na.Device, on: bool) -> None:
    z = na.zeros(8).sync()

    async def main() -> None:
        for _ in range(4):
            await add_one(z)
        library().null_fail(LOST, 1)
        await add_one(z)

    with pytest.raises(DeviceLostError, match=r"At work then was.*:\n.*add_one"):
        na.run(main())
    assert null.lost is not None


def test_a_wait_settles_what_its_stream_follows(null: na.Device, on: bool) -> None:
    before, stream = null.new_stream(), null.new_stream()
    add_one(na.zeros(8).sync()).sync_on(before)
    add_one(na.zeros(8).sync()).async_on(before)
    stream.wait_for(before)
    add_one(na.zeros(8).sync()).async_on(stream)
    assert before.in_flight_count == 1
    stream.synchronize()
    assert before.in_flight_count == 0


def test_a_fault_is_found_by_a_verification(
    null: na.Device, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    stream.verify(stream._sequence)
    assert stream.verified == stream._sequence
    library().null_fail(LOST, 0)
    stream.verify(stream._sequence)  # asks nobody
    stream.verified = 0
    with monkeypatch.context() as patch:  # a notification has come behind it
        patch.setattr(CudaStream, "verified_sequence", lambda self: stream._sequence)
        stream.verify(stream._sequence)
    with pytest.raises(DeviceLostError):
        stream.verify(stream._sequence)
    assert null.lost is not None


def test_a_refused_signal_is_written_later(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    stream._sequence = stream._signalled + MAX_UNSIGNALLED
    library().null_fail(1, 1)  # after the launch
    add_one(z).async_on(stream)
    library().null_fail(0, 0)
    assert stream.in_flight_count == 1
    stream.synchronize()
    assert not stream.in_flight_count


def test_memory_of_another_class_is_not_read(
    null: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slots are other ones."""
    monkeypatch.setattr(NullDevice, "new_pool", lambda self: CpuPool("null", 2**20, lambda: False))
    stream, before = null.new_stream(), library().null_others()
    z = na.full(8, 3).sync_on(stream)
    y = na.from_host(np.ones(8, np.float32)).sync_on(stream)
    z.to_host().sync_on(stream)
    add_one(y).sync_on(stream)
    assert library().null_others() - before == 3, "a fill and two copies"


def test_the_device_is_entered_once_a_thread(null: na.Device) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    for _ in range(3):
        add_one(z).sync_on(stream)
    entered = null.backend.entered  # type: ignore[attr-defined]
    for _ in range(3):
        add_one(z).sync_on(stream)
    native.core.enter(null.backend)
    assert null.backend.entered == entered  # type: ignore[attr-defined]
    assert library().null_switched() == 0, "it stays current"
    native.core.forget_current()
    add_one(z).sync_on(stream)
    assert null.backend.entered == entered + 1  # type: ignore[attr-defined]


def test_a_device_is_reentered_after_other_libraries(null: na.Device) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    graph = add_one(na.zeros(8).sync()).graph_on(stream)
    backend = cast(NullDevice, null.backend)
    source = np.ones(8, np.float32)
    calls = (
        lambda: add_one(z).async_on(stream), stream.synchronize,
        lambda: na.zeros(8).async_on(stream), lambda: na.from_host(source).async_on(stream),
        lambda: z.to_host().async_on(stream), lambda: graph.launch().async_on(stream),
        lambda: na.zip(add_one(z), add_one(z)).async_on(stream),
    )  # fmt: skip
    for i, call in enumerate(calls, 1):
        call()
        switched = library().null_switched()
        call()
        assert library().null_switched() == switched, i
        library().null_switch(ctypes.c_uint64(i))
        call()
        assert (library().null_switched(), current()) == (switched + 1, backend.context), i


def current() -> int | None:
    """The context that is current on this thread."""
    context = ctypes.c_void_p()
    library().cuCtxGetCurrent(ctypes.byref(context))
    return context.value


def test_a_known_context_is_switched_by_the_driver(null: na.Device) -> None:
    near, far, enter = cast(NullDevice, null.backend), NullDevice(98), native.core.enter
    for device in (near, far, near, near, far):
        enter(device)
        assert current() == device.context
    assert (near.entered, far.entered, library().null_switched()) == (1, 1, 2)
    far._engine.stop()


def test_a_context_that_was_destroyed_is_entered_anew(null: na.Device) -> None:
    """Which says what is wrong, or makes another one."""
    near, far, enter = cast(NullDevice, null.backend), NullDevice(98), native.core.enter
    enter(near)
    enter(far)
    library().null_lose(ctypes.c_uint64(near.context))
    near.context += 1
    enter(near)
    assert (near.entered, current()) == (2, near.context)
    enter(far)
    enter(near)
    assert (near.entered, current()) == (2, near.context), "the new one is known"
    far._engine.stop()


def test_a_replaced_method_of_a_stream_is_called(
    null: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `inject` does it."""
    stream, z = null.new_stream(), na.zeros(8).sync()
    for _ in range(2):
        add_one(z).sync_on(stream)
    cls, seen = type(stream.backend), []
    for name in ("launch", "completed", "synchronize"):
        method = getattr(cls, name)
        monkeypatch.setattr(
            cls, name, lambda *a, m=method, n=name: (seen.append(n), m(*a))[1]
        )  # fmt: skip
    add_one(z).sync_on(stream)
    assert {"launch", "completed", "synchronize"} <= set(seen)
    monkeypatch.undo()
    seen.clear()
    add_one(z).sync_on(stream)
    assert not seen
