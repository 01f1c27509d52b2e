"""What must hold of memory: it stays while the device may use it, and comes back afterwards."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import (
    AccessConflictError,
    DeviceMismatchError,
    OutOfDeviceMemoryError,
    ShapeError,
)
from numbasync.testing import Gate, settle
from tests.common import fresh, used, waited
from tests.waiting import in_time

LARGE = 64 * 2**20


def large(value: int) -> na.DeviceOp[na.Tensor]:
    return na.full(LARGE, value, np.uint8)


@pytest.fixture
def other(device: na.Device, stream: na.Stream) -> na.Stream:
    """Another stream than `stream`, once everything that a test uses behind a gate was used."""
    made = device.new_stream()
    together = [large(1).sync_on(s) for s in (stream, made, made)]
    na.memcpy(together[0], together[1]).sync_on(stream)
    return made


# --- what lets go of an output in flight ---


def let_go_by_cancelling(device: na.Device, stream: na.Stream, gate: Gate) -> None:
    async def main() -> None:
        gate.close()
        task = asyncio.ensure_future(waited(large(3).schedule(stream)))
        await settle(device)
        assert task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    na.run(main())


def let_go_by_deleting(device: na.Device, stream: na.Stream, gate: Gate) -> None:
    gate.close()
    future = na.spawn(large(3), stream)
    del future


def let_go_to_the_collector(device: na.Device, stream: na.Stream, gate: Gate) -> None:
    gate.close()
    future = na.spawn(large(3), stream)
    ring: list[Any] = [future]
    ring.append(ring)


def let_go_by_closing_the_loop(
    device: na.Device, stream: na.Stream, gate: Gate, close: bool = True
) -> None:
    async def main() -> None:
        await fresh()(na.zeros(1))  # what stands in line, the thread remembers
        gate.close()
        asyncio.ensure_future(waited(large(3).schedule(stream)))  # noqa: RUF006
        await settle(device)

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # of a task that was pending
    loop.run_until_complete(main())
    if close:
        loop.close()


def let_go_by_dropping_the_loop(device: na.Device, stream: na.Stream, gate: Gate) -> None:
    let_go_by_closing_the_loop(device, stream, gate, close=False)


LET_GO: dict[str, Callable[[na.Device, na.Stream, Gate], None]] = {
    "cancelled": let_go_by_cancelling,
    "deleted": let_go_by_deleting,
    "collected": let_go_to_the_collector,
    "loop closed": let_go_by_closing_the_loop,
    "loop dropped": let_go_by_dropping_the_loop,
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("how", LET_GO)
def test_an_unheld_output_in_flight_is_not_reused(
    device: na.Device, stream: na.Stream, other: na.Stream, gate: Gate, how: str
) -> None:
    start = used(device)
    LET_GO[how](device, stream, gate)
    assert used(device) == start + LARGE, "the device still writes it"
    poison = large(0xEE).sync_on(other)
    assert used(device) == start + 2 * LARGE
    gate.open()
    stream.synchronize()
    assert (poison.to_host().sync_on(other) == 0xEE).all()
    del poison
    assert used(device) == start


@pytest.mark.parametrize("use", ["read", "written", "read through a view"])
@pytest.mark.parametrize("thread", ["this thread", "another thread"])
def test_a_free_waits_for_the_last_use_anywhere(
    device: na.Device, stream: na.Stream, other: na.Stream, gate: Gate, thread: str, use: str
) -> None:
    start = used(device)
    source = [large(5).sync_on(other)]  # made on one stream, used last on another
    out = large(6).sync_on(other)
    gate.close()
    if use == "written":
        na.fill(source[0], 7).async_on(stream)
    else:
        seen = source[0] if use == "read" else source[0].reshape(8, -1)[:].reshape(-1)
        na.memcpy(out, seen).async_on(stream)
        del seen
    if thread == "this thread":
        source.clear()
    else:
        in_time(source.clear)
    assert used(device) == start + 2 * LARGE, "the device still uses it"
    poison = large(9).sync_on(other)
    assert used(device) == start + 3 * LARGE
    gate.open()
    stream.synchronize()
    assert (out.to_host().sync_on(other) == (6 if use == "written" else 5)).all()
    assert (poison.to_host().sync_on(other) == 9).all()
    del out, poison
    assert used(device) == start


SOURCES: dict[str, tuple[int, Callable[[int], na.DeviceOp[Any]]]] = {
    # How much memory is in use meanwhile, in pieces of n bytes.
    "a temporary to the host": (1, lambda n: na.full(n, 3, np.uint8).to_host()),
    "a duplicated temporary": (2, lambda n: na.full(n, 3, np.uint8).dup()),
    "an uploaded temporary": (2, lambda n: na.from_host(np.full(n, 3, np.uint8)).dup()),
    "the first of two": (
        2, lambda n: na.zip(na.full(n, 3, np.uint8), na.full(n, 4, np.uint8)).first(),
    ),
    "the first of two to the host": (
        2, lambda n: na.zip(na.full(n, 3, np.uint8), na.full(n, 4, np.uint8)).first().to_host(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", SOURCES)
def test_a_copys_source_lives_until_it_has_run(
    device: na.Device, stream: na.Stream, gate: Gate, what: str
) -> None:
    n, other = 2**20, device.new_stream()
    pieces, make = SOURCES[what]
    for _ in range(2):
        make(n).async_on(stream)
    together = [na.full(n, 9, np.uint8).sync_on(other) for _ in range(4)]
    stream.synchronize()
    del together
    start = used(device)
    gate.close()
    value = make(n).async_on(stream)
    assert used(device) == start + pieces * n
    poison = [na.full(n, 9, np.uint8).sync_on(other) for _ in range(4)]
    gate.open()
    stream.synchronize()
    assert ((value if isinstance(value, np.ndarray) else value.to_host().sync()) == 3).all()
    del poison, value
    assert used(device) == start


def test_checksums_survive_a_thousand_makes_and_drops(
    device: na.Device, policy: na.SchedulingPolicy
) -> None:
    rng = np.random.default_rng(5)
    arrays = [rng.integers(0, 256, 20_000 + i).astype(np.uint8) for i in range(8)]
    start = used(device)
    in_flight: deque[tuple[na.DeviceFuture[Any], int]] = deque()

    def check_the_oldest() -> None:
        future, total = in_flight.popleft()
        assert int(future.sync().sum()) == total

    for i in range(1000):
        array = arrays[i % 8]
        op = na.from_host(array).dup().to_host()
        in_flight.append((na.spawn(op, policy), int(array.sum())))
        if len(in_flight) == 12:
            check_the_oldest()
    while in_flight:
        check_the_oldest()
    assert used(device) == start


# --- host memory ---


def test_an_uploads_staging_lives_until_it_has_run(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    n, other = 2**20, device.new_stream()
    na.from_host(np.zeros(n, np.uint8)).sync_on(other)  # makes all that later ones need
    gate.close()
    first = na.from_host(np.full(n, 3, np.uint8)).async_on(stream)
    target = na.empty(n, np.uint8).async_on(stream)
    na.memcpy(target, np.full(n, 4, np.uint8)).async_on(stream)
    gc.collect()
    for _ in range(4):
        na.from_host(np.full(n, 9, np.uint8)).sync_on(other)
    gate.open()
    stream.synchronize()
    assert (first.to_host().sync() == 3).all()
    assert (target.to_host().sync() == 4).all()


def test_a_downloads_host_memory_lives_until_it_ran(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    n, other = 2**20, device.new_stream()
    three, nine = (na.full(n, v, np.uint8).sync_on(other) for v in (3, 9))
    nine.to_host().sync_on(other)
    buffers = [device.backend.host_buffer(n) for _ in range(6)]
    del buffers
    out = np.zeros(n, np.uint8)
    gate.close()
    three.to_host().async_on(stream)  # whose array nobody holds
    na.memcpy(out, three).async_on(stream)
    del three
    gc.collect()
    held = [nine.to_host().sync_on(other) for _ in range(4)]
    gate.open()
    stream.synchronize()
    assert all((array == 9).all() for array in held)
    assert (out == 3).all()


# --- out of memory ---


async def test_too_large_requests_are_refused_with_their_sizes(
    device: na.Device,
) -> None:
    start = used(device)
    pool = repr(device.pool)
    too_much = device.backend.total_memory + 2**30
    for _ in range(2):
        with pytest.raises(OutOfDeviceMemoryError, match=f"{too_much:,} bytes do not fit"):
            await na.empty(too_much, np.uint8)
        assert (await na.ones(1000).to_host()).sum() == 1000
    assert used(device) == start
    assert repr(device.pool) == pool, "what was refused does not count as handed out"


def test_a_failing_allocation_reclaims_what_has_passed(
    device: na.Device, stream: na.Stream
) -> None:
    other = device.new_stream()
    before, device.pool = device.pool, device.new_pool(max_bytes=2**20)
    try:
        with pytest.raises(OutOfDeviceMemoryError, match=r"1,048,576 bytes.*1,048,576 of 1,048"):
            na.zip(na.zeros(2**18), na.zeros(2**18)).sync_on(stream)
        na.zeros(2**18).async_on(stream)
        device.backend.quiesce()  # done, and nobody has looked
        assert na.zeros(2**18).sync_on(other).size == 2**18
        assert used(device) == 0
    finally:
        device.pool = before


# --- pools and views ---


def test_statistics_follow_and_high_water_marks_are_reset(
    device: na.Device,
) -> None:
    pool = device.new_pool()
    assert (pool.stats().used_current, pool.stats().used_high) == (0, 0)
    before, device.pool = device.pool, pool
    try:
        one, two = na.zeros(2**18).sync(), na.zeros(2**19).sync()
        assert (pool.stats().used_current, pool.stats().used_high) == (3 * 2**20, 3 * 2**20)
        del two
        assert used(device) == 2**20
        assert pool.stats().used_high == 3 * 2**20
        pool.reset_high()
        stats = pool.stats()
        assert (stats.used_current, stats.used_high) == (2**20, 2**20)
        assert stats.reserved_high == stats.reserved_current >= 2**20
        del one
        assert used(device) == 0
        pool.trim()
        assert "0 B in use" in repr(pool)
    finally:
        device.pool = before


def test_a_foreign_devices_pool_is_refused_by_name(device: na.Device) -> None:
    strange = next(d for d in na.devices("cpu") if d is not device).new_pool()
    with pytest.raises(DeviceMismatchError, match=r"the pool is of cpu:\d, the device is \w+:\d"):
        device.pool = strange
    assert device.pool is not strange
    with pytest.raises(ShapeError, match="max_bytes of a pool is -1"):
        device.new_pool(-1)


def test_views_of_views_add_offsets_within_range(device: na.Device) -> None:
    t = na.from_host(np.arange(60, dtype=np.int32).reshape(6, 10)).sync()
    want = np.arange(60).reshape(6, 10)
    assert t[2:][1:, 3:][1][2:].to_host().sync().tolist() == want[2:][1:, 3:][1][2:].tolist()
    assert t[1::2][1:][0, -3].to_host().sync() == want[3, 7]
    na.fill(t[4:][1:, 8:], -1).sync()
    want[5, 8:] = -1
    np.testing.assert_array_equal(t.to_host().sync(), want)
    part = t[2:4]
    for index in (2, -3, (0, 10), (0, 0, 0)):
        with pytest.raises(ShapeError, match=r"\(2, 10\)"):
            part[index]
    with pytest.raises(ShapeError, match=r"without a copy.*\n.*dup"):
        t[:, 1:].reshape(-1)


# --- errors name the tensor, not its memory ---


def users() -> list[Callable[[na.Tensor], na.DeviceOp[Any]]]:
    return [
        lambda t: t.to_host(), lambda t: t.dup(), lambda t: na.fill(t, 1), lambda t: t.astype("i4"),
        lambda t: na.memcpy(t, np.zeros(8, "f4")), lambda t: t.copy_to(np.zeros(8, "f4")),
        lambda t: t[0].item(), lambda t: na.fill(t[::2], 1), lambda t: na.concatenate([t, t]),
    ]  # fmt: skip


@pytest.mark.parametrize("use", users())
def test_an_operation_on_another_device_names_the_tensor(
    device: na.Device, use: Callable[[na.Tensor], na.DeviceOp[Any]]
) -> None:
    other = next(d for d in na.devices() if d is not device)
    t = na.zeros(8).sync()
    for run in (
        lambda op: op.sync_on(other.new_stream()),
        lambda op: op.graph_on(other.new_stream()),
    ):
        op = use(t)
        with pytest.raises(na.NumbasyncError) as raised:
            run(op)
        text = str(raised.value)
        assert "<memory" not in text and "Storage" not in text
        assert not isinstance(raised.value, DeviceMismatchError) or "<Tensor (" in text


def test_strict_ordering_names_the_tensor(device: na.Device) -> None:
    array = np.zeros(8, np.float32)
    whole = na.from_host(array).sync()
    tensors, lent = [whole], whole
    if device.kind == "cpu":  # views of one memory, known by its addresses
        tensors.append(na.as_tensor(array[:6]).shared().tensor)
        lent = na.as_tensor(array)
    held, other = device.new_stream(), device.new_stream()
    for t in tensors:
        first = t if t is whole else lent
        with Gate(held), na.ordering("strict"):
            na.fill(first, 1).async_on(held)
            with pytest.raises(
                AccessConflictError, match=r"both use <Tensor \([68],\) float32 on "
            ):
                na.fill(t, 2).async_on(other)
        device.synchronize()
