"""Programs for `numba.cuda`, as users publish them, run unchanged; each compares with NumPy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import numbasync as na
from numbasync.cpu_cuda.__main__ import main

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
QUICK = ("captured_arrays", "printing", "records", "several_devices")
SAID = {
    "printing": """\
thread 0 0 value 0.500000 False
thread 0 1 value 1.500000 True
thread 1 0 value 2.500000 True
n = 7
""",
}


@pytest.fixture(autouse=True)
def _afterwards() -> Iterator[None]:
    with na.cuda_on_cpu():  # the command leaves it on
        yield


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(p, id=p.stem, marks=[] if p.stem in QUICK else pytest.mark.full)
        for p in PROGRAMS
    ],
)
def test_program(
    program: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["numbasync.cpu_cuda", str(program)])
    monkeypatch.setattr(sys, "path", sys.path.copy())
    assert main() == 0
    assert SAID.get(program.stem, "") in capfd.readouterr().out


def test_there_are_programs_of_each_kind() -> None:
    assert len(PROGRAMS) >= 20 and {p.stem for p in PROGRAMS} >= {*QUICK, *SAID}
