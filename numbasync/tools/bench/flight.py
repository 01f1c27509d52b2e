"""`numbasync bench flight`: a thousand operations in flight at once, over four streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numbasync as na
from numbasync.device.device import Device
from numbasync.tools.bench import peer_registry, report
from numbasync.tools.bench.awaiting import loop_name
from numbasync.tools.bench.measure import Case, measure
from numbasync.tools.bench.targets import Target
from numbasync.tools.bench.work import STREAMS, THREADS, WIDTH, N, check, saxpy

GATHER = "numbasync: na.gather, build included"
ASYNCIO = "numbasync: asyncio.gather, build included"
BASE = "cuda.bindings: packed launches, drained outside"
METHOD = (
    "{width:,} operations, saxpy(z[1024], f32, x[1024]) with a z of their own each, over {streams} "
    "streams; everything is done at the end of a round, on {loop}, and the drain is not timed "
    "where the name says so. Per operation. The cases take turns; medians and quartiles of "
    "{rounds} rounds after one that does not count; garbage collection off."
)
TARGETS = (
    Target(f"{WIDTH:,} by na.gather / launch only", GATHER, BASE, 1.7, 1.3),
    Target(
        f"{WIDTH:,} by asyncio.gather / Python host callback",
        ASYNCIO, "Python host callback: launches + asyncio.gather", 0.4, 0.3,
    ),
)  # fmt: skip


async def tables(device: Device, rounds: int) -> list[report.Record]:
    """What is reported."""
    others = peer_registry.of("flight", device)
    before = device.policy
    device.policy = na.StreamPoolRoundRobin(device, STREAMS)
    try:
        cases = [*await _ours(device), *others.cases]
        found = await measure(cases, calls=WIDTH, rounds=rounds)
    finally:
        device.policy = before
    found.missing += others.missing
    method = METHOD.format(width=WIDTH, streams=STREAMS, rounds=rounds, loop=loop_name())
    return [report.table(f"{WIDTH:,} in flight, per op", method, found, BASE, TARGETS)]


async def _ours(device: Device) -> list[Case]:
    zs = await na.gather(*[na.zeros(N) for _ in range(WIDTH)])
    x = await na.ones(N)
    parts = [z.partition(THREADS) for z in zs]
    streams = [device.new_stream() for _ in range(STREAMS)]

    def ops() -> list[Any]:
        return [saxpy(part, 2.0, x) for part in parts]

    async def gathered() -> None:
        await na.gather(*ops())

    async def by_asyncio() -> None:
        await asyncio.gather(*ops())

    def case(name: str, call: Callable[[], Awaitable[None]]) -> Case:
        async def run(calls: int) -> float:
            began = time.perf_counter()
            await call()
            return time.perf_counter() - began

        return Case(name, run, _right(zs, call), WIDTH)

    async def built(calls: int) -> float:
        made = ops()
        began = time.perf_counter()
        await na.gather(*made)
        return time.perf_counter() - began

    async def submitted(calls: int) -> float:
        began = time.perf_counter()
        for i, part in enumerate(parts):
            saxpy(part, 2.0, x).async_on(streams[i % STREAMS])
        seconds = time.perf_counter() - began
        for stream in streams:
            stream.synchronize()
        return seconds

    async def submit() -> None:
        await submitted(WIDTH)

    return [
        case(GATHER, gathered),
        case(ASYNCIO, by_asyncio),
        Case("numbasync: na.gather of built ops", built, _right(zs, gathered), WIDTH),
        Case(
            "numbasync: build + submit, drained outside", submitted, _right(zs, submit), WIDTH
        ),
    ]  # fmt: skip


def _right(
    zs: list[na.Tensor], call: Callable[[], Awaitable[None]]
) -> Callable[[], Awaitable[None]]:
    async def check_all() -> None:
        for z in zs:
            await na.fill(z, 0)
        await call()
        for z in zs:
            check(await z.to_host())

    return check_all
