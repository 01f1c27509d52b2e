"""Tests in a process of their own: `@pytest.mark.isolated`.

For what would break or block the others: a fault, which ends a GPU's context, or a gate, behind
which a kernel that another thread loads may wait.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

SECONDS = 300
_INSIDE = "NUMBASYNC_ISOLATED"


def is_wanted(item: pytest.Function) -> bool:
    """Whether `item` is to run in a process of its own, and this is not that one."""
    return item.get_closest_marker("isolated") is not None and is_outside()


def is_outside() -> bool:
    """Whether this is not a process that was made for one test."""
    return _INSIDE not in os.environ


def run(item: pytest.Function, options: list[str], under: Sequence[str] = ()) -> None:
    """Run `item` alone in a new process; fails, with what that says, if it does not pass.

    Args:
        under: a command to run that process with.
    """
    __tracebackhide__ = True
    root = item.config.rootpath
    command = [
        *under, sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-p",
        "numbasync.testing.plugin", *options, item.nodeid,
    ]  # fmt: skip
    try:
        done = subprocess.run(  # noqa: S603 - the test that was asked for
            command, cwd=root, env={**os.environ, _INSIDE: "1"}, capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout
        pytest.fail(f"in a process of its own, not done after {SECONDS} s\n{said}", pytrace=False)
    if done.returncode or "1 passed" not in done.stdout:
        if not done.returncode and "1 skipped" in done.stdout:
            pytest.skip(done.stdout.strip())
        code = done.returncode
        ended = f", which signal {-code} ended" if code < 0 else ""
        said = f"{done.stdout}\n{done.stderr}"
        pytest.fail(f"in a process of its own{ended}:\n{said}", pytrace=False)
