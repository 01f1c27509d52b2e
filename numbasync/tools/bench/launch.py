"""`numbasync bench launch`: submitting one small kernel, and waiting for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numbasync as na
from numbasync.device.device import Device
from numbasync.tools.bench import peer_registry, report
from numbasync.tools.bench.measure import Case, measure, timed
from numbasync.tools.bench.targets import Target
from numbasync.tools.bench.work import CHAIN, THREADS, N, check, saxpy

SUBMIT = "numbasync: submit a built op"
SYNC = "numbasync: build + sync_on"
ZIPPED = f"numbasync: submit a zip of {CHAIN}, per launch"
CHAINED = f"numbasync: submit a chain of {CHAIN} by then, per launch"
BASE = "Numba: launch"
METHOD = (
    "saxpy(z[1024], f32, x[1024]), 128 threads a block. Each round is {calls} calls on one "
    "stream; the queue is drained outside of the timed part, except where waiting is "
    "measured. The cases take turns; medians and quartiles of {rounds} rounds after one that "
    "does not count; garbage collection off."
)
TARGETS = (
    Target("submit a built op / Numba's launch", SUBMIT, BASE, 0.25, 0.2),
    Target("submit a built op / CuPy's launch", SUBMIT, "CuPy RawKernel: launch", 1.1, 0.9),
    Target(
        "build + sync_on / packed launch + synchronize",
        SYNC, "cuda.bindings: packed launch + synchronize", 1.15, 1.05,
    ),
    Target(
        f"zip of {CHAIN} launches, per launch / compiled loop",
        ZIPPED, "driver: launch in a compiled loop", 1.5, 1.15,
    ),
    Target(
        f"chain of {CHAIN} launches by then, per launch / compiled loop",
        CHAINED, "driver: launch in a compiled loop", 1.5, 1.15,
    ),
)  # fmt: skip


async def tables(device: Device, rounds: int) -> list[report.Record]:
    """What is reported."""
    stream = device.new_stream()
    z = na.zeros(N).sync_on(stream)
    x = na.ones(N).sync_on(stream)
    others = peer_registry.of("launch", device)
    calls = await calls_of(stream, z, x)
    found = await measure([*_ours(stream, z, x), *others.cases], calls=calls, rounds=rounds)
    found.missing += others.missing
    method = METHOD.format(calls=calls, rounds=rounds)
    return [report.table("one small kernel", method, found, BASE, TARGETS)]


async def calls_of(stream: na.Stream, z: na.Tensor, x: na.Tensor) -> int:
    """Calls of a round: 500, or fewer where one takes long; a multiple of a chain's."""
    saxpy(z.partition(THREADS), 2.0, x).sync_on(stream)
    began = time.perf_counter()
    saxpy(z.partition(THREADS), 2.0, x).sync_on(stream)
    calls = max(CHAIN, min(500, round(0.02 / (time.perf_counter() - began))))
    return calls - calls % CHAIN


def _ours(stream: na.Stream, z: na.Tensor, x: na.Tensor) -> list[Case]:
    part = z.partition(THREADS)

    async def right() -> None:
        await na.fill(z, 0)
        await saxpy(part, 2.0, x)
        check(await z.to_host())

    async def submit(calls: int) -> float:
        return _submitted([saxpy(part, 2.0, x) for _ in range(calls)], stream)

    async def wait(calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            await saxpy(part, 2.0, x).schedule(stream)
        return time.perf_counter() - began

    def build_and_submit() -> None:
        saxpy(part, 2.0, x).async_on(stream)

    def build_and_sync() -> None:
        saxpy(part, 2.0, x).sync_on(stream)

    return [
        Case(SUBMIT, submit, right),
        Case("numbasync: build + submit", timed(build_and_submit, stream.synchronize), right),
        Case(SYNC, timed(build_and_sync, stream.synchronize), right),
        Case("numbasync: build + await", wait, right),
        *_chains(stream, z, x),
    ]


def _submitted(ops: Sequence[na.DeviceOp[Any]], stream: na.Stream) -> float:
    began = time.perf_counter()
    for op in ops:
        op.async_on(stream)
    seconds = time.perf_counter() - began
    stream.synchronize()
    return seconds


def _chains(stream: na.Stream, z: na.Tensor, x: na.Tensor) -> list[Case]:
    """Many launches as one operation. Building the next one is a part of a chain by `then`."""
    part = z.partition(THREADS)

    def zipped() -> na.DeviceOp[Any]:
        return na.zip(*[saxpy(part, 2.0, x) for _ in range(CHAIN)])

    def chained() -> na.DeviceOp[Any]:
        op: na.DeviceOp[Any] = saxpy(part, 2.0, x)
        for _ in range(CHAIN - 1):
            op = op.then(lambda _: saxpy(part, 2.0, x))
        return op

    def case(name: str, make: Callable[[], na.DeviceOp[Any]]) -> Case:
        async def right() -> None:
            await na.fill(z, 0)
            await make()
            check(await z.to_host(), CHAIN)

        async def submit(calls: int) -> float:
            return _submitted([make() for _ in range(calls // CHAIN)], stream)

        return Case(name, submit, right)

    return [case(ZIPPED, zipped), case(CHAINED, chained)]
