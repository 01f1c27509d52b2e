"""Collectives of two GPUs, by NCCL: of one process, and of two."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.collective import all_gather, all_reduce, broadcast, reduce_scatter
from tests.collective.ranks import Processes, part
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


@pytest.mark.parametrize(
    ("op", "dtype"),
    [("sum", "c8"), ("avg", "c16"), ("prod", "c16"), ("sum", "?"), ("prod", "?"), ("min", "?")],
)
def test_complex_numbers_and_bool(gpus: list[na.Device], op: str, dtype: str) -> None:
    a, b = (part(i, 1000, dtype) for i in range(2))
    combine: Any = {"prod": np.multiply, "min": np.minimum}.get(op, np.add)
    expected = combine(a, b) / 2 if op == "avg" else combine(a, b)
    parts = parts_on(gpus, 1000, dtype)
    for array in elements(all_reduce(parts, op).sync(), gpus):
        np.testing.assert_allclose(array, expected, rtol=1e-15 if op == "prod" else 0)
    scattered = elements(reduce_scatter(parts, op).sync(), gpus)
    np.testing.assert_allclose(np.concatenate(scattered), expected, rtol=1e-15)
    for array in elements(all_gather(parts).sync(), gpus):
        np.testing.assert_array_equal(array, np.concatenate([a, b]))
    for array in elements(broadcast(parts, 1).sync(), gpus):
        np.testing.assert_array_equal(array, b)


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


def test_parts_of_another_library(gpus: list[na.Device]) -> None:
    """Its work on them is waited for, and it waits for their reading."""
    torch = pytest.importorskip("torch")
    n = 4_000_000
    arrays = [torch.zeros(n, device=f"cuda:{gpu.ordinal}") for gpu in gpus]
    parts = [na.as_tensor(array) for array in arrays]
    for step in range(1, 20):
        for array in arrays:
            for _ in range(20):
                array.add_(1)
        out = parts_on(gpus, n) if step % 2 else None
        for array in elements(all_reduce(parts, out=out).sync(), gpus):
            assert (array == 40 * step).all()
        scattered = reduce_scatter(parts).sync()
        for array in arrays:
            array.add_(1)
        assert all((array == 40 * step).all() for array in elements(scattered, gpus))
        for array in arrays:
            array.sub_(1)


def test_threads_that_reduce_at_the_same_time(gpus: list[na.Device]) -> None:
    def reduce(number: int) -> list[float]:
        parts = [na.to_device(np.full(999, number, "f4"), device).sync() for device in gpus]
        for _ in range(20):
            parts = list(all_reduce(parts, "avg").sync())
        return [float(array.mean()) for array in elements(tuple(parts), gpus)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(reduce, range(8))) == [[float(i)] * 2 for i in range(8)]


@pytest.fixture
def processes() -> Any:
    processes = Processes(2, "cuda")
    yield processes
    processes.end()


def test_two_processes(processes: Processes) -> None:
    whole = part(0, 2_000_001) + part(1, 2_000_001)
    for got in processes.results_of("everything"):
        np.testing.assert_array_equal(got[1], whole)
        np.testing.assert_array_equal(got[4], part(1))
    assert processes.results_of("both_ways") == [1.0, 0.0]


@pytest.mark.parametrize("name", ["one_dies", "one_dies_at_first"])
def test_a_process_that_dies_fails_the_other(processes: Processes, name: str) -> None:
    errors, _ = processes.results_of(name, lost=1)
    assert len(errors) == 2, errors


def test_an_absent_process_fails_the_other_in_time(processes: Processes) -> None:
    error, _ = processes.results_of("one_is_late", timeout=3.0)
    assert "has not called the same in 3.0 s" in error
