"""`numbasync bench devices`: copies between two GPUs, and two pipelines at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
from numba import cuda

import numbasync as na
from benchmarks import report
from benchmarks.measure import Case, Run, awaited, timed
from benchmarks.peer_registry import has_own_processor
from benchmarks.tables import table
from benchmarks.targets import Target
from benchmarks.work import saxpy
from numbasync.device.device import Device
from numbasync.testing import Gate
from numbasync.testing.timing.timer import Stopwatch
from numbasync_kernels.nn import gemm

SIZES = {"1 GiB": 2**30, "64 MiB": 2**26, "1 MiB": 2**20}
SMALL = 4096  # bytes
CALLS, SMALL_CALLS, PIPELINES = 10, 200, 5
STEPS, ELEMENTS = 20, 2**27  # launches of a pipeline, and the elements of each
COPY = "numbasync: await dst.copy_from(src)"
QUEUED_COPY = "numbasync: copies enqueued, then synchronize"
RAW_COPY = "cuda.bindings: cuMemcpyPeerAsync + synchronize"
RAW_QUEUED = "cuda.bindings: copies enqueued, then synchronize"
MOVE = "numbasync: await to_device, new tensor"
SYNC_MOVE = "numbasync: to_device.sync(), new tensor"
RAW_MOVE = "cuda.bindings: peer copy between two events + synchronize"
REDUCED = {"256 MiB": 2**28, "16 MiB": 2**24, "1 MiB": 2**20}
AWAITED = {"256 MiB": 1.05, "16 MiB": 1.15}  # at most so many times PyTorch's; else 1.3
REDUCE = "numbasync: await all_reduce, new tensors"
QUEUED_REDUCE = "numbasync: all_reduce to given tensors, enqueued, then synchronize"
TORCH_REDUCE = "PyTorch: torch.cuda.nccl.all_reduce + synchronize"
TORCH_QUEUED = "PyTorch: torch.cuda.nccl.all_reduce enqueued, then synchronize"
LATENCY, LATENCY_CALLS = "numbasync: all_reduce of 4 bytes, on the devices alone", 50
LATENCY_METHOD = (
    "{calls} calls a round, enqueued behind a gate; from its opening to the end of the last one."
)
SIDE = 8192
WHOLE, HALVES = "numbasync: one GPU", "numbasync: half of the rows on each GPU"
ONE, TWO = "numbasync: one pipeline", "numbasync: two, one on each GPU"
PARTS, PART_ELEMENTS, PART_STEPS = 64, 2**20, 20_000  # of a map, and of each of its launches
ONE_MAP, TWO_MAP = "numbasync: DeviceGroup.map on one GPU", "numbasync: DeviceGroup.map on two"
METHOD = "{what}, waited for. {calls} calls a round."


async def copies(device: Device, rounds: int) -> list[report.Record]:
    other = _other(device)
    if other is None:
        report.say("bench devices: skipped, it needs two GPUs in one process.")
        return []
    records = []
    for name, nbytes in SIZES.items():
        target = Target(f"{name} / the driver's peer copy", QUEUED_COPY, RAW_QUEUED, 1 / 0.95, 1.02)
        cases = _copies(device, other, nbytes)
        records.append(
            await _table(
                device, rounds, "peer", f"peer copy of {name}", cases, RAW_COPY, [target],
                other.ordinal, nbytes,
            )
        )  # fmt: skip
    target = Target("4 KiB / the driver's calls", SYNC_MOVE, RAW_MOVE, 1.3, 1.2)
    cases = _moves(device, other)
    sizes = other.ordinal, SMALL
    return [
        *records,
        await _table(
            device, rounds, "move", "4 KiB to the other GPU", cases, RAW_MOVE, [target], *sizes
        ),
    ]


async def pipelines(device: Device, rounds: int) -> list[report.Record]:
    other = _other(device)
    if other is None:
        return []
    target = Target("two pipelines / one", TWO, ONE, 2 / 1.95, 1.01)
    cases = _pipelines(device, other)
    what = f"pipelines of {STEPS} launches"
    return [await _table(device, rounds, "pipelines", what, cases, ONE, [target])]


async def reductions(device: Device, rounds: int) -> list[report.Record]:
    other = _other(device)
    if other is None:
        return []
    records = []
    for name, nbytes in REDUCED.items():
        target = Target(f"{name} / NCCL from PyTorch", QUEUED_REDUCE, TORCH_QUEUED, 1 / 0.95, 1.0)
        most = AWAITED.get(name, 1.3)
        each = Target(f"{name}, awaited / PyTorch, waited for", REDUCE, TORCH_REDUCE, most, 1.0)
        cases = _reductions(device, other, nbytes)
        records.append(
            await _table(
                device, rounds, "reduce", f"all_reduce of {name}", cases, TORCH_REDUCE,
                [target, each], other.ordinal, nbytes,
            )
        )  # fmt: skip
    return [
        *records,
        await table(
            device, rounds, "latency", "two GPUs: latency", [_latency(device, other)],
            calls=LATENCY_CALLS, method=LATENCY_METHOD, base=LATENCY,
        ),
    ]  # fmt: skip


async def products(device: Device, rounds: int) -> list[report.Record]:
    other = _other(device)
    if other is None:
        return []
    target = Target("on two GPUs / on one", HALVES, WHOLE, 1 / 1.8, 1 / 1.95)
    cases = await _products(device, other)
    what = f"a product of {SIDE} x {SIDE} float32"
    return [await _table(device, rounds, "product", what, cases, WHOLE, [target])]


async def maps(device: Device, rounds: int) -> list[report.Record]:
    other = _other(device)
    if other is None:
        return []
    target = Target("parts on two GPUs / on one", TWO_MAP, ONE_MAP, 1 / 1.75, 1 / 1.9)
    cases = _maps(device, other)
    what = f"{PARTS} host parts of {PART_ELEMENTS:,} float32"
    return [await _table(device, rounds, "map", what, cases, ONE_MAP, [target])]


def _other(device: Device) -> Device | None:
    """Another GPU of this process."""
    if not has_own_processor(device):
        return None
    return next((other for other in na.devices(device.kind) if other is not device), None)


async def _table(
    device: Device, rounds: int, peers: str, what: str, cases: list[Case], base: str,
    targets: Sequence[Target], *sizes: int,
) -> report.Record:  # fmt: skip
    few = {"move": SMALL_CALLS, "pipelines": PIPELINES, "product": PIPELINES, "map": 1}
    return await table(
        device, rounds, peers, what, cases, calls=few.get(peers, CALLS), method=METHOD, base=base,
        sizes=sizes, targets=targets,
    )  # fmt: skip


def _case(name: str, call: Callable[[], Awaitable[Any]], expected: Any) -> Case:
    async def check() -> None:
        moved = await call()
        elements = moved.to_host().sync_on(moved.device.new_stream())
        np.testing.assert_array_equal(elements, expected)

    return Case(name, awaited(call), check)


def _copies(near: Device, far: Device, nbytes: int) -> list[Case]:
    array = np.arange(nbytes // 4, dtype=np.uint32)
    src = na.from_host(array).sync_on(near.new_stream())
    dst = na.zeros(array.shape, array.dtype).sync_on(far.new_stream())
    stream = far.new_stream()

    async def check() -> None:
        np.testing.assert_array_equal(dst.to_host().sync_on(stream), array)

    return [
        _case(COPY, lambda: dst.copy_from(src), array),
        Case(QUEUED_COPY, _queued(lambda: dst.copy_from(src), stream), check),
    ]


def _queued(call: Callable[[], Any], stream: Any) -> Run:
    """Calls that are all enqueued before the thread waits for the last one."""

    async def run(calls: int) -> float:
        with Stopwatch() as watch:
            for _ in range(calls):
                call().async_on(stream)
            stream.synchronize()
        return watch.seconds

    return run


def _moves(near: Device, far: Device) -> list[Case]:
    array = np.arange(SMALL // 4, dtype=np.uint32)
    src = na.from_host(array).sync_on(near.new_stream())

    def move() -> None:
        na.to_device(src, far).sync()

    async def check() -> None:
        np.testing.assert_array_equal(
            na.to_device(src, far).sync().to_host().sync_on(far.new_stream()), array
        )

    return [
        _case(MOVE, lambda: na.to_device(src, far), array),
        Case(SYNC_MOVE, timed(move, lambda: None), check),
    ]


def _pipelines(near: Device, far: Device) -> list[Case]:
    def pipeline(device: Device) -> Callable[[], Any]:
        stream = device.new_stream()
        z, x = (na.ones(ELEMENTS).sync_on(stream) for _ in range(2))

        def run() -> Any:
            ops = [saxpy.forall(ELEMENTS)(z, 0.0, x) for _ in range(STEPS)]
            return na.spawn(na.zip(*ops), stream)

        return run

    first, second = pipeline(near), pipeline(far)

    async def nothing_to_check() -> None:
        await first()
        await second()

    async def both() -> None:
        await na.gather(first(), second())

    return [
        Case(ONE, awaited(first), nothing_to_check),
        Case(TWO, awaited(both), nothing_to_check),
    ]


def _reductions(near: Device, far: Device, nbytes: int) -> list[Case]:
    array = np.arange(nbytes // 4, dtype=np.float32)
    parts = [na.to_device(array, device).sync() for device in (near, far)]

    def reduce() -> Any:
        return na.collective.all_reduce(parts)

    async def check() -> None:
        for total in await reduce():
            elements = total.to_host().sync_on(total.device.new_stream())
            np.testing.assert_array_equal(elements, array + array)

    out = [na.to_device(array, device).sync() for device in (near, far)]
    return [
        Case(REDUCE, awaited(reduce), check),
        Case(
            QUEUED_REDUCE,
            _queued(lambda: na.collective.all_reduce(parts, out=out), near.new_stream()),
            check,
        ),
    ]


def _latency(near: Device, far: Device) -> Case:
    """The devices' time for a collective of few bytes, the host's left out."""
    one = np.ones(1, np.float32)
    parts, out = ([na.to_device(one, d).sync() for d in (near, far)] for _ in range(2))
    stream, before = near.new_stream(), near.new_stream()

    async def run(calls: int) -> float:
        with Gate(before) as gate:
            na.fill(parts[0], 1).async_on(before)  # which all of them wait for
            for _ in range(calls):
                na.collective.all_reduce(parts, out=out).async_on(stream)
            with Stopwatch() as watch:
                gate.open()
                stream.synchronize()
        return watch.seconds

    async def check() -> None:
        totals: Any = await na.collective.all_reduce(parts, out=out)
        for total in totals:
            elements = total.to_host().sync_on(total.device.new_stream())
            np.testing.assert_array_equal(elements, one + one)

    return Case(LATENCY, run, check)


@na.launcher
@cuda.jit
def _slow(z: na.KernelOutput, steps: int) -> None:
    i = cuda.grid(1)
    if i < z.shape[0]:
        value = z[i]
        for _ in range(steps):
            value = value * np.float32(0.5) + np.float32(1.0)
        z[i] = value


def _maps(near: Device, far: Device) -> list[Case]:
    """Each part is uploaded, worked on by one launch, and downloaded."""
    parts = [np.full(PART_ELEMENTS, i, np.float32) for i in range(PARTS)]

    def worked(part: Any) -> na.DeviceOp[Any]:
        launched = na.from_host(part).then(lambda t: _slow.forall(part.size)(t, PART_STEPS))
        return launched.first().to_host()

    def case(name: str, *devices: Device) -> Case:
        group = na.DeviceGroup(devices)

        async def call() -> Any:
            return await group.map(worked, parts)

        async def check() -> None:
            for result in await call():
                np.testing.assert_array_equal(result, 2)  # what halving and adding 1 ends at

        return Case(name, awaited(call), check)

    return [case(ONE_MAP, near), case(TWO_MAP, near, far)]


async def _products(near: Device, far: Device) -> list[Case]:
    rng = np.random.default_rng(0)
    a, b = (rng.random((SIDE, SIDE), np.float32) for _ in range(2))
    empty = np.zeros((SIDE, SIDE), np.float32)
    whole = [await na.to_device(x, near) for x in (empty, a, b)]
    both = near, far
    halves = list(
        zip(
            both,
            await na.scatter(empty, both),
            await na.scatter(a, both),
            await na.replicate(b, both),
            strict=True,
        )
    )

    async def product(device: Device, out: Any, x: Any, y: Any) -> Any:
        with na.use_device(device):
            await gemm(out, x, y)
            return out

    async def one() -> Any:
        return (await product(near, *whole),)

    async def two() -> Any:
        return await na.gather(*(product(*half) for half in halves))

    async def check() -> None:
        elements = []
        for calls in (one, two):
            parts = [z.to_host().sync_on(z.device.new_stream()) for z in await calls()]
            elements.append(np.concatenate(parts))
        np.testing.assert_allclose(elements[0][:64], a[:64] @ b, rtol=1e-3)
        np.testing.assert_allclose(elements[1], elements[0], rtol=1e-5)

    return [Case(WHOLE, awaited(one), check), Case(HALVES, awaited(two), check)]
