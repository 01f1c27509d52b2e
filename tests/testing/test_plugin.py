"""The pytest plugin, in sessions of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from numbasync.device.device import devices
from tests import sessions


class Project:
    """Somebody's tests."""

    def __init__(self, folder: Path, python: str, env: dict[str, str]) -> None:
        self.folder = folder
        self.python = python
        # Warnings are errors in ours, not in theirs; and they are no worker of our run.
        others = {k: v for k, v in env.items() if not k.startswith("PYTEST_XDIST")}
        self.env = {**others, "PYTHONWARNINGS": "", "PYTEST_ADDOPTS": ""}

    def run(
        self, *args: str, beside_others: bool = False, seconds: float = 600, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run pytest with `args`; `beside_others`: with every plugin that is installed, whose
        imports take as long as everything else.
        """
        alone = {} if beside_others else {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        return sessions.run(
            self.python, ["-q", "-p", "numbasync.testing.plugin", *args],
            {**self.env, **alone, **env}, self.folder, seconds,
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
        result = project.run("-s", option, "cpu", beside_others=True)
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


def test_a_projects_own_names_stay_its_own(project: Project) -> None:
    (project.folder / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--device', default='theirs')\n"
    )
    (project.folder / "test_theirs.py").write_text(
        "import pytest\n"
        "@pytest.fixture\ndef device():\n    return 'own'\n"
        "def test_theirs(request, device):\n"
        "    assert request.config.getoption('--device') == 'mine' and device == 'own'\n"
        "@pytest.mark.parametrize('n, device', [(1, 'gpu'), (2, 'gpu')])\n"
        "def test_parameters(n, device):\n    assert device == 'gpu'\n"
    )
    result = project.run("-s", "--device", "mine", "--numbasync-device", "cpu")
    assert "kind cpu" in result.stdout and "5 passed" in result.stdout, result


def test_seeds_are_as_many_as_asked_for(project: Project) -> None:
    (project.folder / "test_seeds.py").write_text(
        "def test_seeds(device, seeds):\n    print('seeds', list(seeds))\n"
    )
    assert f"seeds {list(range(20))}" in project.run("-s", "test_seeds.py").stdout
    said = project.run("-s", "--numbasync-seeds", "3", "test_seeds.py").stdout
    assert "seeds [0, 1, 2]" in said


def test_isolated_tests_have_a_process_of_their_own(project: Project) -> None:
    (project.folder / "test_alone.py").write_text(
        "import os, pytest\n"
        "pytestmark = pytest.mark.isolated\n"
        "def test_pid(device, seeds):\n"
        "    with open('pids', 'a') as file:\n"
        "        print(os.getpid(), device.kind, len(seeds), file=file)\n"
        "@pytest.mark.parametrize('n', [2])\n"
        "async def test_exit(device, n):\n"
        "    print('it says', n)\n"
        "    os._exit(3)\n"
        "def test_wrong():\n"
        "    assert 1 == 2\n"
        "def test_killed():\n"
        "    os.kill(os.getpid(), 9)\n"
        "def test_skipped():\n"
        "    pytest.skip('no reason')\n"
    )
    result = project.run(
        "--numbasync-device", "cpu", "--numbasync-seeds", "7", "-rs", "test_alone.py"
    )
    assert "3 failed, 1 passed, 1 skipped" in result.stdout, result
    assert "in a process of its own, which signal 9 ended" in result.stdout
    assert "assert 1 == 2" in result.stdout and "no reason" in result.stdout
    (line,) = (project.folder / "pids").read_text().splitlines()
    assert line.split()[1:] == ["cpu", "7"]


@pytest.mark.full
def test_isolated_tests_end_as_they_would_here(project: Project) -> None:
    # The last option says nothing of passed tests, the one before is of a plugin.
    (project.folder / "pytest.ini").write_text("[pytest]\naddopts = --lf -q\n")
    (project.folder / "test_alone.py").write_text(
        "import atexit, os, unittest, pytest\n"
        "pytestmark = pytest.mark.isolated\n"
        "@pytest.mark.xfail(raises=ZeroDivisionError)\n"
        "def test_known(): 1 / 0\n"
        "@pytest.mark.xfail(strict=True)\n"
        "def test_too_good(): pass\n"
        "def test_leaves(): os._exit(0)\n"
        "def test_dies_later(): atexit.register(os.abort)\n"
        "class TestTheirs(unittest.TestCase):\n"
        "    def test_in_a_case(self): pass\n"
    )
    result = project.run("-rA", "-p", "no:asyncio", "-p", "no:hypothesispytest", "test_alone.py")
    for line in (
        "XFAIL test_alone.py::test_known",
        "FAILED test_alone.py::test_too_good - [XPASS(strict)]",
        "FAILED test_alone.py::test_leaves",
        "in a process of its own, which ended: 0",
        "FAILED test_alone.py::test_dies_later",
        "in a process of its own, which signal 6 ended",
        "ERROR test_alone.py::TestTheirs::test_in_a_case",
        "TestTheirs is a unittest.TestCase",
    ):
        assert line in result.stdout, (line, result)


@pytest.mark.full
def test_isolated_tests_run_where_caching_is_off(project: Project) -> None:
    """Its options are unknown then, of which pytest warns: an error to many projects."""
    (project.folder / "pytest.ini").write_text(
        "[pytest]\nfilterwarnings = error::pytest.PytestConfigWarning\n"
    )
    (project.folder / "test_alone.py").write_text(
        "import pytest\n"
        "@pytest.mark.isolated\n"
        "def test_alone(pytestconfig):\n"
        "    assert not pytestconfig.pluginmanager.hasplugin('cacheprovider')\n"
    )
    off = project.run("-p", "no:cacheprovider", "test_alone.py")
    assert "1 passed" in off.stdout, off
    on = project.run("test_alone.py")
    assert "1 failed" in on.stdout, on
    addopts = project.run("test_alone.py", PYTEST_ADDOPTS="-p no:cacheprovider")
    assert "1 passed" in addopts.stdout, addopts


def test_numbasync_may_be_imported_before_pytest_begins(
    tmp_path: Path, python: str, python_env: dict[str, str]
) -> None:
    """As installed from a wheel, whose packages pytest wants to rewrite: a program that calls
    pytest.main, and whose warnings are errors.
    """
    site = tmp_path / "site"
    info = site / "numbasync-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: numbasync\nVersion: 0.1.0\n")
    names = ("numbasync", "numbasync_kernels")
    (info / "RECORD").write_text("".join(f"{name}/__init__.py,,\n" for name in names))
    plugin = "numbasync.testing.plugin"
    (info / "entry_points.txt").write_text(f"[pytest11]\n{plugin} = {plugin}\n")
    (tmp_path / "test_nothing.py").write_text("def test_nothing(device): assert device\n")
    program = (
        f"import sys, {', '.join(names)}, pytest; sys.path.append({str(site)!r}); "
        "sys.exit(pytest.main(['-q', '-W', 'error', '-p', 'no:asyncio', '-p', 'no:benchmark', "
        "'--device', 'cpu', 'test_nothing.py']))"
    )
    result = subprocess.run(
        [python, "-c", program], env={**python_env, "PYTEST_ADDOPTS": ""}, cwd=tmp_path,
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert "1 passed" in result.stdout, result.stdout + result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM that a handler sees")
def test_sigterm_ends_the_session_and_leaves_no_folder(project: Project) -> None:
    (project.folder / "test_alone.py").write_text(
        "import os, signal, pytest\n"
        "@pytest.mark.isolated\n"
        "def test_ends_the_session():\n"
        "    os.kill(os.getppid(), signal.SIGTERM)\n"
        "    signal.pause()\n"
        "def test_is_not_reached(): pass\n"
    )
    folder = project.folder / "temporary"
    folder.mkdir()
    result = project.run("test_alone.py", TMPDIR=str(folder))
    assert result.returncode == 128 + signal.SIGTERM, result.stdout + result.stderr
    assert "ended by SIGTERM" in result.stdout and "passed" not in result.stdout
    assert not list(folder.glob("numbasync-*"))


def test_a_hand_set_isolation_variable_is_refused(project: Project) -> None:
    precious = project.folder / "precious"
    precious.write_text("precious")
    result = project.run("--collect-only", NUMBASYNC_ISOLATED=str(precious))
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "unset it" in result.stderr and precious.read_text() == "precious"
