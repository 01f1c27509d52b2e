"""The soak's verdict, on figures that are made up; and that it runs."""

from __future__ import annotations

import pytest

from tests import soak
from tests.soak import Step, complaints


def steps(*medians: float, memory: float = 100.0, pool: int = 1024) -> list[Step]:
    return [Step(m, memory, pool) for m in medians]


def test_what_stays_where_it_is_is_well() -> None:
    # One slow step in between is no drift.
    assert complaints(steps(10, 10, 10, 90, 10, 10, 10, 10, 10, 10.5), 1.1, 8) == []


def test_a_median_that_drifts_is_found() -> None:
    slower = steps(10, 10, 11, 11, 12, 12, 13, 13, 14, 14)
    (said,) = complaints(slower, 1.1, 8)
    assert "drifted by 1.400, allowed are 1.1" in said
    assert complaints(slower, 1.5, 8) == []
    assert complaints(slower[::-1], 1.1, 8) == []  # getting quicker is allowed


def test_memory_that_grows_is_found() -> None:
    first, last = steps(10, 10, 10, 10), steps(10, memory=109.0, pool=2048)
    found = complaints([*first, *last], 1.1, 8)
    assert len(found) == 2 and "9.0 MiB more" in found[0] and "1,024 bytes more" in found[1]
    assert len(complaints([*first, *last], 1.1, 10)) == 1


def test_a_short_soak(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["70", "cpu", "--steps", "5", "--drift", "1000", "--growth", "1000"]) == 0
    said = capsys.readouterr().out
    assert said.count("us an op") == 5 and "of the first fifth" in said


def test_a_soak_that_drifts_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["14", "cpu", "--steps", "5", "--drift", "0"]) == 1
    assert "drifted by" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["0"], ["10", "--steps", "4"], ["10", "abacus"]])
def test_wrong_arguments(wrong: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        soak.main(wrong)
