"""`numbasync bench launch`: submitting one small kernel, and waiting for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numbasync as na
from benchmarks import report
from benchmarks.measure import Case, awaited, prepared, timed
from benchmarks.tables import table
from benchmarks.targets import Target
from benchmarks.work import CHAIN, THREADS, N, calls_of_a_round, check_run, saxpy
from numbasync.device.device import Device

SUBMIT = "numbasync: submit a built op"
BUILT = "numbasync: build + submit"
PREPARED = "numbasync: prepared launch, run.async_on(stream, a=...)"
SYNC = "numbasync: build + sync_on"
AWAIT = "numbasync: build + await"
ZIPPED = f"numbasync: submit a zip of {CHAIN}, per launch"
CHAINED = f"numbasync: submit a chain of {CHAIN} by then, per launch"
BASE = "Numba: launch"
METHOD = (
    "saxpy(z[1024], f32, x[1024]), 128 threads a block. Each round is {calls} calls on one stream;"
    " the queue is drained outside of the timed part, except where waiting is measured."
)
TARGETS = (
    Target("submit a built op / Numba's launch", SUBMIT, BASE, 0.25, 0.2),
    Target("submit a built op / CuPy's launch", SUBMIT, "CuPy RawKernel: launch", 0.9, 0.8),
    Target("build + submit / PyTorch's add_", BUILT, "PyTorch: add_(alpha=)", 0.95, 0.8),
    Target("prepared launch / packed launch", PREPARED, "cuda.bindings: packed launch", 1.05, 1.0),
    Target(
        "build + sync_on / packed launch + synchronize",
        SYNC, "cuda.bindings: packed launch + synchronize", 1.15, 1.05,
    ),
    Target(
        "build + await / packed launch + synchronize",
        AWAIT, "cuda.bindings: packed launch + synchronize", 1.35, 1.2,
    ),
    Target(
        f"zip of {CHAIN} launches, per launch / compiled loop",
        ZIPPED, "driver: launch in a compiled loop", 1.2, 1.1,
    ),
    Target(
        f"chain of {CHAIN} launches by then, per launch / compiled loop",
        CHAINED, "driver: launch in a compiled loop", 1.6, 1.3,
    ),
)  # fmt: skip


async def tables(device: Device, rounds: int) -> list[report.Record]:
    stream = device.new_stream()
    z = na.zeros(N).sync_on(stream)
    x = na.ones(N).sync_on(stream)
    return [
        await table(
            device, rounds, "launch", "one small kernel", _own(stream, z, x),
            calls=calls_of_a_round(stream, z, x), method=METHOD, base=BASE, targets=TARGETS,
        )
    ]  # fmt: skip


def _own(stream: na.Stream, z: na.Tensor, x: na.Tensor) -> list[Case]:
    part = z.partition(THREADS)

    def build() -> na.DeviceOp[Any]:
        return saxpy(part, 2.0, x)

    def build_and_submit() -> None:
        saxpy(part, 2.0, x).async_on(stream)

    run = saxpy.prepare(part, 2.0, x)

    def prepared_launch() -> None:
        run.async_on(stream, a=2.0)

    def built_of_prepared() -> None:
        run(a=2.0).async_on(stream)

    def build_and_sync() -> None:
        saxpy(part, 2.0, x).sync_on(stream)

    # Building the next launch is a part of submitting a chain by `then`.
    def zipped() -> na.DeviceOp[Any]:
        return na.zip(*[saxpy(part, 2.0, x) for _ in range(CHAIN)])

    def chained() -> na.DeviceOp[Any]:
        op: na.DeviceOp[Any] = saxpy(part, 2.0, x)
        for _ in range(CHAIN - 1):
            op = op.then(lambda _: saxpy(part, 2.0, x))
        return op

    async def check() -> None:
        await check_run(z, build)

    async def check_prepared() -> None:
        await check_run(z, lambda: run(a=2.0))

    def submitted(name: str, make: Callable[[], na.DeviceOp[Any]], launches: int) -> Case:
        """Submitting operations that are built outside of the timed part."""

        def built(calls: int) -> Callable[[], None]:
            ops = [make() for _ in range(calls // launches)]

            def submit() -> None:
                for op in ops:
                    op.async_on(stream)

            return submit

        async def check() -> None:
            await check_run(z, make, launches)

        return Case(name, prepared(built, stream.synchronize), check)

    return [
        submitted(SUBMIT, build, 1),
        Case(BUILT, timed(build_and_submit, stream.synchronize), check),
        Case(PREPARED, timed(prepared_launch, stream.synchronize), check_prepared),
        Case(
            "numbasync: prepared launch, run(a=...) + async_on",
            timed(built_of_prepared, stream.synchronize), check_prepared,
        ),
        Case(SYNC, timed(build_and_sync, stream.synchronize), check),
        Case(
            AWAIT,
            awaited(lambda: saxpy(part, 2.0, x).schedule(stream)), check,
        ),
        submitted(ZIPPED, zipped, CHAIN),
        submitted(CHAINED, chained, CHAIN),
    ]  # fmt: skip
