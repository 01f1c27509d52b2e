"""Tests in separate processes: `@pytest.mark.isolated`.

The mark is for tests that would break or block others: by a fault, which ends a GPU's context, or
by a gate, behind which a kernel that another thread loads may wait. The new process writes the
test's outcome to a file, and this session reports the same outcome.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from numbasync import cache_folder

SECONDS = 300
_INSIDE = "NUMBASYNC_ISOLATED"  # the file that the new process writes its reports to


_PREFIX, _TOLD = "numbasync-isolated-", "told"  # of its folder, and its name
_NOT_FOLLOWED = getattr(os, "O_NOFOLLOW", 0)


def check_environment() -> None:
    """Check that the file is one that another session has made for this one.

    Raises:
        pytest.UsageError: somebody else has set the variable.
    """
    if is_outside():
        return
    path = Path(os.environ[_INSIDE])
    try:
        if path.name == _TOLD and path.parent.name.startswith(_PREFIX):
            with cache_folder.opened(path.parent, above=False) as folder:
                folder.read(_TOLD)
            return
    except OSError:
        pass
    raise pytest.UsageError(
        f"{_INSIDE}={str(path)!r:.200} is no file of a session that runs isolated tests, which "
        f"alone sets {_INSIDE}; unset it."
    )


def is_wanted(item: pytest.Item) -> bool:
    """Whether `item` must run in a separate process, and this process is not that one."""
    return item.get_closest_marker("isolated") is not None and is_outside()


def is_outside() -> bool:
    """Whether this process was not started for one isolated test."""
    return _INSIDE not in os.environ


def check(item: pytest.Item) -> None:
    """Refuse isolated tests that would run in this process nevertheless."""
    owner = getattr(item, "cls", None)
    if owner is not None and issubclass(owner, unittest.TestCase) and is_wanted(item):
        pytest.fail(
            f"@pytest.mark.isolated: {owner.__name__} is a unittest.TestCase, which runs its tests "
            "itself; write a function, or a class without that base.",
            pytrace=False,
        )


def tell(report: pytest.TestReport) -> None:
    """In a process for one isolated test, write the report of a phase to the file."""
    if is_outside():
        return
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    phase = {
        "test": report.nodeid, "when": report.when, "outcome": report.outcome, "said": text,
        "xfail": getattr(report, "wasxfail", None),
    }  # fmt: skip
    # It was checked when the session began, and is there.
    descriptor = os.open(os.environ[_INSIDE], os.O_WRONLY | os.O_APPEND | _NOT_FOLLOWED)
    with open(descriptor, "a", encoding="utf-8") as file:
        file.write(json.dumps(phase) + "\n")


def run(item: pytest.Function, options: list[str], under: Sequence[str] = ()) -> None:
    """Run `item` alone in a new process. Fails with that process's output if the test fails.

    Args:
        under: a command that runs the new process.
    """
    __tracebackhide__ = True
    with cache_folder.temporary(_PREFIX) as folder:
        report_file = folder / _TOLD
        report_file.touch(0o600)
        command = [
            *under,
            sys.executable,
            "-m",
            "pytest",
            "-q",
            *_session(item.config, str(folder)),
        ]
        try:
            process = subprocess.run(  # noqa: S603 - the test that was asked for
                [*command, *options, item.nodeid], cwd=item.config.rootpath,
                env={**os.environ, _INSIDE: str(report_file)}, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False,
            )  # fmt: skip
        except SystemExit as error:  # SIGTERM, which pytest would take for a failure of the test
            pytest.exit("ended by SIGTERM", returncode=int(error.code or 0))
        except subprocess.TimeoutExpired as error:
            output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout
            pytest.fail(
                f"in a process of its own, not done after {SECONDS} s\n{output}", pytrace=False
            )
        lines = report_file.read_text(encoding="utf-8").splitlines()
    phases = [p for p in map(json.loads, lines) if p["test"] == item.nodeid]
    _report_outcome(phases, process)


def _session(config: pytest.Config, folder: str) -> list[str]:
    """Command-line options that give the new session this session's configuration."""
    chosen = config.option
    arguments = ["-p", "numbasync.testing.plugin", f"--rootdir={config.rootpath}"]
    arguments += ["-c", str(config.inipath)] if config.inipath else []
    for option, values in (
        ("-p", chosen.plugins), ("-W", chosen.pythonwarnings), ("-o", chosen.override_ini),
    ):  # fmt: skip
        arguments += [part for value in values or () for part in (option, value)]
    arguments += ["-n0"] if config.pluginmanager.hasplugin("xdist") else []
    arguments += ["--runxfail"] if chosen.runxfail else []
    if config.pluginmanager.hasplugin("cacheprovider"):  # without it, pytest warns of the option
        arguments += ["-o", f"cache_dir={folder}/cache"]  # a separate record of failed tests
    return arguments


def _report_outcome(phases: list[dict[str, Any]], done: subprocess.CompletedProcess[str]) -> None:
    __tracebackhide__ = True
    for phase in phases:
        if phase["outcome"] == "skipped" and phase["xfail"] is not None:
            pytest.xfail(phase["xfail"].removeprefix("reason: "))
        if phase["outcome"] == "skipped":
            pytest.skip(phase["said"].removeprefix("Skipped: "))
    ended = any(p["when"] == "teardown" for p in phases)
    fails = [p["said"] for p in phases if p["outcome"] == "failed"]
    code = done.returncode
    if ended and code == bool(fails) and all(f.startswith("[XPASS(strict)]") for f in fails):
        return  # also for an unexpected pass under xfail(strict), which this session reports
    how = "" if fails else f", which signal {-code} ended" if code < 0 else f", which ended: {code}"
    pytest.fail(f"in a process of its own{how}\n{done.stdout}\n{done.stderr}", pytrace=False)
