"""`numbasync bench await`: one small kernel and its completion, in an event loop."""

from __future__ import annotations

import asyncio
import time

import numbasync as na
from numbasync.device.device import Device
from numbasync.tools.bench import launch, long_wait, peer_registry, report
from numbasync.tools.bench.measure import Case, awaited, measure, timed
from numbasync.tools.bench.targets import Target
from numbasync.tools.bench.work import THREADS, N, check, saxpy

AWAIT = "numbasync: build + await"
BASE = "cuda.bindings: packed launch + synchronize"
METHOD = (
    "saxpy(z[1024], f32, x[1024]), 128 threads a block; each call is waited for before the next "
    "one, {calls} calls a round, on {loop}. The cases take turns; medians and quartiles of "
    "{rounds} rounds after one that does not count; garbage collection off."
)
TARGETS = (
    Target("build + await / packed launch + synchronize", AWAIT, BASE, 1.3, 1.0),
    Target(
        "build + await / Python host callback",
        AWAIT, "Python host callback: packed launch + await", 0.33, 0.25,
    ),
)  # fmt: skip


async def tables(device: Device, rounds: int) -> list[report.Record]:
    """What is reported."""
    stream = device.new_stream()
    z = na.zeros(N).sync_on(stream)
    x = na.ones(N).sync_on(stream)
    others = peer_registry.of("await", device)
    calls = await launch.calls_of(stream, z, x)
    found = await measure([*_ours(stream, z, x), *others.cases], calls=calls, rounds=rounds)
    found.missing += others.missing
    method = METHOD.format(calls=calls, rounds=rounds, loop=loop_name())
    return [
        report.table("one small kernel, awaited", method, found, BASE, TARGETS),
        await long_wait.table(device, rounds),
    ]


def loop_name() -> str:
    """Whose event loop this is."""
    return type(asyncio.get_running_loop()).__module__.split(".")[0]


def _ours(stream: na.Stream, z: na.Tensor, x: na.Tensor) -> list[Case]:
    part = z.partition(THREADS)

    async def right() -> None:
        await na.fill(z, 0)
        await saxpy(part, 2.0, x)
        check(await z.to_host())

    async def scheduled() -> None:
        await saxpy(part, 2.0, x).schedule(stream)

    async def plain() -> None:
        await saxpy(part, 2.0, x)

    async def marked() -> None:
        saxpy(part, 2.0, x).async_on(stream)
        await stream.done()

    def build_and_sync() -> None:
        saxpy(part, 2.0, x).sync_on(stream)

    async def executor(calls: int) -> float:
        loop = asyncio.get_running_loop()
        began = time.perf_counter()
        for _ in range(calls):
            saxpy(part, 2.0, x).async_on(stream)
            await loop.run_in_executor(None, stream.synchronize)
        return time.perf_counter() - began

    return [
        Case(AWAIT, awaited(plain), right),
        Case("numbasync: build + await on one stream", awaited(scheduled), right),
        Case("numbasync: build + submit, await stream.done()", awaited(marked), right),
        Case(launch.SYNC, timed(build_and_sync, stream.synchronize), right),
        Case("run_in_executor: our submit, stream.synchronize", executor, right, calls=100),
    ]
