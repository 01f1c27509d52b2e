"""Autotuning with a GPU's own clock."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from numba import cuda, float32

import numbasync as na
from numbasync import cache_folder
from numbasync.tuning import session
from tests.common import saxpy

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]

N = 10_000_019  # no multiple of a block


@na.launcher(elements=1)
@cuda.jit
def smooth(z: na.KernelOutput, x: na.KernelInput):
    """Adds the mean of three neighbours."""
    i = cuda.grid(1)
    if 0 < i < z.shape[0] - 1:
        z[i] += (x[i - 1] + x[i] + x[i + 1]) / float32(3)


def looping(rounds: int) -> na.Launcher:
    """A kernel that takes `rounds` times as long, and gives the same."""

    @na.launcher
    @cuda.jit
    def loop(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            value = x[i]
            for _ in range(rounds):
                value = value * value % float32(7)
            z[i] = value * float32(0)

    return loop


def holding(size: int) -> na.Launcher:
    """A kernel with `size` floats of shared memory a block."""

    @na.launcher(threads=64)
    @cuda.jit
    def held(z: na.KernelOutput):
        parts = cuda.shared.array(size, float32)
        i, t = cuda.grid(1), cuda.threadIdx.x
        parts[t + size - 64] = i
        cuda.syncthreads()
        if i < z.shape[0]:
            z[i] = parts[t + size - 64]

    return held


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache_folder.SWITCH, str(tmp_path))


async def test_a_kernel_is_tuned_and_its_choice_kept(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = [{"threads": 2**k} for k in range(5, 12)]  # 32 to 2048
    x = np.random.default_rng(3).random(N, np.float32)
    z, y = await na.gather(na.full(N, 5), na.from_host(x))
    tuned = na.autotune(smooth, configs)
    compiled = na.compile_count()
    results = await tuned.tune(z, y)
    assert na.compile_count() - compiled <= 1  # one variant for all numbers of threads
    *legal, refused = results
    assert refused.status == "illegal" and "2048 threads" in refused.reason
    assert {r.status for r in legal} <= {"measured", "slow"}
    times = {r.ms: r for r in legal if r.status == "measured" and r.ms is not None}
    assert times[min(times)].chosen and tuned.choice(z, y) == times[min(times)].config
    assert all(0 < (r.low or 0) <= ms <= (r.high or 0) for ms, r in times.items())
    assert (await z.to_host() == 5).all()  # not written by tuning

    def not_again(*_: object) -> float:
        raise AssertionError("measured again")

    monkeypatch.setattr(session, "milliseconds", not_again)
    later = na.autotune(smooth, configs)
    assert await later.tune(z, y) == results
    await later(z, y)
    want = np.full(N, 5, np.float64)
    want[1:-1] += (x[:-2].astype(np.float64) + x[1:-1] + x[2:]) / 3
    np.testing.assert_allclose(await z.to_host(), want, rtol=1e-6)


def test_positions_a_thread(device: na.Device) -> None:
    configs = [{"elements": n, "threads": 256} for n in (1, 2, 4, 8, 3)]
    tuned = na.autotune(saxpy, configs)
    z, x = na.ones(N).sync(), na.ones(N).sync()
    *legal, refused = tuned.tune(z, 2.0, x).sync()
    assert {r.status for r in legal} <= {"measured", "slow"}
    assert refused.status == "illegal" and "elements=" in refused.reason
    assert (tuned(z, 2.0, x).output().to_host().sync() == 3).all()


def test_more_work_is_not_chosen(device: na.Device) -> None:
    # Milliseconds beside microseconds: more than other processes on the GPU can add.
    tuned = na.autotune(looping, [{"rounds": 20_000}, {"rounds": 1}, {"rounds": 2_000}])
    z, x = na.zeros(2**20).sync(), na.ones(2**20).sync()
    results = tuned.tune(z, x).sync()
    assert tuned.choice(z, x) == {"rounds": 1}, results
    assert results[0].status == "slow"


def test_too_much_shared_memory_is_skipped(device: na.Device) -> None:
    tuned = na.autotune(holding, [{"size": 2**20}, {"size": 64}, {"size": 4096}])
    z = na.zeros(10_000).sync()
    results = tuned.tune(z).sync()
    assert results[0].status == "illegal" and results[0].reason, results
    assert {r.status for r in results[1:]} <= {"measured", "slow"}, results
    tuned(z).sync()
    assert (z.to_host().sync() == np.arange(10_000)).all()


async def test_the_loop_turns_while_a_kernel_is_tuned(device: na.Device) -> None:
    tuned = na.autotune(smooth, [{"threads": n} for n in (64, 128)])
    tuning = asyncio.ensure_future(asyncio.wait_for(tuned.tune(na.zeros(N), na.ones(N)), 120))
    turns = 0
    while not tuning.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(await tuning) == 2 and turns > 100
