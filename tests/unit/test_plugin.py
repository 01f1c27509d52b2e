"""The pytest plugin, in sessions of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from numbasync.device import devices


class Project:
    """Somebody's tests."""

    def __init__(self, folder: Path, python: str, env: dict[str, str]) -> None:
        self.folder = folder
        self.python = python
        # Warnings are errors in ours, not in theirs.
        self.env = {**env, "PYTHONWARNINGS": "", "PYTEST_ADDOPTS": ""}

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p",
             "numbasync.testing.plugin", *args],
            capture_output=True, text=True, timeout=100, env={**self.env, **env}, cwd=self.folder,
        )  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, python: str, python_env: dict[str, str]) -> Project:
    (tmp_path / "test_kind.py").write_text(
        "import numbasync as na\n"
        "def test_kind(device):\n"
        "    assert device is na.default_device()\n"
        "    print('kind', device.kind)\n"
        "async def test_awaiting(device):\n"
        "    assert await na.value(3) == 3\n"
    )
    return Project(tmp_path, python, python_env)


def test_a_device_is_chosen_by_option(project: Project) -> None:
    for option in ("--device", "--numbasync-device"):
        result = project.run("-s", option, "cpu")
        assert "kind cpu" in result.stdout and "2 passed" in result.stdout, result
    assert "invalid choice" in project.run("--device", "tpu").stderr


def test_auto_is_what_the_environment_says(project: Project) -> None:
    result = project.run("-s", NUMBASYNC_DEVICE="cpu")
    assert "kind cpu" in result.stdout and "2 passed" in result.stdout, result
    result = project.run(NUMBASYNC_DEVICE="tpu")
    assert result.returncode != 0
    assert "tpu" in result.stdout + result.stderr


def test_all_is_every_kind_that_can_be_used(project: Project) -> None:
    count = 2 * len([kind for kind in ("cuda", "cpu") if devices(kind)])
    assert f"{count} passed" in project.run("--device", "all").stdout


def test_a_projects_own_option_of_that_name_stays_its_own(project: Project) -> None:
    (project.folder / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--device', default='theirs')\n"
    )
    (project.folder / "test_theirs.py").write_text(
        "def test_theirs(request):\n    assert request.config.getoption('--device') == 'mine'\n"
    )
    result = project.run("-s", "--device", "mine", "--numbasync-device", "cpu")
    assert "kind cpu" in result.stdout and "3 passed" in result.stdout, result
