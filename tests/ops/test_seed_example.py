"""The example that the design began with, and the ways to run it."""

from __future__ import annotations

import numpy as np

import numbasync as na
from numbasync.testing import counters
from tests.common import saxpy2d


def test_sync_on_a_stream(device: na.Device) -> None:
    stream = device.new_stream()
    z = na.zeros((16, 16)).sync_on(stream)
    x = na.ones((16, 16)).sync_on(stream)

    result = saxpy2d(z.partition((4, 4)), 2.0, x).sync_on(stream)

    np.testing.assert_array_equal(z.to_host().sync(), np.full((16, 16), 2.0, np.float32))
    assert result._fields == ("z", "a", "x")
    assert result.z.tensor is z and result.a == 2.0 and result.x is x


async def test_awaited(device: na.Device) -> None:
    z = await na.zeros((16, 16))
    x = await na.ones((16, 16))
    await saxpy2d(z.partition((4, 4)), 2.0, x)
    np.testing.assert_array_equal(await z.to_host(), np.full((16, 16), 2.0, np.float32))


async def test_all_in_one_operation(device: na.Device) -> None:
    op = saxpy2d(na.zeros((16, 16)).partition((4, 4)), 2.0, na.ones((16, 16)))
    before = counters()
    host = await op.output().to_host()
    np.testing.assert_array_equal(host, np.full((16, 16), 2.0, np.float32))
    done = counters() - before
    assert (done.allocations, done.launches) == (2, 1)


def test_building_does_nothing(device: na.Device) -> None:
    saxpy2d(na.zeros((2, 2)).partition((1, 1)), 2.0, na.ones((2, 2))).sync()  # compiled once
    before = counters()
    compiled = na.compile_count()
    op = saxpy2d(na.zeros((2, 2)).partition((1, 1)), 2.0, na.ones((2, 2)))
    chain = op.output().to_host().map(lambda a: a[1:]).inspect(lambda a: a.shape)
    did = counters() - before
    assert (did.allocations, did.launches, did.copies, did.compiles) == (0, 0, 0, 0)
    assert na.compile_count() == compiled
    chain.sync()


async def test_the_same_program_on_every_stream(device: na.Device) -> None:
    for stream in [device.new_stream() for _ in range(3)]:
        z = na.zeros((5, 3)).sync_on(stream)
        value = saxpy2d(z.partition((2, 2)), 1.5, np.ones((5, 3), np.float32)).async_on(stream)
        assert value.z.tensor is z
        await stream.done()
        np.testing.assert_array_equal(z.to_host().sync_on(stream), np.full((5, 3), 1.5))
