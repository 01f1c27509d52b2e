"""`numbasync bench devices`: copies between two GPUs, and the latency of their collectives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

import numbasync as na
from benchmarks import report
from benchmarks.measure import Case, Run, awaited, timed
from benchmarks.peer_registry import has_own_processor
from benchmarks.tables import table
from benchmarks.targets import Target
from numbasync.device.device import Device
from numbasync.testing import Gate
from numbasync.testing.timing.timer import Stopwatch

SIZES = {"1 GiB": 2**30, "64 MiB": 2**26, "1 MiB": 2**20}
SMALL = 4096  # bytes
CALLS, SMALL_CALLS = 10, 200
COPY = "numbasync: await dst.copy_from(src)"
QUEUED_COPY = "numbasync: copies enqueued, then synchronize"
RAW_COPY = "cuda.bindings: cuMemcpyPeerAsync + synchronize"
RAW_QUEUED = "cuda.bindings: copies enqueued, then synchronize"
MOVE = "numbasync: await to_device, new tensor"
SYNC_MOVE = "numbasync: to_device.sync(), new tensor"
RAW_MOVE = "cuda.bindings: peer copy between two events + synchronize"
LATENCY, LATENCY_CALLS = "numbasync: all_reduce of 4 bytes, on the devices alone", 50
LATENCY_METHOD = (
    "{calls} calls a round, enqueued behind a gate; from its opening to the end of the last one."
)
METHOD = "{what}, waited for. {calls} calls a round."


async def tables(device: Device, rounds: int) -> list[report.Record]:
    others = [other for other in na.devices(device.kind) if other is not device]
    if not others or not has_own_processor(device):
        report.say("bench devices: skipped, it needs two GPUs in one process.")
        return []
    other, records = others[0], []

    async def add(
        peers: str, what: str, cases: list[Case], base: str, targets: Sequence[Target], *sizes: int
    ) -> None:
        calls = SMALL_CALLS if peers == "move" else CALLS
        records.append(
            await table(
                device, rounds, peers, what, cases, calls=calls, method=METHOD, base=base,
                sizes=(other.ordinal, *sizes), targets=targets,
            )
        )  # fmt: skip

    for name, nbytes in SIZES.items():
        target = Target(f"{name} / the driver's peer copy", QUEUED_COPY, RAW_QUEUED, 1 / 0.95, 1.02)
        cases = _copies(device, other, nbytes)
        await add("peer", f"peer copy of {name}", cases, RAW_COPY, [target], nbytes)
    target = Target("4 KiB / the driver's calls", SYNC_MOVE, RAW_MOVE, 1.3, 1.2)
    cases = _moves(device, other)
    await add("move", "4 KiB to the other GPU", cases, RAW_MOVE, [target], SMALL)
    records.append(
        await table(
            device, rounds, "latency", "two GPUs: latency", [_latency(device, other)],
            calls=LATENCY_CALLS, method=LATENCY_METHOD, base=LATENCY,
        )
    )  # fmt: skip
    return records


def _case(name: str, call: Callable[[], Awaitable[Any]], expected: Any) -> Case:
    async def check() -> None:
        moved = await call()
        elements = moved.to_host().sync_on(moved.device.new_stream())
        np.testing.assert_array_equal(elements, expected)

    return Case(name, awaited(call), check)


def _copies(near: Device, far: Device, nbytes: int) -> list[Case]:
    array = np.arange(nbytes // 4, dtype=np.uint32)
    src = na.from_host(array).sync_on(near.new_stream())
    dst = na.zeros(array.shape, array.dtype).sync_on(far.new_stream())
    stream = far.new_stream()

    async def check() -> None:
        np.testing.assert_array_equal(dst.to_host().sync_on(stream), array)

    return [
        _case(COPY, lambda: dst.copy_from(src), array),
        Case(QUEUED_COPY, _queued(lambda: dst.copy_from(src), stream), check),
    ]


def _queued(call: Callable[[], Any], stream: Any) -> Run:
    """Calls that are all enqueued before the thread waits for the last one."""

    async def run(calls: int) -> float:
        with Stopwatch() as watch:
            for _ in range(calls):
                call().async_on(stream)
            stream.synchronize()
        return watch.seconds

    return run


def _moves(near: Device, far: Device) -> list[Case]:
    array = np.arange(SMALL // 4, dtype=np.uint32)
    src = na.from_host(array).sync_on(near.new_stream())

    def move() -> None:
        na.to_device(src, far).sync()

    async def check() -> None:
        np.testing.assert_array_equal(
            na.to_device(src, far).sync().to_host().sync_on(far.new_stream()), array
        )

    return [
        _case(MOVE, lambda: na.to_device(src, far), array),
        Case(SYNC_MOVE, timed(move, lambda: None), check),
    ]


def _latency(near: Device, far: Device) -> Case:
    """The devices' time for a collective of few bytes, the host's left out."""
    one = np.ones(1, np.float32)
    parts, out = ([na.to_device(one, d).sync() for d in (near, far)] for _ in range(2))
    stream, before = near.new_stream(), near.new_stream()

    async def run(calls: int) -> float:
        with Gate(before) as gate:
            na.fill(parts[0], 1).async_on(before)  # which all of them wait for
            for _ in range(calls):
                na.collective.all_reduce(parts, out=out).async_on(stream)
            with Stopwatch() as watch:
                gate.open()
                stream.synchronize()
        return watch.seconds

    async def check() -> None:
        totals: Any = await na.collective.all_reduce(parts, out=out)
        for total in totals:
            elements = total.to_host().sync_on(total.device.new_stream())
            np.testing.assert_array_equal(elements, one + one)

    return Case(LATENCY, run, check)
