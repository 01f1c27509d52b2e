"""`numbasync bench graph`: launches one after the other, in every way to run them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numbasync as na
from benchmarks import report
from benchmarks.measure import Case, Run, awaited, timed
from benchmarks.replayed import ReplayedGraph, zipped
from benchmarks.tables import table
from benchmarks.work import THREADS, N, check_run, saxpy
from numbasync.device.device import Device

LENGTHS = (1, 10, 100, 1000)
LAUNCHES = 1000  # of a repetition, about
BASE = "numbasync: each launch sync_on"
METHOD = (
    "saxpy(z[1024], f32, x[1024]), 128 threads a block, {length:,} times on one row and one "
    "stream, and waited for; building the operations is included, capturing the graph is not. Each"
    " round is {calls} chains, on {loop}."
)


async def tables(device: Device, rounds: int) -> list[report.Record]:
    """A table for each length."""
    return [
        await table(
            device, rounds, "chain", f"a chain of {length:,}",
            await _own(device.new_stream(), length),
            calls=max(3, min(200, LAUNCHES // length)), method=METHOD, base=BASE,
            unit="microseconds a chain", sizes=(length,), length=length,
        )
        for length in LENGTHS
    ]  # fmt: skip


async def _own(stream: na.Stream, length: int) -> list[Case]:
    z, x = await na.zeros(N), await na.ones(N)
    part, graph = z.partition(THREADS), await ReplayedGraph.on(stream, length)

    def one_by_one() -> None:
        for _ in range(length):
            saxpy(part, 2.0, x).sync_on(stream)

    def as_one() -> None:
        zipped(z, x, length).sync_on(stream)

    async def as_one_awaited() -> None:
        await zipped(z, x, length).schedule(stream)

    def case(name: str, run: Run) -> Case:
        return Case(name, run, _check(z, run, length))

    return [
        case(BASE, timed(one_by_one, stream.synchronize)),
        case("numbasync: one zip, sync_on", timed(as_one, stream.synchronize)),
        case("numbasync: one zip, awaited", awaited(as_one_awaited)),
        Case(
            "numbasync: graph.launch().sync_on", timed(graph.sync, stream.synchronize), graph.check
        ),
    ]  # fmt: skip


def _check(z: na.Tensor, run: Run, length: int) -> Callable[[], Awaitable[None]]:
    return lambda: check_run(z, lambda: run(1), length)
