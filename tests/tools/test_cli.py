"""The command: what it does, and one line for what it cannot do."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import numbasync as na
from numbasync.tools import cli, doctor
from tests.common import heard_ctrl_c

pytest.importorskip("PIL", reason="needs the extra demo")
pytest.importorskip("skimage", reason="needs the extra demo")


def one_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(argv) == 1
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return said.err


def test_doctor(device: na.Device, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--device", device.kind]) == 0
    said = capsys.readouterr().out
    for part in ("numba-cuda", "numpy", "greenlet", "event loop", "switch interval", "completion",
                 "default device", device.label):  # fmt: skip
        assert part in said


def test_doctor_names_the_other_compiler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    has = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda p: "0.6" if p == "numba-cuda-mlir" else has(p))
    cli.main(["doctor", "--device", "cpu"])
    assert "numba-cuda-mlir        0.6, compiles, for GPUs" in capsys.readouterr().out


@pytest.mark.skipif(bool(na.devices("cuda")), reason="there is a CUDA device here")
def test_without_a_gpu_asking_for_one_is_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", "--device", "cuda"]) == 1
    assert "no NVIDIA driver" in capsys.readouterr().out
    assert "--device cpu" in one_line(["demo", "--device", "cuda"], capsys)
    monkeypatch.setenv("NUMBASYNC_DEVICE", "cuda")
    assert cli.main(["doctor"]) == 1
    assert "default device         NONE" in capsys.readouterr().out


def test_version_and_module(python: str, python_env: dict[str, str]) -> None:
    for command in (["-m", "numbasync", "--version"],):
        result = subprocess.run(
            [python, *command], env=python_env, capture_output=True, text=True, timeout=600
        )
        assert result.stdout.strip() == f"numbasync {na.__version__}"
    result = subprocess.run(
        [python, "-m", "numbasync", "no-such-command"], env=python_env, capture_output=True,
        text=True, timeout=600,
    )  # fmt: skip
    assert result.returncode == 2
    assert "invalid choice" in result.stderr


def test_ctrl_c_is_one_line(python: str, python_env: dict[str, str], tmp_path: Path) -> None:
    with heard_ctrl_c():
        process = subprocess.Popen(
            [python, "-u", "-m", "numbasync", "demo", "--full", "--device", "cpu",
             "--out", str(tmp_path)],
            env=python_env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert process.stdout is not None
    first: Any = process.stdout.readline()  # the device: from here on it works
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert "cpu:0" in first
    assert err.strip().splitlines()[-1:] == ["numbasync demo: interrupted"], (out, err)
    assert "Traceback" not in err
    assert process.returncode == 130


LOST = """
import gc, signal, sys
from numbasync.tools import cli, doctor, demo

def callback(phase, info):
    gc.callbacks.remove(callback)
    signal.raise_signal(signal.SIGINT)  # Python prints what this raises, and goes on

def run(*args, **kwargs):
    gc.callbacks.append(callback)
    gc.collect()
    for _ in range(10**9):  # half a minute, not for ever
        pass

demo.run = run
sys.exit(cli.main(["demo"]))
"""


def test_ctrl_c_in_a_collectors_callback_is_kept(python: str, python_env: dict[str, str]) -> None:
    with heard_ctrl_c():
        result = subprocess.run(
            [python, "-c", LOST], env=python_env, capture_output=True, text=True, timeout=600
        )
    assert (result.returncode, result.stderr) == (130, "numbasync demo: interrupted\n")
