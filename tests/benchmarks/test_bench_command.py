"""The command `python -m benchmarks`, and `numbasync bench`, the door to it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import numbasync as na
from benchmarks import report
from benchmarks.__main__ import main
from numbasync.tools import bench, cli


def one_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(argv) == 1
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return said.err


def test_it_measures_launches(
    device: na.Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "launch.json"
    argv = ["launch", "--repeats", "3", "--json", str(path), "--device", device.kind]
    assert main(argv) == 0
    assert "build + await" in capsys.readouterr().out
    found = json.loads(path.read_text())
    assert found["machine"]["device"] == device.name
    assert found["versions"]["numba"]
    (table,) = found["tables"]
    timings = {t["name"]: t for t in table["timings"]}
    assert len(timings) >= 4
    for t in timings.values():
        assert 0 < t["low"] <= t["median"] <= t["high"]
        assert t["rounds"] == 3
    # On a GPU waiting costs more than submitting, whatever the machine; on the CPU device a short
    # operation has run when it is submitted.
    if device.kind == "cuda":
        submitted = timings["numbasync: build + submit"]["low"]
        assert submitted < timings["numbasync: build + await"]["high"]
    assert "| numbasync: build + await |" in report.markdown(found)


def test_it_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for what in ("launch", "await", "flight", "interop", "alloc", "copy", "all", "cpu"):
        assert "3 rounds or more" in one_line([what, "--repeats", "1"], capsys)
    assert "--device cuda" in one_line(["cpu", "--device", "cuda"], capsys)
    assert "in no case's name" in one_line(["cpu", "--only", "nothing"], capsys)
    nowhere = str(tmp_path / "no" / "folder.json")
    for what in ("cpu", "all"):
        assert "name a file" in one_line([what, "--json", nowhere], capsys)
    assert "in no part's name: copying." in one_line(["copy", "--only", "nothing"], capsys)
    assert "--limit is for bench cpu" in one_line(["copy", "--limit", "1"], capsys)


def test_the_door_leads_to_the_checkouts_benchmarks(
    python: str, python_env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "benchmarks").mkdir()  # somebody else's, where the command is called
    for name in ("__init__", "__main__"):
        file = tmp_path / "benchmarks" / f"{name}.py"
        file.write_text("raise SystemExit('not this one')")

    wrong = subprocess.run(
        [python, "-P", "-m", "numbasync", "bench", "launch", "--repeats", "1", "--device", "cpu"],
        env=python_env, cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("numbasync bench: --repeats 1: quartiles need 3 rounds")


def test_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    said = capsys.readouterr()
    assert (ended.value.code, said.err) == (0, "")
    assert said.out.startswith("usage: numbasync bench") and "--repeats" in said.out


def test_without_a_checkout_the_door_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "CHECKOUT", tmp_path)
    assert cli.main(["bench", "launch"]) == 1
    said = capsys.readouterr().err
    assert str(tmp_path) in said and "python -m benchmarks" in said and "'.[bench]'" in said
