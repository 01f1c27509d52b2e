"""`numbasync bench cpu`: answers, parts of a case, and what is skipped; no times."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from benchmarks import compiling, cpu, cpu_limits, cpu_operations
from benchmarks.__main__ import main
from benchmarks.cpu_cases import CASES, Array, Case
from benchmarks.cpu_limits import Prepare, Result, in_unit, measure_case
from benchmarks.cpu_operations import NAMES
from benchmarks.long_kernels import LONG
from benchmarks.peers import by_hand, simulator


@pytest.fixture
def on_cpu() -> na.Device:
    return na.devices("cpu")[0]


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_part_of_every_case_is_right(case: Case, on_cpu: na.Device) -> None:
    prepare = cpu._prepare(on_cpu, na.launcher(cuda.jit(case.body)), case)
    for blocks in (case.probe, 2 * case.probe):
        run, read = prepare(blocks)
        run()
        expected = case.answer(case.inputs(blocks), blocks)
        np.testing.assert_allclose(read(), expected, rtol=1e-4)
        assert np.any(expected)


@pytest.mark.parametrize("name", sorted(by_hand._LOOPS))
def test_the_loops_by_hand_are_right(name: str) -> None:
    case = next(c for c in CASES if c.body.__name__ == name)
    args = case.inputs(case.probe)
    by_hand._LOOPS[name](*args, *case.grid(case.probe))  # prange is range, interpreted
    expected = case.answer(case.inputs(case.probe), case.probe)
    np.testing.assert_allclose(args[0], expected, rtol=1e-4)


def ticking(monkeypatch: pytest.MonkeyPatch, seconds_a_block: float) -> tuple[Prepare, list[int]]:
    """A contestant whose time is a clock of the test, and the blocks that it was asked for."""
    now = [0.0]
    asked: list[int] = []
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    case = CASES[0]

    def prepare(blocks: int) -> tuple[Callable[[], object], Callable[[], Array]]:
        asked.append(blocks)

        def run() -> None:
            now[0] += seconds_a_block * blocks

        return run, lambda: case.answer(case.inputs(blocks), blocks)

    return prepare, asked


def test_a_case_in_its_limit_is_measured_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, asked = ticking(monkeypatch, 1e-4)
    found = measure_case(CASES[0], "somebody", prepare, repeats=9, limit=60)
    assert found.median == pytest.approx(1e-4 * CASES[0].blocks)
    assert found.low is not None and found.high is not None and found.low <= found.high
    assert found.repeats == 9 and found.note == "" and asked[-1] == CASES[0].blocks
    assert found.first == pytest.approx(1e-4 * CASES[0].probe)


def test_a_case_beyond_limits_is_skipped_or_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, asked = ticking(monkeypatch, 0.1)
    found = measure_case(CASES[0], "somebody", prepare, repeats=9, limit=60)
    assert found.median is None and "skipped: 78.2 s a call" in found.note
    assert max(asked) < CASES[0].blocks
    found = measure_case(CASES[0], "somebody", prepare, repeats=3, limit=60, scales=True)
    assert found.median == pytest.approx(78.2)
    assert f"scaled from {asked[-1]} of 782 blocks" in found.note


def test_a_wrong_answer_is_not_measured() -> None:
    case = CASES[0]

    def prepare(blocks: int) -> tuple[Callable[[], object], Callable[[], Array]]:
        return lambda: None, lambda: case.inputs(blocks)[0]

    with pytest.raises(AssertionError, match="Not equal"):
        measure_case(case, "nobody", prepare, repeats=3, limit=1)


def test_the_simulator_that_says_nothing_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(simulator.sys, "executable", "/bin/false")
    assert simulator.measured(CASES[:1], 0.1) == [
        Result(CASES[0].name, simulator.NAME, note="not measured: no answer")
    ]


@pytest.mark.full
def test_the_whole_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def simulated(cases: Sequence[Case], limit: float) -> list[Result]:
        return [Result.of(c.name, simulator.NAME, [2.0, 3.0, 4.0], 5.0) for c in cases]

    monkeypatch.setattr(simulator, "measured", simulated)
    monkeypatch.setattr(by_hand, "njit", lambda **_: lambda loop: loop)  # compiled elsewhere
    for owner, name, value in (
        (cpu_operations, "CALLS", 5), (cpu_operations, "WIDTH", 20),
        (cpu_limits, "TELLING", 0.002), (cpu_limits, "SHORTEST", 0.001),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, value)
    path = tmp_path / "cpu.json"
    argv = ["cpu", "--repeats", "3", "--limit", "0.1", "--only", "a"]
    assert main([*argv, "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    named = {(r["case"], r["by"]) for r in found["results"]}
    assert {case for case, _ in named} == {c.name for c in CASES} | set(NAMES)
    assert found["versions"]["numba"] and found["machine"]["device"] and "NumPy" in found["method"]
    for r in found["results"]:
        assert (r["median"] is None) == r["note"].startswith("skipped"), r
        assert r["median"] is None or 0 < r["low"] <= r["median"] <= r["high"]
    said = capsys.readouterr().out
    assert "histogram" in said and "first call" in said
    assert f"| {CASES[0].name} | {simulator.NAME} | 3 s |" in cpu.markdown(found)


def test_compile_times_have_targets_or_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpu.json"
    argv = ["cpu", "--only", "compile", "--json", str(path)]
    monkeypatch.setattr(compiling, "_ours", lambda device, case: 6.0)
    monkeypatch.setattr(compiling, "_theirs", lambda case: 1.0 if "reduce" in case.name else 3.0)
    assert main(argv) == 0
    met = {t["what"].split(": ")[1].split(" ")[0]: t["met"] for t in judged(path)}
    assert met == {
        "reduce": False,
        **dict.fromkeys(("physics", "sums", "sorting", "unrolled"), True),
    }
    assert " NO " in capsys.readouterr().out

    def without_nvvm(case: object) -> float:
        raise RuntimeError("no NVVM\nin this process")

    monkeypatch.setattr(compiling, "_theirs", without_nvvm)
    assert main(argv) == 0
    assert {t["why"] for t in judged(path)} == {"skipped: RuntimeError: no NVVM"}


def judged(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["targets"]
    return found


@pytest.mark.full
def test_long_kernels_are_compiled(on_cpu: na.Device) -> None:
    shortest = LONG[-1]
    assert compiling._ours(on_cpu, shortest) > 0  # and what is not compiled is refused
    lines = [int(c.name.split()[1]) for c in LONG]
    assert sum(100 <= n <= 470 for n in lines) >= 4 and "reduce" in shortest.name


@pytest.mark.full
def test_the_simulator_measures_a_part() -> None:
    case = next(c for c in CASES if c.body.__name__ == "block_sum")
    (found,) = simulator.measured([case], 0.1)
    assert found.median is not None and "scaled from" in found.note, found


def test_times_have_units_that_suit() -> None:
    assert [in_unit(t) for t in (None, 2.5e-6, 1.25e-3, 1.5, 1234.5)] == [
        "", "2.5 us", "1.25 ms", "1.5 s", "1,234 s",
    ]  # fmt: skip
    assert Result(**asdict(Result("a", "b", note="c"))) == Result("a", "b", note="c")
