"""Threads that share streams, on a GPU that other processes keep busy."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.cuda
ROOT = Path(__file__).parent.parent.parent


def test_no_thread_has_another_threads_numbers(python: str, python_env: dict[str, str]) -> None:
    program = [python, "-m", "tests.stress.soak_threads", "6", "cuda", "--jobs", "6"]
    done = subprocess.run(
        program, env=python_env, capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" 0 wrong") == 6
