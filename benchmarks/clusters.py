"""`numbasync bench dask`: what a task of `na.dask` costs beside one of Dask's, and two workers."""

from __future__ import annotations

import importlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba import cuda, njit

import numbasync as na
from benchmarks import report
from benchmarks.measure import Figure, Measured
from benchmarks.targets import Target
from numbasync.device.device import Device, default_device
from numbasync.testing.timing.timer import Stopwatch, turns, without_garbage_collection
from numbasync.tools.local_cluster import local_client

TASKS = 100  # of a repetition, where a task is short
LONG_TASKS, STEPS, N = 12, 500_000, 16  # where it computes
MAP, COROUTINE, OPS, SUBMIT, OP = (
    "Dask: map, NumPy", "Dask: map, coroutine", "numbasync: map_ops, saxpy",
    "Dask: submit, NumPy", "numbasync: submit, saxpy",
)  # fmt: skip
VALUES, VALUE = "numbasync: map_ops, na.value", "numbasync: submit, na.value"
MORE_VALUES, MORE_VALUE = "map_ops, na.value, beyond Dask", "submit, na.value, beyond Dask"
MORE_OPS, MORE_OP = "map_ops, saxpy, beyond Dask", "submit, saxpy, beyond Dask"
ALONE, SCHEDULER = "Dask: one task, waited for", "Dask: the scheduler's thread, map of NumPy"
KERNELS, FUNCTIONS = "numbasync: kernels", "Dask: Numba functions"
METHOD = (
    "{tasks} tasks a repetition on one worker process of one thread, on the loopback interface, "
    "from making the tasks until all are done; results stay on the worker. The cases take turns, "
    "{rounds} rounds after one that does not count; `beyond` is the difference of two cases in the "
    "same round. A map's function makes the operation on the worker; submit sends it pickled. "
    "na.value does nothing on the device; saxpy uploads 64 elements, fills 64, launches a kernel. "
    "One task, waited for, goes from the client through the scheduler to the worker and back."
)
CPU_METHOD = (
    "Of the same repetitions, the processor time of both processes, client with scheduler, and "
    "worker: what other programs of the machine do adds less to it. The scheduler's thread has the "
    "client's connection, too."
)
SCALING_METHOD = (
    "{tasks} tasks of arithmetic alone, each one launch, on one and on two worker processes of one "
    "thread; the cases take turns, {rounds} rounds after one that does not count. The quotients "
    "are of one and two workers in the same round."
)
TARGETS = (
    Target("a task of map_ops beyond one of Dask's map", MORE_VALUES, None, 300, 100),
    Target("a task of submit beyond one of Dask's", MORE_VALUE, None, 300, 100),
)
Run = Callable[[], list[Any]]
Samples = dict[str, list[float]]  # by case


@na.launcher
def saxpy(z: na.KernelOutput, a: float, x: na.KernelInput) -> None:
    """The short kernel."""
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] += a * x[i]


@na.launcher
def arithmetic(z: na.KernelOutput, steps: int) -> None:
    """The long kernel: a chain of products and sums for each element."""
    i = cuda.grid(1)
    if i < z.shape[0]:
        value = 0.5 + i
        for _ in range(steps):
            value = value * 0.999 + 0.25
        z[i] = value


@njit
def arithmetic_of_numba(steps: int) -> Any:
    """What the long kernel computes, as one function."""
    z = np.empty(N)
    for i in range(N):
        value = 0.5 + i
        for _ in range(steps):
            value = value * 0.999 + 0.25
        z[i] = value
    return z


def _saxpy(n: int) -> na.DeviceOp[na.Tensor]:
    return saxpy(na.ones(64), float(n), np.ones(64, np.float32)).output()


def _numpy(n: int) -> Any:
    return np.ones(64, np.float32) + n


async def _coroutine(n: int) -> Any:
    return _numpy(n)


def _arithmetic(_: int) -> na.DeviceOp[na.Tensor]:
    return arithmetic(na.empty(N, np.float64), STEPS).output()


def _function(_: int) -> Any:
    return arithmetic_of_numba(STEPS)


async def tables(device: Device, rounds: int) -> list[report.Record]:
    """All tables. The event loop is held up meanwhile: nothing else runs on it."""
    with _cluster(device, 1) as one:
        overheads = _overhead(one, rounds)
        with _cluster(device, 2) as two:
            return [*overheads, _scaling(one, two, rounds)]


@contextmanager
def _cluster(device: Device, workers: int) -> Iterator[Any]:
    with local_client(workers) as client:
        chosen = "auto" if device is default_device() else device.label
        client.register_plugin(na.dask.WorkerDevice(chosen))
        yield client


# --- short tasks ---------------------------------------------------------------------------


def _overhead(client: Any, rounds: int) -> list[report.Record]:
    numbers = range(TASKS)
    cases: dict[str, Run] = {
        MAP: lambda: client.map(_numpy, numbers, pure=False),
        COROUTINE: lambda: client.map(_coroutine, numbers, pure=False),
        VALUES: lambda: na.dask.map_ops(client, na.value, numbers),
        OPS: lambda: na.dask.map_ops(client, _saxpy, numbers),
        SUBMIT: lambda: [client.submit(_numpy, n, pure=False) for n in numbers],
        VALUE: lambda: [na.dask.submit(client, na.value(n)) for n in numbers],
        OP: lambda: [na.dask.submit(client, _saxpy(n)) for n in numbers],
        ALONE: lambda: [_done(client.submit(_numpy, n, pure=False)) for n in numbers],
    }
    _check(client)
    wall, processors, scheduler = _measured(cases, client, rounds)
    processors[SCHEDULER] = scheduler[MAP]
    pairs = {
        MORE_VALUES: (VALUES, MAP), MORE_OPS: (OPS, MAP), MORE_VALUE: (VALUE, SUBMIT),
        MORE_OP: (OP, SUBMIT),
    }  # fmt: skip
    tables = []
    for what, samples, method, targets in (
        ("a task", wall, METHOD, ()),
        ("processor time of a task", processors, CPU_METHOD, TARGETS),
    ):
        for name, (ours, theirs) in pairs.items():
            differences = zip(samples[ours], samples[theirs], strict=True)
            samples[name] = [a - b for a, b in differences]
        figures = [Figure.of(name, each, TASKS) for name, each in samples.items()]
        text = method.format(tasks=TASKS, rounds=rounds)
        tables.append(report.table(what, text, Measured(figures, []), MAP, targets, "us a task"))
    return tables


def _check(client: Any) -> None:
    for future in (na.dask.submit(client, _saxpy(2)), na.dask.map_ops(client, _saxpy, [2])[0]):
        np.testing.assert_array_equal(future.result().to_host().sync(), np.full(64, 3, np.float32))


def _measured(cases: dict[str, Run], client: Any, rounds: int) -> tuple[Samples, Samples, Samples]:
    """Microseconds a task of each round: elapsed; of the processors; of the scheduler's thread."""
    samples = tuple(defaultdict[str, list[float]](list) for _ in range(3))
    with without_garbage_collection():
        for name, counts in turns(list(cases), rounds):
            for kind, seconds in zip(samples, _repetition(cases[name], client), strict=True):
                if counts:
                    kind[name].append(seconds / TASKS * 1e6)
    wall, processors, scheduler = samples
    return wall, processors, scheduler


def _repetition(run: Run, client: Any) -> tuple[float, float, float]:
    distributed: Any = importlib.import_module("distributed")
    thread = client.run_on_scheduler(_thread_time)
    theirs = sum(client.run(time.process_time).values())
    with Stopwatch() as wall, Stopwatch(time.process_time) as processor:
        futures = run()
        distributed.wait(futures)
    used = processor.seconds + sum(client.run(time.process_time).values()) - theirs
    return wall.seconds, used, client.run_on_scheduler(_thread_time) - thread


def _thread_time() -> float:
    return time.thread_time()


def _done(future: Any) -> Any:
    """The future, once its task is done; its result stays on the worker."""
    distributed: Any = importlib.import_module("distributed")
    distributed.wait(future)
    return future


# --- long tasks ----------------------------------------------------------------------------


def _scaling(one: Any, two: Any, rounds: int) -> report.Record:
    numbers = range(LONG_TASKS)
    builders: dict[str, Callable[[Any], list[Any]]] = {
        KERNELS: lambda client: na.dask.map_ops(client, _arithmetic, numbers),
        FUNCTIONS: lambda client: client.map(_function, numbers, pure=False),
    }
    expected = _function(0)
    for client in (one, two):  # compiled on each worker
        for worker in client.scheduler_info(n_workers=-1)["workers"]:
            tensor: na.Tensor = na.dask.submit(client, _arithmetic, 0, workers=[worker]).result()
            np.testing.assert_allclose(tensor.to_host().sync(), expected)
            client.submit(_function, 0, workers=[worker], pure=False).result()
    cases: dict[str, Run] = {}
    for name, make in builders.items():
        cases[f"{name}, 1 worker"] = lambda make=make: make(one)  # type: ignore[misc]
        cases[f"{name}, 2 workers"] = lambda make=make: make(two)  # type: ignore[misc]
    samples = defaultdict[str, list[float]](list)
    for name, counts in turns(list(cases), rounds):
        client = one if name.endswith("1 worker") else two
        seconds, _, _ = _repetition(cases[name], client)
        if counts:
            samples[name].append(seconds / LONG_TASKS * 1e6)
    figures = [Figure.of(name, each, LONG_TASKS) for name, each in samples.items()]
    for name in builders:
        pairs = zip(samples[f"{name}, 1 worker"], samples[f"{name}, 2 workers"], strict=True)
        speedups = [alone / both for alone, both in pairs]
        figures.append(Figure.of(f"{name}: two workers as one", speedups, LONG_TASKS, "times"))
    text = SCALING_METHOD.format(tasks=LONG_TASKS, rounds=rounds)
    base = f"{FUNCTIONS}, 1 worker"
    return report.table("two workers", text, Measured(figures, []), base, (), "us a task")
