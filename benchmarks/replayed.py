"""Graphs of saxpys on one row, as several tables of `bench graph` replay them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numbasync as na
from benchmarks.work import CHAIN, THREADS, N, check_run, saxpy

NODES = (1, CHAIN)
DEPTH = 10  # launches of a graph in the queue, at most: a full queue would make the host wait


class ReplayedGraph:
    """A graph of so many launches on one row, each of which adds to what the one before left.

    Attributes:
        stream: the stream that the graph is launched on.
        graph: the graph.
    """

    def __init__(self, stream: na.Stream, nodes: int, z: na.Tensor, x: na.Tensor) -> None:
        self.stream, self._nodes, self._z = stream, nodes, z
        self.graph: na.CudaGraph[Any] = zipped(z, x, nodes).graph_on(stream)

    @classmethod
    async def on(cls, stream: na.Stream, nodes: int) -> ReplayedGraph:
        """A graph with a row of its own."""
        return cls(stream, nodes, await na.zeros(N), await na.ones(N))

    def submit(self) -> None:
        self.graph.launch().async_on(self.stream)

    def sync(self) -> None:
        self.graph.launch().sync_on(self.stream)

    async def wait(self) -> None:
        await self.graph.launch()

    async def check(self) -> None:
        """Raise unless a launch gives the right answer."""
        await self.check_run(self.wait)

    async def check_run(self, run: Callable[[], Awaitable[object]]) -> None:
        """Raise unless `run` launches the graph once."""
        await check_run(self._z, run, self._nodes)


def zipped(z: na.Tensor, x: na.Tensor, launches: int) -> na.DeviceOp[Any]:
    """So many launches on one row, as one operation."""
    part = z.partition(THREADS)
    return na.zip(*[saxpy(part, 2.0, x) for _ in range(launches)])
