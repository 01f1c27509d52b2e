"""`benchmark_kernel`: times a test's kernel, also against another one, and stores results as JSON.

Only ratios within one run are compared: a machine's absolute times change from day to day. Where
pytest-benchmark is installed and the test uses its `benchmark` fixture, the fixture receives the
device's times.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numbasync.device.device import default_device
from numbasync.errors import CallerError
from numbasync.testing.check.failures import KernelFailure
from numbasync.testing.timing.timing import (
    FLUSH,
    Factory,
    Paired,
    Timing,
    do_bench,
    do_bench_paired,
)


class KernelSlow(KernelFailure):
    """A kernel takes longer than its test allows.

    Examples:
        >>> issubclass(na.testing.KernelSlow, na.testing.KernelFailure)
        True
    """


class Replay:
    """A clock that advances only by given samples; in seconds."""

    def __init__(self) -> None:
        self._now = 0.0
        self._pending: list[float] = []

    def __call__(self) -> float:
        return self._now

    def load(self, samples: tuple[float, ...]) -> None:
        """Set the milliseconds by which the next calls of `step` advance the clock."""
        self._pending = [ms / 1e3 for ms in reversed(samples)]

    def step(self) -> None:
        if self._pending:
            self._now += self._pending.pop()


@dataclass(slots=True)
class Benchmarks:
    """The results of a session."""

    entries: list[dict[str, Any]] = field(default_factory=list)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({"benchmarks": self.entries}, indent=1) + "\n")


@dataclass(frozen=True, slots=True)
class KernelBenchmark:
    """The fixture `benchmark_kernel`, which a test calls to measure an operation.

    Attributes:
        name: of the test.
        results: the results of the session, to which this object adds its own.
        clock: the clock of pytest-benchmark's fixture, in a test that uses the fixture.
        benchmark: pytest-benchmark's fixture, or None.
    """

    name: str
    results: Benchmarks
    clock: Replay
    benchmark: Any = None

    def __call__(
        self,
        factory: Factory,
        *,
        against: Factory | None = None,
        most: float | None = None,
        nbytes: int | None = None,
        seconds: float = 0.5,
        repeats: int | None = None,
        flush: int = FLUSH,
    ) -> Timing | Paired:
        """Measure an operation, store the result, and compare it.

        Args:
            factory: makes the operation, a new one for each repeat.
            against: makes the operation to compare with; the two run alternately.
            most: the largest allowed ratio to the time of `against`.
            nbytes: bytes that the operation reads and writes, for a rate.
            seconds, repeats, flush: see `do_bench`.

        Returns:
            The timing; with `against`, the timings of both and their ratio.

        Raises:
            KernelSlow: three quarters of all pairs have a larger ratio than `most`.
            CallerError: `most` without `against`.
        """
        __tracebackhide__ = True
        if most is not None and against is None:
            raise CallerError(f"most={most} is a ratio; say against= what.")
        result: Timing | Paired
        if against is None:
            result = first = do_bench(factory, seconds=seconds, repeats=repeats, flush=flush)
        else:
            result = do_bench_paired(
                factory, against, seconds=seconds, repeats=repeats, flush=flush
            )
            first = result.first
        self._keep(first, result, nbytes)
        if self.benchmark is not None:
            self.clock.load(first.samples)
            self.benchmark.pedantic(self.clock.step, rounds=len(first.samples), iterations=1)
        if most is not None and isinstance(result, Paired) and result.low > most:
            raise KernelSlow(f"{self.name}: {result}; {most:g} times are allowed.")
        return result

    def _keep(self, first: Timing, result: Timing | Paired, nbytes: int | None) -> None:
        device = default_device()
        entry: dict[str, Any] = {"test": self.name, "device": device.label, "on": device.name}
        entry |= _entry(first)
        if nbytes is not None:
            entry["gbps"] = first.gbps(nbytes)
        if isinstance(result, Paired):
            entry["against"] = _entry(result.second)
            entry |= {"ratio": result.ratio, "ratio_low": result.low, "ratio_high": result.high}
        self.results.entries.append(entry)


def _entry(timing: Timing) -> dict[str, Any]:
    return {
        "ms": timing.ms, "low": timing.low, "high": timing.high, "repeats": len(timing.samples),
    }  # fmt: skip
