"""`numbasync cluster-demo`: a price, pictures, one line for a mistake, a clean end by Ctrl-C."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import numbasync as na
from numbasync.tools import cli, cluster_demo, cluster_pricing
from numbasync.tools.cluster_progress import noted_interrupts
from tests.common import heard_ctrl_c

distributed = pytest.importorskip("distributed", reason="needs the extra dask")
pytest.importorskip("rich", reason="needs the extra demo")


def test_the_formula_and_the_kernel_agree(device: na.Device) -> None:
    option = cluster_pricing.Call()
    assert option.price() == pytest.approx(12.00168, abs=1e-5)
    sums = cluster_pricing.simulate(3, option).sync()
    mean = sums[:, 0].sum() * option.discount() / cluster_pricing.TASK_PATHS
    assert mean == pytest.approx(option.price(), rel=0.02)
    assert (sums == cluster_pricing.simulate(3, option).sync()).all()


@pytest.mark.parametrize("when", ["start", "stop"])
def test_an_interrupt_in_a_collectors_callback_is_kept(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    lost: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", lost.append)
    calls: list[str] = []

    def callback(phase: str, _: dict[str, int]) -> None:
        if phase == when and phase not in calls:
            calls.append(phase)
            signal.raise_signal(signal.SIGINT)

    usual, callbacks = signal.getsignal(signal.SIGINT), list(gc.callbacks)
    gc.callbacks.append(callback)
    try:
        with noted_interrupts() as check:
            check()
            gc.collect()
            assert calls and not lost
            with pytest.raises(KeyboardInterrupt):
                check()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        gc.callbacks.remove(callback)
    assert signal.getsignal(signal.SIGINT) is usual and gc.callbacks == callbacks


def test_mistakes_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def said(*argv: str) -> str:
        assert cli.main(["cluster-demo", *argv]) == 1
        return capsys.readouterr().err

    assert "at least 1" in said("--paths", "0")
    assert "leave it out" in said("tcp://127.0.0.1:1", "--workers", "2")
    assert "there is no such folder" in said("--images", str(tmp_path / "none"))
    assert "it has no pictures" in said("--images", str(tmp_path))
    find = cluster_demo.importlib.util.find_spec
    monkeypatch.setattr(
        cluster_demo.importlib.util, "find_spec",
        lambda name, *a: None if name == "distributed" else find(name, *a),
    )  # fmt: skip
    assert "pip install 'numbasync[dask]'" in said()


def command(python: str, env: dict[str, str], *args: str) -> subprocess.Popen[str]:
    """The command in a process group of its own, in which ^C is heard."""
    with heard_ctrl_c():
        return subprocess.Popen(
            [python, "-m", "numbasync", "cluster-demo", "--workers", "2", *args],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**env, "NUMBASYNC_DEVICE": "cpu", "PYTHONWARNINGS": "default", "COLUMNS": "120"},
        )  # fmt: skip


@pytest.mark.full
def test_a_price(python: str, python_env: dict[str, str]) -> None:
    process = command(python, python_env, "--paths", "4e6")
    out, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (0, "")
    for part in ("2 workers, 8 tasks", "8/8", "million a second", "by formula 12.00168", "busy"):
        assert part in out


def is_running(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_ctrl_c_ends_it_with_its_workers(python: str, python_env: dict[str, Any]) -> None:
    process = command(python, python_env, "--paths", "2e9", "--workers", "1")
    assert process.stdout is not None
    assert "1 worker" in process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130 and "numbasync cluster-demo: interrupted" in err, err
    assert "Traceback" not in err, err
    end = time.perf_counter() + 300
    while is_running(process.pid):
        assert time.perf_counter() < end, "a worker goes on"
