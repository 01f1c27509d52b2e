"""Measuring a case that may take too long: a part of it first, then as much as time allows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from numbasync.tools.bench.cpu_cases import Array, Case

SHORTEST = 0.005  # seconds of one repeat; what is quicker is called several times
TELLING = 0.05  # seconds that a part must take before the whole is estimated from it

# Makes ready for so many blocks. Gives what runs it once, and what reads the output.
Prepare = Callable[[int], tuple[Callable[[], object], Callable[[], Array]]]


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds of one call of `case` by somebody, or why there are none.

    Attributes:
        first: the first call, with all that is compiled in it.
        note: what else has to be known; why it was not measured.
    """

    case: str
    by: str
    median: float | None = None
    low: float | None = None
    high: float | None = None
    first: float | None = None
    repeats: int = 0
    note: str = ""


def measure_case(
    case: Case, by: str, prepare: Prepare, repeats: int, limit: float, scales: bool = False
) -> Result:
    """Measure `case` within about `limit` seconds.

    Args:
        scales: one who is too slow is measured on fewer blocks, and the times are scaled.
    """
    blocks, made = case.probe, prepare(case.probe)
    first = clock(made[0])
    _check(case, blocks, made[1])
    seconds = clock(made[0])
    while seconds < TELLING and blocks < case.blocks:  # too quick to tell what all would take
        blocks = min(8 * blocks, case.blocks)
        made = prepare(blocks)
        made[0]()
        seconds = clock(made[0])
    # One call more to check the answer, and one to warm up.
    affordable = limit / (repeats + 2)
    whole = seconds * case.blocks / blocks
    if whole > affordable and not scales:
        note = f"skipped: {shown(whole)} a call, limit {shown(affordable)}"
        return Result(case.name, by, first=first, note=note)
    blocks = max(case.probe, min(case.blocks, int(case.blocks * affordable / whole)))
    made = prepare(blocks)
    made[0]()
    _check(case, blocks, made[1])
    factor = case.blocks / blocks
    note = "" if blocks == case.blocks else f"scaled from {blocks:,} of {case.blocks:,} blocks"
    return summary(case.name, by, [t * factor for t in sample(made[0], repeats)], first, note)


def _check(case: Case, blocks: int, read: Callable[[], Array]) -> None:
    expected = case.answer(case.inputs(blocks), blocks)
    np.testing.assert_allclose(read(), expected, rtol=1e-4)


def clock(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    run()
    return max(time.perf_counter() - began, 1e-9)


def sample(run: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of a call, `repeats` times, after a call that does not count."""
    calls = max(1, round(SHORTEST / clock(run)))

    def several() -> None:
        for _ in range(calls):
            run()

    return [clock(several) / calls for _ in range(repeats)]


def summary(case: str, by: str, times: list[float], first: float | None, note: str = "") -> Result:
    """Median and quartiles of `times`."""
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return Result(case, by, median, low, high, first, len(times), note)


def shown(seconds: float | None) -> str:
    """A time with a unit that suits it."""
    if seconds is None:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds < 1000 else f"{seconds:,.0f} s"
    return f"{seconds * 1e6:.3g} us"
