"""The price of an option by Monte Carlo, on the workers of a Dask cluster.

Each task is one launch, whose threads simulate paths of the stock and sum up what the option pays.
The numbers that a path draws depend on its own number alone, so the price is the same for any
number of workers, tasks in any order, and tasks that run again. The price is compared with the
formula of F. Black and M. Scholes, "The pricing of options and corporate liabilities", 1973.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numba import cuda

import numbasync as na
from numbasync.errors import InternalError
from numbasync.random import philox_normal_float64
from numbasync.tools.cluster_progress import run_tasks, show_workers, workers_of

THREADS = 1024  # of one task
PATHS_A_THREAD = 512
TASK_PATHS = THREADS * PATHS_A_THREAD
SEED = 0


@dataclass(frozen=True, slots=True)
class Call:
    """A European call option.

    Attributes:
        spot: the stock's price now.
        strike: the price at which the option may buy.
        rate: the interest rate, a year.
        volatility: the stock's, a year.
        years: until the option may be used.
    """

    spot: float = 100.0
    strike: float = 105.0
    rate: float = 0.03
    volatility: float = 0.25
    years: float = 1.5

    def price(self) -> float:
        """The price by the formula."""
        spread = self.volatility * math.sqrt(self.years)
        growth = self.rate + self.volatility**2 / 2
        d = (math.log(self.spot / self.strike) + growth * self.years) / spread
        return self.spot * _normal(d) - self.discount() * self.strike * _normal(d - spread)

    def discount(self) -> float:
        """The value now of 1 at the end."""
        return math.exp(-self.rate * self.years)


def _normal(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2


@na.launcher
def call_payoffs(
    sums: na.KernelOutput, seed: int, first: int, paths: int, spot: float, strike: float,
    rate: float, volatility: float, years: float,
) -> None:  # fmt: skip
    """For each thread, the sum of the payoffs of its paths, and of their squares."""
    i = cuda.grid(1)
    if i < sums.shape[0]:
        drift = (rate - volatility * volatility / 2) * years
        spread = volatility * math.sqrt(years)
        total = 0.0
        squares = 0.0
        for k in range(paths):
            z = philox_normal_float64(seed, first + i, k)
            payoff = max(spot * math.exp(drift + spread * z) - strike, 0.0)
            total += payoff
            squares += payoff * payoff
        sums[i, 0] = total
        sums[i, 1] = squares


def simulate(task: int, option: Call) -> na.DeviceOp[Any]:
    """The operation of one task: it gives the sums of all threads, as a NumPy array."""
    sums = na.empty((THREADS, 2), np.float64)
    launch = call_payoffs.forall(THREADS)
    return launch(sums, SEED, task * THREADS, PATHS_A_THREAD, *astuple(option)).output().to_host()


def price(client: Any, console: Any, tasks: int) -> None:
    """Simulate `tasks` times `TASK_PATHS` paths, and show the price.

    Raises:
        InternalError: the price is not the formula's.
    """
    option, workers = Call(), workers_of(client)
    # A first task each compiles the kernel.
    client.gather([na.dask.submit(client, simulate, 0, option, workers=[w]) for w in workers])
    console.print(f"{len(workers)} workers, {tasks} tasks of {TASK_PATHS:,} paths", highlight=False)
    columns = range(tasks), [option] * tasks
    done = run_tasks(client, console, "tasks", simulate, columns, lambda _: TASK_PATHS, "paths")
    total, squares = np.concatenate(done.values).sum(axis=0)
    count = tasks * TASK_PATHS
    mean = total / count
    error = option.discount() * math.sqrt(max(squares / count - mean**2, 0) / count)
    simulated, exact = option.discount() * mean, option.price()
    show_workers(console, [done])
    console.print(
        f"{option}\n{count:,} paths in {done.seconds:.1f} s: "
        f"{count / done.seconds / 1e6:,.1f} million a second\n"
        f"price {simulated:.5f}, standard error {error:.5f}; by formula {exact:.5f}",
        highlight=False,
    )
    if abs(simulated - exact) > 6 * error:
        raise InternalError(f"the simulated price {simulated} is not the formula's, {exact}")
