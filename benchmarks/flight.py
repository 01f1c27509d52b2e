"""`numbasync bench flight`: a thousand operations in flight at once, over four streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numbasync as na
from benchmarks import report
from benchmarks.measure import Case, Run, awaited, per_part, timed
from benchmarks.tables import table
from benchmarks.targets import Target
from benchmarks.work import STREAMS, THREADS, WIDTH, N, check, saxpy
from numbasync.device.device import Device
from numbasync.testing.timing.timer import Stopwatch

GATHER = "numbasync: na.gather, build included"
ASYNCIO = "numbasync: asyncio.gather, build included"
BASE = "cuda.bindings: packed launches, drained outside"
METHOD = (
    "{calls:,} operations, saxpy(z[1024], f32, x[1024]) with a z of their own each, over {streams}"
    " streams; everything is done at the end of a round, on {loop}, and the drain is not timed "
    "where the name says so. Per operation."
)
TARGETS = (
    Target(f"{WIDTH:,} by na.gather / launch only", GATHER, BASE, 1.4, 1.2),
    Target(
        f"{WIDTH:,} by asyncio.gather / Python host callback",
        ASYNCIO, "Python host callback: launches + asyncio.gather", 0.4, 0.3,
    ),
)  # fmt: skip


async def tables(device: Device, rounds: int) -> list[report.Record]:
    policy = device.policy
    device.policy = na.StreamPoolRoundRobin(device, STREAMS)
    try:
        return [
            await table(
                device, rounds, "flight", f"{WIDTH:,} in flight, per op", await _own(device),
                calls=WIDTH, method=METHOD, base=BASE, targets=TARGETS, streams=STREAMS,
            )
        ]  # fmt: skip
    finally:
        device.policy = policy


async def _own(device: Device) -> list[Case]:
    zs = await na.gather(*[na.zeros(N) for _ in range(WIDTH)])
    x = await na.ones(N)
    parts = [z.partition(THREADS) for z in zs]
    streams = [device.new_stream() for _ in range(STREAMS)]

    def build() -> list[Any]:
        return [saxpy(part, 2.0, x) for part in parts]

    async def gather() -> None:
        await na.gather(*build())

    async def asyncio_gather() -> None:
        await asyncio.gather(*build())

    async def gather_built(calls: int) -> float:
        ops = build()
        with Stopwatch() as watch:
            await na.gather(*ops)
        return watch.seconds

    def submit() -> None:
        for i, part in enumerate(parts):
            saxpy(part, 2.0, x).async_on(streams[i % STREAMS])

    def drain() -> None:
        for stream in streams:
            stream.synchronize()

    def case(name: str, run: Run) -> Case:
        return Case(name, run, _check(zs, lambda: run(WIDTH)))

    return [
        case(GATHER, per_part(awaited(gather), WIDTH)),
        case(ASYNCIO, per_part(awaited(asyncio_gather), WIDTH)),
        case("numbasync: na.gather of built ops", gather_built),
        case("numbasync: build + submit, drained outside", per_part(timed(submit, drain), WIDTH)),
    ]


def _check(
    zs: list[na.Tensor], run: Callable[[], Awaitable[object]]
) -> Callable[[], Awaitable[None]]:
    async def check_all() -> None:
        for z in zs:
            await na.fill(z, 0)
        await run()
        for z in zs:
            check(await z.to_host())

    return check_all
