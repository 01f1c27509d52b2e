"""The scaling model, checked against the simulation, and the page against the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.scaling_model import (
    COUNTS,
    Costs,
    ring,
    shared_work,
    simulated_ring,
    simulated_tasks,
    tables,
    tasks_per_second,
)


@pytest.mark.parametrize("count", COUNTS[:-1])
@pytest.mark.parametrize("nbytes", [1 << 10, 100 << 20])
def test_a_ring(count: int, nbytes: int) -> None:
    costs = Costs()
    assert simulated_ring(costs, count, nbytes) == pytest.approx(ring(costs, count, nbytes))


def test_a_late_gpu_delays_a_ring_equally() -> None:
    costs, late = Costs(), [0.0] * 16
    late[3] = 1e-3
    delayed = simulated_ring(costs, 16, 1 << 20, late)
    assert delayed == pytest.approx(ring(costs, 16, 1 << 20) + 1e-3)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("work", [0.1, 0.01])
def test_tasks(count: int, work: float) -> None:
    """Of the steady state: the last tasks of a run leave workers idle."""
    costs = Costs()
    got = simulated_tasks(costs, count, work, tasks=40 * count)
    assert got == pytest.approx(tasks_per_second(costs, count, work), rel=0.12)


@pytest.mark.parametrize(
    ("two", "eight"), [(5.0, 1.25), (6.0, 3.0), (10.0, 10.0), (4.9, 1.25), (12.0, 10.0)]
)
def test_work_that_is_shared_in_part(two: float, eight: float) -> None:
    """Of 10 s on one: all of it, 8 of 10, and nothing is divided; no more than all can be."""
    assert shared_work(10.0, two, 8) == pytest.approx(eight)


def test_the_scheduler_is_the_bound_of_many_workers() -> None:
    slow = Costs(task=2e-3)
    assert simulated_tasks(slow, 256, 0.01, 10_000) == pytest.approx(500, rel=0.05)


def test_the_page_has_these_tables(root: Path) -> None:
    assert tables() in (root / "docs" / "scaling.md").read_text()


def test_the_costs_are_those_of_the_measurements(root: Path) -> None:
    def seconds(name: str, what: str, row: str) -> float:
        run = json.loads((root / f"docs/performance/{name}.json").read_text())
        table = {each["what"]: each for each in report.tables_of(run)}[what]
        timing = {each["name"]: each for each in table["timings"]}[row]
        assert timing["unit"] == "us"
        return float(timing["median"]) * 1e-6

    reduced = "numbasync: on two GPUs, enqueued, then synchronize"
    hops = "numbasync: all_reduce of 4 bytes, on the devices alone"
    scheduler = "Dask: the scheduler's thread, map of NumPy"
    costs = Costs()
    large = seconds("scaling-h200", "all_reduce of 256 MiB", reduced)
    for cost, measured in (
        (costs.submit, seconds("launch-h200", "one small kernel", "numbasync: build + submit")),
        (costs.collective, seconds("scaling-h200", "all_reduce of 1 MiB", reduced) / 2),
        (costs.hop, seconds("devices-h200", "two GPUs: latency", hops) / 2),
        (costs.bytes_per_second, 2**28 / (large - 2 * costs.hop)),
        (costs.task, seconds("dask-cpu", "processor time of a task", scheduler)),
        (costs.round_trip, seconds("dask-cpu", "a task", "Dask: one task, waited for") / 2),
    ):
        assert cost == pytest.approx(measured, rel=0.01)
