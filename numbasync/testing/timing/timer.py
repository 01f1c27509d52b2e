"""The timer of all measurements: its clock, its rounds, and its medians.

A *repetition* of a contestant gives one sample: the time of one call, or of many calls divided by
their number. A *round* is one repetition of every contestant, in turn, so that a machine that slows
down slows all of them. Rounds that warm up load and compile, and do not count. The result is the
*median* of the samples of all rounds that count, with their quartiles.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self, TypeVar

T = TypeVar("T")


class Stopwatch:
    """Adds up the seconds that its `with` blocks take.

    Attributes:
        seconds: the sum so far, without a block that is still open.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        """`clock` gives seconds; None: `time.perf_counter`."""
        self._clock = time.perf_counter if clock is None else clock
        self._start = 0.0
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._start = self._clock()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += self._clock() - self._start


def seconds_of(call: Callable[[], object]) -> float:
    """The seconds of one call; never 0, so that they can be divided by."""
    with Stopwatch() as watch:
        call()
    return max(watch.seconds, 1e-9)


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of samples and their quartiles, in the unit of the samples.

    Attributes:
        samples: in the order in which they were taken.
    """

    median: float
    low: float
    high: float
    samples: tuple[float, ...]

    @classmethod
    def of(cls, samples: Sequence[float]) -> Self:
        """The spread of at least two samples."""
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high, tuple(samples))


def turns(
    contestants: Sequence[T], rounds: int, *, warm_up: int = 1, draw: random.Random | None = None
) -> Iterator[tuple[T, bool]]:
    """Each contestant in turn, round after round, and whether the round counts.

    Args:
        rounds: the number of rounds that count.
        warm_up: the number of rounds before them.
        draw: decides the order within a round; None: the order of `contestants`.
    """
    for number in range(warm_up + rounds):
        order = list(contestants)
        if draw is not None:
            draw.shuffle(order)
        for contestant in order:
            yield contestant, number >= warm_up


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect garbage now, and not again before the end of the block."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
