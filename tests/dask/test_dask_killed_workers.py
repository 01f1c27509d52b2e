"""Clusters under stress: a killed worker, more results than memory, kernels of `__main__`."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from tests import sessions
from tests.common import full, host, saxpy
from tests.dask.conftest import local_cluster

distributed = pytest.importorskip("distributed", reason="needs the extra dask")


def used(client: Any) -> dict[str, int]:
    """Bytes of device memory in use, by worker."""

    def used_here() -> int:
        gc.collect()
        return na.default_device().memory_stats().used_current

    found: dict[str, int] = client.run(used_here)
    return found


def eventually(client: Any, condition: Callable[[], object], seconds: float = 300) -> None:
    """Ask the workers, which takes a moment, until `condition()` holds."""
    end = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < end, "it never is"
        client.run(os.getpid)


@pytest.fixture
def here(cpu: na.Device) -> na.Device:
    return cpu


def scaled(n: int) -> na.DeviceOp[na.Tensor]:
    return na.ones(64).then(lambda z: saxpy(z, float(n), np.ones(64, np.float32))).output()


@pytest.mark.parametrize("tasks", [200, full(2_000)])
def test_nothing_is_lost_with_a_worker(here: na.Device, tmp_path: Any, tasks: int) -> None:
    with local_cluster(tmp_path) as client:
        distributed.wait(na.dask.map_ops(client, scaled, range(8)))
        eventually(client, lambda: not any(used(client).values()))
        pids = client.run(os.getpid)
        futures = na.dask.map_ops(client, scaled, range(tasks))
        ended = distributed.as_completed(futures)
        for _ in range(tasks // 4):
            next(ended)
        victim = next(iter(pids.values()))
        os.kill(victim, signal.SIGKILL)
        elements = [host(tensor).tolist() for tensor in client.gather(futures)]
        assert elements == [[n + 1] * 64 for n in range(tasks)]
        eventually(client, lambda: len(client.run(os.getpid)) == 2)
        assert victim not in client.run(os.getpid).values()
        del futures, ended
        eventually(client, lambda: not any(used(client).values()))


def test_more_results_than_memory_are_spilled(here: na.Device, tmp_path: Any) -> None:
    from dask import config

    size = 4 << 20
    # Of the results only: what the process has besides depends on the machine.
    fractions = {
        f"distributed.worker.memory.{name}": False for name in ("spill", "pause", "terminate")
    }
    settings = {**fractions, "distributed.worker.memory.target": 0.5}
    with (
        config.set(settings),
        local_cluster(tmp_path, n_workers=1, memory_limit=12 * size) as client,
    ):
        futures = na.dask.map_ops(client, lambda n: na.full(size // 4, n), range(20))
        distributed.wait(futures)

        def spilled(dask_worker: Any) -> tuple[int, int]:
            return len(dask_worker.data.fast), len(dask_worker.data.slow)

        ((fast, slow),) = client.run(spilled).values()
        assert slow >= 10 and fast + slow == 20
        assert sum(used(client).values()) <= 8 * size, "what is on disk is not on the device"
        for n, future in enumerate(futures):
            first = na.dask.submit(client, lambda t: t[-1:].to_host(), future).result()
            assert first.tolist() == [n]


PROGRAM = """
import numpy as np
from distributed import Client, LocalCluster
from numba import cuda
import numbasync as na

FACTOR = 2.0

@na.launcher
@cuda.jit
def of_main(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = FACTOR * x[i]

def closure(bias):
    @na.launcher
    @cuda.jit
    def kernel(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = x[i] + bias
    return kernel

def main():
    x = np.arange(4, dtype=np.float32)
    options = dict(n_workers=1, threads_per_worker=1, host="127.0.0.1")
    options["dashboard_address"] = "127.0.0.1:0"
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        client.register_plugin(na.dask.WorkerDevice("cpu"))
        one = na.dask.submit(client, of_main(na.zeros(4), x).output())
        kernel = closure(5.0)
        two = na.dask.submit(client, lambda t: kernel(na.zeros(4), t).output().to_host(), one)
        print(two.result().tolist())

if __name__ == "__main__":
    main()
"""


def test_kernels_of_main(python: str, python_env: dict[str, str], tmp_path: Any) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    env = {**python_env, "NUMBASYNC_DEVICE": "cpu", "PYTHONWARNINGS": "default"}
    found = sessions.run_program(python, [str(path)], env, seconds=600)
    assert (found.returncode, found.stdout) == (0, "[5.0, 7.0, 9.0, 11.0]\n"), found.stderr
