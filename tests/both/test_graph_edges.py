"""Graphs at the edges: what failed halfway, who uses no buffer, odd arguments."""

from __future__ import annotations

from typing import Any

import numbasync as na
from numbasync.testing import Gate, settle
from tests.common import add_one, saxpy


def host(tensor: na.Tensor) -> Any:
    return tensor.to_host().sync().tolist()


def compiled() -> None:
    """Compile what a gated test launches: loading a module may wait for a held stream."""
    z = na.zeros(8).sync()
    add_one(z).sync()
    saxpy(z, 1.0, na.ones(8)).sync()
    na.fill(z, 1).sync()
    z.to_host().sync()


# --- whose order ---


async def test_launches_of_a_graph_that_only_reads_follow_each_other(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    compiled()
    two, three = device.new_stream(), device.new_stream()
    x = await na.ones(8)
    graph = x.to_host().graph_on(stream)
    array = graph.take_output()
    assert array is not None
    gate.close()
    graph.launch().async_on(stream)
    second = na.spawn(graph.launch(), two)
    written = na.spawn(na.fill(x, 5), three)
    await settle(device)
    assert not second.done()
    assert not written.done(), "both launches read what it writes"
    gate.open()
    await second
    await written
    assert array.tolist() == [1] * 8
