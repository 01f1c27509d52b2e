"""`numbasync bench trace`: what a trace and a flight recorder cost who only launches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

import numbasync as na
from benchmarks import report
from benchmarks.measure import Case, Run, awaited, timed
from benchmarks.tables import table
from benchmarks.targets import Target
from benchmarks.work import BLOCKS, THREADS, N, calls_of_a_round, check_run, saxpy
from numbasync.device.device import Device

LAUNCH = "numbasync: launch"
PREPARED = "numbasync: prepared launch"
AWAIT = "numbasync: await"
METHOD = (
    "saxpy(z[1024], f32, x[1024]), built and submitted, without a trace, in one, and with a "
    "flight recorder, which are opened outside of the timed part, and have "
    "a few hundred calls behind them then; {calls:,} calls a round on one stream, which is drained "
    "now and then, outside, too."
)
BATCHES = 8  # of a round, each drained


def _in_a_trace(name: str) -> str:
    return f"{name}, traced"


def _with_a_recorder(name: str) -> str:
    return f"{name}, flight recorder"


TARGETS = (
    Target("a launch in a trace / without", _in_a_trace(LAUNCH), LAUNCH, 1.05, 1.03),
    Target("a prepared launch in a trace / without", _in_a_trace(PREPARED), PREPARED, 1.08, 1.05),
    Target(
        "a launch with a flight recorder / without", _with_a_recorder(LAUNCH), LAUNCH, 1.05, 1.03
    ),
    Target("an await in a trace / without", _in_a_trace(AWAIT), AWAIT, 1.10, 1.05),
)


async def tables(device: Device, rounds: int) -> list[report.Record]:
    stream = device.new_stream()
    z, x = await na.zeros(N), await na.ones(N)
    calls = calls_of_a_round(stream, z, x)
    return [
        await table(
            device, rounds, "trace", "a trace", _cases(stream, z, x, calls),
            calls=BATCHES * calls, method=METHOD, base=LAUNCH, targets=TARGETS,
        )
    ]  # fmt: skip


def _cases(stream: na.Stream, z: na.Tensor, x: na.Tensor, batch: int) -> list[Case]:
    part = z.partition(THREADS)
    again = saxpy[BLOCKS, THREADS].prepare(z, 2.0, x)
    runs = {
        LAUNCH: timed(
            lambda: saxpy(part, 2.0, x).async_on(stream), stream.synchronize, every=batch
        ),
        PREPARED: timed(lambda: again.async_on(stream), stream.synchronize, every=batch),
        AWAIT: awaited(lambda: saxpy(part, 2.0, x)),
    }
    return [
        Case(case, run, _check(z, run))
        for name, plain in runs.items()
        for case, run in (
            (name, plain),
            (_in_a_trace(name), _inside(na.trace, plain, batch)),
            (_with_a_recorder(name), _inside(na.flight_recorder, plain, batch)),
        )
    ]


def _inside(recorder: Callable[[], AbstractContextManager[object]], run: Run, few: int) -> Run:
    async def recorded(calls: int) -> float:
        with recorder():
            if calls > few:  # its beginning is no part of what each call costs
                await run(few)
            return await run(calls)

    return recorded


def _check(z: na.Tensor, run: Run) -> Callable[[], Awaitable[None]]:
    return lambda: check_run(z, lambda: run(1))
