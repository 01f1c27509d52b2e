"""`--compute-sanitizer` with the tool itself, and random batches under it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.testing.test_plugin import Project

pytestmark = pytest.mark.cuda

TESTS = """
import numpy as np
from numba import cuda
import numbasync as na

@na.launcher
@cuda.jit
def too_far(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    z[i] = x[i + 2**36]

@na.launcher
@cuda.jit
def right(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = x[i]

def test_too_far(device):
    # Far from everything: just past the end, the pool may have another array.
    too_far(na.zeros(64), na.ones(64)).sync()

def test_right(device):
    right(na.zeros(64), na.ones(64)).sync()
"""


@pytest.fixture
def sanitizer() -> str:
    found = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(found).exists():
        pytest.skip("there is no compute-sanitizer")
    return found


@pytest.mark.usefixtures("sanitizer")
def test_memcheck_names_the_line(tmp_path: Path, python: str, python_env: dict[str, str]) -> None:
    (tmp_path / "test_kernels.py").write_text(TESTS)
    project = Project(tmp_path, python, python_env)
    result = project.run("--device", "cuda", "--compute-sanitizer", "memcheck", seconds=600)
    assert "1 failed, 1 passed" in result.stdout, result.stdout
    assert "compute-sanitizer memcheck has found:" in result.stdout
    assert "Invalid __global__ read of size 4 bytes, kernel too_far" in result.stdout
    number = TESTS.splitlines().index("    z[i] = x[i + 2**36]") + 1
    assert f"test_kernels.py:{number}    z[i] = x[i + 2**36]" in result.stdout


def test_kernels_of_batches_read_and_write_nothing_else(
    sanitizer: str, tmp_path: Path, python: str, python_env: dict[str, str], root: Path
) -> None:
    """Random programs, whose results are compared, too. More of them by hand: CONTRIBUTING.md."""
    result = subprocess.run(
        [sanitizer, "--tool", "memcheck", "--target-processes", "application-only",
         "--report-api-errors", "no", "--show-backtrace", "no", "--error-exitcode", "3",
         python, "-m", "tests.stress.soak_batches", "15", "cuda", "--most", "4"],
        capture_output=True, text=True, timeout=1200, cwd=root, check=False,
        env={**python_env, "PYTHONWARNINGS": "", "NUMBASYNC_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    said = result.stdout + result.stderr
    assert result.returncode == 0, said
    assert "ERROR SUMMARY: 0 errors" in said, said
    assert "programs 15" in said, said


def test_gates_hold_the_host_under_the_tool(
    sanitizer: str, tmp_path: Path, python: str, python_env: dict[str, str], root: Path
) -> None:
    """`tests.host_gates`, with which the suite runs under the tool: CONTRIBUTING.md says how."""
    result = subprocess.run(
        [sanitizer, "--tool", "memcheck", "--target-processes", "application-only",
         "--report-api-errors", "no", "--show-backtrace", "no", "--error-exitcode", "3",
         python, "-m", "pytest", "-q", "--device", "cuda", "-p", "numbasync.testing.plugin",
         "-p", "tests.host_gates", "-p", "no:cacheprovider", "tests/device/test_devices.py"],
        capture_output=True, text=True, timeout=600, cwd=root, check=False,
        env={**python_env, "NUMBASYNC_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    said = result.stdout + result.stderr
    assert "ERROR SUMMARY: 0 errors" in said, said
    assert result.returncode == 0 and " passed" in said, said
