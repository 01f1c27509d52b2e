"""`numbasync top`: what it says of streams that have work, and of a program that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import numbasync as na
from numbasync import testing
from numbasync.tools import cli, top
from tests.common import add_one

PROGRAM = """
import sys
import numbasync as na

z = na.zeros(1000).sync()
print(z.shape, sys.argv[1:])
sys.exit(3)
"""


def test_a_program_runs_and_is_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    assert cli.main(["top", "--every", "0.01", str(program), "--size", "2"]) == 3
    said = capfd.readouterr()
    assert "(1000,) ['--size', '2']" in said.out
    assert "launches" in said.err and "in flight" in said.err


def test_streams_with_work_are_shown(device: na.Device) -> None:
    gated, idle = device.new_stream(), device.new_stream()
    y = na.zeros(4).sync()
    idle.synchronize()
    with testing.gate(gated):
        add_one(y).async_on(gated)
        add_one(y).async_on(gated)
        seen = top.look()
    gated.synchronize()
    (whole,) = [row for row in seen if row.device == device.label and row.stream is None]
    assert (whole.in_flight, whole.oldest) == (2, "1 of its streams at work")
    assert whole.nbytes >= y.nbytes
    (own,) = [row for row in seen if row.stream == gated.number]
    assert own.in_flight == 2 and own.oldest.startswith("add_one(") and "test_top.py" in own.line
    assert not [row for row in seen if row.stream == idle.number]
    (whole,) = [row for row in top.look() if row.device == device.label]
    assert whole.in_flight == 0


def test_a_lost_device_is_shown(device: na.Device) -> None:
    stream = device.new_stream()  # not the policy's, which may be older than this module's tests
    with testing.inject(device, "device"):
        with pytest.raises(na.errors.DeviceLostError):
            add_one(na.zeros(4)).sync_on(stream)
        assert [row.oldest for row in top.look() if row.device == device.label] == ["lost"]


def test_wrong_arguments_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", str(tmp_path / "none.py")]) == 1
    assert "there is no program" in capsys.readouterr().err
    for wrong in ("0", "-1", "nan", "x"):
        with pytest.raises(SystemExit):
            cli.main(["top", "--every", wrong, "program.py"])
