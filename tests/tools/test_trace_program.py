"""`numbasync trace`: the program runs as without it, and its timeline is written."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import numbasync as na
from numbasync.device import tracing
from numbasync.errors import StateError
from numbasync.tools import cli

PROGRAM = """
import sys
import numbasync as na

async def main():
    z = await na.zeros(4)
    print(await z.to_host(), __name__, sys.argv[1:], sys.path[0])
    sys.exit({end})

if __name__ == "__main__":
    na.run(main())
"""


@pytest.mark.parametrize(("end", "status"), [("", 0), ("3", 3), ("'stopped'", 1)])
def test_a_program_runs_and_its_timeline_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], end: str, status: int
) -> None:
    program, out = tmp_path / "program.py", tmp_path / "t.json"
    program.write_text(PROGRAM.format(end=end))
    before = sys.argv, sys.path[:]
    assert cli.main(["trace", "--out", str(out), str(program), "--size", "2"]) == status
    assert (sys.argv, sys.path) == before
    printed = capsys.readouterr()
    assert f"[0. 0. 0. 0.] __main__ ['--size', '2'] {tmp_path}" in printed.out
    assert "2 operations in" in printed.out and f"written to {out}" in printed.out
    assert ("stopped" in printed.err) == (status == 1)
    assert any(event["ph"] == "X" for event in json.loads(out.read_text())["traceEvents"])


def test_a_program_that_fails_has_a_timeline_too(tmp_path: Path) -> None:
    program, out = tmp_path / "program.py", tmp_path / "t.html"
    program.write_text("import numbasync as na\nna.zeros(3).sync()\n1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        cli.main(["trace", "--out", str(out), str(program)])
    assert "zeros" in out.read_text(encoding="utf-8")


def test_a_trace_of_the_program_itself_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, out = tmp_path / "program.py", tmp_path / "t.html"
    program.write_text(
        "import numbasync as na\n"
        "na.ones(3).sync()\n"
        "for n in 4, 5:\n"
        "    with na.trace() as t:\n"
        "        na.zeros(n).sync()\n"
        "    print([op.name for op in t.operations])\n"
    )
    assert cli.main(["trace", "--out", str(out), str(program)]) == 0
    assert "['zeros((4,))']\n['zeros((5,))']\n" in (said := capsys.readouterr().out)
    assert "1 operation in" in said and "has opened itself" in said
    page = out.read_text(encoding="utf-8")
    assert "zeros((5,))" in page and "zeros((4,))" not in page and "ones((3,))" not in page
    assert tracing.recorder is None
    with na.trace(), pytest.raises(StateError, match="one for the process"), na.trace():
        pass


def test_wrong_names_are_refused_before_the_program_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["trace", str(tmp_path / "none.py")]) == 1
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit(9)\n")
    assert cli.main(["trace", "--out", str(tmp_path / "t.gif"), str(program)]) == 1
    assert "no program" in (said := capsys.readouterr().err) and ".json.gz" in said
