"""The CPU device without threads: equal seeds, equal steps; and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import uvloop

import numbasync as na
from numbasync.errors import StateError
from numbasync.testing import gate, seeded
from tests.common import add_one, waited


@pytest.fixture
def cpu() -> Iterator[na.Device]:
    device = na.devices("cpu")[0]
    with na.use_device(device):
        add_one.compile(na.meta(1)).sync()
        yield device


def order(device: na.Device, seed: int) -> list[float]:
    """When each of nine launches on three streams was passed, in steps."""
    with seeded(device, seed):
        streams = [device.new_stream() for _ in range(3)]
        start = device.new_event().record(streams[0])
        marks = []
        for _ in range(3):
            for stream in streams:
                add_one(na.ones(4)).async_on(stream)
                marks.append(device.new_event().record(stream))
        for stream in streams:
            stream.synchronize()
        return [start.elapsed_ms(mark) for mark in marks]


def test_a_seed_is_an_interleaving(cpu: na.Device) -> None:
    assert order(cpu, 1) == order(cpu, 1)
    assert len({tuple(order(cpu, seed)) for seed in range(10)}) > 5


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_awaiting_takes_the_steps(cpu: na.Device, new_loop: Any) -> None:
    async def main() -> Any:
        z = await na.zeros(4)
        await na.gather(*(add_one(z) for _ in range(20)))
        return await z.to_host()

    with seeded(cpu, 3), asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(main()).tolist() == [20] * 4


def test_nothing_goes_on_by_itself(cpu: na.Device) -> None:
    with seeded(cpu, 0):
        future = na.spawn(na.ones(4).to_host())
        steps = 0
        while not future.done():
            steps += 1
        assert steps > 1
        np.testing.assert_array_equal(future.sync(), np.ones(4))


def test_memory_that_nobody_wrote_is_recognised(cpu: na.Device) -> None:
    with seeded(cpu, 0):
        assert set(na.empty(8, np.uint8).to_host().sync().tolist()) == {0xA7}


def test_the_threads_take_over_what_is_left(cpu: na.Device) -> None:
    stream = cpu.new_stream()
    with seeded(cpu, 0), gate(stream):
        future = na.spawn(na.ones(4).to_host(), stream)
        with pytest.raises(StateError, match="seeded already"), seeded(cpu, 1):
            pass
    assert na.run(waited(future)).tolist() == [1] * 4
