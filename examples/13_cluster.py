"""Price an option by Monte Carlo on a Dask cluster of two worker processes.

Needs, from a checkout, `pip install '.[dask]'`. The whole demonstration is
`numbasync cluster-demo`.

    python examples/13_cluster.py
"""

import logging
import math

import numpy as np
from distributed import Client, LocalCluster
from numba import cuda

import numbasync as na
from numbasync.random import philox_normal_float64

SPOT, STRIKE, RATE, VOLATILITY, YEARS = 100.0, 105.0, 0.03, 0.25, 1.5
OPTIONS: dict = {
    "n_workers": 2,
    "threads_per_worker": 1,
    "host": "127.0.0.1",
    "dashboard_address": "127.0.0.1:0",
    # Dask logs an error of a worker that ends while its heartbeat is on its way.
    "silence_logs": logging.CRITICAL,
}
THREADS, PATHS = 1024, 64  # of a task; of a thread


@na.launcher
def payoffs(sums: na.KernelOutput, first: int):
    """For each thread the sum of what the option pays at the end of its paths."""
    i = cuda.grid(1)
    if i < sums.shape[0]:
        drift = (RATE - VOLATILITY * VOLATILITY / 2) * YEARS
        total = 0.0
        for k in range(PATHS):
            z = philox_normal_float64(0, first + i, k)
            price = SPOT * math.exp(drift + VOLATILITY * math.sqrt(YEARS) * z)
            total += max(price - STRIKE, 0.0)
        sums[i] = total


def simulate(task: int) -> na.DeviceOp:
    """The operation of a task; a worker makes it, and awaits it on its event loop."""
    return payoffs(na.empty(THREADS, np.float64), task * THREADS).output()


def mean(sums: list[na.Tensor]) -> na.DeviceOp:
    """The results of other tasks, on this worker's device, as one array on the host."""
    return na.concatenate(sums).to_host()


def main(tasks: int = 32) -> None:
    with LocalCluster(**OPTIONS) as cluster, Client(cluster) as client:
        client.register_plugin(na.dask.WorkerDevice(limit=100))
        # The results stay on the workers' devices.
        futures = na.dask.map_ops(client, simulate, range(tasks))
        sums = na.dask.submit(client, mean, futures).result()
        price = math.exp(-RATE * YEARS) * sums.sum() / (THREADS * PATHS * tasks)
        print(f"{THREADS * PATHS * tasks:,} paths: {price:.3f} (by formula 12.002)")
        assert abs(price - 12.002) < 0.1


if __name__ == "__main__":  # the workers import this file
    main()
