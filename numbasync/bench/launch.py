"""`numbasync bench launch`: submitting and awaiting one small kernel."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda

import numbasync as na
from numbasync.bench import peers, report
from numbasync.bench.measure import Case, Timing, measure, timed
from numbasync.device import Device
from numbasync.errors import CallerError

N = 1024
THREADS = 128
BASE = "Numba: launch"
METHOD = (
    "saxpy(z[1024], f32, x[1024]), 128 threads a block. Each round is {calls} calls on one "
    "stream; the queue is drained outside of the timed part, except where waiting is "
    "measured. The cases take turns; medians and quartiles of {rounds} rounds after one that "
    "does not count; garbage collection off."
)


@na.launcher
@cuda.jit
def saxpy(z: na.KernelOutput, a: Any, x: na.KernelInput) -> None:
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = a * x[i] + z[i]


def run(device: Device, json: Path | None, rounds: int) -> int:
    """The command. Returns the exit status."""
    if rounds < 3:
        raise CallerError(f"--repeats {rounds}: quartiles need 3 rounds or more.")
    if json is not None:
        report.check_target(json)
    with na.use_device(device):
        timings = na.run(_measure(device, rounds))
    method = METHOD.format(calls=timings[0].calls, rounds=rounds)
    found = report.record("one small kernel", method, device, timings, BASE)
    report.show(found)
    if json is not None:
        report.save(found, json)
    return 0


async def _measure(device: Device, rounds: int) -> list[Timing]:
    stream = device.new_stream()
    z = na.zeros(N).sync_on(stream)
    x = na.ones(N).sync_on(stream)
    cases = _ours(stream, z, x) + peers.of_launch(device, N, THREADS)
    return await measure(cases, calls=await _calls(stream, z, x), rounds=rounds)


async def _calls(stream: na.Stream, z: na.Tensor, x: na.Tensor) -> int:
    """Calls of a round: 500, or fewer where one takes long."""
    saxpy(z.partition(THREADS), 2.0, x).sync_on(stream)
    began = time.perf_counter()
    saxpy(z.partition(THREADS), 2.0, x).sync_on(stream)
    return max(20, min(500, round(0.02 / (time.perf_counter() - began))))


def _ours(stream: na.Stream, z: na.Tensor, x: na.Tensor) -> list[Case]:
    part = z.partition(THREADS)

    async def check() -> None:
        await na.fill(z, 0)
        await saxpy(part, 2.0, x)
        np.testing.assert_array_equal(await z.to_host(), np.full(N, 2.0, np.float32))

    async def submit(calls: int) -> float:
        ops = [saxpy(part, 2.0, x) for _ in range(calls)]
        began = time.perf_counter()
        for op in ops:
            op.async_on(stream)
        seconds = time.perf_counter() - began
        stream.synchronize()
        return seconds

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
        Case("numbasync: submit a built op", submit, check),
        Case("numbasync: build + submit", timed(build_and_submit, stream.synchronize), check),
        Case("numbasync: build + sync_on", timed(build_and_sync, stream.synchronize), check),
        Case("numbasync: build + await", wait, check),
    ]
