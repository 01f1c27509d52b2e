"""Chains: launches that come one after the other, in every way to run them. For `bench graph`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numbasync as na
from numbasync.device.device import Device
from numbasync.tools.bench import peer_registry, report
from numbasync.tools.bench.awaiting import loop_name
from numbasync.tools.bench.measure import Case, awaited, measure, timed
from numbasync.tools.bench.replayed import Replayed, right_by, zipped
from numbasync.tools.bench.work import THREADS, N, saxpy

LENGTHS = (1, 10, 100, 1000)
LAUNCHES = 1000  # of a round, about
BASE = "numbasync: each launch sync_on"
METHOD = (
    "saxpy(z[1024], f32, x[1024]), 128 threads a block, {length:,} times on one row and one "
    "stream, and waited for; building the operations is included, capturing the graph is not. "
    "Each round is {calls} chains, on {loop}. The cases take turns; medians and quartiles of "
    "{rounds} rounds after one that does not count; garbage collection off."
)


async def tables(device: Device, rounds: int) -> list[report.Record]:
    """A table for each length."""
    return [await _table(device, rounds, length) for length in LENGTHS]


async def _table(device: Device, rounds: int, length: int) -> report.Record:
    stream = device.new_stream()
    others = peer_registry.of("chain", device, length)
    calls = max(3, min(200, LAUNCHES // length))
    found = await measure([*await _ours(stream, length), *others.cases], calls=calls, rounds=rounds)
    found.missing += others.missing
    method = METHOD.format(length=length, calls=calls, rounds=rounds, loop=loop_name())
    what = f"a chain of {length:,}"
    return report.table(what, method, found, BASE, (), "microseconds a chain")


async def _ours(stream: na.Stream, length: int) -> list[Case]:
    z, x = await na.zeros(N), await na.ones(N)
    part, graph = z.partition(THREADS), await Replayed.on(stream, length)

    def one_by_one() -> None:
        for _ in range(length):
            saxpy(part, 2.0, x).sync_on(stream)

    def at_once() -> None:
        zipped(z, x, length).sync_on(stream)

    async def as_one() -> None:
        await zipped(z, x, length).schedule(stream)

    def right(run: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        return lambda: right_by(z, run, length)

    def blocking(name: str, call: Callable[[], None]) -> Case:
        async def run() -> None:
            call()

        return Case(name, timed(call, stream.synchronize), right(run))

    return [
        blocking(BASE, one_by_one),
        blocking("numbasync: one zip, sync_on", at_once),
        Case("numbasync: one zip, awaited", awaited(as_one), right(as_one)),
        Case(
            "numbasync: graph.launch().sync_on", timed(graph.sync, stream.synchronize), graph.right
        ),
    ]
