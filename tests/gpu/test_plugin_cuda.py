"""What the pytest plugin does on a GPU alone: faults of a device, times by its events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.testing.test_plugin import Project

pytestmark = pytest.mark.cuda

FAULT = """
import numpy as np
import pytest
from numba import cuda
import numbasync as na

@na.launcher
@cuda.jit
def too_far(z: na.KernelOutput):
    z[cuda.grid(1) + 2**36] = 1

@pytest.mark.isolated
def test_too_far(device):
    too_far.forall(64)(na.zeros(64)).sync()

def test_afterwards(device):
    assert na.ones(64).to_host().sync().sum() == 64
"""

TIMES = """
import numbasync as na

def test_copies(device, stream, benchmark_kernel):
    x, z = (na.zeros(2**24).sync_on(stream) for _ in range(2))
    found = benchmark_kernel(
        lambda: na.memcpy(z, x), against=lambda: na.fill(z, 1.0), repeats=9, nbytes=2**27)
    assert found.first.ms > 0 and found.second.ms > 0 and found.ratio > 0
"""


@pytest.mark.parametrize("mark", ["isolated", ""])
def test_a_fault_of_the_device_fails_one_test(
    tmp_path: Path, python: str, python_env: dict[str, str], mark: str
) -> None:
    text = FAULT if mark else FAULT.replace("@pytest.mark.isolated\n", "")
    (tmp_path / "test_kernels.py").write_text(text)
    result = Project(tmp_path, python, python_env).run("--device", "cuda", seconds=300)
    if mark:
        assert "1 failed, 1 passed" in result.stdout, result.stdout
    else:  # the device is lost, for the whole process
        assert "1 passed" not in result.stdout, result.stdout
    assert "a kernel read or wrote outside its arrays" in result.stdout


def test_times_are_the_devices(tmp_path: Path, python: str, python_env: dict[str, str]) -> None:
    (tmp_path / "test_times.py").write_text(TIMES)
    kept = tmp_path / "times.json"
    result = Project(tmp_path, python, python_env).run(
        "--device", "cuda", "--kernel-benchmarks", str(kept), seconds=300
    )
    assert "1 passed" in result.stdout, result.stdout
    (found,) = json.loads(kept.read_text())["benchmarks"]
    assert "test_copies" in str(found), found
