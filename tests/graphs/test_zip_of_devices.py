"""A zip of operations that belong to several devices: each runs on its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import NotAGraphNodeError
from numbasync.testing import Gate, settle
from tests.common import add_one, compiled

Pair = tuple[na.Device, na.Device]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two CPU devices, the first of them current."""
    near, far = na.devices("cpu")[:2]
    for device in (far, near):
        with na.use_device(device):
            compiled()
    with na.use_device(near):
        yield near, far


class Counting:
    """A graph that adds one to a tensor of its device."""

    def __init__(self, device: na.Device) -> None:
        self.stream = device.new_stream()
        self.z = na.zeros(8).sync_on(self.stream)
        self.graph = add_one(self.z).graph_on(self.stream)
        na.fill(self.z, 0).sync_on(self.stream)

    @property
    def count(self) -> Any:
        return self.z.to_host().sync_on(self.stream)[0]


async def test_graphs_of_two_devices_in_one_zip(pair: Pair) -> None:
    a, b = map(Counting, pair)
    for _ in range(3):
        await na.zip(a.graph.launch(), b.graph.launch(), a.graph.launch())
    na.zip(b.graph.launch(), a.graph.launch()).sync()
    assert (a.count, b.count) == (7, 4)


async def test_they_run_together_and_zip_waits_for_both(pair: Pair) -> None:
    a, b = map(Counting, pair)
    for held, free in ((a, b), (b, a)):
        with Gate(held.stream):
            task = asyncio.ensure_future(na.zip(a.graph.launch(), b.graph.launch()))
            for device in pair:
                await settle(device)
            assert not task.done() and free.stream.query() == (free is b)
            assert free.z.device is not None
        await task
    assert (a.count, b.count) == (2, 2)


async def test_copies_and_operations_without_a_device_go_along(pair: Pair) -> None:
    near, far = pair
    t = await na.ones(4)
    here, there, new = await na.zip(na.to_device(t, near), na.to_device(t, far), na.zeros(3))
    assert (here, there.device, new.device) == (t, far, near)
    with na.use_device(far):  # the zip goes to the device of the first that has one
        first, second = await na.zip(
            na.zeros(3), na.to_device(t.dup().sync_on(near.new_stream()), near)
        )
    assert first.device is second.device is near
    shared = na.to_device(t, far).shared()
    pair_of = await na.zip(shared, na.to_device(t, near), shared)
    assert pair_of[0] is pair_of[2] and pair_of[1] is t


async def test_an_error_of_one_device_is_the_zips(pair: Pair) -> None:
    near, far = pair
    t, target = await na.ones(4), np.zeros(4, np.float32)
    u = await na.to_device(t, far)
    a = Counting(near)

    stream = far.new_stream()

    class Download(na.DeviceOp[Any]):
        """A download that belongs to the other device, and fails there."""

        @property
        def home(self) -> Any:
            return stream

        def steps(self, ctx: na.Context) -> Any:
            op = na.memcpy(target, u)
            op.consume()
            return (yield from op.steps(ctx))

    with Gate(stream):
        op = Download()
        op._unused = True
        task = asyncio.ensure_future(na.zip(a.graph.launch(), op))
        for device in pair:
            await settle(device)
        target.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        await task
    assert a.count == 1


def test_a_graph_holds_work_of_one_device(pair: Pair) -> None:
    a, b = map(Counting, pair)
    with pytest.raises(NotAGraphNodeError, match="capture a graph for each device"):
        na.zip(a.graph.launch(), b.graph.launch()).graph_on(a.stream)
    na.zip(a.graph.launch(), a.graph.launch()).graph_on(a.stream).launch().sync()
    assert (a.count, b.count) == (2, 0)
