"""What an operation costs beside its kernel: building, submitting and awaiting a tiny one."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from numba import cuda

import numbasync as na
from numbasync.device.device import Device
from numbasync.tools.bench.cpu_cases import tiny
from numbasync.tools.bench.repeats import Result, summary

N = 32
CALLS = 200
WIDTH = 1000
SEED = 1
NAMES = (
    "await a tiny op", "await a tiny op, seeded stepping", f"gather of {WIDTH:,} tiny ops, per op",
)  # fmt: skip


async def measured(
    device: Device, by: str, repeats: int, wanted: Callable[[str], bool]
) -> list[Result]:
    """Every case whose name is wanted; the answer is looked at before and after."""
    kernel = na.launcher(cuda.jit(tiny))
    with na.use_device(device):
        z = await na.zeros(N)
        many = [await na.zeros(N) for _ in range(WIDTH)]
        began = time.perf_counter()
        await kernel[1, N](z)
        first = time.perf_counter() - began
        _check(await z.to_host())

        async def one() -> None:
            for _ in range(CALLS):
                await kernel[1, N](z)

        async def gathered() -> None:
            await na.gather(*[kernel[1, N](each) for each in many])

        found = []
        alone, stepped, together = NAMES
        if wanted(alone):
            found.append(summary(alone, by, await _sample(one, CALLS, repeats), first))
        if wanted(stepped):
            with device.backend.seeded(SEED):  # what `numbasync.testing.seeded` does
                times = await _sample(one, CALLS, repeats)
            found.append(summary(stepped, by, times, None))
        if wanted(together):
            found.append(summary(together, by, await _sample(gathered, WIDTH, repeats), None))
            _check(await many[-1].to_host())
        return found


def _check(z: Any) -> None:
    np.testing.assert_array_equal(z, np.ones(N, np.float32))


async def _sample(run: Callable[[], Awaitable[None]], calls: int, repeats: int) -> list[float]:
    await run()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        await run()
        times.append((time.perf_counter() - began) / calls)
    return times
