"""`numbasync bench await`: one small kernel and its completion, in an event loop; and in the forms
in which programs await many.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numbasync as na
from benchmarks import asyncio_forms, kernel_waits, launch, long_wait, peer_registry, report
from benchmarks.measure import Case, awaited, timed
from benchmarks.tables import table
from benchmarks.targets import Target
from benchmarks.work import THREADS, N, calls_of_a_round, check_run, saxpy
from numbasync.device.device import Device

AWAIT = "numbasync: build + await"
BESIDE = "numbasync: build + await, beside a task that awaits"
BASE = "cuda.bindings: packed launch + synchronize"
METHOD = (
    "saxpy(z[1024], f32, x[1024]), 128 threads a block; each call is waited for before the next "
    "one, {calls} calls a round, on {loop}. A task beside it awaits kernels of 2 ms on its own "
    "stream."
)
TARGETS = (
    Target("build + await / packed launch + synchronize", AWAIT, BASE, 1.3, 1.0),
    Target("beside another task / packed launch + synchronize", BESIDE, BASE, 1.35, 1.2),
    Target(
        "build + await / Python host callback",
        AWAIT, "Python host callback: packed launch + await", 0.33, 0.25,
    ),
)  # fmt: skip


async def tables(device: Device, rounds: int) -> list[report.Record]:
    stream = device.new_stream()
    z = na.zeros(N).sync_on(stream)
    x = na.ones(N).sync_on(stream)
    cases = _own(stream, z, x)
    if peer_registry.has_own_processor(device):  # else both kernels are computed by this thread
        cases.append(_beside(device, stream, cases[0]))
    return [
        await table(
            device, rounds, "await", "one small kernel, awaited", cases,
            calls=calls_of_a_round(stream, z, x), method=METHOD, base=BASE, targets=TARGETS,
        ),
        await asyncio_forms.forms(device, rounds),
        await long_wait.long_wait(device, rounds),
    ]  # fmt: skip


def _own(stream: na.Stream, z: na.Tensor, x: na.Tensor) -> list[Case]:
    part = z.partition(THREADS)
    loop = asyncio.get_running_loop()

    async def plain() -> None:
        await saxpy(part, 2.0, x)

    async def on_one_stream() -> None:
        await saxpy(part, 2.0, x).schedule(stream)

    async def by_done() -> None:
        saxpy(part, 2.0, x).async_on(stream)
        await stream.done()

    def build_and_sync() -> None:
        saxpy(part, 2.0, x).sync_on(stream)

    async def in_executor() -> None:
        saxpy(part, 2.0, x).async_on(stream)
        await loop.run_in_executor(None, stream.synchronize)

    async def check() -> None:
        await check_run(z, plain)

    return [
        Case(AWAIT, awaited(plain), check),
        Case("numbasync: build + await on one stream", awaited(on_one_stream), check),
        Case("numbasync: build + submit, await stream.done()", awaited(by_done), check),
        Case(launch.SYNC, timed(build_and_sync, stream.synchronize), check),
        Case(
            "run_in_executor: our submit, stream.synchronize", awaited(in_executor), check,
            calls=100,
        ),
    ]  # fmt: skip


def _beside(device: Device, stream: na.Stream, case: Case) -> Case:
    """The case, while another task awaits kernels of its own."""
    step_seconds = kernel_waits.seconds_of_a_step(stream)
    other = kernel_waits.work_of(device.new_stream(), step_seconds, kernel_waits.OTHER_S)

    async def run(calls: int) -> float:
        async with kernel_waits.another_task(other):
            return await case.run(calls)

    return replace(case, name=BESIDE, run=run)
