"""Device times of operations: measured by events on the stream, with a cold cache, as medians.

Times are valid for one machine and one run. Two operations are compared by running both
alternately and taking the ratio of each pair: a slower machine slows both.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from numbasync.arguments import check_number, check_whole, shown, with_type
from numbasync.device.device import Device, default_device
from numbasync.device.stream import Stream
from numbasync.errors import CallerError
from numbasync.extending import Timed
from numbasync.ops.op import DeviceOp
from numbasync.tensors.create import empty, fill
from numbasync.tensors.tensor import Tensor
from numbasync.testing.timing.timer import Spread, Stopwatch, turns

Factory: TypeAlias = Callable[[], DeviceOp[Any]]

FLUSH = 128 * 2**20  # bytes; larger than the largest second-level cache of a GPU
FEWEST, MOST = 5, 1000  # repeats
MOST_REPEATS, MOST_SECONDS = 1_000_000, 86_400  # that a caller may ask for


class Timing(Spread):
    """Device milliseconds of one operation.

    Attributes:
        ms: the median of `samples`.
        low, high: their quartiles.
        samples: one for each repeat, in order.

    Examples:
        >>> timing = na.testing.do_bench(lambda: na.zeros(10), repeats=5, flush=0)
        >>> len(timing.samples)
        5
    """

    __slots__ = ()

    @property
    def ms(self) -> float:
        return self.median

    def gbps(self, nbytes: float) -> float:
        """Gigabytes a second, if the operation moves `nbytes`."""
        return nbytes / self.ms / 1e6 if self.ms else float("inf")

    def __str__(self) -> str:
        return f"{self.ms:.4g} ms [{self.low:.4g}, {self.high:.4g}], {len(self.samples)} repeats"


@dataclass(frozen=True, slots=True)
class Paired:
    """The timings of two operations that ran alternately.

    Attributes:
        first, second: the timing of each operation.
        ratio: of the first to the second: the median of the ratios of all pairs.
        low, high: the quartiles of these ratios.

    Examples:
        >>> factories = (lambda: na.zeros(9)), (lambda: na.ones(9))
        >>> pair = na.testing.do_bench_paired(*factories, repeats=5, flush=0)
        >>> pair.first.ms > 0, pair.second.ms > 0
        (True, True)
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


def device_ms(op: DeviceOp[Any]) -> float:
    """Run `op` once, wait for it, and return its milliseconds on the device.

    Compilation before its first work is not counted. On the CPU device, the time is measured by
    the processor's clock, and inside a `seeded` block it is a count of steps.

    Raises:
        OperationError: `op` is not an operation.
        The errors of the operation.

    Examples:
        >>> z, x = await na.gather(na.zeros(1000), na.ones(1000))
        >>> na.testing.device_ms(saxpy(z, 2.0, x)) > 0
        True
    """
    timed = Timed(op)
    timed.sync()
    return timed.ms


def do_bench(
    factory: Factory, *, seconds: float = 0.5, repeats: int | None = None, flush: int = FLUSH
) -> Timing:
    """Measure the operation that `factory` makes, a new one for each repeat.

    Args:
        factory: for example `lambda: saxpy(z, 2.0, x)`. The factory's own time is not measured.
        seconds: approximate duration of the measurement, including the flushing of caches.
        repeats: the number of repeats; None: as many as fit into `seconds`, 5 to 1,000.
        flush: bytes to write before each repeat, so that caches hold no operands; 0 for none.

    Raises:
        CallerError: fewer than 2 repeats.

    Examples:
        >>> z, x = await na.gather(na.zeros(1000), na.ones(1000))
        >>> timing = na.testing.do_bench(lambda: saxpy(z, 2.0, x), repeats=5, flush=0)
        >>> timing.low <= timing.ms <= timing.high
        True
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
    """Measure two operations alternately; a random draw decides which of each pair runs first.

    Args:
        first, second, seconds, repeats, flush: see `do_bench`.

    Raises:
        CallerError: fewer than 2 repeats.

    Examples:
        >>> z, x = await na.gather(na.zeros(1000), na.ones(1000))
        >>> pair = na.testing.do_bench_paired(
        ...     lambda: saxpy(z, 2.0, x), lambda: na.fill(z, 0), repeats=5, flush=0
        ... )
        >>> pair.low <= pair.ratio <= pair.high
        True
    """
    a, b = _samples([first, second], seconds, repeats, flush)
    ratios = [x / max(y, 1e-9) for x, y in zip(a, b, strict=True)]
    spread = Spread.of(ratios)
    return Paired(Timing.of(a), Timing.of(b), spread.median, spread.low, spread.high)


def _samples(
    factories: list[Factory], seconds: float, repeats: int | None, flush: int
) -> list[list[float]]:
    """Device milliseconds of each factory's operations, equally many for each factory."""
    if repeats is not None:
        repeats = check_whole(repeats, "repeats of a measurement", 2, MOST_REPEATS)
    flush = check_whole(flush, "flush of a measurement", 0)
    check_number(seconds, "seconds of a measurement")
    if not 0 < seconds <= MOST_SECONDS:
        raise CallerError(
            f"seconds of a measurement are {shown(seconds)}: write more than 0, and at most "
            f"{MOST_SECONDS:,}."
        )
    for factory in factories:
        if not callable(factory):
            raise CallerError(
                f"what is measured is {with_type(factory)}: write a function that gives a new "
                "operation, as in do_bench(lambda: saxpy(z, 2.0, x))."
            )
    bench = _Bench(flush)
    watch = Stopwatch()
    for factory, is_warm in turns(factories, 1):  # the first round compiles
        with watch if is_warm else nullcontext():
            bench.once(factory)
    count = repeats or max(FEWEST, min(MOST, int(seconds / max(watch.seconds, 1e-9))))
    draw = random.Random(0)  # noqa: S311 - decides the order within a pair
    samples: list[list[float]] = [[] for _ in factories]
    for i, _ in turns(range(len(factories)), count, warm_up=0, draw=draw):
        samples[i].append(bench.once(factories[i]))
    return samples


class _Bench:
    """One stream of each device that the operations belong to, and memory to flush its caches."""

    def __init__(self, flush: int) -> None:
        self._flush = flush
        self._places: dict[Device, tuple[Stream, Tensor | None]] = {}

    def once(self, factory: Factory) -> float:
        timed = Timed(factory())
        home = timed.home
        device = home.device if isinstance(home, Stream) else home or default_device()
        stream, scratch = self._place(device)
        if scratch is not None:
            fill(scratch, 0).async_on(stream)
        timed.sync_on(stream)
        return timed.ms

    def _place(self, device: Device) -> tuple[Stream, Tensor | None]:
        if device not in self._places:
            stream, flush = device.new_stream(), self._flush
            scratch = empty(flush, np.uint8).sync_on(stream) if flush else None
            self._places[device] = stream, scratch
        return self._places[device]
