"""Measuring a case of `bench cpu` in a limited time: a part first, then as many blocks as fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from benchmarks.cpu_cases import Array, Case
from numbasync.testing.timing.timer import Spread, seconds_of, without_garbage_collection

SHORTEST = 0.005  # seconds of a repetition; a shorter call is made several times
TELLING = 0.05  # seconds that a part must take before the whole is estimated from it

# Prepares a number of blocks. Gives a call that runs them, and one that reads the output.
Prepare: TypeAlias = Callable[[int], tuple[Callable[[], object], Callable[[], Array]]]


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds of a call of a case by one contestant, or the reason why there are none.

    Attributes:
        case, by: the names of the case and of the contestant.
        first: the first call, with its compilation.
        note: what else has to be known; why the case was not measured.
    """

    case: str
    by: str
    median: float | None = None
    low: float | None = None
    high: float | None = None
    first: float | None = None
    repeats: int = 0
    note: str = ""

    @staticmethod
    def of(
        case: str, by: str, samples: Sequence[float], first: float | None = None, note: str = ""
    ) -> Result:
        spread = Spread.of(samples)
        return Result(
            case, by, spread.median, spread.low, spread.high, first, len(samples), note
        )  # fmt: skip


def measure_case(
    case: Case, by: str, prepare: Prepare, repeats: int, limit: float, scales: bool = False
) -> Result:
    """Measure `case` within about `limit` seconds.

    Args:
        by: the name of the contestant.
        scales: a contestant that is too slow is measured on fewer blocks, and its times are
            scaled to all of them; else the case is skipped.

    Raises:
        AssertionError: a wrong answer.
    """
    blocks, (call, read) = case.probe, prepare(case.probe)
    first = seconds_of(call)
    _check(case, blocks, read)
    seconds = seconds_of(call)
    while seconds < TELLING and blocks < case.blocks:  # too short for an estimate of the whole
        blocks = min(8 * blocks, case.blocks)
        call, _ = prepare(blocks)
        call()
        seconds = seconds_of(call)
    # One call more to check the answer, and one to warm up.
    affordable = limit / (repeats + 2)
    whole = seconds * case.blocks / blocks
    if whole > affordable and not scales:
        note = f"skipped: {in_unit(whole)} a call, limit {in_unit(affordable)}"
        return Result(case.name, by, first=first, note=note)
    blocks = max(case.probe, min(case.blocks, int(case.blocks * affordable / whole)))
    call, read = prepare(blocks)
    call()
    _check(case, blocks, read)
    factor = case.blocks / blocks
    note = "" if blocks == case.blocks else f"scaled from {blocks:,} of {case.blocks:,} blocks"
    samples = [seconds * factor for seconds in _repetitions(call, repeats)]
    return Result.of(case.name, by, samples, first, note)


def _check(case: Case, blocks: int, read: Callable[[], Array]) -> None:
    expected = case.answer(case.inputs(blocks), blocks)
    np.testing.assert_allclose(read(), expected, rtol=1e-4)


def _repetitions(call: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of a call, `repeats` times, after a call that warms up."""
    calls = max(1, round(SHORTEST / seconds_of(call)))

    def repetition() -> None:
        for _ in range(calls):
            call()

    with without_garbage_collection():
        return [seconds_of(repetition) / calls for _ in range(repeats)]


def in_unit(seconds: float | None) -> str:
    """A time in the largest unit of which it is at least one; "" for None."""
    if seconds is None:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds < 1000 else f"{seconds:,.0f} s"
    return f"{seconds * 1e6:.3g} us"
