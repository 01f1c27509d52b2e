"""A cache of the test's own, and a clock that says what the test wants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import numbasync as na
from numbasync import cache_folder
from numbasync.tuning import session


class Clock:
    """Stands for the device's clock: launches run, and take the milliseconds of `ms`.

    Attributes:
        ms: by threads per block; the last of a list is repeated.
        measured: the threads per block of each launch that was measured, in order.
        before: called before each measurement.
    """

    def __init__(self) -> None:
        self.ms: dict[int, float | list[float]] = {}
        self.measured: list[int] = []
        self.before: Callable[[], object] = lambda: None

    def __call__(self, op: Any, stream: na.Stream, flush: object) -> float:
        try:
            self.before()
        except BaseException:
            op.suppress_warning()
            raise
        op.sync_on(stream)
        threads = threads_of(op)
        samples = self.ms.get(threads, 1.0)
        self.measured.append(threads)
        if isinstance(samples, list):
            return samples.pop(0) if len(samples) > 1 else samples[0]
        return samples


def threads_of(launch: Any) -> int:
    """The threads per block that a launch was configured with; 0: none."""
    block = launch._config.block
    return int(block[0] if block else launch._launcher.planner._threads or 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    replaced = Clock()
    monkeypatch.setattr(session, "milliseconds", replaced)
    monkeypatch.setattr(session, "FLUSH", 1)
    return replaced


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of stored measurements."""
    monkeypatch.setenv(cache_folder.SWITCH, str(tmp_path))
    return tmp_path / "autotune"
