"""Times by CUPTI: each record goes to the operation that enqueued it. CUPTI is made up here."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

import pytest

import numbasync as na
from numbasync.device.journal import Row
from numbasync.timeline.activities import Activities
from tests.common import add_one

AHEAD = 5_000_000_000  # of CUPTI's clock, in nanoseconds
KINDS = SimpleNamespace(CONCURRENT_KERNEL=1, MEMCPY=2, MEMCPY2=3, MEMSET=4, DRIVER=5)


class Cupti:
    """The functions of CUPTI that are used; records are what a test adds."""

    ActivityKind = KINDS

    def __init__(self, refuses: bool = False) -> None:
        self.on: set[int] = set()
        self.records: list[Any] = []
        self._refuses = refuses
        self._done: Callable[[list[Any]], None] = lambda records: None

    def activity_register_callbacks(self, requested: Any, done: Any) -> None:
        assert requested()[0] > 0
        self._done = done

    def activity_enable(self, kind: int) -> None:
        if self._refuses and self.on:
            raise RuntimeError("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")
        self.on.add(kind)

    def activity_disable(self, kind: int) -> None:
        self.on.discard(kind)

    def activity_flush_all(self, flag: int) -> None:
        records, self.records = self.records, []
        self._done(records)

    def get_timestamp(self) -> int:
        return perf_counter_ns() + AHEAD

    def ran(self, call: int, at: int, began: int, ended: int, stream: int = 7) -> None:
        """A kernel, and the call of the driver at the host's time `at`."""
        self.records.append(
            SimpleNamespace(kind=KINDS.DRIVER, correlation_id=call, start=at + AHEAD)
        )
        self.records.append(
            SimpleNamespace(
                kind=KINDS.CONCURRENT_KERNEL, correlation_id=call, start=began + AHEAD,
                end=ended + AHEAD, device_id=0, stream_id=stream,
            )
        )  # fmt: skip


def row(stream: int, began: int, ended: int) -> Row:
    return Row("k", (), None, None, stream, 1, 0, 0, "", "", None, began, ended, 0)


def near(spans: dict[int, list[tuple[int, int]]], start: int) -> dict[int, list[tuple[int, int]]]:
    """Spans since `start`, in thousands of nanoseconds: the comparison of clocks is not exact."""
    return {
        i: [(round((a - start) / 1e6), round((b - start) / 1e6)) for a, b in own]
        for i, own in spans.items()
    }


def test_each_work_belongs_to_its_enqueuing_operation() -> None:
    cupti = Cupti()
    activities = Activities(cupti)
    activities.start()
    ms, t = 1_000_000, perf_counter_ns()
    rows = [row(1, t, t + 10 * ms), row(2, t + 20 * ms, t + 30 * ms),
            row(1, t + 40 * ms, t + 60 * ms), row(2, t + 45 * ms, t + 55 * ms)]  # fmt: skip
    cupti.ran(1, t + 5 * ms, t + 100 * ms, t + 110 * ms, stream=7)
    cupti.ran(2, t + 6 * ms, t + 110 * ms, t + 111 * ms, stream=7)  # a second one
    cupti.ran(3, t + 25 * ms, t + 120 * ms, t + 130 * ms, stream=8)
    cupti.ran(4, t + 50 * ms, t + 140 * ms, t + 150 * ms, stream=7)  # two threads: by its stream
    cupti.ran(5, t + 51 * ms, t + 160 * ms, t + 170 * ms, stream=8)
    cupti.ran(6, t + 80 * ms, t + 180 * ms, t + 190 * ms)  # somebody else's
    activities.stop()
    assert not cupti.on
    assert near(activities.of(rows), t) == {
        0: [(100, 110), (110, 111)], 1: [(120, 130)], 2: [(140, 150)], 3: [(160, 170)],
    }  # fmt: skip


def test_an_operations_part_has_its_own_works() -> None:
    cupti = Cupti()
    activities = Activities(cupti)
    activities.start()
    ms, t = 1_000_000, perf_counter_ns()
    cupti.ran(1, t + 5 * ms, t + 10 * ms, t + 20 * ms)
    rows = [row(1, t + 4 * ms, t + 6 * ms), row(1, t, t + 10 * ms)]  # the part ends first
    assert near(activities.of(rows), t) == {0: [(10, 20)]}
    activities.stop()


def test_an_exact_gpu_trace_has_cupti_times(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    cupti = Cupti()
    monkeypatch.setattr(type(device.backend), "cupti", lambda self: cupti)
    z = na.zeros(4).sync()
    with na.trace() as t:  # asks no one
        add_one(z).sync()
    assert not cupti.on
    with na.trace(exact=True) as t:
        assert len(cupti.on) == 5
        add_one(z).sync()
        assert t._recorder is not None
        (noted,) = t._recorder._rows()
        cupti.ran(1, (noted.began + noted.ended) // 2, noted.ended, noted.ended + 3_000_000)
    (op,) = t.operations
    assert op.is_measured and round(op.seconds, 4) == 0.003 and not cupti.on


def test_where_a_profiler_has_cupti_there_are_events(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    cupti = Cupti(refuses=True)
    monkeypatch.setattr(type(device.backend), "cupti", lambda self: cupti)
    z = na.zeros(4).sync()
    with na.trace(exact=True) as t:
        add_one(z).sync()
    assert t.operations[0].is_measured and not cupti.on
    assert "MULTIPLE_SUBSCRIBERS" in t.problems[0]
