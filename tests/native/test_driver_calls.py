"""The core's own calls of a driver, beside those of Python: bytes, records, errors, retiring."""

from __future__ import annotations

import gc
import struct
import weakref
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

import numbasync as na
from numbasync import native
from numbasync.backend.protocols import counters
from numbasync.device.in_flight import LOOK_EVERY, MAX_UNSIGNALLED
from numbasync.errors import DeviceLostError, DriverError, DTypeError
from tests.common import add_one, saxpy
from tests.native.null_device import (
    LOST,
    NullDevice,
    array_format,
    launches,
    layout_of,
    library,
    null_device,
)

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")
CODES = "?bBhHiIqQefd"


# --- packed arguments ---


class Handle:
    def __init__(self, packed: bytes) -> None:
        self.packed = packed


class Index:
    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


_ends = [s * 2**n + d for n in (7, 8, 15, 16, 31, 32, 63, 64) for s in (-1, 1) for d in (-1, 0, 1)]
_numbers = st.one_of(
    st.integers(-(2**65), 2**65), st.sampled_from(_ends),
    st.floats(), st.floats(width=16), st.booleans(),
    st.sampled_from([65504.0, 65519.0, 65520.0, 3.4028235e38, 3.4028236e38, -1e39, -0.0]),
)  # fmt: skip
_values = st.one_of(
    _numbers,
    st.sampled_from([
        None, "a", b"", (), Fraction(1, 3), Index(200), Index(-1), np.float32(0.1), np.int8(-3),
        np.uint64(2**64 - 1), np.float16(1), np.bool_(True), np.int64(-(2**63)), 1j,
    ]),
)  # fmt: skip


def by_struct(code: str, value: Any) -> bytes | None:
    try:
        return struct.pack("=" + code, value)  # as the format of a record
    except (struct.error, OverflowError, TypeError):
        return None


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(CODES), _values), min_size=1, max_size=32))
def test_numbers_are_packed_as_struct_does(arguments: list[tuple[str, Any]]) -> None:
    with null_device():
        layout = layout_of([code for code, _ in arguments])
        record = native.core.LaunchRecord(
            7, (1, 2, 3), (4, 5, 6), 8, 9, layout.nbytes, layout.parts, ()
        )
        wanted = [by_struct(code, value) for code, value in arguments]
        values = [value for _, value in arguments]
        if None in wanted:
            with pytest.raises(OverflowError):
                record.run(values)
            assert not launches()
            return
        assert record.run(values) == 0
        (launch,) = launches()
    assert (launch.function, launch.stream, list(launch.extents)) == (7, 9, [1, 2, 3, 4, 5, 6, 8])
    buffer = bytearray(layout.nbytes)
    for (_, offset), part in zip(layout.parts, wanted, strict=True):
        buffer[offset : offset + len(part or b"")] = part or b""
    assert launch.arguments == bytes(buffer)


def test_arrays_of_every_rank_and_constants_are_packed(null: na.Device) -> None:
    codes = ["B", *(array_format(rank) for rank in range(5)), "", "h", "q", "i"]
    layout = layout_of(codes)
    arrays = [Handle(bytes([rank]) * (40 + 16 * rank)) for rank in range(5)]
    record = native.core.LaunchRecord(
        1, (1, 1, 1), (1, 1, 1), 0, 2, layout.nbytes, layout.parts, (2**40, -1)
    )
    for first in (1, 2):  # nothing of an earlier launch is left
        assert record.run([first, *arrays, None, -first]) == 0
        buffer = launches()[-1].arguments
        wanted: list[Any] = [first, *(a.packed for a in arrays), None, -first, 2**40, -1]
        for (code, offset), of, value in zip(layout.parts, codes, wanted, strict=True):
            packed = value if code == "s" else struct.pack(code, value) if code else b""
            assert buffer[offset : offset + struct.calcsize(of)][: len(packed)] == packed


def test_records_refuse_what_they_have_no_room_for(null: na.Device) -> None:
    most = native.core.MOST_ARGUMENTS
    for count in (most, most + 1):
        layout = layout_of("i" * count)
        args = (1, (1, 1, 1), (1, 1, 1), 0, 2, layout.nbytes, layout.parts, ())
        if count > most:
            with pytest.raises(ValueError, match="33 arguments"):
                native.core.LaunchRecord(*args)
        else:
            assert native.core.LaunchRecord(*args).run(range(count)) == 0
    with pytest.raises(OverflowError):  # a constant that does not fit
        native.core.LaunchRecord(1, (1, 1, 1), (1, 1, 1), 0, 2, 4, [("b", 0)], (200,))


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
    assert (submission.done, submission.is_trivial, submission.signalled) == (False, True, False)
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


def test_numbers_go_on_where_the_counter_has_no_more_bits(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    for target in (2**31, 2**32 - 3, 2**33 - 2):
        while stream._sequence < target:
            stream._sequence += min(2**31, target - stream._sequence)
            stream.enqueue_signal()
            stream.poll()
        for _ in range(5):
            add_one(z).async_on(stream)
            stream.poll()
            assert stream.advance() == stream._sequence == z.storage.writer.sequence
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


@pytest.mark.parametrize("way", ["async_on", "sync_on", "await", "gather"])
def test_a_launch_that_reports_a_fault_loses_the_device(
    null: na.Device, on: bool, way: str
) -> None:
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


def test_a_poll_of_an_await_that_reports_a_fault(null: na.Device, on: bool) -> None:
    z = na.zeros(8).sync()

    async def main() -> None:
        for _ in range(4):
            await add_one(z)
        library().null_fail(LOST, 1)
        await add_one(z)

    with pytest.raises(DeviceLostError):
        na.run(main())


def test_a_signal_that_the_driver_refuses_is_written_later(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    for _ in range(LOOK_EVERY - 1):
        add_one(z).async_on(stream)
    library().null_fail(1, 1)  # after the launch
    add_one(z).async_on(stream)
    library().null_fail(0, 0)
    assert stream.in_flight_count == LOOK_EVERY
    stream.synchronize()
    assert not stream.in_flight_count


def test_the_device_is_entered_once_a_thread(null: na.Device) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    for _ in range(3):
        add_one(z).sync_on(stream)
    entered = null.backend.entered  # type: ignore[attr-defined]
    for _ in range(3):
        add_one(z).sync_on(stream)
    assert null.backend.entered == entered  # type: ignore[attr-defined]
    native.core.forget_current()
    add_one(z).sync_on(stream)
    assert null.backend.entered == entered + 1  # type: ignore[attr-defined]


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
