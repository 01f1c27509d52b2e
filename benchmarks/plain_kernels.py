"""`numbasync bench kernels`: plain kernels, as a user writes them first, on large and small arrays.

The times are the device's, between two events on a stream. On the CPU device the arrays are small,
and the same tables show that the suite runs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numba import cuda, float32, float64

import numbasync as na
from benchmarks import report
from benchmarks.measure import Case, Run
from benchmarks.peer_registry import has_own_processor
from benchmarks.tables import table
from benchmarks.targets import Target
from numbasync.device.device import Device

LARGE, FEW = 2**28, 2**12  # elements on a GPU, and on the CPU device
THREADS: tuple[int, ...] = (128, 256, 512)
BLOCKS: tuple[tuple[int, int], ...] = ((32, 8), (128, 2), (256, 1))
TYPES = ("float64", "int8", "int16", "int32", "int64")
SMALL = (2**10, 2**12, 2**14, 2**16, 2**18, 2**20)
LAUNCHES = 200  # of a graph, where one launch is too short to be timed
CALLS = 3  # of a round
METHOD = (
    "{what}: device time between two events of a call that follows another one on the stream, so "
    "that the host's time is not in it; the threads of a block are in the names."
)
UNIT = "device microseconds a call"
ADD = "PyTorch: add"


def add(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput) -> None:
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = x[i] + y[i]


def saxpy(y: na.KernelOutput, a: Any, x: na.KernelInput) -> None:
    i = cuda.grid(1)
    if i < y.shape[0]:
        y[i] = a * x[i] + y[i]


def decay(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput) -> None:
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = x[i] * math.exp(-y[i])


def stencil(z: na.KernelOutput, x: na.KernelInput) -> None:
    """Five points."""
    i = cuda.grid(1)
    n = x.shape[0]
    if 2 <= i < n - 2:
        ends = float32(0.1) * (x[i - 2] + x[i + 2])
        z[i] = ends + float32(0.2) * (x[i - 1] + x[i + 1]) + float32(0.4) * x[i]


def add_rows(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput) -> None:
    j, i = cuda.grid(2)
    if i < z.shape[0] and j < z.shape[1]:
        z[i, j] = x[i, j] + y[i, j]


@na.launcher
@cuda.jit
def repeat(z: na.KernelOutput, period: na.KernelInput) -> None:
    """Fill `z` with copies of `period`, one behind the other."""
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = period[i % period.shape[0]]


@na.launcher
@cuda.jit
def count_wrong(
    count: na.KernelOutput, z: na.KernelInput, period: na.KernelInput, first: int, end: int
) -> None:
    """Count the elements of `z` that are not those of `repeat` from `first` to `end`, and 0 outside
    of that; up to the rounding of float32.
    """
    i = cuda.grid(1)
    if i < z.shape[0]:
        expected = float64(period[i % period.shape[0]]) if first <= i < end else 0.0
        difference = abs(float64(z[i]) - expected)
        cuda.atomic.add(count, 0, 1 if difference > 1e-6 * abs(expected) else 0)


def numbers(dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """Numbers from 0 to 50, all exact in every dtype; the same for all libraries, which repeat
    them.
    """
    return (np.arange(51) * (seed + 7) % 51).astype(dtype)


_before = na.launcher(cuda.jit(add))  # keeps the device busy before a case


def _size(device: Device) -> int:
    return LARGE if has_own_processor(device) else FEW


class Bench:
    """The cases of a table on one stream.

    Attributes:
        cases: so far.
        every: how many of the variants of a case are measured; one on the CPU device.
    """

    def __init__(self, device: Device, size: int, dtype: str = "float32") -> None:
        self.every = slice(None if has_own_processor(device) else 1)
        self.stream = device.new_stream()
        self.periods = [numbers(dtype, seed) for seed in range(2)]
        self.z, self.x, self.y = (na.zeros(size, dtype).sync_on(self.stream) for _ in range(3))
        for array, period in zip((self.x, self.y), self.periods, strict=True):
            repeat(array, period).sync_on(self.stream)
        self.cases: list[Case] = []

    def add(
        self, name: str, op: Callable[[], na.DeviceOp[Any]], period: np.ndarray[Any, Any],
        first: int = 0, end: int | None = None, per: int = 1,
    ) -> None:  # fmt: skip
        """A case of `per` launches.

        Args:
            period: what `z`, set to 0 before, repeats afterwards from `first` to `end`.
        """
        # Not `self`, which has the cases: in such a circle three arrays of 1 GiB would outlive it.
        stream, z, x, y = self.stream, self.z, self.x, self.y
        last = z.shape[0] if end is None else end

        async def check() -> None:
            await na.fill(z, 0).schedule(stream)
            await op().schedule(stream)
            counted = count_wrong.forall(z.shape[0])(na.zeros(1, np.int64), z, period, first, last)
            count = (await counted.first().to_host().schedule(stream))[0]
            if count:
                raise AssertionError(f"{count} elements are wrong")

        run = device_time(stream, op, lambda: _before(z, x, y), per)
        self.cases.append(Case(f"numbasync: {name}", run, check))


def device_time(
    stream: na.Stream, op: Callable[[], na.DeviceOp[Any]], before: Callable[[], Any], per: int
) -> Run:
    """Repetitions of `op`, in seconds of the device; `before` keeps the device busy meanwhile."""
    start, stop = stream.device.new_event(), stream.device.new_event()

    async def run(calls: int) -> float:
        seconds = 0.0
        for _ in range(calls):
            before().async_on(stream)
            start.record(stream)
            op().async_on(stream)
            stop.record(stream)
            await stop
            seconds += start.elapsed_ms(stop) / 1e3 / per
        return seconds

    return run


def _named(what: str, block: object) -> str:
    return f"{what}, {block} threads"


def _targets(what: Sequence[str], base: str, rate: float) -> list[Target]:
    """That each of `what` has at least so much of the rate of `base`."""
    bound = round(1 / rate, 4)
    return [Target(f"{name} / {base}", f"numbasync: {name}", base, bound, 1.0) for name in what]


async def elementwise(device: Device, rounds: int) -> list[report.Record]:
    size = _size(device)
    b = Bench(device, size)
    x, y = b.periods
    names = []
    for threads in THREADS[b.every]:
        calls = {
            "add": (partial(_launcher(add, threads), b.z, b.x, b.y), x + y),
            "saxpy in place": (
                partial(_launcher(saxpy, threads), b.z, _HALF, b.x), _HALF * x,
            ),
            "x exp(-y)": (
                partial(_launcher(decay, threads), b.z, b.x, b.y), x * np.exp(-y),
            ),
        }  # fmt: skip
        for what, (op, expected) in calls.items():
            names.append(_named(what, threads))
            b.add(names[-1], op, expected)
    plain = _launcher(add, 256, elements=1)
    b.add("add, elements=1, 256 threads", partial(plain, b.z, b.x, b.y), x + y)
    return [
        await table(
            device, rounds, "plain_add", f"add, saxpy and decay of {size:,} float32",
            b.cases, calls=CALLS, method=METHOD, base=ADD, targets=_targets(names, ADD, 0.99),
            unit=UNIT, sizes=(size,),
        )
    ]  # fmt: skip


_HALF = np.float32(0.5)


_kernel = functools.cache(cuda.jit)  # which is compiled once, whatever launches it


def _launcher(kernel: Any, threads: Any, **options: Any) -> Any:
    return na.launcher(threads=threads, **options)(_kernel(kernel))


async def neighbours(device: Device, rounds: int) -> list[report.Record]:
    size = _size(device)
    b = Bench(device, size)
    x, y = b.periods

    weights = {-2: 0.1, -1: 0.2, 0: 0.4, 1: 0.2, 2: 0.1}
    smoothed = np.sum([w * np.roll(x, -shift) for shift, w in weights.items()], 0)
    stencils, rows = [], []
    for threads in THREADS[b.every]:
        stencils.append(_named("5-point stencil", threads))
        op = partial(_launcher(stencil, threads), b.z, b.x)
        b.add(stencils[-1], op, smoothed.astype(np.float32), 2, size - 2)
    side = math.isqrt(size)
    z2, x2, y2 = (t.reshape(side, side) for t in (b.z, b.x, b.y))
    for block in BLOCKS[b.every]:
        kernel = _launcher(add_rows, block, axes=(1, 0))
        rows.append(_named("2-D add", block))
        b.add(rows[-1], partial(kernel, z2, x2, y2), x + y)
    copy = "PyTorch: copy_"
    targets = _targets(stencils, copy, 0.97) + _targets(rows, ADD, 0.97)
    return [
        await table(
            device, rounds, "plain_neighbours", f"stencil and 2-D add of {size:,} float32", b.cases,
            calls=CALLS, method=METHOD, base=copy, targets=targets, unit=UNIT, sizes=(size,),
        )
    ]  # fmt: skip


async def types(device: Device, rounds: int) -> list[report.Record]:
    size = _size(device)
    cases: list[Case] = []
    targets: list[Target] = []
    for dtype in TYPES:
        b = Bench(device, count_of(size, dtype), dtype)
        x, y = b.periods
        names = [_named(f"add of {dtype}", threads) for threads in THREADS[b.every]]
        for name, threads in zip(names, THREADS, strict=False):
            b.add(name, partial(_launcher(add, threads), b.z, b.x, b.y), x + y)
        cases += b.cases
        targets += _targets(names, f"{ADD} of {dtype}", 0.99)
        if not has_own_processor(device):
            break
    return [
        await table(
            device, rounds, "plain_types", f"add of {size:,} elements of other types", cases,
            calls=CALLS, method=METHOD, base=f"{ADD} of {TYPES[0]}", targets=targets, unit=UNIT,
            sizes=(size,),
        )
    ]  # fmt: skip


def count_of(size: int, dtype: str) -> int:
    """Half as many elements where they have 8 bytes."""
    return size if np.dtype(dtype).itemsize <= 4 else size // 2


async def views(device: Device, rounds: int) -> list[report.Record]:
    size = _size(device)
    b = Bench(device, size)
    x, y = b.periods
    kernel = _launcher(add, 256)
    length = size - 5

    places = {"a length of no multiple": 0, "views that start at element 1": 1}
    for name, first in places.items():
        z, xs, ys = (t[first : first + length] for t in (b.z, b.x, b.y))
        b.add(name, partial(kernel, z, xs, ys), x + y, first, first + length)
    return [
        await table(
            device, rounds, "plain_views", f"odd lengths and views of {size:,} float32", b.cases,
            calls=CALLS, method=METHOD, base=ADD, targets=_targets(list(places), ADD, 0.9),
            unit=UNIT, sizes=(size,),
        )
    ]  # fmt: skip


async def small(device: Device, rounds: int) -> list[report.Record]:
    size = _size(device)
    counts = [count for count in SMALL if count <= size]
    b = Bench(device, counts[-1])
    x, y = b.periods
    kernels = {"": _launcher(add, 256), ", elements=1": _launcher(add, 256, elements=1)}
    targets = []
    for count in counts:
        z, xs, ys = (t[:count] for t in (b.z, b.x, b.y))
        for suffix, kernel in kernels.items():
            ops = [kernel(z, xs, ys) for _ in range(LAUNCHES)]
            graph = na.zip(*ops).graph_on(b.stream)
            b.add(f"add of {count:,}{suffix}", graph.launch, x + y, 0, count, LAUNCHES)
        name = f"numbasync: add of {count:,}"
        targets.append(Target(f"{name} / elements=1", name, f"{name}, elements=1", 1.02, 1.0))
    return [
        await table(
            device, rounds, "plain_small", f"small arrays, in graphs of {LAUNCHES} launches",
            b.cases, calls=CALLS, method=METHOD, base=f"numbasync: add of {SMALL[0]:,}, elements=1",
            targets=targets, unit=UNIT,
        )
    ]  # fmt: skip


TABLES = (elementwise, neighbours, types, views, small)
