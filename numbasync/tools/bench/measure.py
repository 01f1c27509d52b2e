"""Measuring: check, warm up, then rounds of all cases in turn.

The cases take turns, so that a machine that slows down slows all of them. A round is many
calls; what the device still has to do is waited for outside of the timed part, unless
waiting is what is measured. A peer that fails is named with its reason and left out of the
rounds; a case of our own that fails ends the run.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """Something to measure.

    Attributes:
        name: what it is, behind whose it is: "Numba: launch".
        run: do it `calls` times; gives the seconds that it took.
        check: raise unless doing it gives the right answer.
        calls: how often a round does it; None: as often as the others of the table.
        peer: it is another library's, and may fail without ending the run.
    """

    name: str
    run: Callable[[int], Awaitable[float]]
    check: Callable[[], Awaitable[None]]
    calls: int | None = None
    peer: bool = False


@dataclass(frozen=True, slots=True)
class Timing:
    """Host microseconds of one call, or another quantity whose `unit` says so: the median of
    all rounds, and their quartiles.
    """

    name: str
    median: float
    low: float
    high: float
    rounds: int
    calls: int
    unit: str = "us"

    def __str__(self) -> str:
        return f"{self.name}: {self.median:.2f} {self.unit} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True, slots=True)
class Missing:
    """A case, or a library with all its cases, that was not measured."""

    name: str
    why: str


@dataclass(slots=True)
class Measured:
    """What one table is made of."""

    timings: list[Timing]
    missing: list[Missing]


async def measure(cases: Sequence[Case], *, calls: int, rounds: int) -> Measured:
    """Measure every case in `rounds` rounds of `calls` calls, after one that does not count."""
    if rounds < 3:
        raise ValueError(f"{rounds} rounds have no quartiles; use 3 or more.")
    missing: list[Missing] = []
    samples: dict[str, list[float]] = {}
    for case in cases:
        try:
            await case.check()
            samples[case.name] = []
        except Exception as error:
            _excuse(case, error, missing)
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds + 1):
            for case in cases:
                if case.name not in samples:
                    continue
                count = case.calls or calls
                try:
                    seconds = await case.run(count)
                except Exception as error:
                    _excuse(case, error, missing)
                    del samples[case.name]
                    continue
                if number:
                    samples[case.name].append(seconds / count * 1e6)
    finally:
        gc.enable()
    counts = {case.name: case.calls or calls for case in cases}
    return Measured([timing(name, times, counts[name]) for name, times in samples.items()], missing)


def _excuse(case: Case, error: Exception, missing: list[Missing]) -> None:
    if not case.peer:
        raise error
    missing.append(Missing(case.name, said(error)))


def said(error: BaseException) -> str:
    """An error in one line, for a cell of a table."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:120]}".rstrip(": ")


def timing(name: str, values: list[float], calls: int, unit: str = "us") -> Timing:
    """Median and quartiles of `values`."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(name, median, low, high, len(values), calls, unit)


def timed(
    call: Callable[[], object],
    drain: Callable[[], object],
    inside: AbstractContextManager[Any] | None = None,
    every: int | None = None,
) -> Callable[[int], Awaitable[float]]:
    """A case's `run`: call it, then wait for the device outside of the timed part.

    Args:
        inside: entered once a round; for libraries that have a current stream.
        every: wait after so many calls, too, where more of them would fill the queue.
    """

    async def run(calls: int) -> float:
        seconds = 0.0
        with nullcontext() if inside is None else inside:
            while calls > 0:
                batch = calls if every is None else min(calls, every)
                began = time.perf_counter()
                for _ in range(batch):
                    call()
                seconds += time.perf_counter() - began
                drain()
                calls -= batch
        return seconds

    return run


def awaited(call: Callable[[], Awaitable[object]]) -> Callable[[int], Awaitable[float]]:
    """A case's `run`: await it, again and again."""

    async def run(calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            await call()
        return time.perf_counter() - began

    return run


def per_part(
    run: Callable[[int], Awaitable[float]], parts: int
) -> Callable[[int], Awaitable[float]]:
    """A case's `run` whose calls have so many parts each, and are counted by those."""

    async def by_parts(calls: int) -> float:
        whole, left = divmod(calls, parts)
        if left or not whole:
            raise ValueError(f"{calls} parts are not a number of calls of {parts}.")
        return await run(whole)

    return by_parts
