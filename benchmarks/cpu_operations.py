"""The cost of an operation beside its kernel, for `bench cpu`: building and awaiting a tiny one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from numba import cuda

import numbasync as na
from benchmarks.cpu_limits import Result
from numbasync.device.device import Device
from numbasync.testing.timing.timer import Stopwatch, turns, without_garbage_collection

N = 32
CALLS = 200
WIDTH = 1000
SEED = 1
NAMES = (
    "await a tiny op", "await a tiny op, seeded stepping", f"gather of {WIDTH:,} tiny ops, per op",
)  # fmt: skip


def tiny(z: Any) -> None:
    """A kernel whose own time is small beside its launch."""
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = 1.0


async def measured(
    device: Device, by: str, repeats: int, wanted: Callable[[str], bool]
) -> list[Result]:
    """The results of all cases whose name is wanted. The answer is checked before and after."""
    kernel = na.launcher(cuda.jit(tiny))
    with na.use_device(device):
        z = await na.zeros(N)
        zs = [await na.zeros(N) for _ in range(WIDTH)]
        with Stopwatch() as first:
            await kernel[1, N](z)
        _check(await z.to_host())

        async def one_by_one() -> None:
            for _ in range(CALLS):
                await kernel[1, N](z)

        async def gathered() -> None:
            await na.gather(*[kernel[1, N](each) for each in zs])

        results = []
        awaited, stepped, together = NAMES
        if wanted(awaited):
            samples = await _samples(one_by_one, CALLS, repeats)
            results.append(Result.of(awaited, by, samples, first.seconds))
        if wanted(stepped):
            with device.backend.seeded(SEED):  # the mode of `numbasync.testing.seeded`
                samples = await _samples(one_by_one, CALLS, repeats)
            results.append(Result.of(stepped, by, samples))
        if wanted(together):
            results.append(Result.of(together, by, await _samples(gathered, WIDTH, repeats)))
            _check(await zs[-1].to_host())
        return results


def _check(z: Any) -> None:
    np.testing.assert_array_equal(z, np.ones(N, np.float32))


async def _samples(
    repetition: Callable[[], Awaitable[None]], calls: int, repeats: int
) -> list[float]:
    samples = []
    with without_garbage_collection():
        for _, counts in turns([repetition], repeats):
            with Stopwatch() as watch:
                await repetition()
            if counts:
                samples.append(watch.seconds / calls)
    return samples
