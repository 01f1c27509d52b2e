"""Summaries of timelines that are made up, where each figure is known, and of one that ran."""

from __future__ import annotations

from typing import Any

import pytest

import numbasync as na
from numbasync.timeline.summary import critical_path, summarize
from tests.common import add_one
from tests.timeline.records import operation, wait


def test_busy_overlap_and_gaps() -> None:
    ops = [
        operation("a", 1, 1, (0.0, 2.0)), operation("b", 1, 2, (3.0, 4.0), (6.0, 7.0)),
        operation("c", 2, 1, (1.0, 3.5)), operation("d", 3, 1, (9.0, None)),
        operation("e", 4, 0),
    ]  # fmt: skip
    s = summarize(ops, [], [], 10.0)
    assert [(u.stream, u.operations, u.busy, u.longest_gap) for u in s.streams] == [
        (1, 2, 4.0, 2.0), (2, 1, 2.5, 0.0), (3, 1, 1.0, 0.0),
    ]  # fmt: skip
    assert (s.operations, s.busy, s.overlap) == (5, 6.0, 0.25)
    assert "5 operations in 10 s" in str(s) and "stream 1 of cpu:0" in str(s)
    assert "<table>" in s._repr_html_() and "TraceSummary" in repr(s)


def test_the_critical_path_leads_to_the_late_host() -> None:
    ops = [
        operation("early", 1, 1, (0.0, 1.0)),
        operation("first", 1, 3, (2.0, 4.0), submitted=2.0),  # the host was late with it
        operation("other", 2, 1, (2.0, 3.0), submitted=2.0),
        operation("joined", 2, 2, (4.0, 5.0), submitted=2.5, waits_for=((1, 4),)),
        operation("last", 2, 3, (5.0, 6.0), submitted=2.6),
    ]
    path = critical_path(ops, wait(2, 3, 2.7, 6.1))
    assert [op.name for op in path] == ["first", "joined", "last"]
    assert critical_path(ops, wait(7, 1, 0.0, 1.0)) == []
    s = summarize(ops, [wait(2, 3, 2.7, 6.1), wait(1, 1, 0.0, 1.0)], [], 7.0)
    assert [op.name for op in s.critical_path] == ["first", "joined", "last"]
    assert s.longest_waits[0].sequence == 3 and "first (2 s) -> joined (1 s)" in str(s)


def test_a_long_path_is_named_by_its_end() -> None:
    ops = [operation(f"k{n}", 1, n, (n, n + 1.0), submitted=0.0) for n in range(1, 21)]
    s = summarize(ops, [wait(1, 20, 0.5, 21.1)], [], 22.0)
    assert len(s.critical_path) == 20 and "14 before -> k15 (1 s) -> k16" in str(s)


SHORT = [operation("k", 1, n, (n * 1e-3, n * 1e-3 + 1e-6), kernels=("k",),
                   submitted=n * 1e-3 - 2e-5) for n in range(1, 200)]  # fmt: skip
TURNS = [operation("k", 1 + n % 2, n + 1, (n * 1.0, n + 0.9)) for n in range(10)]
COMPILED = na.TracedCompilation(kernel="k", device="cpu:0", thread="x", began=0.0, ended=0.5)


@pytest.mark.parametrize(
    ("ops", "waits", "compiled", "seconds", "word"),
    [
        ([], [wait(1, 1, 0.0, 0.2, how="block")], [], 1.0, "stood still in 1 blocking call"),
        ([], [], [COMPILED], 1.0, "kernel.compile"),
        (SHORT, [], [], 0.2, "replay"),
        ([], [wait(1, n, 0.0, 1e-5, how="block") for n in range(9)], [], 1e-3, "9 blocking calls"),
        (TURNS, [], [], 10.0, "na.gather"),
        (TURNS, [], [], 100.0, "na.gather"),  # a host that is busy elsewhere
        ([], [wait(1, n, 0.0, 2.0, ready=1.0) for n in range(5)], [], 2.0, "keeps the event loop"),
    ],
)
def test_advice_is_given_where_there_is_reason(
    ops: list[Any], waits: list[Any], compiled: list[Any], seconds: float, word: str
) -> None:
    (sentence,) = summarize(ops, waits, compiled, seconds).advice
    assert word in sentence


def test_no_advice_without_reason() -> None:
    together = [operation("k", 1 + n, 1, (0.0, 1.0)) for n in range(2)]
    quick = [wait(1, n, 0.0, 1.0, ready=0.9999) for n in range(5)]
    blocked = wait(1, 1, 0.0, 0.2, how="block", task="")  # no loop stands still
    short = wait(1, 2, 0.0, 1e-4, how="block")
    assert summarize([*together, *SHORT[:50]], [*quick, blocked, short], [], 1.0).advice == ()


def test_a_program_that_ran(device: na.Device) -> None:
    async def main() -> na.Timeline:
        z = await na.zeros(8)
        await add_one(z)
        with na.trace() as t:
            await na.gather(*(add_one(z) for _ in range(3)))
            add_one(z).sync()
        return t

    t = na.run(main())
    s = t.summary()
    assert (
        s.operations == 4 and 0 < s.busy <= s.seconds and sum(u.operations for u in s.streams) == 4
    )
    assert s.critical_path[-1].kernels == ("add_one",) and len(s.longest_waits) >= 2
    assert s.blocked > 0 and "<table>" in t._repr_html_()
