"""`numbasync bench graph`: steps of a program that has work for the device and for the host.

By blocking, the host's work comes after the device's; by awaiting, they overlap.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import numbasync as na
from benchmarks import report
from benchmarks.measure import Case, awaited
from benchmarks.replayed import ReplayedGraph
from benchmarks.tables import table
from numbasync.device.device import Device

NODES = 300
WORK = (0, 100, 300, 1000)  # us of the host's own
STEPS = 20  # of a repetition
BASE = "numbasync: async, launch awaited behind the work"
METHOD = (
    "A step is a launch of a graph of {nodes} saxpy(z[1024], f32, x[1024]), each after the one "
    "before, and {work} us in which the host computes. Sync: the launch is waited for, then the "
    "host computes. Async: the launch is enqueued, the host computes, and then the launch is "
    "awaited; in a task: a task awaits the launch, while the loop that it is in computes. {calls} "
    "steps a round, on {loop}."
)


async def tables(device: Device, rounds: int) -> list[report.Record]:
    """A table for each amount of work."""
    graph = await ReplayedGraph.on(device.new_stream(), NODES)
    return [
        await table(
            device, rounds, "step", f"a step with {work:,} us of host work", cases(graph, work),
            calls=STEPS, method=METHOD, base=BASE, unit="microseconds a step",
            sizes=(NODES, work), nodes=NODES, work=work,
        )
        for work in WORK
    ]  # fmt: skip


def compute(work: int) -> None:
    """Keep the processor busy for so many microseconds."""
    end = time.perf_counter() + work * 1e-6
    while time.perf_counter() < end:
        pass


def cases(graph: ReplayedGraph, work: int) -> list[Case]:
    """A case for each way to do a step."""

    async def sync() -> None:
        graph.sync()
        compute(work)

    async def spawned() -> None:
        launched = na.spawn(graph.graph.launch())
        compute(work)
        await launched

    async def in_a_task() -> None:
        launched = asyncio.create_task(graph.wait())
        await asyncio.sleep(0)  # starts the task
        compute(work)
        await launched

    def case(name: str, step: Callable[[], Awaitable[None]]) -> Case:
        return Case(name, awaited(step), lambda: graph.check_run(step))

    return [
        case("numbasync: sync, then the work", sync),
        case(BASE, spawned),
        case("numbasync: async, launch awaited by a task", in_a_task),
    ]
