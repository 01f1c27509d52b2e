"""Graphs of saxpys on one row, as several tables of `bench graph` replay them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numbasync as na
from numbasync.tools.bench.work import CHAIN, THREADS, N, check, saxpy

NODES = (1, CHAIN)
DEPTH = 10  # launches of a graph in the queue, at most: a full one would make the host wait


class Replayed:
    """A graph of so many launches on one row, each of which adds to what the one before left.

    Attributes:
        stream: where it is launched.
        graph: it.
    """

    def __init__(self, stream: na.Stream, nodes: int, z: na.Tensor, x: na.Tensor) -> None:
        self.stream, self._nodes, self._z = stream, nodes, z
        self.graph: na.CudaGraph[Any] = zipped(z, x, nodes).graph_on(stream)

    @classmethod
    async def on(cls, stream: na.Stream, nodes: int) -> Replayed:
        """One with a row of its own."""
        return cls(stream, nodes, await na.zeros(N), await na.ones(N))

    def submit(self) -> None:
        self.graph.launch().async_on(self.stream)

    def sync(self) -> None:
        self.graph.launch().sync_on(self.stream)

    async def wait(self) -> None:
        await self.graph.launch()

    async def right(self) -> None:
        """Raise unless a launch does what it has to."""
        await self.right_by(self.wait)

    async def right_by(self, run: Callable[[], Awaitable[object]]) -> None:
        """Raise unless `run` launches it once."""
        await right_by(self._z, run, self._nodes)


def zipped(z: na.Tensor, x: na.Tensor, launches: int) -> na.DeviceOp[Any]:
    """So many launches on one row, as one operation."""
    part = z.partition(THREADS)
    return na.zip(*[saxpy(part, 2.0, x) for _ in range(launches)])


async def right_by(z: na.Tensor, run: Callable[[], Awaitable[object]], launches: int) -> None:
    """Raise unless `run` launches so many saxpys on `z`."""
    await na.fill(z, 0)
    await run()
    check(await z.to_host(), launches)
