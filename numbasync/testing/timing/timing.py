"""How long operations take on the device: by events on the stream, with a cold cache, in medians.

Times hold for one machine and one run. Two operations are compared by doing both in turn and
taking the ratio of each pair: what slows the machine down slows both.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from numbasync.device.device import Device, default_device
from numbasync.device.stream import Stream
from numbasync.errors import CallerError
from numbasync.ops.context import Context
from numbasync.ops.op import DeviceOp, Steps
from numbasync.ops.operands import check_op
from numbasync.tensors import create
from numbasync.tensors.tensor import Tensor

Factory: TypeAlias = Callable[[], DeviceOp[Any]]

FLUSH = 128 * 2**20  # bytes; more than the largest second-level cache of a GPU
FEWEST, MOST = 5, 1000  # repeats


@dataclass(frozen=True, slots=True)
class Timing:
    """Device milliseconds of one operation.

    Attributes:
        ms: the median of `samples`.
        low, high: their quartiles.
        samples: one for each repeat, in order.
    """

    ms: float
    low: float
    high: float
    samples: tuple[float, ...]

    @staticmethod
    def of(samples: list[float]) -> Timing:
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return Timing(median, low, high, tuple(samples))

    def gbps(self, nbytes: float) -> float:
        """Gigabytes a second, if the operation moves `nbytes`."""
        return nbytes / self.ms / 1e6 if self.ms else float("inf")

    def __str__(self) -> str:
        return f"{self.ms:.4g} ms [{self.low:.4g}, {self.high:.4g}], {len(self.samples)} repeats"


@dataclass(frozen=True, slots=True)
class Paired:
    """Two operations that were done in turn.

    Attributes:
        first, second: their timings.
        ratio: of the first to the second: the median of the ratios of all pairs.
        low, high: their quartiles.
    """

    first: Timing
    second: Timing
    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"{self.ratio:.3f} times [{self.low:.3f}, {self.high:.3f}]: {self.first.ms:.4g} ms to "
            f"{self.second.ms:.4g} ms, {len(self.first.samples)} pairs"
        )


class Timed(DeviceOp[Any]):
    """An operation between two events. What it compiles first is not between them."""

    def __init__(self, op: DeviceOp[Any], device: Device) -> None:
        self._unused = False
        self._op = check_op(op, "what is timed")
        self.stream = op.stream
        op.consume()
        self._unused = True
        self._start = device.backend.new_event(timing=True)
        self._stop = device.backend.new_event(timing=True)

    def steps(self, ctx: Context) -> Steps[Any]:
        ctx.touch()
        stream, submission = ctx.stream.backend, ctx.submission
        stream.record(self._start)
        steps = self._op.steps(ctx)
        try:
            while True:
                yield next(steps)
                if not submission.launched and submission.queue is None:
                    stream.record(self._start)  # again: so far nothing has been enqueued
        except StopIteration as end:
            stream.record(self._stop)
            return end.value

    @property
    def ms(self) -> float:
        """Once it has run."""
        return float(self._start.elapsed_ms(self._stop))

    def _describe(self) -> str:
        return f"{self._op}, timed"


def device_ms(op: DeviceOp[Any]) -> float:
    """Run `op` once and wait; the milliseconds that it took on the device.

    What is compiled for it before is not counted. On the CPU device this is time of the
    processor's clock, inside a `seeded` block a count of steps.

    Raises:
        OperationError: it is no operation.
        Whatever the operation raises.
    """
    stream = check_op(op, "what is timed").stream
    device = default_device() if stream is None else stream.device
    timed = Timed(op, device)
    timed.sync()
    return timed.ms


def do_bench(
    factory: Factory, *, seconds: float = 0.5, repeats: int | None = None, flush: int = FLUSH
) -> Timing:
    """Measure the operation that `factory` makes, a new one for each repeat.

    Args:
        factory: for example `lambda: saxpy(z, 2.0, x)`. What it does itself is not measured.
        seconds: about how long to measure, the emptying of caches included.
        repeats: how many; None: as many as fit into `seconds`, 5 to 1,000.
        flush: bytes to write before each repeat, so that nothing is found in a cache; 0 for none.

    Raises:
        CallerError: fewer than 2 repeats.
    """
    (samples,) = _samples([factory], seconds, repeats, flush)
    return Timing.of(samples)


def do_bench_paired(
    first: Factory,
    second: Factory,
    *,
    seconds: float = 1.0,
    repeats: int | None = None,
    flush: int = FLUSH,
) -> Paired:
    """Measure two operations in turn, which of the two goes first drawn anew each time.

    Args:
        first, second, seconds, repeats, flush: see `do_bench`.

    Raises:
        CallerError: fewer than 2 repeats.
    """
    a, b = _samples([first, second], seconds, repeats, flush)
    ratios = [x / max(y, 1e-9) for x, y in zip(a, b, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Paired(Timing.of(a), Timing.of(b), median, low, high)


def _samples(
    factories: list[Factory], seconds: float, repeats: int | None, flush: int
) -> list[list[float]]:
    """Device milliseconds of each factory's operations, as many of each."""
    if repeats is not None and (not isinstance(repeats, int) or repeats < 2):
        raise CallerError(f"repeats={repeats!r}: a whole number of at least 2, for a median.")
    device = default_device()
    stream = device.new_stream()
    waste = create.empty(flush, np.uint8).sync_on(stream) if flush else None
    began = time.perf_counter()
    for warm in range(2):  # the first compiles, and is not to be counted
        began = time.perf_counter() if warm else began
        for factory in factories:
            _once(factory, device, stream, waste)
    took = time.perf_counter() - began
    count = repeats or max(FEWEST, min(MOST, int(seconds / max(took, 1e-9))))
    drawn = random.Random(0)  # noqa: S311 - which goes first
    found: list[list[float]] = [[] for _ in factories]
    for _ in range(count):
        turns = list(range(len(factories)))
        drawn.shuffle(turns)
        for turn in turns:
            found[turn].append(_once(factories[turn], device, stream, waste))
    return found


def _once(factory: Factory, device: Device, stream: Stream, waste: Tensor | None) -> float:
    timed = Timed(factory(), device)
    if waste is not None:
        create.fill(waste, 0).async_on(stream)
    timed.sync_on(stream)
    return timed.ms
