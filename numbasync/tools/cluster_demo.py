"""`numbasync cluster-demo`: prices an option by Monte Carlo on the workers of a Dask cluster.

Each task is one launch, whose threads simulate paths of the stock and sum up what the option pays.
The numbers that a path draws depend on its own number alone, so the price is the same for any
number of workers, tasks in any order, and tasks that run again. The price is compared with the
formula of F. Black and M. Scholes, "The pricing of options and corporate liabilities", 1973.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numba import cuda

import numbasync as na
from numbasync.errors import CallerError, InternalError, MissingExtraError, StateError
from numbasync.random import philox_normal_float64
from numbasync.tools.local_cluster import local_client

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


def run(address: str | None, workers: int | None, device: str | None, paths: int) -> int:
    """Run the command. Returns the exit status.

    Args:
        address: of a cluster's scheduler; None: a cluster is started here, and ended again.
        workers: of the cluster that is started; None: one for each processor, 8 at most.
        device: of each worker; None: as `WorkerDevice` chooses.
        paths: how many to simulate, at least.

    Raises:
        CallerError: there are no paths, no workers, or workers of a cluster that runs already.
        StateError: there is no scheduler at `address`.
    """
    for module, extra in (("rich", "demo"), ("distributed", "dask")):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(
                f"the demo needs {module}, which is not installed: pip install 'numbasync[{extra}]'"
            )
    if paths < 1 or (workers is not None and workers < 1):
        raise CallerError(
            f"--paths {paths} and --workers {workers} are whole numbers of at least 1."
        )
    if address is not None and workers is not None:
        raise CallerError(
            f"--workers {workers} is for a cluster that is started here; leave it out."
        )
    with _client(address, workers) as client:
        client.register_plugin(na.dask.WorkerDevice(device or "auto"))
        return _price(client, -(-paths // TASK_PATHS))


@contextmanager
def _client(address: str | None, workers: int | None) -> Iterator[Any]:
    distributed: Any = importlib.import_module("distributed")  # typed in part only
    if address is not None:
        try:
            client = distributed.Client(address, timeout=10)
        except OSError as error:
            raise StateError(f"there is no scheduler at {address}: {error}") from None
        with client:
            yield client
        return
    count = workers or min(os.cpu_count() or 1, 8)
    with local_client(count) as client:
        client.run(_leave_interrupts)
        yield client


def _leave_interrupts() -> None:
    """Ctrl-C goes to all processes of a terminal; this one ends its workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _price(client: Any, tasks: int) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    distributed: Any = importlib.import_module("distributed")
    console, option = Console(), Call()
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"), TimeElapsedColumn(),
    )  # fmt: skip
    workers = list(client.scheduler_info(n_workers=-1)["workers"])
    if not workers:
        raise StateError("the cluster has no workers: start some, dask worker ADDRESS.")
    # A first task each compiles the kernel.
    client.gather([na.dask.submit(client, simulate, 0, option, workers=[w]) for w in workers])
    console.print(f"{len(workers)} workers, {tasks} tasks of {TASK_PATHS:,} paths", highlight=False)
    parts: dict[int, Any] = {}
    with (
        Progress(*columns, console=console) as progress,
        distributed.get_task_stream(client) as stream,
    ):
        bar = progress.add_task("tasks", total=tasks, rate="")
        began = time.perf_counter()
        futures = na.dask.map_ops(client, simulate, range(tasks), [option] * tasks, retries=2)
        numbers = {future.key: n for n, future in enumerate(futures)}
        for future, value in distributed.as_completed(futures, with_results=True):
            parts[numbers[future.key]] = value.sum(axis=0)
            rate = len(parts) * TASK_PATHS / (time.perf_counter() - began)
            progress.update(bar, completed=len(parts), rate=f"{rate / 1e6:,.1f} million paths/s")
        seconds = time.perf_counter() - began
    total, squares = np.sum([parts[n] for n in range(tasks)], axis=0)
    return _report(console, option, tasks, (total, squares), seconds, stream.data)


def _report(
    console: Any, option: Call, tasks: int, sums: tuple[float, float], seconds: float, done: Any
) -> int:
    from rich.table import Table

    count = tasks * TASK_PATHS
    mean = sums[0] / count
    error = option.discount() * math.sqrt(max(sums[1] / count - mean**2, 0) / count)
    price, exact = option.discount() * mean, option.price()
    table = Table("worker", "tasks", "busy")
    for worker, (number, busy) in sorted(_use(done).items()):
        table.add_row(worker, str(number), f"{busy / seconds:.0%}")
    console.print(table)
    console.print(
        f"{option}\n{count:,} paths in {seconds:.1f} s: {count / seconds / 1e6:,.1f} million a "
        f"second\nprice {price:.5f}, standard error {error:.5f}; by formula {exact:.5f}",
        highlight=False,
    )
    if abs(price - exact) > 6 * error:
        raise InternalError(f"the simulated price {price} is not the formula's, {exact}")
    return 0


def _use(done: Any) -> dict[str, tuple[int, float]]:
    """Of each worker, how many tasks it has computed, and in how many seconds."""
    work: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for task in done:
        spans = [s for s in task["startstops"] if s["action"] == "compute"]
        number, busy = work[task["worker"]]
        work[task["worker"]] = number + 1, busy + sum(s["stop"] - s["start"] for s in spans)
    return work
