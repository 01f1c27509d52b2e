"""Back-pressure: submitting waits while as much is in flight as is allowed, and never fails."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.device.submission import Submission
from numbasync.ops.backpressure import Admission, Capacity
from numbasync.testing import Gate, counters, inject, settle
from tests.common import add_one, fresh, waited

KIB = 1024


@pytest.fixture(autouse=True)
def compiled(device: na.Device) -> None:
    add_one.compile(na.meta(4)).sync()
    t = na.full(4, 2.0).sync()
    t.to_host().sync()
    t.dup().sync()
    na.from_host(np.zeros(KIB, np.uint8)).to_host().sync()


async def test_no_more_operations_are_in_flight_than_allowed(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    z = await na.zeros(4)
    gate.close()
    before = counters()
    with na.limit(ops=3):
        futures = [na.spawn(add_one(z), stream) for _ in range(10)]
        await settle(device)
        assert (counters() - before).launches == 3
        assert device.in_flight.ops == 3
        assert not any(f.done() for f in futures)
        gate.open()
        most = 0
        for future in futures:
            await future
            most = max(most, device.in_flight.ops)
    assert most <= 3
    assert (await z.to_host()).tolist() == [10] * 4


async def test_no_more_bytes_are_in_flight_than_allowed(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    gate.close()
    with na.limit(bytes=10 * KIB):
        futures = [na.spawn(na.zeros(KIB), stream) for _ in range(6)]  # 4 KiB each
        await settle(device)
        assert device.in_flight == (2, 8 * KIB)
        gate.open()
        for future in futures:
            assert device.in_flight.bytes <= 10 * KIB
            await future


async def test_waiters_for_bytes_count_operations_that_go(
    device: na.Device, stream: na.Stream, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, looks, is_available = device.new_stream(), list[Capacity](), Capacity.is_available

    def noted(room: Capacity) -> bool:
        looks.append(room)
        return is_available(room)

    monkeypatch.setattr(Capacity, "is_available", noted)
    gate.close()
    na.limit(ops=2, bytes=4000)
    try:
        with Gate(other):
            held = na.spawn(na.zeros(700), stream)
            large = na.spawn(na.zeros(800), other)  # no room for its bytes
            with na.limit(priority=1):
                small = [na.spawn(na.zeros(1), other) for _ in range(2)]
            await settle(device)
            assert device.in_flight.ops == 2
            gate.open()
            await held
            while device.in_flight.ops < 2:
                await settle(device)
            looks.clear()
            while not looks and device.in_flight.ops == 2:  # the large one looks again
                await settle(device)
            await settle(device)
            assert device.in_flight.ops == 2
        await na.gather(large, *small)
    finally:
        na.limit()


@pytest.mark.parametrize(
    ("make", "nbytes"),
    [
        (lambda t, host: na.from_host(host), 2 * KIB),
        (lambda t, host: t.dup(), KIB),
        (lambda t, host: t.to_host(), KIB),
        (lambda t, host: na.memcpy(t, host), KIB),
        (lambda t, host: na.convert(t, np.uint16), 2 * KIB),
    ],
    ids=["from_host", "dup", "to_host", "memcpy", "convert"],
)
async def test_what_copies_hold_counts(
    device: na.Device, stream: na.Stream, gate: Gate, make: Any, nbytes: int
) -> None:
    host = np.zeros(KIB, np.uint8)
    t = await na.from_host(host)
    await make(t, host)  # compiled
    gate.close()
    with na.limit(bytes=2 * nbytes):
        futures = [na.spawn(make(t, host), stream) for _ in range(5)]
        await settle(device)
        assert device.in_flight == (2, 2 * nbytes)
        gate.open()
        await na.gather(*futures)


async def test_what_is_too_large_goes_alone(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    gate.close()
    with na.limit(bytes=KIB):
        small, large = na.spawn(na.zeros(64), stream), na.spawn(na.zeros(64 * KIB), stream)
        await settle(device)
        assert device.in_flight.ops == 1
        gate.open()
        assert (await large).size == 64 * KIB
        await small
        whole = na.zeros(64 * KIB).then(lambda t: add_one(t)).output().dup().to_host()
        assert (await whole).tolist() == [1] * 64 * KIB


async def test_the_order_of_submission_is_kept(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    other = device.new_stream()
    z = await na.zeros(4)
    gate.close()
    with na.limit(ops=2):
        na.spawn(na.zeros(1), stream)
        na.spawn(add_one(z), stream)
        for value in range(5):
            na.spawn(na.fill(z, value), other)
            na.spawn(fresh()(z), stream)
        last = na.spawn(z.to_host(), other)
        await settle(device)
        gate.open()
        assert (await last).tolist() == [5] * 4


def test_a_blocking_form_waits_for_room(device: na.Device, stream: na.Stream, gate: Gate) -> None:
    z = na.zeros(4).sync()
    gate.close()
    with na.limit(ops=2):
        add_one(z).async_on(stream)
        add_one(z).async_on(stream)
        opening = threading.Timer(0.05, gate.open)
        opening.start()
        before = counters()
        add_one(z).async_on(stream)
        assert gate.is_open
        assert (counters() - before).launches == 1
        opening.join()
    assert z.to_host().sync().tolist() == [3] * 4


async def test_blocking_submits_first_what_waits_for_room(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    z = await na.zeros(4)
    gate.close()
    with na.limit(ops=1):
        for _ in range(4):
            na.spawn(add_one(z), stream)
        opening = threading.Timer(0.05, gate.open)
        opening.start()
        stream.synchronize()
        assert gate.is_open
        opening.join()
    assert (await z.to_host()).tolist() == [4] * 4


async def test_a_closure_running_operations_does_not_self_wait(device: na.Device) -> None:
    with na.limit(ops=1, bytes=64):
        op = na.zeros(4).then_unchecked(lambda t: na.value(t.to_host().sync()))
        assert (await asyncio.wait_for(waited(op), 300)).tolist() == [0] * 4
        one = na.ones(64).shared()
        a, b = await na.gather(one.then(lambda t: t.dup()), one.then(lambda t: t.dup()))
        assert a.size == b.size == 64


async def test_a_failing_operation_gives_its_place_back(device: na.Device) -> None:
    z = await na.zeros(4)
    with na.limit(ops=1), inject(device, "kernel", after=1):
        futures = [na.spawn(add_one(z)) for _ in range(4)]
        results = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 300)
    assert sum(isinstance(r, BaseException) for r in results) == 1
    assert (await z.to_host()).tolist() == [3] * 4


def test_a_lost_completion_keeps_no_place(device: na.Device, stream: na.Stream) -> None:
    z = na.zeros(4).sync()
    with na.limit(ops=1):
        with inject(device, "completion"):
            add_one(z).async_on(stream)
        add_one(z).async_on(device.new_stream())
    assert z.to_host().sync().tolist() == [2] * 4


def test_waiters_are_shown_while_others_begin_to_wait(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    gate.close()
    na.zeros(4).async_on(stream)
    is_over = threading.Event()

    def room(nbytes: int) -> Capacity:
        return Capacity(Admission(device), Submission(stream, ""), nbytes)

    def work() -> None:
        with na.use_device(device):
            while not is_over.is_set():
                mine = room(2000)
                assert not mine.is_available()
                mine.taken()

    before = sys.getswitchinterval()
    na.limit(bytes=1000)
    threads = [threading.Thread(target=work) for _ in range(2)]
    try:
        first, others = room(4), [room(2000) for _ in range(100)]
        assert not any(other.is_available() for other in others)
        sys.setswitchinterval(1e-6)
        for thread in threads:
            thread.start()
        for _ in range(20_000):
            assert first.is_available()
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
        na.limit()
