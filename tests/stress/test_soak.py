"""The soaks' verdict, on figures that are made up; and that they run."""

from __future__ import annotations

import subprocess
from types import ModuleType

import pytest

import numbasync as na
from tests.stress import soak, soak_batches, soak_graphs, soak_threads
from tests.stress.soak import Step, complaints


def steps(
    *medians: float, memory: float = 100.0, pool: int = 1024, yardstick: float = 10.0
) -> list[Step]:
    return [Step(m, memory, pool, yardstick) for m in medians]


def test_what_stays_where_it_is_is_well() -> None:
    # One slow step in between is no drift.
    assert complaints(steps(10, 10, 10, 90, 10, 10, 10, 10, 10, 10.5), 1.1, 8) == []


def test_a_median_that_drifts_is_found() -> None:
    slower = steps(10, 10, 11, 11, 12, 12, 13, 13, 14, 14)
    (said,) = complaints(slower, 1.1, 8)
    assert "drifted by 1.400, allowed are 1.1" in said
    assert complaints(slower, 1.5, 8) == []
    assert complaints(slower[::-1], 1.1, 8) == []  # getting quicker is allowed


def test_a_machine_that_slows_down_is_no_drift() -> None:
    slower = [*steps(10, 10, 10, 10), *steps(14, yardstick=14.0)]
    assert complaints(slower, 1.1, 8) == []


def test_a_drift_on_a_quickening_machine_is_found() -> None:
    hidden = [*steps(10, 10, 10, 10), *steps(10, yardstick=5.0)]
    (said,) = complaints(hidden, 1.1, 8)
    assert "drifted by 2.000" in said


def test_memory_that_grows_is_found() -> None:
    first, last = steps(10, 10, 10, 10), steps(10, memory=109.0, pool=2048)
    found = complaints([*first, *last], 1.1, 8)
    assert len(found) == 2 and "9.0 MiB more" in found[0] and "1,024 bytes more" in found[1]
    assert len(complaints([*first, *last], 1.1, 10)) == 1


async def test_a_step_always_has_round_and_yardstick() -> None:
    rounds = 0

    async def round_of() -> int:
        nonlocal rounds
        rounds += 1
        return 14

    (device, *_) = na.devices("cpu")
    found = await soak.walk(device, 1, 5, round_of)
    assert rounds == len(found) == 5
    assert all(step.median > 0 and step.yardstick > 0 for step in found)
    rounds = 0
    await soak.walk(device, 1400, 5, round_of)
    assert rounds == 100


@pytest.mark.parametrize("module", [soak, soak_graphs])
def test_a_short_soak(module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert module.main(["70", "cpu", "--steps", "5", "--drift", "1000", "--growth", "1000"]) == 0
    said = capsys.readouterr().out
    assert said.count("us an op") == 5 and "of the first fifth" in said


def test_a_soak_that_drifts_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["14", "cpu", "--steps", "5", "--drift", "0"]) == 1
    assert "drifted by" in capsys.readouterr().err


@pytest.mark.parametrize("lost", ["launch", "update"])
def test_a_soak_notices_what_is_lost(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a launch that does nothing, or data that is not passed, the sums are wrong."""
    instead = {
        "launch": lambda graph: na.value(None),
        "update": lambda graph, op: op.suppress_warning(),
    }
    monkeypatch.setattr(na.CudaGraph, lost, instead[lost])
    with pytest.raises(AssertionError):
        soak_graphs.main(["14", "cpu", "--steps", "5"])


def test_threads_have_their_own_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert soak_threads.main(["0.5", "cpu"]) == 0
    monkeypatch.setattr(soak_threads, "ways", lambda: [lambda x: x + x % 2])
    assert soak_threads.main(["0.1", "cpu"]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("operations, 0 wrong") and not second.endswith(" 0 wrong")


@pytest.mark.parametrize("module", [soak, soak_graphs])
@pytest.mark.parametrize("wrong", [["0"], ["10", "--steps", "4"], ["10", "abacus"]])
def test_wrong_arguments(module: ModuleType, wrong: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        module.main(wrong)


class TestBatches:
    """`tests.stress.soak_batches`, with programs that are not run."""

    @pytest.fixture(autouse=True)
    def programs(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        seeds: list[int] = []

        def run(seed: int, most: int, device: na.Device) -> set[str]:
            seeds.append(seed)
            assert seed != 7, "a wrong result"
            return {"row"} if seed % 2 else {"row", "fold"}

        monkeypatch.setattr(soak_batches, "run", run)
        return seeds

    def test_programs_are_counted_by_form(
        self, programs: list[int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert soak_batches.main(["5", "cpu", "--seed", "2"]) == 0
        assert programs == [2, 3, 4, 5, 6]
        assert capsys.readouterr().out.splitlines()[-3:] == ["fold 3", "programs 5", "row 5"]

    def test_the_last_seed_is_the_wrong_one(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(AssertionError, match="a wrong result"):
            soak_batches.main(["5", "cpu", "--seed", "5"])
        assert capsys.readouterr().out.splitlines() == ["seed 5", "seed 6", "seed 7"]

    @pytest.mark.parametrize("wrong", [["0"], ["1", "--seed", "-1"], ["1", "--jobs", "0"]])
    def test_wrong_arguments(self, wrong: list[str]) -> None:
        with pytest.raises(SystemExit, match="2"):
            soak_batches.main(wrong)


def test_parts_run_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a part has counted is added up; of one that fails, the last seed is named."""

    def process(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        first = int(command[command.index("--seed") + 1])
        said = f"seed {first}\nseed {first + 1}\n"
        if first >= 60:
            return subprocess.CompletedProcess(command, -11, said)
        return subprocess.CompletedProcess(command, 0, f"{said}column 2\nprograms 25\n")

    monkeypatch.setattr(soak_batches.subprocess, "run", process)
    assert soak_batches.main(["50", "cpu", "--jobs", "2"]) == 0
    with pytest.raises(ChildProcessError, match="status -11, last seed 61.*\n.* 1 cpu --seed 61"):
        soak_batches.main(["50", "cpu", "--seed", "60"])
