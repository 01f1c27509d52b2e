"""What a batcher counts: requests by how they ended, and the spread of sizes and times."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

# Seconds; upper bounds, as those of Prometheus.
TIMES = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often a number was seen, by ranges.

    Attributes:
        bounds: the upper bound of each range, included in it, in ascending order.
        counts: the numbers in each range, and at the end those above the last bound.
        total: the sum of all numbers.
        largest: the largest number, 0 if there was none.

    Examples:
        >>> seen = na.serve.Histogram((1.0, 2.0, 4.0), (5, 3, 1, 1), 17.0, 5.0)
        >>> seen.count, seen.mean
        (10, 1.7)
        >>> seen.quantile(0.5), seen.quantile(1.0)
        (1.0, 5.0)
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    largest: float

    @property
    def count(self) -> int:
        """How many numbers there were."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """The mean of all numbers, 0 if there was none."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, q: float) -> float:
        """About the number that a part `q`, from 0 to 1, does not exceed; 0 if there was none.
        Within a range the numbers are taken to lie evenly.
        """
        left, low = q * self.count, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and left <= count:
                high = min(bound, self.largest)
                return low + (high - low) * max(left, 0.0) / count
            left, low = left - count, bound
        return self.largest


class Spread:
    """A histogram that grows."""

    __slots__ = ("_bounds", "_counts", "_largest", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = self._largest = 0.0

    def add(self, number: float) -> None:
        self._counts[bisect_left(self._bounds, number)] += 1
        self._total += number
        self._largest = max(self._largest, float(number))

    def histogram(self) -> Histogram:
        return Histogram(self._bounds, tuple(self._counts), self._total, self._largest)


def size_bounds(most: int) -> tuple[float, ...]:
    """Bounds for the sizes of batches: the powers of two below `most`, and `most`."""
    powers = [2.0**k for k in range(most.bit_length()) if 2**k < most]
    return (*powers, float(most))


@dataclass(frozen=True, slots=True)
class BatcherStatistics:
    """What a `MicroBatcher` has done. Each request is counted in one of the first eight.

    Attributes:
        waiting: requests that wait for a batch now.
        running: requests in batches that `f` works on now.
        answered: requests that got what `f` gave for them.
        failed: requests that got an error of `f`, or of their batch.
        expired: requests that were refused at their deadline.
        cancelled: requests whose caller has been cancelled.
        overloaded: requests that were refused because too many waited.
        closed: requests that were refused because the batcher was closed.
        batches: the batches that `f` has begun.
        batch_sizes: requests a batch.
        wait_seconds: from the call to the start of the batch.
        answer_seconds: from the call to the answer, of the answered.
        batch_seconds: how long `f` took for a batch.

    Examples:
        >>> async def double(items):
        ...     return [2 * item for item in items]
        >>> async with na.serve.MicroBatcher(double, max_batch=4) as batcher:
        ...     _ = await asyncio.gather(*map(batcher, range(10)))
        >>> seen = batcher.statistics()
        >>> seen.answered, seen.batches, seen.batch_sizes.largest
        (10, 3, 4.0)
        >>> 0 < seen.answer_seconds.quantile(0.99) < 60
        True
    """

    waiting: int
    running: int
    answered: int
    failed: int
    expired: int
    cancelled: int
    overloaded: int
    closed: int
    batches: int
    batch_sizes: Histogram
    wait_seconds: Histogram
    answer_seconds: Histogram
    batch_seconds: Histogram

    @property
    def requests(self) -> int:
        """All requests that have come."""
        ended = self.answered + self.failed + self.expired + self.cancelled
        return self.waiting + self.running + ended + self.overloaded + self.closed
