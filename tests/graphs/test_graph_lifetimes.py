"""What a graph keeps alive, and what comes back when it goes."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import (
    SharedStorageError,
)
from numbasync.testing import Gate
from tests.common import add_one, compiled, copy_to, elements, saxpy, used


def test_a_graph_keeps_what_it_captured(device: na.Device, stream: na.Stream) -> None:
    z, x = na.zeros(1000).sync(), na.from_host(np.arange(1000, dtype=np.float32)).sync()
    out = na.empty(1000).sync()
    graph = na.zip(
        na.fill(z, 1), saxpy(z, 2.0, x), copy_to(out, z)
    ).graph_on(stream)  # fmt: skip
    freed = weakref.ref(z.storage), weakref.ref(x.storage)
    del z, x
    for _ in range(100):
        gc.collect(0)
        poison = [na.full(1000, np.nan).sync() for _ in range(3)]
        graph.launch().sync()
        np.testing.assert_array_equal(out.to_host().sync(), 2 * np.arange(1000) + 1)
        del poison
    assert all(ref() is not None for ref in freed)
    del graph
    gc.collect()
    device.synchronize()
    assert all(ref() is None for ref in freed)


async def test_a_pending_launch_keeps_the_graph(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    compiled()
    out = await na.zeros(1000)
    start = used(device)

    async def made() -> na.CudaGraph[Any]:
        z, x = await na.zeros(1000), await na.ones(1000)
        return na.zip(saxpy(z, 2.0, x), copy_to(out, z)).graph_on(stream)

    graph = await made()
    gone = weakref.ref(graph)
    op = graph.launch()
    gate.close()
    graph.launch().async_on(stream)
    future = na.spawn(op, stream)
    del graph, op
    gc.collect()
    assert gone() is not None
    poison = [na.full(1000, np.nan).sync_on(device.new_stream()) for _ in range(4)]
    gate.open()
    await future
    assert (await out.to_host()).tolist() == [4] * 1000
    del future, poison
    assert used(device) == start
    assert gone() is None


def test_a_graph_counts_as_a_holder(device: na.Device, stream: na.Stream) -> None:
    z, x = na.zeros(8).sync(), na.ones(8).sync()
    shared = x.take().shared()
    graph = saxpy(z, 1.0, shared).graph_on(stream)
    with pytest.raises(SharedStorageError):
        shared.partition(4)
    del graph
    gc.collect()
    assert shared.partition(4).tensor.shape == (8,)


def test_memory_comes_back_when_the_graph_goes(device: na.Device, stream: na.Stream) -> None:
    start = used(device)
    graph = na.zeros(2**18).then(lambda z: na.zip(add_one(z), na.ones(2**18))).graph_on(stream)
    assert graph.statistics().nbytes == 2 * 2**20
    graph.launch().sync()
    del graph
    assert used(device) == start


def test_quick_launches_again_after_the_graph_has_gone(
    device: na.Device, stream: na.Stream
) -> None:
    """A buffer that a graph used is an ordinary one afterwards."""
    z = na.zeros(8).sync()
    graph = add_one(z).graph_on(stream)
    graph.launch().sync()
    assert z.storage.fast_path_device is None
    del graph
    gc.collect()
    for _ in range(3):
        add_one(z).sync()
    assert z.storage.fast_path_device is device.backend
    assert elements(z) == [4] * 8
