"""Collectives of two GPUs, by NCCL: of one process, and of two."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.collective import all_gather, all_reduce, broadcast, new_key, reduce_scatter
from tests.collective import ranks
from tests.collective.ranks import part
from tests.collective.test_devices import elements

pytestmark = pytest.mark.cuda(devices=2)


@pytest.fixture(params=["library", "copies"])
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[na.Device]:
    found = na.devices("cuda")[:2]
    if request.param == "copies":
        monkeypatch.setattr(type(found[0].backend), "collectives", None)
    elif found[0].backend.collectives is None:
        pytest.skip("nccl4py is not installed")
    return found


def parts_on(gpus: list[na.Device], size: int, dtype: str = "float32") -> list[na.Tensor]:
    return [na.to_device(part(i, size, dtype), device).sync() for i, device in enumerate(gpus)]


@pytest.mark.parametrize("size", [0, 1, 6, 3_000_000])
@pytest.mark.parametrize("op", ["sum", "avg", "prod", "min", "max"])
def test_all_reduce(gpus: list[na.Device], size: int, op: str) -> None:
    a, b = part(0, size), part(1, size)
    combine: Any = {"prod": np.multiply, "min": np.minimum, "max": np.maximum}.get(op, np.add)
    expected = combine(a, b) / (2 if op == "avg" else 1)
    for array in elements(all_reduce(parts_on(gpus, size), op).sync(), gpus):
        np.testing.assert_array_equal(array, expected)


def test_the_others(gpus: list[na.Device]) -> None:
    parts = parts_on(gpus, 1000, "int64")
    arrays = [part(i, 1000, "int64") for i in range(2)]
    got = elements(reduce_scatter(parts).sync(), gpus)
    np.testing.assert_array_equal(np.concatenate(got), arrays[0] + arrays[1])
    for array in elements(all_gather(parts).sync(), gpus):
        np.testing.assert_array_equal(array, np.concatenate(arrays))
    for array in elements(broadcast(parts, 1).sync(), gpus):
        np.testing.assert_array_equal(array, arrays[1])


async def test_order_with_what_comes_before_and_after(gpus: list[na.Device]) -> None:
    parts = parts_on(gpus, 1_000_000)
    for _ in range(50):
        for i, (t, device) in enumerate(zip(parts, gpus, strict=True)):
            na.spawn(na.fill(t, i + 1), device.policy)
        reduced = na.spawn(all_reduce(parts))
        for t, device in zip(parts, gpus, strict=True):
            na.spawn(na.fill(t, -1), device.policy)
        for array in elements(await reduced, gpus):
            assert (array == 3).all()


def test_two_processes() -> None:
    """Also one that dies: the other one is told, and its stream goes on."""
    spawned = multiprocessing.get_context("spawn")
    tasks = [spawned.Queue() for _ in range(2)]
    results, together = spawned.Queue(), spawned.Barrier(2)
    processes = [
        spawned.Process(target=ranks.main, args=(task, results, together)) for task in tasks
    ]
    for process in processes:
        process.start()
    try:
        for name in ("everything", "both_ways", "one_dies"):
            key = new_key(2)
            for rank, task in enumerate(tasks):
                task.put((name, key, rank, 20.0, "cuda"))
            got = dict(results.get(timeout=90) for _ in range(1 if name == "one_dies" else 2))
            if name == "everything":
                whole = part(0, 2_000_001) + part(1, 2_000_001)
                for rank in range(2):
                    np.testing.assert_array_equal(got[rank][1], whole)
                    np.testing.assert_array_equal(got[rank][4], part(1))
            elif name == "both_ways":
                assert got == {0: 1.0, 1: 0.0}
            else:
                assert len(got[0]) == 2
        together.abort()
    finally:
        for task in tasks:
            task.put(None)
        for process in processes:
            process.join(30)
            process.kill()
