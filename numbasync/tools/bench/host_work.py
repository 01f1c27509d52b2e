"""A step of a program that has work for the device and for itself. For `bench graph`.

Blocking, the host's work comes behind the device's; awaiting, they go on side by side.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import numbasync as na
from numbasync.device.device import Device
from numbasync.tools.bench import peer_registry, report
from numbasync.tools.bench.awaiting import loop_name
from numbasync.tools.bench.measure import Case, awaited, measure
from numbasync.tools.bench.replayed import Replayed

NODES = 300
WORK = (0, 100, 300, 1000)  # us of the host's own
STEPS = 20  # of a round
BASE = "numbasync: async, launch awaited behind the work"
METHOD = (
    "A step is a launch of a graph of {nodes} saxpy(z[1024], f32, x[1024]), each after the one "
    "before, and {work} us in which the host computes. Sync: the launch is waited for, then the "
    "host computes. Async: the launch is enqueued, the host computes, and then the launch is "
    "awaited; in a task: a task awaits the launch, while the loop that it is in computes. {steps} "
    "steps a round, on {loop}. The cases take turns; medians and quartiles of {rounds} rounds "
    "after one that does not count; garbage collection off."
)


async def tables(device: Device, rounds: int) -> list[report.Record]:
    """A table for each amount of work."""
    graph = await Replayed.on(device.new_stream(), NODES)
    return [await _table(device, graph, rounds, work) for work in WORK]


async def _table(device: Device, graph: Replayed, rounds: int, work: int) -> report.Record:
    others = peer_registry.of("step", device, NODES, work)
    found = await measure([*cases(graph, work), *others.cases], calls=STEPS, rounds=rounds)
    found.missing += others.missing
    method = METHOD.format(nodes=NODES, work=work, steps=STEPS, rounds=rounds, loop=loop_name())
    what = f"a step with {work:,} us of host work"
    return report.table(what, method, found, BASE, (), "microseconds a step")


def compute(work: int) -> None:
    """Keep the processor busy for so many microseconds."""
    end = time.perf_counter() + work * 1e-6
    while time.perf_counter() < end:
        pass


def cases(graph: Replayed, work: int) -> list[Case]:
    """The ways to do a step."""

    async def sync() -> None:
        graph.sync()
        compute(work)

    async def behind() -> None:
        launched = na.spawn(graph.graph.launch())
        compute(work)
        await launched

    async def in_a_task() -> None:
        launched = asyncio.create_task(graph.wait())
        await asyncio.sleep(0)  # it has begun
        compute(work)
        await launched

    def case(name: str, step: Callable[[], Awaitable[None]]) -> Case:
        return Case(name, awaited(step), lambda: graph.right_by(step))

    return [
        case("numbasync: sync, then the work", sync),
        case(BASE, behind),
        case("numbasync: async, launch awaited by a task", in_a_task),
    ]
