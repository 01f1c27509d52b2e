"""The command: what it does, and one line for what it cannot do."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.tools import cli, demo

pytest.importorskip("PIL", reason="needs the extra demo")
pytest.importorskip("skimage", reason="needs the extra demo")


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    from PIL import Image

    rng = np.random.default_rng(0)
    path = tmp_path / "noise.png"
    Image.fromarray(rng.integers(0, 256, (37, 50, 3), np.uint8)).save(path)
    return path


def test_demo_of_a_users_picture(
    device: na.Device, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    assert cli.main(["demo", str(picture), "--device", device.kind]) == 0
    said = capsys.readouterr().out
    used = na.devices(device.kind)[0]
    for part in (used.label, "one after the other", "blur", "turns", "Same as NumPy and SciPy"):
        assert part in said
    after = picture.with_name("noise-before-after.png")
    with Image.open(after) as image:
        assert image.size == (3 * 50, 37 + 18)  # and a strip of labels


def test_demo_never_calls_a_loss_a_gain() -> None:
    assert demo._compared(2.0, 1.0).startswith("All in flight took 50%")
    assert demo._compared(1.0, 1.2) == (
        "All in flight gained nothing here: 120% of one after the other."
    )


@pytest.mark.parametrize("rows", [1, demo.BAND - 1, demo.BAND, 3 * demo.BAND])
def test_demo_checks_levels_and_a_band_of_edges(cpu: na.Device, rows: int) -> None:
    pixels = np.random.default_rng(rows).integers(0, 256, (rows, 20, 3), np.uint8)
    picture = demo.Picture("noise", pixels)
    na.run(computed(picture))
    assert picture.edges is not None
    assert demo._check(picture) < 0.05
    picture.edges[-1 if rows <= demo.BAND else demo.BAND - 1, 3] += 1
    with pytest.raises(na.errors.InternalError, match="edges differ"):
        demo._check(picture)


async def computed(picture: demo.Picture) -> None:
    await demo.pipeline(picture)


def test_demo_writes_to_a_folder_and_keeps_equal_names_apart(
    device: na.Device, picture: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "folder"
    status = cli.main(
        ["demo", str(picture), str(picture), "--out", str(out), "--device", device.kind]
    )
    assert status == 0
    assert len(list(out.glob("*.png"))) == 2


def test_demo_makes_pictures_smaller_on_a_slow_device(
    device: na.Device, picture: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(demo, "SECONDS_A_PASS", 1e-6)
    assert cli.main(["demo", str(picture), "--out", str(tmp_path), "--device", device.kind]) == 0
    assert "--full keeps them" in " ".join(capsys.readouterr().out.split())


def test_the_photographs_are_there() -> None:
    found = demo.photographs()
    assert len(found) >= 8
    assert all(demo.read_picture(path).pixels.ndim == 3 for path in found[:2])


def one_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(argv) == 1
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return said.err


def test_demo_says_what_is_wrong(
    tmp_path: Path, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nowhere.png does not exist" in one_line(["demo", str(tmp_path / "nowhere.png")], capsys)
    text = tmp_path / "text.png"
    text.write_text("no picture")
    assert "no picture that Pillow can read" in one_line(["demo", str(text)], capsys)
    assert "cannot be read" in one_line(["demo", str(tmp_path)], capsys)
    assert "name a folder with --out" in one_line(
        ["demo", str(picture), "--out", str(text / "under")], capsys
    )


@pytest.mark.parametrize("module", ["PIL", "rich", "scipy", "skimage"])
def test_demo_names_a_missing_extra(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == module else find(name, *a)
    )
    said = one_line(["demo"], capsys)
    assert f"needs {module}" in said
    assert "pip install 'numbasync[demo]'" in said


def test_doctor(device: na.Device, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--device", device.kind]) == 0
    said = capsys.readouterr().out
    for part in ("numba-cuda", "numpy", "greenlet", "event loop", "switch interval", "completion",
                 "default device", device.label):  # fmt: skip
        assert part in said


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


def hear_ctrl_c() -> None:
    """In a child: a shell that has started these tests in the background ignores it, and so would
    all their children.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_is_one_line(python: str, python_env: dict[str, str], tmp_path: Path) -> None:
    process = subprocess.Popen(
        [python, "-u", "-m", "numbasync", "demo", "--full", "--device", "cpu",
         "--out", str(tmp_path)],
        env=python_env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=hear_ctrl_c,
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
from numbasync.tools import cli, demo

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


def test_ctrl_c_in_a_callback_of_the_collector_is_not_lost(
    python: str, python_env: dict[str, str]
) -> None:
    result = subprocess.run(
        [python, "-c", LOST], env=python_env, capture_output=True, text=True, timeout=600,
        preexec_fn=hear_ctrl_c,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (130, "numbasync demo: interrupted\n")
