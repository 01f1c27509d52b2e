"""Errors of the device reach those whose they are, once, and nobody else."""

from __future__ import annotations

import gc
import traceback
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.testing import Gate


class ReadOnly:
    """An array that a copy is enqueued to, and that refuses it when the device is done."""

    def __init__(self) -> None:
        self.array = np.zeros(4, np.float32)
        self.source = na.ones(4).sync()

    def copy(self) -> na.DeviceOp[Any]:
        return na.memcpy(self.array, self.source)

    def refuse(self) -> None:
        self.array.flags.writeable = False


async def test_a_shared_operations_error_is_not_its_runners(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    bad = ReadOnly()
    shared = na.ones(4).shared()
    gate.close()
    future = na.spawn(shared.then(lambda _: bad.copy()), stream)
    bad.refuse()
    gate.open()
    with pytest.raises(ValueError, match="read-only"):
        await future
    assert (await (await shared).to_host()).tolist() == [1] * 4


def test_errors_of_async_on_are_not_shared(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    bad = ReadOnly()
    gate.close()
    bad.copy().async_on(stream)
    bad.refuse()
    gate.open()
    assert na.value(42).sync_on(stream) == 42
    assert na.spawn(na.full(2, 3).to_host(), stream).sync().tolist() == [3, 3]
    with pytest.raises(ValueError, match="read-only"):
        stream.synchronize()


def test_device_synchronize_waits_for_all_and_then_raises(device: na.Device) -> None:
    bad = ReadOnly()
    one, two = device.new_stream(), device.new_stream()
    gate = Gate(one)
    gate.close()
    bad.copy().async_on(one)
    bad.refuse()
    na.ones(1000).async_on(two)
    gate.open()
    with pytest.raises(ValueError, match="read-only"):
        device.synchronize()
    assert one.query() and two.query()
    device.synchronize()


def test_a_dropped_stream_with_unseen_errors_warns(device: na.Device) -> None:
    bad = ReadOnly()
    stream = device.new_stream()
    gate = Gate(stream)
    gate.close()
    bad.copy().async_on(stream)
    bad.refuse()
    gate.open()
    device.backend.quiesce()
    del gate, bad  # what was read remembers its readers
    with pytest.warns(RuntimeWarning, match="nobody synchronised"):
        device.reclaim()
        del stream
        gc.collect()


@pytest.mark.parametrize("shared", [False, True])
async def test_an_error_does_not_grow_with_every_await(device: na.Device, shared: bool) -> None:
    def fail(_: Any) -> Any:
        raise ValueError("mine")

    op = na.value(1).map(fail)
    held = op.shared() if shared else na.spawn(op)
    lengths = []
    for _ in range(20):
        try:
            await held
        except ValueError as error:
            lengths.append(len(traceback.extract_tb(error.__traceback__)))
    assert len(lengths) == 20
    assert max(lengths[1:]) <= lengths[0] + 4


@pytest.mark.parametrize("way", ["synchronize", "done"])
async def test_an_error_behind_async_on_is_raised_once(
    device: na.Device, stream: na.Stream, gate: Gate, way: str
) -> None:
    bad = ReadOnly()
    gate.close()
    bad.copy().async_on(stream)
    bad.refuse()
    gate.open()
    with pytest.raises(ValueError, match="read-only"):
        stream.synchronize() if way == "synchronize" else await stream.done()
    await stream.done()
    stream.synchronize()
