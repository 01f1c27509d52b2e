"""Measuring: check, warm up, then rounds of all cases in turn.

The cases take turns, so that a machine that slows down slows all of them. A round is many
calls; what the device still has to do is waited for outside of the timed part, unless
waiting is what is measured.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """Something to measure.

    Attributes:
        name: what it is.
        run: do it `calls` times; gives the seconds that it took.
        check: raise unless doing it gives the right answer.
    """

    name: str
    run: Callable[[int], Awaitable[float]]
    check: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Timing:
    """Host microseconds of one call: the median of all rounds, and their quartiles."""

    name: str
    median: float
    low: float
    high: float
    rounds: int
    calls: int

    def __str__(self) -> str:
        return f"{self.name}: {self.median:.2f} us [{self.low:.2f}, {self.high:.2f}]"


async def measure(cases: Sequence[Case], *, calls: int, rounds: int) -> list[Timing]:
    """Measure every case in `rounds` rounds of `calls` calls, after one that does not count."""
    if rounds < 3:
        raise ValueError(f"{rounds} rounds have no quartiles; use 3 or more.")
    for case in cases:
        await case.check()
    samples: dict[str, list[float]] = {case.name: [] for case in cases}
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds + 1):
            for case in cases:
                seconds = await case.run(calls)
                if number:
                    samples[case.name].append(seconds / calls * 1e6)
    finally:
        gc.enable()
    return [_timing(name, times, calls) for name, times in samples.items()]


def _timing(name: str, times: list[float], calls: int) -> Timing:
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return Timing(name, median, low, high, len(times), calls)


def timed(
    call: Callable[[], object], drain: Callable[[], object]
) -> Callable[[int], Awaitable[float]]:
    """A case's `run`: call it, then wait for the device outside of the timed part."""

    async def run(calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        seconds = time.perf_counter() - began
        drain()
        return seconds

    return run
