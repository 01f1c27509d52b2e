"""`numbasync bench alloc`: new arrays of 1,024 float32 elements, from a pool."""

from __future__ import annotations

import time

import numpy as np

import numbasync as na
from numbasync.device.device import Device
from numbasync.tools.bench import peer_registry, report
from numbasync.tools.bench.measure import Case, measure, timed
from numbasync.tools.bench.targets import Target
from numbasync.tools.bench.work import N

CALLS = 500
EMPTY = "numbasync: empty, build + async_on"
BASE = "CuPy: empty"
METHOD = (
    "A new array of 1,024 float32 elements, dropped at once, so that its memory is used again; "
    "{calls} calls a round on one stream, which is drained outside of the timed part. The cases "
    "take turns; medians and quartiles of {rounds} rounds after one that does not count; garbage "
    "collection off."
)
TARGETS = (Target("empty(1024), build + async_on / CuPy's empty", EMPTY, BASE, 2.0, 1.0),)


async def tables(device: Device, rounds: int) -> list[report.Record]:
    """What is reported."""
    others = peer_registry.of("alloc", device)
    found = await measure([*_ours(device), *others.cases], calls=CALLS, rounds=rounds)
    found.missing += others.missing
    method = METHOD.format(calls=CALLS, rounds=rounds)
    return [report.table("a new array", method, found, BASE, TARGETS)]


def _ours(device: Device) -> list[Case]:
    stream = device.new_stream()

    def empty() -> na.Tensor:
        return na.empty(N).async_on(stream)

    def zeros() -> na.Tensor:
        return na.zeros(N).async_on(stream)

    async def awaited(calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            await na.empty(N).schedule(stream)
        return time.perf_counter() - began

    async def room() -> None:
        t = empty()
        assert t.shape == (N,) and t.dtype == np.dtype(np.float32)  # what is measured must be right
        filled = await na.fill(t, 3)
        np.testing.assert_array_equal(await filled.to_host(), np.full(N, 3, np.float32))

    async def zero() -> None:
        np.testing.assert_array_equal(await zeros().to_host(), np.zeros(N, np.float32))

    return [
        Case(EMPTY, timed(empty, stream.synchronize), room),
        Case("numbasync: empty, await", awaited, room),
        Case("numbasync: zeros, build + async_on", timed(zeros, stream.synchronize), zero),
    ]
