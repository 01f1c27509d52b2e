"""`--compute-sanitizer` with the tool itself, and `check_kernel` on a GPU that hides mistakes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.test_plugin import Project

pytestmark = pytest.mark.cuda

TESTS = """
import numpy as np
from numba import cuda
import numbasync as na

@na.launcher
@cuda.jit
def too_far(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    z[i] = x[i + 1]

@na.launcher
@cuda.jit
def right(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = x[i]

def test_too_far(device):
    # One past the end of an allocation that is as large as the driver makes it.
    x = na.ones(1 << 20).sync()
    too_far[1 << 14, 64](na.zeros(1 << 20), x[1:]).sync()
    device.synchronize()

def test_right(device):
    right(na.zeros(64), na.ones(64)).sync()
"""


def test_memcheck_names_the_line(tmp_path: Path, python: str, python_env: dict[str, str]) -> None:
    found = shutil.which("compute-sanitizer") or Path("/usr/local/cuda/bin/compute-sanitizer")
    if not Path(found).exists():
        pytest.skip("there is no compute-sanitizer")
    (tmp_path / "test_kernels.py").write_text(TESTS)
    project = Project(tmp_path, python, python_env)
    result = project.run("--device", "cuda", "--compute-sanitizer", "memcheck", seconds=600)
    assert "1 failed, 1 passed" in result.stdout, result.stdout
    assert "compute-sanitizer memcheck has found:" in result.stdout
    assert "Invalid __global__ read of size 4 bytes, kernel too_far" in result.stdout
    number = TESTS.splitlines().index("    z[i] = x[i + 1]") + 1
    assert f"test_kernels.py:{number}    z[i] = x[i + 1]" in result.stdout
