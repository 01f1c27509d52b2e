"""Measuring the cases of a table: all are checked first, then they take turns.

What the device has left to do after a repetition is waited for outside of the timed part, unless
waiting is what is measured. A peer's case that fails is left out, with its reason; one of
numbasync's own ends the run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

from numbasync.testing.timing.timer import Spread, Stopwatch, turns, without_garbage_collection

# One repetition: makes so many calls, and gives the seconds that they took.
Run: TypeAlias = Callable[[int], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Case:
    """Something to measure.

    Attributes:
        name: of the library, and of what is called: "Numba: launch".
        run: one repetition.
        check: raises unless a call gives the right answer.
        calls: of a repetition; None: the table's number.
        peer: the case is another library's, and may fail without ending the run.
    """

    name: str
    run: Run
    check: Callable[[], Awaitable[None]]
    calls: int | None = None
    peer: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """The spread of a case over all rounds: host microseconds a call, unless `unit` says
    otherwise.
    """

    name: str
    median: float
    low: float
    high: float
    rounds: int
    calls: int
    unit: str = "us"

    @staticmethod
    def of(name: str, samples: Sequence[float], calls: int, unit: str = "us") -> Figure:
        spread = Spread.of(samples)
        return Figure(name, spread.median, spread.low, spread.high, len(samples), calls, unit)


@dataclass(frozen=True, slots=True)
class Missing:
    """A case, or a library with all its cases, that was not measured."""

    name: str
    why: str


@dataclass(slots=True)
class Measured:
    """The figures of one table."""

    figures: list[Figure]
    missing: list[Missing]


async def measure(cases: Sequence[Case], *, calls: int, rounds: int) -> Measured:
    """Measure every case: `rounds` repetitions of `calls` calls, after one that warms up.

    Raises:
        ValueError: fewer than 3 rounds.
        The errors of a case that is not a peer's.
    """
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
    with without_garbage_collection():
        for case, counts in turns(cases, rounds):
            if case.name not in samples:
                continue
            count = case.calls or calls
            try:
                seconds = await case.run(count)
            except Exception as error:
                _excuse(case, error, missing)
                del samples[case.name]
                continue
            if counts:
                samples[case.name].append(seconds / count * 1e6)
    count_of = {case.name: case.calls or calls for case in cases}
    figures = [Figure.of(name, each, count_of[name]) for name, each in samples.items()]
    return Measured(figures, missing)


def _excuse(case: Case, error: Exception, missing: list[Missing]) -> None:
    if not case.peer:
        raise error
    missing.append(Missing(case.name, one_line(error)))


def one_line(error: BaseException) -> str:
    """An error's type and message, for a cell of a table."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:120]}".rstrip(": ")


def timed(
    call: Callable[[], object],
    drain: Callable[[], object],
    inside: AbstractContextManager[Any] | None = None,
    every: int | None = None,
) -> Run:
    """Repetitions of `call`, which wait for the device outside of the timed part.

    Args:
        inside: entered once a repetition; for libraries that have a current stream.
        every: the number of calls to wait after, where more would fill the queue; None: all.
    """

    async def run(calls: int) -> float:
        watch = Stopwatch()
        with nullcontext() if inside is None else inside:
            while calls > 0:
                batch = calls if every is None else min(calls, every)
                with watch:
                    for _ in range(batch):
                        call()
                drain()
                calls -= batch
        return watch.seconds

    return run


def drained(call: Callable[[], object], drain: Callable[[], object] = lambda: None) -> Run:
    """Repetitions of `call`, whose timed part includes the wait for the device at their end."""

    async def run(calls: int) -> float:
        with Stopwatch() as watch:
            for _ in range(calls):
                call()
            drain()
        return watch.seconds

    return run


def prepared(make: Callable[[int], Callable[[], object]], drain: Callable[[], object]) -> Run:
    """Repetitions of what `make` prepares for so many calls; only that is timed."""

    async def run(calls: int) -> float:
        work = make(calls)
        with Stopwatch() as watch:
            work()
        drain()
        return watch.seconds

    return run


def awaited(call: Callable[[], Awaitable[object]]) -> Run:
    """Repetitions of `call`, each awaited before the next."""

    async def run(calls: int) -> float:
        with Stopwatch() as watch:
            for _ in range(calls):
                await call()
        return watch.seconds

    return run


def per_part(run: Run, parts: int) -> Run:
    """Repetitions of `run`, a call of which does `parts` of the calls that are counted."""

    async def by_parts(calls: int) -> float:
        whole, left = divmod(calls, parts)
        if left or not whole:
            raise ValueError(f"{calls} parts are not a number of calls of {parts}.")
        return await run(whole)

    return by_parts
