"""`numbasync bench`: rounds, what is missing, targets, reports and pages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import host_work, page, report, targets
from benchmarks.measure import (
    Case,
    Figure,
    Measured,
    Missing,
    drained,
    measure,
    one_line,
    per_part,
    prepared,
    timed,
)
from benchmarks.targets import Target

LOG: list[str] = []


def case(name: str, *, peer: bool = True, wrong: bool = False, fails_in: int = 0) -> Case:
    done = 0

    async def run(calls: int) -> float:
        nonlocal done
        done += 1
        LOG.append(f"{name} {calls}")
        if done == fails_in:
            raise RuntimeError("no more")
        return 1e-6 * calls * len(name)

    async def check() -> None:
        LOG.append(f"check {name}")
        if wrong:
            raise AssertionError("3, not 4")

    return Case(name, run, check, 7 if name == "seven" else None, peer)


def measured(*cases: Case, rounds: int = 3) -> Measured:
    LOG.clear()
    return asyncio.run(measure(cases, calls=5, rounds=rounds))


def test_checked_cases_take_turns_after_a_warm_round() -> None:
    found = measured(case("a"), case("seven"))
    assert ["check a", "check seven", *["a 5", "seven 7"] * 4] == LOG
    a, seven = found.figures
    assert (a.median, a.rounds, a.calls, a.unit) == (pytest.approx(1.0), 3, 5, "us")
    assert (seven.median, seven.calls) == (pytest.approx(5.0), 7)


def test_a_peer_that_fails_is_a_reason() -> None:
    found = measured(case("wrong", wrong=True), case("a"), case("late", fails_in=3))
    assert [t.name for t in found.figures] == ["a"]
    assert found.missing == [
        Missing("wrong", "AssertionError: 3, not 4"), Missing("late", "RuntimeError: no more"),
    ]  # fmt: skip
    assert LOG.count("late 5") == 3 and "wrong 5" not in LOG


def test_a_failing_case_of_ours_ends_the_run() -> None:
    with pytest.raises(AssertionError, match="3, not 4"):
        measured(case("mine", peer=False, wrong=True))
    with pytest.raises(RuntimeError, match="no more"):
        measured(case("mine", peer=False, fails_in=2))


def test_fewer_than_three_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="3 or more"):
        measured(case("a"), rounds=2)


async def test_what_is_in_the_timed_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    LOG.clear()
    now = 0.0

    def takes(seconds: float, what: str) -> None:
        nonlocal now
        now += seconds
        LOG.append(what)

    monkeypatch.setattr("time.perf_counter", lambda: now)
    run = timed(lambda: takes(1, "call"), lambda: takes(50, "drain"), every=3)
    assert await run(7) == 7
    call, drain = "call", "drain"
    assert [*[call] * 3, drain, *[call] * 3, drain, call, drain] == LOG
    LOG.clear()
    assert await timed(lambda: takes(1, "call"), lambda: takes(50, "drain"))(7) == 7
    assert [*[call] * 7, drain] == LOG
    LOG.clear()
    assert await drained(lambda: takes(1, "call"), lambda: takes(50, "drain"))(7) == 57
    assert [*[call] * 7, drain] == LOG
    LOG.clear()

    def make(calls: int) -> Callable[[], None]:
        takes(100, "make")
        return lambda: takes(calls, "call")

    assert await prepared(make, lambda: takes(50, "drain"))(7) == 7
    assert ["make", call, drain] == LOG


def test_calls_are_counted_by_their_parts() -> None:
    found = measured(Case("a", per_part(case("aaaa").run, 5), case("aaaa").check))
    assert found.figures[0].median == pytest.approx(4 / 5) and "aaaa 1" in LOG
    with pytest.raises(ValueError, match="5 parts are not a number of calls of 4"):
        measured(Case("a", per_part(case("a").run, 4), case("a").check))


def test_the_hosts_work_takes_the_time_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock) * 1e-5)
    host_work.compute(300)
    assert 30 <= next(clock) <= 32


def test_a_reason_is_one_line() -> None:
    assert one_line(ValueError("a\n  b")) == "ValueError: a b"
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert len(one_line(ValueError("long " * 100))) < 140


def table(wanted: tuple[Target, ...] = (), missing: tuple[Missing, ...] = ()) -> report.Record:
    timings = [Figure.of("ours: x", [1.0, 2.0, 3.0], 5), Figure.of("Other: x", [7.0, 8.0, 9.0], 5)]
    return report.table("x", "a method", Measured(timings, list(missing)), "Other: x", wanted)


@pytest.mark.parametrize(
    ("bound", "stretch", "met"), [(0.2, 0.1, "NO"), (0.25, 0.1, "yes"), (0.5, 0.25, "stretch")]
)
def test_a_target_is_a_ratio_of_medians(bound: float, stretch: float, met: str) -> None:
    (judged,) = table((Target("t", "ours: x", "Other: x", bound, stretch),))["targets"]
    assert judged["measured"] == 0.25
    assert (judged["met"], judged["stretch_met"]) == (met != "NO", met == "stretch")
    assert targets.rows([judged]) == [("t", "0.25", f"{bound:g}", f"{stretch:g}", met)]


def test_a_baseless_target_bounds_in_its_own_unit() -> None:
    found = [asdict(Figure.of("ours: gap", [4.0, 5.0, 6.0], 1, "ms"))]
    (judged,) = targets.judge([Target("t", "ours: gap", None, 10, 4)], found, [])
    assert targets.rows([judged]) == [("t", "5 ms", "10 ms", "4 ms", "yes")]


def test_a_target_that_cannot_be_judged_says_why() -> None:
    wanted = (
        Target("a", "ours: x", "Gone: y", 1, 0.5), Target("b", "ours: x", "Broken: z", 1, 0.5),
        Target("c", "ours: nothing", "Other: x", 1, 0.5),
    )  # fmt: skip
    found = table(wanted, (Missing("Gone", "not installed"), Missing("Broken: z", "wrong answer")))
    assert [j["why"] for j in found["targets"]] == [
        "not installed", "wrong answer", "no ours: nothing in this run",
    ]  # fmt: skip
    assert all(j["met"] is None for j in found["targets"])
    assert "| a |  | 1 | 0.5 | not measured: not installed |" in report.markdown(found)


def test_rows_have_ratios_and_reasons() -> None:
    found = table(missing=(Missing("Gone", "not installed"),))
    assert report.rows(found) == [
        ("ours: x", "2.00", "1.50 to 2.50", "0.25"),
        ("Other: x", "8.00", "7.50 to 8.50", "1.00"),
        ("Gone", "", "not measured: not installed", ""),
    ]


def test_a_baseless_table_refers_to_its_first_case() -> None:
    only = Measured([Figure.of("ours: x", [1.0, 2.0, 3.0], 5)], [])
    assert report.table("x", "", only, "Other: x", ())["base"] == "ours: x"


def test_differing_units_are_said_and_not_compared() -> None:
    timings = [Figure.of("gap", [1.0] * 3, 1, "ms"), Figure.of("delay", [8.0] * 3, 1)]
    found = report.table("x", "", Measured(timings, []), "gap", ())
    assert report.titles(found)[1] == "median"
    assert [(row[1], row[3]) for row in report.rows(found)] == [
        ("1.00 ms", "1.00"),
        ("8.00 us", ""),
    ]


def run_of(*tables: report.Record) -> report.Record:
    return {"machine": {"device": "d"}, "versions": {"Python": "3"}, "tables": list(tables)}


def test_a_page_is_filled_from_its_files(tmp_path: Path) -> None:
    found = run_of(table((Target("t", "ours: x", "Other: x", 1, 0.1),)), table())
    (tmp_path / "a-1.json").write_text(json.dumps(found))
    before = "text\n<!-- a-1 -->\nold\n<!-- end -->\nmore\n"
    after = page.filled(before, tmp_path)
    assert page.names(before) == page.names(after) == ["a-1"]
    assert after.startswith("text\n<!-- a-1 -->\ndevice: d\nPython 3\n\n| x | us |")
    assert after.endswith("|\n<!-- end -->\nmore\n") and "old" not in after
    assert after.count("| ours: x | 2.00 |") == 2
    assert "| t | 0.25 | 1 | 0.1 | yes |" in report.markdown(found) and "| t |" not in after
    assert page.filled(after, tmp_path) == after


def test_a_pages_block_may_show_part_of_runs(tmp_path: Path) -> None:
    run = run_of(table(), {**table(), "what": "y"}) | {"texts": {"said": "grid  (4, 1, 1)"}}
    (tmp_path / "a-1.json").write_text(json.dumps(run))
    block = "<!-- a-1: {} -->\nold\n<!-- end -->\n"
    after = page.filled("".join(map(block.format, ("machine", "y", "said"))), tmp_path)
    machine, one_table, said, _ = after.split("<!-- end -->\n")
    assert machine == "<!-- a-1: machine -->\n\ndevice: d\nPython 3\n\n"
    assert one_table.startswith("<!-- a-1: y -->\n\n| y | us |") and "| x | us |" not in one_table
    assert said == "<!-- a-1: said -->\n\n```text\ngrid  (4, 1, 1)\n```\n\n"
    assert page.filled(after, tmp_path) == after
    with pytest.raises(KeyError):
        page.filled(block.format("z"), tmp_path)


def test_a_file_of_one_table_is_a_run() -> None:
    one = {**run_of(), **table()}
    del one["tables"], one["missing"], one["targets"]
    for t in one["timings"]:
        del t["unit"]
    assert report.tables_of(one) == [one]
    assert "| ours: x | 2.00 | 1.50 to 2.50 | 0.25 |" in report.markdown(one)


def test_benchmarks_have_the_timer_of_the_tests() -> None:
    """But for work that lasts as long as it is told, gaps between turns of the loop, and requests
    that come when they are due.
    """
    folder = Path(report.__file__).parent
    own = [path.name for path in folder.rglob("*.py") if "perf_counter" in path.read_text()]
    assert sorted(own) == ["host_work.py", "long_wait.py", "serving.py"]
