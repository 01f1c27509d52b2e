"""Groups of processes, and what each rank runs in its own."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
from typing import Any

import numpy as np

import numbasync as na
from numbasync.collective import Communicator, group_ops, new_key

ROWS = 6
OTHERS = [("c16", "sum"), ("c16", "avg"), ("c8", "prod"), ("?", "sum"), ("?", "min")]


def part(rank: int, size: int = ROWS, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """The elements of a rank, whose sum depends on the order of the ranks."""
    rng = np.random.default_rng(rank)
    numbers = rng.standard_normal(size) * 10.0 ** rng.integers(-6, 6, size)
    if np.dtype(dtype).kind == "c":
        numbers = numbers + 1j * rng.permutation(numbers)
    return numbers.astype(dtype) if np.dtype(dtype).kind != "b" else numbers > 0


async def everything(comm: Communicator) -> list[np.ndarray[Any, Any]]:
    t = await na.from_host(part(comm.rank))
    large = await na.from_host(part(comm.rank, 2_000_001))  # several rounds
    whole = [
        await group_ops.all_reduce(t, "sum", comm),
        await group_ops.all_reduce(large, "sum", comm),
        await group_ops.reduce_scatter(t, "max", comm),
        await group_ops.all_gather(t, comm),
        await group_ops.broadcast(t, 1, comm),
        await group_ops.all_reduce(await na.zeros((0, 3)), "sum", comm),
        *[
            await group_ops.all_reduce(await na.from_host(part(comm.rank, ROWS, dtype)), op, comm)
            for dtype, op in OTHERS
        ],
        await group_ops.broadcast(await na.from_host(part(comm.rank, ROWS, "?")), 1, comm),
        await group_ops.all_gather(await na.from_host(part(comm.rank, ROWS, "c8")), comm),
    ]
    return [await x.to_host() for x in whole]


async def in_a_row(comm: Communicator) -> list[list[float]]:
    """Many at once run in the order of their starts; a kernel's result needs no wait before."""
    t = await na.from_host(part(comm.rank, 40))
    parts = [group_ops.all_reduce(t[i : i + 2], "sum", comm) for i in range(0, 40, 2)]
    chained = na.full(3, comm.rank).then(lambda x: group_ops.all_reduce(x, "avg", comm))
    sums = [*await asyncio.gather(*parts), await chained]
    return [(await x.to_host()).tolist() for x in sums]


async def both_ways(comm: Communicator) -> float:
    """Each rank sends to the next, and receives from the one before, at the same time."""
    size, rank = comm.size, comm.rank
    t = await na.from_host(np.full(1, rank, np.float32))
    _, received = await asyncio.gather(
        group_ops.send(t, (rank + 1) % size, comm), group_ops.recv(1, (rank - 1) % size, comm)
    )
    return float(await received.item())


async def one_dies(comm: Communicator, before: int = 1) -> list[str]:
    """The last rank dies after so many collectives; the errors of the others."""
    t = await na.ones(4)
    for _ in range(before if comm.rank == comm.size - 1 else 0):
        await group_ops.all_reduce(t, "sum", comm)
    if comm.rank == comm.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    errors = list[str]()
    while len(errors) < 2:  # the first one after the death may still have what it needs
        try:
            reduced = await group_ops.all_reduce(t, "sum", comm)
            assert (await reduced.to_host()).tolist() == [comm.size] * 4
        except na.errors.RankLostError as error:
            errors.append(str(error))
    return errors


async def one_dies_at_first(comm: Communicator) -> list[str]:
    return await one_dies(comm, before=0)


async def one_is_late(comm: Communicator) -> str:
    t = await na.ones(4)
    if comm.rank == comm.size - 1:
        return "not called"
    try:
        await group_ops.all_reduce(t, "sum", comm)
    except na.errors.CollectiveTimeoutError as error:
        return str(error)
    return "no error"


async def one_differs(comm: Communicator) -> str:
    t = await (na.ones(4) if comm.rank else na.ones(5))
    try:
        await group_ops.all_reduce(t, "sum", comm)
    except na.errors.CollectiveError as error:
        return str(error)
    return "no error"


def main(tasks: Any, results: Any, together: Any) -> None:
    """Run the functions of this module that are asked for, each in a group of its own."""

    async def run(name: str, key: Any, rank: int, timeout: float, kind: str) -> None:
        devices = na.devices(kind)
        with na.use_device(devices[rank if kind == "cuda" else 0]) as device:
            comm = await na.collective.connect(key, rank, device, timeout)
            results.put((rank, await globals()[name](comm)))
            with contextlib.suppress(threading.BrokenBarrierError):
                together.wait(300)  # until every rank has its result
            comm.close()

    while (task := tasks.get()) is not None:
        na.run(run(*task))


class Processes:
    """Processes, each of which takes a rank of every group."""

    def __init__(self, size: int, kind: str) -> None:
        self._size, self._kind = size, kind
        spawned = multiprocessing.get_context("spawn")
        self._results, self._together = spawned.Queue(), spawned.Barrier(size)
        self._tasks = [spawned.Queue() for _ in range(size)]
        self._processes = [
            spawned.Process(target=main, args=(tasks, self._results, self._together))
            for tasks in self._tasks
        ]
        for process in self._processes:
            process.start()

    def results_of(self, name: str, timeout: float = 300.0, lost: int = 0) -> list[Any]:
        """What the ranks of a new group return; `lost` of them return nothing."""
        key = new_key(self._size)
        for rank, tasks in enumerate(self._tasks):
            tasks.put((name, key, rank, timeout, self._kind))
        values = dict(self._results.get(timeout=300) for _ in range(self._size - lost))
        if lost:
            self._together.abort()
        return [values.get(rank) for rank in range(self._size)]

    def end(self) -> None:
        for tasks in self._tasks:
            tasks.put(None)
        for process in self._processes:
            process.join(300)
            process.kill()
