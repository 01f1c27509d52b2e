"""Waiting for operations of a few microseconds, blocking and awaited: transfers, and compositions;
and for kernels whose lengths nobody can foresee.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import numbasync as na
from numbasync.device.device import Device
from numbasync.testing.timing.timer import Stopwatch, turns, without_garbage_collection
from numbasync.tools.bench import peer_registry, report
from numbasync.tools.bench.kernel_waits import Work, seconds_of_a_step, work_of
from numbasync.tools.bench.measure import Case, Figure, Measured, awaited, measure, timed
from numbasync.tools.bench.tables import ROUNDS, loop_name
from numbasync.tools.bench.targets import Target
from numbasync.tools.bench.work import THREADS, saxpy

N = 1024
CALLS = 200
BLOCKING, AWAIT = ", sync_on", ", await"
MORE_US = 5.0  # that an await may take longer
METHOD = (
    "One operation, and the wait for it, one after the other, {calls} calls a round, on {loop}: "
    "blocking on one stream, and awaited by the default policy. Arrays of 1,024 float32."
)
# The kernels' lengths, from and to, in seconds; how many of them a round waits for; and the percent
# of a processor that an await may take.
UNFORESEEN = ((0.5e-3, 2e-3, 40, 40.0), (2e-3, 5e-3, 16, 40.0), (10e-3, 20e-3, 8, 5.0))
UNFORESEEN_METHOD = (
    "Kernels of random lengths, each waited for twice: blocking, and awaited on the same stream. "
    "The time by which the await takes longer, and the processor time of the process over its own; "
    "medians and quartiles of {rounds} rounds of {count} kernels, of their medians, on {loop}."
)


async def tables(device: Device, rounds: int) -> list[report.Record]:
    if not peer_registry.has_own_processor(device):  # the kernels are computed by this process
        return []
    stream = device.new_stream()
    work = work_of(stream, seconds_of_a_step(stream), 1e-3)
    return [
        await _operations(stream, rounds),
        *[await _unforeseen(work, rounds, *each) for each in UNFORESEEN],
    ]


def _ops(stream: na.Stream) -> dict[str, Callable[[], Any]]:
    host = np.ones(N, np.float32)
    x, y, z = (na.zeros(N).sync_on(stream) for _ in range(3))
    part = z.partition(THREADS)
    graph = saxpy(y.partition(THREADS), 2.0, x).graph_on(stream)
    source = na.ones(N).sync_on(stream)
    return {
        "to_host": source.to_host,
        "from_host": lambda: na.from_host(host),
        "from_host.then(to_host)": lambda: na.from_host(host).then(lambda t: t.to_host()),
        "memcpy": lambda: na.memcpy(z, source),
        "copy_from": lambda: z.copy_from(host),
        "zip of two kernels": lambda: na.zip(saxpy(part, 2.0, source), saxpy(part, 3.0, source)),
        "kernel.then(kernel)": lambda: saxpy(part, 2.0, source).then(
            lambda _: saxpy(part, 3.0, source)
        ),
        "graph of one kernel": graph.launch,
    }


async def _operations(stream: na.Stream, rounds: int) -> report.Record:
    cases = list[Case]()
    for name, op in _ops(stream).items():
        cases += _ways(name, op, stream)
    measured = await measure(cases, calls=CALLS, rounds=rounds)
    medians = {figure.name: figure.median for figure in measured.figures}
    targets = [
        Target(
            f"{case.name.removeprefix('numbasync: ')} / sync_on", case.name, base,
            1 + MORE_US / medians[base], 1.0,
        )
        for case in cases
        if case.name.endswith(AWAIT) and (base := case.name.replace(AWAIT, BLOCKING)) in medians
    ]  # fmt: skip
    text = METHOD.format(calls=CALLS, loop=loop_name())
    return report.table(
        "waiting for operations", f"{text} {ROUNDS.format(rounds=rounds)}", measured,
        cases[0].name, targets,
    )  # fmt: skip


def _ways(name: str, op: Callable[[], Any], stream: na.Stream) -> list[Case]:
    async def wait() -> None:
        await op()

    return [
        Case(
            f"numbasync: {name}{BLOCKING}",
            timed(lambda: op().sync_on(stream), stream.synchronize), wait,
        ),
        Case(f"numbasync: {name}{AWAIT}", awaited(wait), wait),
    ]  # fmt: skip


async def _unforeseen(
    work: Work, rounds: int, low: float, high: float, count: int, most: float
) -> report.Record:
    """`work` takes a millisecond."""
    lengths = random.Random(1)  # noqa: S311 - not for secrets
    samples: dict[str, list[float]] = {"us": [], "%": []}
    with without_garbage_collection():
        for _, counts in turns([("", None)], rounds):
            late, wall, processor = [], 0.0, 0.0
            for _ in range(count):
                kernel = replace(work, steps=round(work.steps * lengths.uniform(low, high) / 1e-3))
                with Stopwatch() as blocking:
                    kernel.op().sync_on(work.stream)
                with Stopwatch() as watch, Stopwatch(time.process_time) as used:
                    await kernel.op().schedule(work.stream)
                late.append((watch.seconds - blocking.seconds) * 1e6)
                wall, processor = wall + watch.seconds, processor + used.seconds
            if counts:
                samples["us"].append(sorted(late)[count // 2])
                samples["%"].append(100 * processor / wall)
    what = f"kernels of {low * 1e3:g} to {high * 1e3:g} ms, at random"
    names = {"us": f"numbasync: {what}: await - sync_on", "%": f"numbasync: {what}: processor use"}
    figures = [Figure.of(names[unit], each, count, unit) for unit, each in samples.items()]
    targets = (
        Target(f"{what}: later than sync_on", names["us"], None, 110.0, 50.0),
        Target(f"{what}: processor use", names["%"], None, most, most / 2),
    )
    text = UNFORESEEN_METHOD.format(rounds=rounds, count=count, loop=loop_name())
    return report.table(
        what, text, Measured(figures, []), names["us"], targets, "each in its own unit"
    )
