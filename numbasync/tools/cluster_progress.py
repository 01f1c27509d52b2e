"""Tasks of a cluster with a progress bar, and what each worker did meanwhile."""

from __future__ import annotations

import gc
import importlib
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numbasync as na
from numbasync.errors import StateError


class Finished(NamedTuple):
    """Tasks that have run.

    Attributes:
        values: their results, in the order of the tasks.
        seconds: from the first task's start to the last one's end.
        use: of each worker, how many tasks it has computed, and in how many seconds.
    """

    values: list[Any]
    seconds: float
    use: dict[str, tuple[int, float]]


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], None]]:
    """Raise KeyboardInterrupt by Ctrl-C as usual; if it comes while Python's collector runs, by the
    next call of the function that is given.

    What is raised in a callback of the collector, Python prints and forgets, and `distributed` has
    one that runs often.
    """
    usual = signal.getsignal(signal.SIGINT)
    collects = came = False

    def begin(phase: str, _: dict[str, int]) -> None:
        nonlocal collects
        collects = collects or phase == "start"

    def end(phase: str, _: dict[str, int]) -> None:
        nonlocal collects
        collects = collects and phase == "start"

    def note(number: int, frame: Any) -> None:
        nonlocal came
        came = True
        if not collects:
            signal.default_int_handler(number, frame)

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    is_ours = threading.current_thread() is threading.main_thread() and (
        usual is signal.default_int_handler  # another one is the program's, which knows better
    )
    if not is_ours:
        yield check
        return
    gc.callbacks.insert(0, begin)
    gc.callbacks.append(end)
    signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, usual)
        gc.callbacks.remove(begin)
        gc.callbacks.remove(end)


def workers_of(client: Any) -> list[str]:
    """The addresses of the workers.

    Raises:
        StateError: there are none.
    """
    workers = list(client.scheduler_info(n_workers=-1)["workers"])
    if not workers:
        raise StateError("the cluster has no workers: start some, dask worker ADDRESS.")
    return workers


def run_tasks(
    client: Any,
    console: Any,
    label: str,
    function: Callable[..., Any],
    columns: Sequence[Iterable[Any]],
    amount: Callable[[Any], int],
    unit: str,
) -> Finished:
    """`na.dask.map_ops(client, function, *columns)` with a bar; a task of a lost worker runs again.

    Args:
        label: of the bar.
        amount: of a result, how much work it stands for; the bar shows millions a second.
        unit: of the amount.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    distributed: Any = importlib.import_module("distributed")  # typed in part only
    shown = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"), TimeElapsedColumn(),
    )  # fmt: skip
    with (
        noted_interrupts() as check,
        Progress(*shown, console=console) as progress,
        distributed.get_task_stream(client) as stream,
    ):
        began = time.perf_counter()
        futures = na.dask.map_ops(client, function, *columns, retries=2)
        numbers = {future.key: n for n, future in enumerate(futures)}
        bar = progress.add_task(label, total=len(futures), rate="")
        values, work = [None] * len(futures), 0
        done = distributed.as_completed(futures, with_results=True)
        for count, (future, value) in enumerate(done, 1):
            check()
            values[numbers[future.key]] = value
            work += amount(value)
            rate = work / (time.perf_counter() - began) / 1e6
            progress.update(bar, completed=count, rate=f"{rate:,.1f} million {unit}/s")
        seconds = time.perf_counter() - began
    return Finished(values, seconds, _use(stream.data))


def _use(done: Any) -> dict[str, tuple[int, float]]:
    work: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for task in done:
        spans = [s for s in task["startstops"] if s["action"] == "compute"]
        number, busy = work[task["worker"]]
        work[task["worker"]] = number + 1, busy + sum(s["stop"] - s["start"] for s in spans)
    return work


def show_workers(console: Any, passes: Sequence[Finished]) -> None:
    """Show a table of the workers: the tasks of each, and the part of the time they took."""
    from rich.table import Table

    seconds = sum(one.seconds for one in passes)
    table = Table("worker", "tasks", "busy")
    for worker in sorted({worker for one in passes for worker in one.use}):
        parts = [one.use.get(worker, (0, 0.0)) for one in passes]
        busy = sum(part[1] for part in parts)
        table.add_row(worker, str(sum(part[0] for part in parts)), f"{busy / seconds:.0%}")
    console.print(table)
