"""`numbasync bench scaling`: the same work on one, two, four and eight devices of one host, beside
what the model of `scaling_model.py` says of it.

Weak: each device has as much to do as one alone had; the time should stay. Strong: the devices
share the work of one; the time should become as many times shorter. The model's rows are computed
from costs that docs/scaling.md has, or from the run's own figures of one and two devices.
"""

from __future__ import annotations

import functools
import multiprocessing
import runpy
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda

import numbasync as na
from benchmarks import report, scaling_model
from benchmarks.measure import Case, Figure, Run, awaited
from benchmarks.tables import table
from benchmarks.targets import Target
from benchmarks.work import N, saxpy
from numbasync.device.device import Device
from numbasync.testing.timing.timer import Stopwatch
from numbasync_kernels.nn import gemm

COUNTS = {1: "one", 2: "two", 4: "four", 8: "eight"}
PIPELINES = 5  # calls of a repetition, where a call takes milliseconds
STEPS, ELEMENTS = 20, 2**27  # launches of a pipeline, and the elements of each
SIDE = 8192  # of a product
PARTS, PART_ELEMENTS, PART_STEPS = 64, 2**20, 20_000  # of a map, and of each of its launches
SIZES = {"256 MiB": 2**28, "16 MiB": 2**24, "1 MiB": 2**20}
AWAITED = {"256 MiB": 1.05, "16 MiB": 1.15}  # at most so many times PyTorch's; else 1.3
CALLS = 10  # of a collective
POINTS = 2**17  # of a step of training
LAUNCHES = 2000  # short ones, to each device, of a repetition
EXAMPLE = Path(__file__).parents[1] / "examples" / "12_data_parallel.py"
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
ONE_PIPELINE = "numbasync: one pipeline"
ONE_PRODUCT = "numbasync: one GPU"
ONE_MAP = "numbasync: DeviceGroup.map on one GPU"
METHOD = "{what}, waited for. {calls} calls a round."
PROCESSES_METHOD = (
    "{launches:,} launches of 1,024 elements to each device, and a wait for all. Processes are "
    "told to begin through pipes, and tell when they are done. {calls} calls a round."
)

Rows = dict[int, str]  # the name of the row of so many devices


def pipelines_on(count: int) -> str:
    return ONE_PIPELINE if count == 1 else f"numbasync: {COUNTS[count]}, one on each GPU"


def product_on(count: int) -> str:
    if count == 1:
        return ONE_PRODUCT
    return f"numbasync: {'half' if count == 2 else f'1/{count}'} of the rows on each GPU"


def map_on(count: int) -> str:
    return ONE_MAP if count == 1 else f"numbasync: DeviceGroup.map on {COUNTS[count]}"


def awaited_on(count: int, library: str = "numbasync") -> str:
    return f"{library}: on {COUNTS[count]} GPUs, waited for"


def queued_on(count: int, library: str = "numbasync") -> str:
    return f"{library}: on {COUNTS[count]} GPUs, enqueued, then synchronize"


def _counts(devices: Sequence[Device]) -> list[int]:
    """The numbers of devices that can be measured here."""
    return [count for count in COUNTS if count <= len(devices)]


_Tables = Coroutine[Any, Any, list[report.Record]]


def _of_several(
    measure: Callable[[Sequence[Device], int], _Tables],
) -> Callable[[Device, int], _Tables]:
    """A part of the suite, of a function of all devices of the kind."""

    @functools.wraps(measure)
    async def part(device: Device, rounds: int) -> list[report.Record]:
        devices = list(na.devices(device.kind))
        if len(devices) < 2:
            report.say(f"bench scaling: {measure.__name__}: skipped, it needs two devices.")
            return []
        return await measure(devices, rounds)

    return part


class _Model:
    """What the model says of rows of a table.

    Args:
        rows: the names of the measured rows, by the number of devices; of all numbers that the
            model speaks of, whether they can be measured here or not.
        predict: the seconds of so many devices, of the medians that were measured, in seconds.
        given: the largest number of devices whose median `predict` uses.
    """

    def __init__(
        self, rows: Rows, predict: Callable[[dict[int, float], int], float], given: int = 1
    ) -> None:
        self.rows, self.predict = rows, predict
        self.said = {count: _model_of(row) for count, row in rows.items() if count > given}

    def figures(self, measured: Sequence[Figure]) -> list[Figure]:
        """The model's rows, for a table."""
        by_name = {figure.name: figure.median * 1e-6 for figure in measured}
        medians = {count: by_name[row] for count, row in self.rows.items() if row in by_name}
        return [
            Figure.of(name, [self.predict(medians, count) * 1e6] * 3, 1)
            for count, name in self.said.items()
        ]

    def targets(self, counts: Sequence[int]) -> list[Target]:
        """That it is within 20 % of what these numbers of devices take, either way."""
        found = []
        for count in counts:
            if count in self.said:
                what, row, model = COUNTS[count], self.rows[count], self.said[count]
                found.append(Target(f"{what} / the model", row, model, 1.2, 1.1))
                found.append(Target(f"the model / {what}", model, row, 1.25, 1.1))
        return found


def _model_of(row: str) -> str:
    return f"model: {row.removeprefix('numbasync: ')}"


def _shared(medians: dict[int, float], count: int) -> float:
    return scaling_model.shared_work(medians[1], medians[2], count)


async def _table(
    devices: Sequence[Device], rounds: int, what: str, cases: list[Case], model: _Model,
    most: Callable[[int], float], *, calls: int,
) -> report.Record:  # fmt: skip
    """A table of the same work on each number of devices, which takes at most `most(count)` times
    the time of one.
    """
    rows, counts = model.rows, _counts(devices)
    targets = [
        Target(f"{COUNTS[count]} / one", rows[count], rows[1], most(count), 0.97 * most(count))
        for count in counts[1:]
    ]
    return await table(
        devices[0], rounds, "scaling", what, cases, calls=calls, method=METHOD, base=rows[1],
        targets=[*targets, *model.targets(counts)], derive=model.figures,
    )  # fmt: skip


# --- pipelines: weak scaling ---


@_of_several
async def pipelines(devices: Sequence[Device], rounds: int) -> list[report.Record]:
    def pipeline(device: Device) -> Callable[[], Any]:
        stream = device.new_stream()
        z, x = (na.ones(ELEMENTS).sync_on(stream) for _ in range(2))

        def run() -> Any:
            ops = [saxpy.forall(ELEMENTS)(z, 0.0, x) for _ in range(STEPS)]
            return na.spawn(na.zip(*ops), stream)

        return run

    rows = {count: pipelines_on(count) for count in COUNTS}
    runs = [pipeline(device) for device in devices[: max(_counts(devices))]]

    def case(count: int) -> Case:
        async def call() -> None:
            await na.gather(*(run() for run in runs[:count]))

        return Case(rows[count], awaited(call), call)

    submit = scaling_model.Costs().submit
    model = _Model(rows, lambda took, count: max(took[1], count * STEPS * submit))
    return [await _table(
        devices, rounds, f"pipelines of {STEPS} launches",
        [case(count) for count in _counts(devices)], model, lambda _: 1 / 0.975, calls=PIPELINES,
    )]  # fmt: skip


# --- parts of the host: strong scaling ---


@na.launcher
@cuda.jit
def _slow(z: na.KernelOutput, steps: int) -> None:
    i = cuda.grid(1)
    if i < z.shape[0]:
        value = z[i]
        for _ in range(steps):
            value = value * np.float32(0.5) + np.float32(1.0)
        z[i] = value


@_of_several
async def maps(devices: Sequence[Device], rounds: int) -> list[report.Record]:
    """Each part is uploaded, worked on by one launch, and downloaded."""
    parts = [np.full(PART_ELEMENTS, i, np.float32) for i in range(PARTS)]

    def worked(part: Any) -> na.DeviceOp[Any]:
        launched = na.from_host(part).then(lambda t: _slow.forall(part.size)(t, PART_STEPS))
        return launched.first().to_host()

    rows = {count: map_on(count) for count in COUNTS}

    def case(count: int) -> Case:
        group = na.DeviceGroup(devices[:count])

        async def call() -> Any:
            return await group.map(worked, parts)

        async def check() -> None:
            for result in await call():
                np.testing.assert_array_equal(result, 2)  # what halving and adding 1 ends at

        return Case(rows[count], awaited(call), check)

    return [await _table(
        devices, rounds, f"{PARTS} host parts of {PART_ELEMENTS:,} float32",
        [case(count) for count in _counts(devices)], _Model(rows, _shared, given=2),
        lambda count: 1 / (0.75 * count if count > 2 else 1.75), calls=1,
    )]  # fmt: skip


# --- a product, its rows shared: strong scaling ---


@_of_several
async def products(devices: Sequence[Device], rounds: int) -> list[report.Record]:
    rng = np.random.default_rng(0)
    a, b = (rng.random((SIDE, SIDE), np.float32) for _ in range(2))
    first = a[:64] @ b
    empty = np.zeros((SIDE, SIDE), np.float32)

    async def product(device: Device, out: Any, x: Any, y: Any) -> Any:
        with na.use_device(device):
            await gemm(out, x, y)
            return out

    rows = {count: product_on(count) for count in COUNTS}

    async def case(count: int) -> Case:
        used = devices[:count]
        parts = zip(
            used,
            await na.scatter(empty, used),
            await na.scatter(a, used),
            await na.replicate(b, used),
            strict=True,
        )
        shares = list(parts)

        async def call() -> Any:
            return await na.gather(*(product(*share) for share in shares))

        async def check() -> None:
            outs = [z.to_host().sync_on(z.device.new_stream()) for z in await call()]
            np.testing.assert_allclose(np.concatenate(outs)[: len(first)], first, rtol=1e-3)

        return Case(rows[count], awaited(call), check)

    return [await _table(
        devices, rounds, f"a product of {SIDE} x {SIDE} float32",
        [await case(count) for count in _counts(devices)], _Model(rows, _shared, given=2),
        lambda count: 1 / (0.9 * count), calls=PIPELINES,
    )]  # fmt: skip


# --- a step of training, strong and weak: examples/12_data_parallel.py ---


@_of_several
async def training(devices: Sequence[Device], rounds: int) -> list[report.Record]:
    example = runpy.run_path(str(EXAMPLE), run_name="example")
    records = []
    for weak in (False, True):
        name = "weak" if weak else "strong"
        rows = {count: f"numbasync: {name}, {_gpus(count)}" for count in COUNTS}
        cases = [
            await _step(example, devices[:count], POINTS * (count if weak else 1), rows[count])
            for count in _counts(devices)
        ]
        model = _Model(rows, _step_model(example["COUNT"] * 4, weak))
        records.append(
            await _table(
                devices, rounds, f"a step of training, {name}", cases, model, _most(weak),
                calls=PIPELINES,
            )
        )  # fmt: skip
    return records


def _gpus(count: int) -> str:
    return f"{COUNTS[count]} GPU{'s' * (count > 1)}"


def _most(weak: bool) -> Callable[[int], float]:
    return lambda count: 1 / 0.9 if weak else 1 / (0.9 * count)


def _step_model(nbytes: int, weak: bool) -> Callable[[dict[int, float], int], float]:
    """A step has three launches a device; the work of one device is what one took for all."""

    def predict(took: dict[int, float], count: int) -> float:
        work = took[1] * (count if weak else 1)
        costs = scaling_model.Costs()
        return scaling_model.training_step(costs, count, work, 3, nbytes, one_process=True)

    return predict


async def _step(example: dict[str, Any], devices: Sequence[Device], points: int, row: str) -> Case:
    x, y = example["circles"](points)
    first = np.random.default_rng(1).normal(0, 1, example["COUNT"]).astype(np.float32)
    replicas = [example["Replica"](device) for device in devices]
    parts = zip(
        replicas,
        await na.scatter(x, devices),
        await na.scatter(y, devices),
        await na.replicate(first, devices),
        strict=True,
    )
    for replica, *tensors in parts:
        await replica.start(*tensors)
    rate = example["RATE"] / points

    async def step() -> None:
        gradients = await na.gather(*(replica.gradient() for replica in replicas))
        totals = await na.collective.all_reduce(gradients)
        await na.gather(*(r.update(t, rate) for r, t in zip(replicas, totals, strict=True)))

    async def check() -> None:
        before = np.concatenate([await r.losses() for r in replicas]).mean()
        await step()
        await step()
        after = np.concatenate([await r.losses() for r in replicas]).mean()
        if before and not after < before:
            raise RuntimeError(f"the loss went from {before} to {after}")
        weights = [await r.p.to_host() for r in replicas]
        for each in weights[1:]:
            np.testing.assert_array_equal(each, weights[0])

    return Case(row, awaited(step), check)


# --- one process with all devices, or a process for each ---


@_of_several
async def processes(devices: Sequence[Device], rounds: int) -> list[report.Record]:
    counts = _counts(devices)
    one = {count: f"numbasync: one process, {_gpus(count)}" for count in COUNTS}
    many = {n: f"numbasync: {COUNTS[n]} processes, a GPU each" for n in counts if n > 1}
    host = LAUNCHES * scaling_model.Costs().submit  # for each device
    model = _Model(one, lambda took, count: count * max(took[1], host))
    with _workers(devices[: max(counts)]) as connections:
        cases = [_one_process(devices[:count], one[count]) for count in counts]
        cases += [_many_processes(connections[:count], row) for count, row in many.items()]
        return [await table(
            devices[0], rounds, "scaling", "one process or many", cases, calls=1,
            method=PROCESSES_METHOD, base=one[1], launches=LAUNCHES,
            targets=model.targets(counts), derive=model.figures,
        )]  # fmt: skip


def _short_launches(devices: Sequence[Device], launches: int) -> Callable[[], None]:
    """So many launches to each device, in turn, and a wait for all."""
    places = []
    for device in devices:
        stream = device.new_stream()
        z, x = (na.ones(N).sync_on(stream) for _ in range(2))
        places.append((stream, saxpy.forall(N), z, x))

    def run() -> None:
        for _ in range(launches):
            for stream, launch, z, x in places:
                launch(z, 0.0, x).async_on(stream)
        for stream, *_ in places:
            stream.synchronize()

    return run


def _one_process(devices: Sequence[Device], row: str) -> Case:
    run = _short_launches(devices, LAUNCHES)

    async def call() -> None:
        run()

    return Case(row, awaited(call), call)


def _many_processes(connections: Sequence[Any], row: str) -> Case:
    async def run(calls: int) -> float:
        with Stopwatch() as watch:
            for _ in range(calls):
                for connection in connections:
                    connection.send("begin")
                for connection in connections:
                    if (said := connection.recv()) != "done":
                        raise RuntimeError(f"a process of the benchmark says {said!r}")
        return watch.seconds

    async def check() -> None:
        await run(1)

    return Case(row, run, check)


@contextmanager
def _workers(devices: Sequence[Device]) -> Iterator[list[Any]]:
    """A process for each device, and the connections to them; they end with the block."""
    context = multiprocessing.get_context("spawn")
    connections, processes = [], []
    try:
        for device in devices:
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(device.kind, device.ordinal, LAUNCHES, theirs), daemon=True
            )
            process.start()
            theirs.close()
            connections.append(ours)
            processes.append(process)
        yield connections
    finally:
        for connection in connections:
            connection.close()
        for process in processes:
            process.join()


def _work(kind: str, ordinal: int, launches: int, connection: Any) -> None:
    """A worker's program: it works when it is told to, and ends when the connection does."""
    run = _short_launches([na.devices(kind)[ordinal]], launches)
    while True:
        try:
            connection.recv()
        except EOFError:
            return
        run()
        connection.send("done")


# --- collectives ---


@_of_several
async def collectives(devices: Sequence[Device], rounds: int) -> list[report.Record]:
    return [
        await _collective(devices, rounds, name, size) for name in COLLECTIVES for size in SIZES
    ]


async def _collective(
    devices: Sequence[Device], rounds: int, name: str, size: str
) -> report.Record:
    """Of so many bytes: each device's part of an all_reduce and a reduce_scatter, and the whole of
    an all_gather.
    """
    nbytes, counts = SIZES[size], _counts(devices)[1:]
    rows = {count: queued_on(count) for count in COUNTS if count > 1}
    targets = []
    for n in counts:
        base, most = queued_on(n, "PyTorch"), AWAITED.get(size, 1.3)
        targets.append(Target(f"{COUNTS[n]} / NCCL from PyTorch", rows[n], base, 1 / 0.95, 1.0))
        base = awaited_on(n, "PyTorch")
        targets.append(Target(f"{COUNTS[n]}, awaited / PyTorch", awaited_on(n), base, most, 1.0))
    model = _Model(rows, lambda _, count: _all_reduce_model(count, nbytes))
    is_modelled = name == "all_reduce"
    return await table(
        devices[0], rounds, "collective", f"{name} of {size}",
        [case for n in counts for case in _collective_cases(devices[:n], name, nbytes)],
        calls=CALLS, method=METHOD, base=rows[2],
        sizes=(COLLECTIVES.index(name), nbytes, *counts),
        targets=[*targets, *(model.targets(counts) if is_modelled else [])],
        derive=model.figures if is_modelled else None,
    )  # fmt: skip


def _collective_cases(devices: Sequence[Device], name: str, nbytes: int) -> list[Case]:
    count = len(devices)
    array = np.arange(nbytes // 4, dtype=np.float32) % 1024
    share = array[: array.size // count] if name == "all_gather" else array
    parts, out = ([na.to_device(share, d).sync() for d in devices] for _ in range(2))
    collective = getattr(na.collective, name)
    expected: Callable[[int], Any] = {
        "all_reduce": lambda _: count * array,
        "reduce_scatter": lambda i: count * np.split(array, count)[i],
        "all_gather": lambda _: np.tile(share, count),
    }[name]

    def call() -> Any:
        return collective(parts)

    def call_into() -> Any:
        return na.collective.all_reduce(parts, out=out)

    async def check() -> None:
        for i, got in enumerate(await call()):
            elements = got.to_host().sync_on(got.device.new_stream())
            np.testing.assert_array_equal(elements, expected(i))

    queued = _queued(call_into if name == "all_reduce" else call, devices[0].new_stream())
    return [Case(awaited_on(count), awaited(call), check), Case(queued_on(count), queued, check)]


def _all_reduce_model(count: int, nbytes: int) -> float:
    costs = scaling_model.Costs()
    return max(count * costs.collective, scaling_model.ring(costs, count, nbytes))


def _queued(call: Callable[[], Any], stream: Any) -> Run:
    """Calls that are all enqueued before the thread waits for the last one."""

    async def run(calls: int) -> float:
        with Stopwatch() as watch:
            for _ in range(calls):
                call().async_on(stream)
            stream.synchronize()
        return watch.seconds

    return run


SUITE = (pipelines, maps, products, training, processes, collectives)
