"""`numbasync new`: what it writes passes at once, and it overwrites nothing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from numbasync.tools import cli, new_project
from tests.testing.test_plugin import Project


def test_a_new_project_passes_at_once(
    tmp_path: Path, python: str, python_env: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["new", "a folder/my-kernels", "--in", str(tmp_path)]) == 0
    root = tmp_path / "a folder/my-kernels"
    said = capsys.readouterr().out
    written = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
    assert written == {
        "pyproject.toml", "src/my_kernels/__init__.py", "src/my_kernels/scale_add.py",
        "tests/test_scale_add.py",
    }  # fmt: skip
    assert all(str(root / name) in said for name in written)
    assert f"cd '{root}' && python -m pytest" in said
    assert tomllib.loads((root / "pyproject.toml").read_text())["project"]["name"] == "my-kernels"
    project = Project(root, python, python_env)
    result = project.run("--device", "cpu", beside_others=True, seconds=600)
    assert "6 passed" in result.stdout, result.stdout + result.stderr

    # The test can fail.
    kernel = root / "src/my_kernels/scale_add.py"
    kernel.write_text(kernel.read_text().replace("i < out", "i <= out"))
    result = project.run("--device", "cpu", seconds=600)
    assert "OutOfBounds" in result.stdout


def test_a_missing_pytest_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(new_project, "_is_installed", lambda name: False)
    assert cli.main(["new", str(tmp_path / "mine")]) == 0
    assert "mine && pip install pytest && python -m pytest\n" in capsys.readouterr().out


def test_what_is_written_is_tidy(tmp_path: Path) -> None:
    assert cli.main(["new", str(tmp_path / "tidy")]) == 0
    result = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "E,F,I,D2,D4,UP",
         "--ignore", "D203,D212,D213,D401,D406,D407,D413,D404", "--line-length", "100", "."],
        capture_output=True, text=True, cwd=tmp_path / "tidy",
    )  # fmt: skip
    if "No module named ruff" in result.stderr:
        pytest.skip("ruff is not installed")
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("My Kernels", "'My Kernels' cannot be a package"),
        ("class", "'class' cannot be a package"),
        ("work/class", "'class' cannot be a package"),
        ("work/numpy/", "would hide the package numpy"),
        ("there/", "there exists already, and nothing is overwritten"),
        ("file", "file exists already, and nothing is overwritten"),
        ("file/kernels", "file/kernels cannot be made: "),
        ("numpy", "would hide the package numpy"),
        ("test", "would hide the package test"),
        ("pytest", "would hide the package pytest"),
        ("my-kernels-", "'my-kernels-' cannot be a package"),
        ("my--kernels", "'my--kernels' cannot be a package"),
        ("there", "there exists already, and nothing is overwritten"),
    ],
)
def test_names_that_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/theirs").touch()
    (tmp_path / "file").touch()
    assert cli.main(["new", name, "--in", str(tmp_path)]) == 1
    assert said in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "there"]
    assert [p.name for p in (tmp_path / "there").iterdir()] == ["theirs"]


def test_a_folder_that_is_empty_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my-kernels"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert cli.main(["new", "."]) == 0
    assert (folder / "src/my_kernels/scale_add.py").exists()
    assert "src/my_kernels/__init__.py" in capsys.readouterr().out.split()
    assert cli.main(["new", "../my-kernels/src/.."]) == 1
    assert "my-kernels exists already" in capsys.readouterr().err
