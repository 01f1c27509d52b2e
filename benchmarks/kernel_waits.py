"""Waiting for kernels of 5 us to 500 ms: blocking, and in the ways to await."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numba import cuda

import numbasync as na
from benchmarks import peer_registry, report
from benchmarks.measure import Figure, Measured
from benchmarks.tables import loop_name
from benchmarks.targets import Target
from numbasync.device.device import Device
from numbasync.testing.timing.timer import Stopwatch, seconds_of, turns, without_garbage_collection

# The length of the kernels, and how many of them a round waits for.
LENGTHS = (
    (5e-6, 200), (15e-6, 200), (57e-6, 200), (214e-6, 100), (1e-3, 30), (10e-3, 8), (75e-3, 3),
    (0.5, 1),
)  # fmt: skip
BLOCKING, AWAIT, SCHEDULED, BESIDE = (
    "sync_on", "await", "await of schedule(stream)", "await beside a task that awaits"
)  # fmt: skip
SHARE = "processor use of await"
LEARNT = 3  # waits, after which the length of a kernel is known
OTHER_S = 2e-3  # the kernels that the other task awaits
METHOD = (
    "A kernel of one block, so long on this device, and the wait for it, one after the other: "
    "blocking on a stream, awaited by the default policy and on that stream, and awaited while "
    "another task awaits kernels of 2 ms on a stream of its own, which run at the same time. "
    "The kernels' lengths are known to the loop from the waits before. Medians and quartiles of "
    "{rounds} rounds of {count} waits, in turn, on {loop}, after one that does not count; "
    "processor time of the process over the time of the wait."
)


@na.launcher
@cuda.jit
def multiply(z: na.KernelOutput, steps: Any) -> None:
    total = np.float32(0.0)
    for _ in range(steps):
        total = total * np.float32(0.999) + np.float32(1.0)
    if cuda.grid(1) < z.shape[0]:
        z[cuda.grid(1)] = total


@dataclass(frozen=True, slots=True)
class Work:
    """Kernels of one length on one stream."""

    stream: na.Stream
    part: Any
    steps: int

    def op(self) -> Any:
        return multiply(self.part, self.steps)


def _title(seconds: float) -> str:
    short = f"{seconds * 1e6:g} us" if seconds < 1e-3 else f"{seconds * 1e3:g} ms"
    return f"waiting for kernels of {short}"


def _bound(seconds: float) -> float:
    """The microseconds that an await may take longer than a blocking wait."""
    if seconds <= 250e-6:
        return 5.0
    return next(us for most, us in ((1e-3, 40.0), (10e-3, 80.0), (1.0, 150.0)) if seconds <= most)


async def tables(device: Device, rounds: int) -> list[report.Record]:
    if not peer_registry.has_own_processor(device):  # the kernels are computed by this process
        return []
    stream, other = device.new_stream(), device.new_stream()
    step_seconds = seconds_of_a_step(stream)
    short = work_of(other, step_seconds, OTHER_S)
    return [
        await _table(work_of(stream, step_seconds, seconds), short, seconds, count, rounds)
        for seconds, count in LENGTHS
    ]


def work_of(stream: na.Stream, step_seconds: float, seconds: float) -> Work:
    """Kernels that take so long."""
    part = na.zeros(32).sync_on(stream).partition(32)
    # A kernel without steps takes about 3 us.
    return Work(stream, part, round(max(seconds - 3e-6, 0.0) / step_seconds))


def seconds_of_a_step(stream: na.Stream) -> float:
    """The seconds of a step of `multiply` on this device."""
    work = Work(stream, na.zeros(32).sync_on(stream).partition(32), 10_000)
    while True:
        work.op().sync_on(stream)  # compiles; lets the clock of the device rise
        seconds = seconds_of(partial(_finish, work))
        if seconds > 0.05:
            return seconds / work.steps
        work = replace(work, steps=4 * work.steps)


async def _table(work: Work, other: Work, seconds: float, count: int, rounds: int) -> report.Record:
    ways: dict[str, Callable[[], Awaitable[object]]] = {
        BLOCKING: lambda: _blocking(work), AWAIT: lambda: _awaited(work),
        SCHEDULED: lambda: _scheduled(work), BESIDE: lambda: _awaited(work),
    }  # fmt: skip
    samples: dict[str, list[float]] = {way: [] for way in ways}
    shares: list[float] = []
    with without_garbage_collection():
        for (name, wait), counts in turns(list(ways.items()), rounds):
            async with another_task(other) if name == BESIDE else contextlib.nullcontext():
                for _ in range(min(LEARNT, count) if name != BLOCKING else 1):
                    await wait()
                with Stopwatch() as wall, Stopwatch(time.process_time) as processor:
                    for _ in range(count):
                        await wait()
            if counts:
                samples[name].append(wall.seconds / count * 1e6)
                if name == AWAIT:
                    shares.append(100 * processor.seconds / wall.seconds)
    figures = [Figure.of(f"numbasync: {name}", each, count) for name, each in samples.items()]
    figures.append(Figure.of(f"numbasync: {SHARE}", shares, count, "%"))
    text = METHOD.format(rounds=rounds, count=count, loop=loop_name())
    base = f"numbasync: {BLOCKING}"
    blocking = figures[0].median
    bound = 1 + _bound(seconds) / blocking
    targets = tuple(
        Target(f"{_title(seconds)}: {way} / {BLOCKING}", f"numbasync: {way}", base, bound, 1.0)
        for way in (AWAIT, SCHEDULED)
    )  # fmt: skip
    return report.table(
        _title(seconds), text, Measured(figures, []), base, targets, "each in its own unit"
    )


async def _blocking(work: Work) -> None:
    _finish(work)


def _finish(work: Work) -> None:
    work.op().sync_on(work.stream)


async def _awaited(work: Work) -> None:
    await work.op()


async def _scheduled(work: Work) -> None:
    await work.op().schedule(work.stream)


@asynccontextmanager
async def another_task(work: Work) -> AsyncIterator[None]:
    """A task that awaits one kernel after the other."""

    async def waits() -> None:
        while True:
            await work.op().schedule(work.stream)

    task = asyncio.ensure_future(waits())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)  # whoever was told of its end lets go of it
        work.stream.synchronize()
