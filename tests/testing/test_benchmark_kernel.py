"""The fixture `benchmark_kernel`, in sessions of its own, alone and with pytest-benchmark."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from numbasync.testing.timing.benchmark_kernel import Replay
from tests.testing.test_plugin import Project

TESTS = """
import pytest
import numbasync as na

def both(device):
    return na.zeros(1 << 10).sync(), na.zeros(1 << 22).sync()

def test_quick(device, benchmark_kernel):
    small, large = both(device)
    found = benchmark_kernel(
        lambda: na.fill(small, 1), against=lambda: na.fill(large, 1), most=1.0, repeats=5,
        nbytes=4096, flush=0)
    assert found.ratio < 1

def test_slow(device, benchmark_kernel):
    small, large = both(device)
    benchmark_kernel(
        lambda: na.fill(large, 1), against=lambda: na.fill(small, 1), most=1.0, repeats=5, flush=0)

def test_alone(device, benchmark_kernel):
    small, _ = both(device)
    assert benchmark_kernel(lambda: na.fill(small, 1), repeats=4, flush=0).ms >= 0
    with pytest.raises(na.errors.CallerError, match="say against="):
        benchmark_kernel(lambda: na.fill(small, 1), most=2)
"""


@pytest.fixture
def project(tmp_path: Path, python: str, python_env: dict[str, str]) -> Project:
    (tmp_path / "test_speed.py").write_text(TESTS)
    return Project(tmp_path, python, python_env)


def test_ratios_are_kept_and_compared(project: Project) -> None:
    result = project.run("--device", "cpu", "--kernel-benchmarks", "found/speed.json")
    assert "1 failed, 2 passed" in result.stdout, result.stdout
    assert "KernelSlow: test_speed.py::test_slow[cpu]: " in result.stdout
    assert "1 times are allowed" in result.stdout
    kept = json.loads((project.folder / "found/speed.json").read_text())["benchmarks"]
    assert [k["test"] for k in kept] == [
        f"test_speed.py::test_{name}[cpu]" for name in ("quick", "slow", "alone")
    ]
    quick, slow, alone = kept
    assert quick["ratio_low"] <= quick["ratio"] <= quick["ratio_high"] < 1 < slow["ratio"]
    assert quick["device"] == "cpu:0" and quick["repeats"] == 5 and quick["against"]["ms"] > 0
    assert "gbps" in quick and "gbps" not in slow and "ratio" not in alone


@pytest.mark.full
def test_workers_keep_theirs_together(project: Project) -> None:
    (project.folder / "test_speed.py").write_text(
        TESTS.split("def test_quick")[0] + "@pytest.mark.parametrize('n', range(4))\n"
        "def test_each(device, benchmark_kernel, n):\n"
        "    benchmark_kernel(lambda: na.value(n), repeats=2, flush=0)\n"
    )
    options = ("-p", "xdist", "-n", "2", "--kernel-benchmarks", "speed.json")
    result = project.run("--device", "cpu", *options)
    assert "4 passed" in result.stdout, result
    kept = json.loads((project.folder / "speed.json").read_text())["benchmarks"]
    assert {k["test"] for k in kept} == {f"test_speed.py::test_each[cpu-{n}]" for n in range(4)}


def test_pytest_benchmark_gets_the_times_of_the_device(project: Project) -> None:
    if importlib.util.find_spec("pytest_benchmark") is None:
        pytest.skip("pytest_benchmark is not installed")
    (project.folder / "test_speed.py").write_text(
        TESTS.split("def test_quick")[0] + "@pytest.mark.benchmark(group='theirs')\n"
        "def test_theirs(device, benchmark, benchmark_kernel):\n"
        "    small, _ = both(device)\n"
        "    found = benchmark_kernel(lambda: na.fill(small, 1), repeats=5, flush=0)\n"
        "    print('said', found.ms / 1e3, benchmark.stats.stats.median)\n"
        "    assert len(benchmark.stats.stats.data) == 5 and benchmark.group == 'theirs'\n"
    )
    result = project.run("--device", "cpu", "-s", beside_others=True)
    assert "1 passed" in result.stdout, result.stdout
    ours, theirs = result.stdout.split("said ")[1].split()[:2]
    assert float(ours) == pytest.approx(float(theirs), rel=1e-6)


def test_a_clock_that_is_told() -> None:
    clock = Replay()
    clock.load((2.0, 5.0))
    times = [clock()]
    for _ in range(3):
        clock.step()
        times.append(clock())
    assert times == pytest.approx([0, 0.002, 0.007, 0.007])
