"""Tests in a process of their own: `@pytest.mark.isolated`.

For what would break or block the others: a fault, which ends a GPU's context, or a gate, behind
which a kernel that another thread loads may wait. That process writes down what became of the
test; the session here then does the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

SECONDS = 300
_INSIDE = "NUMBASYNC_ISOLATED"  # the file to write to


def is_wanted(item: pytest.Item) -> bool:
    """Whether `item` is to run in a process of its own, and this is not that one."""
    return item.get_closest_marker("isolated") is not None and is_outside()


def is_outside() -> bool:
    """Whether this is not a process that was made for one test."""
    return _INSIDE not in os.environ


def check(item: pytest.Item) -> None:
    """Refuse what would run here all the same."""
    owner = getattr(item, "cls", None)
    if owner is not None and issubclass(owner, unittest.TestCase) and is_wanted(item):
        pytest.fail(
            f"@pytest.mark.isolated: {owner.__name__} is a unittest.TestCase, which runs its tests "
            "itself; write a function, or a class without that base.",
            pytrace=False,
        )


def tell(report: pytest.TestReport) -> None:
    """In a process that was made for one test: write down a phase of it."""
    if is_outside():
        return
    said = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    phase = {
        "test": report.nodeid, "when": report.when, "outcome": report.outcome, "said": said,
        "xfail": getattr(report, "wasxfail", None),
    }  # fmt: skip
    with open(os.environ[_INSIDE], "a", encoding="utf-8") as file:
        file.write(json.dumps(phase) + "\n")


def run(item: pytest.Function, options: list[str], under: Sequence[str] = ()) -> None:
    """Run `item` alone in a new process; fails, with what that says, if it does not pass.

    Args:
        under: a command to run that process with.
    """
    __tracebackhide__ = True
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told"
        command = [*under, sys.executable, "-m", "pytest", "-q", *_session(item.config, folder)]
        try:
            done = subprocess.run(  # noqa: S603 - the test that was asked for
                [*command, *options, item.nodeid], cwd=item.config.rootpath,
                env={**os.environ, _INSIDE: str(told)}, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            said = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout
            pytest.fail(
                f"in a process of its own, not done after {SECONDS} s\n{said}", pytrace=False
            )
        lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
    phases = [p for p in map(json.loads, lines) if p["test"] == item.nodeid]
    _as_told(phases, done)


def _session(config: pytest.Config, folder: str) -> list[str]:
    """What makes the other session one like this."""
    chosen = config.option
    found = ["-p", "numbasync.testing.plugin", f"--rootdir={config.rootpath}"]
    found += ["-c", str(config.inipath)] if config.inipath else []
    for option, values in (
        ("-p", chosen.plugins), ("-W", chosen.pythonwarnings), ("-o", chosen.override_ini),
    ):  # fmt: skip
        found += [part for value in values or () for part in (option, value)]
    found += ["-n0"] if config.pluginmanager.hasplugin("xdist") else []
    found += ["--runxfail"] if chosen.runxfail else []
    if config.pluginmanager.hasplugin("cacheprovider"):  # pytest warns of its option otherwise
        found += ["-o", f"cache_dir={folder}/cache"]  # what fails there has not failed here
    return found


def _as_told(phases: list[dict[str, Any]], done: subprocess.CompletedProcess[str]) -> None:
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
        return  # also what passes against its mark, as the session here will say
    how = "" if fails else f", which signal {-code} ended" if code < 0 else f", which ended: {code}"
    pytest.fail(f"in a process of its own{how}\n{done.stdout}\n{done.stderr}", pytrace=False)
