"""Selections, searches and counts against NumPy."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import algorithms
from numbasync.algorithms.operators import named
from numbasync.algorithms.reduce_kernels import THREADS
from numbasync.algorithms.select_kernels import MARKS, SHARED_BINS, bin_kernel, keep_marked
from numbasync.errors import (
    CallerError,
    DTypeError,
    NotAGraphNodeError,
    NumbasyncError,
    OperationError,
    ShapeError,
)
from tests.algorithms.test_reductions import FLOATS, INTEGERS
from tests.algorithms.test_sorts import mixed
from tests.common import full, host, put


def test_search(device: na.Device) -> None:
    a, x = np.sort(mixed(70, "float32")), mixed((3, 20), "float32")
    got = host(algorithms.searchsorted(put(a), put(x)))
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, np.searchsorted(a, x))


@pytest.mark.parametrize("dtype", [full(d) for d in (*INTEGERS, *FLOATS, "bool")])
def test_dtypes(device: na.Device, dtype: str) -> None:
    x = mixed((3, 50), dtype)
    mask = mixed((3, 50), "bool")
    np.testing.assert_array_equal(host(algorithms.select(put(x), put(mask))), x[mask])
    np.testing.assert_array_equal(host(algorithms.unique(put(x))), np.unique(x))
    a = np.sort(x[0])
    got = host(algorithms.searchsorted(put(a), put(x), "right"))
    np.testing.assert_array_equal(got, np.searchsorted(a, x, "right"))


@pytest.mark.full
@pytest.mark.parametrize("n", [1, 511, 512, 4097, 30_000])
def test_sizes(device: na.Device, n: int) -> None:
    x = mixed(n, "int32")
    for mask in (x > 2, x == x, x != x):
        got = host(algorithms.select(put(x), mask))
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(got, x[mask])
    np.testing.assert_array_equal(host(algorithms.unique(put(x))), np.unique(x))


@pytest.mark.full
def test_awaited_on_an_event_loop(device: na.Device) -> None:
    x = mixed((3, 50), "float32")

    async def many() -> list[np.ndarray]:
        ops = [algorithms.select(x, x > level) for level in range(-60, 60, 10)]
        nested = algorithms.unique(algorithms.select(x, x > 0))
        return [await t.to_host() for t in await na.gather(*ops, nested)]

    *chosen, last = na.run(many())
    for level, got in zip(range(-60, 60, 10), chosen, strict=True):
        np.testing.assert_array_equal(got, x[x > level])
    np.testing.assert_array_equal(last, np.unique(x[x > 0]))


@pytest.mark.full
def test_a_cancelled_wait_leaves_the_device_in_order(device: na.Device) -> None:
    x = put(np.arange(9))
    mask = put(np.arange(9) % 2 == 0)
    host(algorithms.select(x, mask))  # compiled beforehand

    async def cancelled() -> None:
        stream = device.new_stream()
        with na.testing.gate(stream):
            task = asyncio.ensure_future(wait(algorithms.select(x, mask).schedule(stream)))
            for _ in range(5):
                await asyncio.sleep(0)
            assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    async def wait(scheduled: Any) -> Any:
        return await scheduled

    na.run(cancelled())
    assert host(algorithms.select(x, mask)).tolist() == [0, 2, 4, 6, 8]


@pytest.mark.full
def test_not_contiguous_and_nothing(device: na.Device) -> None:
    x = mixed((6, 8), "int16")
    got = host(algorithms.select(put(x).T, put(x > 0).T))
    np.testing.assert_array_equal(got, x.T[x.T > 0])
    nothing = np.empty((0, 3), np.float32)
    assert host(algorithms.select(nothing, nothing > 0)).shape == (0,)
    assert host(algorithms.unique(nothing)).shape == (0,)
    assert host(algorithms.searchsorted(nothing[:, 0], x[0].astype(np.float32))).tolist() == [0] * 8
    assert host(algorithms.searchsorted(x[0], x[:0])).shape == (0, 8)
    assert host(algorithms.bincount(x[:0], 3)).tolist() == [0] * 3
    counts, edges = algorithms.histogram(nothing, 4).sync()
    expected = np.histogram(nothing, 4)
    assert host(counts).tolist() == expected[0].tolist()
    assert host(edges).tolist() == expected[1].tolist()


@pytest.mark.parametrize("dtype", [full(d) for d in ("bool", "uint8", "int64", *FLOATS)])
def test_histogram(device: na.Device, dtype: str) -> None:
    x = np.random.default_rng(2).integers(0, 2 if dtype == "bool" else 120, (40, 50)).astype(dtype)
    args: Any
    for args in ((10,), (7, (3, 100)), (3000, (0.5, 100)), (np.array([2.0, 3.5, 60, 119]),)):
        counts, edges = algorithms.histogram(put(x), *args).sync()
        wide = x.astype({"float16": "float32", "bool": "uint8"}.get(dtype, dtype))
        expected, expected_edges = np.histogram(wide, *args)
        assert host(counts).dtype == np.int64
        np.testing.assert_array_equal(host(counts), expected)
        assert host(edges).tobytes() == expected_edges.tobytes()


@pytest.mark.full
def test_what_is_outside_is_not_counted(device: na.Device) -> None:
    x = np.array([np.nan, -1, 0, 0.5, 1, 1.5, np.inf, -np.inf], np.float32)
    counts, _ = algorithms.histogram(put(x), 2, (0, 1)).sync()
    assert host(counts).tolist() == np.histogram(x, 2, (0, 1))[0].tolist() == [1, 2]
    # Edges without a width, and one twice.
    for edges in ([-np.inf, 0, np.inf], [0, 1, 1, 2], [1, 1]):
        counts, _ = algorithms.histogram(put(x), np.array(edges)).sync()
        assert host(counts).tolist() == np.histogram(x, edges)[0].tolist()


@pytest.mark.full
@pytest.mark.parametrize("most", [1, 7, SHARED_BINS, SHARED_BINS + 1, 9000])
def test_bincount(device: na.Device, most: int) -> None:
    x = np.random.default_rng(3).integers(0, most, 20_000).astype(np.int32)
    for least in (0, 5000):
        got = host(algorithms.bincount(put(x), least))
        np.testing.assert_array_equal(got, np.bincount(x, minlength=least))


@pytest.mark.full
def test_no_graph_can_have_them(device: na.Device) -> None:
    x = put(np.arange(5))
    with pytest.raises(NotAGraphNodeError, match="unique awaits a number"):
        algorithms.unique(x).graph()


@na.launcher
@cuda.jit
def double(z: na.KernelOutput, chosen: na.KernelInput) -> None:
    i = cuda.grid(1)
    if i < chosen.extent[0]:
        z[i] = 2 * chosen.elements[i]


def test_a_number_that_stays_on_the_device(device: na.Device) -> None:
    x = put(np.arange(9))
    mask = put(np.arange(9) % 2 == 0)

    def doubled() -> na.DeviceOp[Any]:
        chosen = algorithms.select(x, mask, on_device=True)
        return na.zeros(9, np.int64).then(lambda z: double[1, 32](z, chosen))

    chosen = doubled().sync().chosen
    assert chosen.length().sync() == 5
    assert host(chosen.trimmed()).tolist() == [0, 2, 4, 6, 8]
    graph = doubled().graph()
    z = graph.take_output().z
    mask.copy_from(np.arange(9) < 2).sync()
    graph.launch().sync()
    assert host(z).tolist() == [0, 2] + [0] * 7


@pytest.mark.full
def test_distinct_elements_stay_on_the_device(device: na.Device) -> None:
    x = mixed((3, 50), "float32")
    for y in (x, x[:0]):
        found = algorithms.unique(put(y), on_device=True).sync()
        np.testing.assert_array_equal(host(found.trimmed()), np.unique(y))
    with pytest.raises(CallerError, match="on_device of select"):
        algorithms.select(x, x > 0, on_device=2)  # type: ignore[call-overload]


@pytest.mark.full
def test_a_negative_number_is_not_counted(device: na.Device) -> None:
    with pytest.raises(CallerError, match="bincount of -3"):
        algorithms.bincount(np.array([2, -3])).sync()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: algorithms.select(x, x[0] > 0), ShapeError, "by a mask of shape"),
        (lambda x: algorithms.select(x, x), DTypeError, "write one of bool"),
        (lambda x: algorithms.select(x, [True]), OperationError, "takes a tensor"),
        (lambda x: algorithms.unique(x.astype(complex)), DTypeError, "have an order"),
        (lambda x: algorithms.searchsorted(x, x), ShapeError, "of one axis"),
        (lambda x: algorithms.searchsorted(x[0], x.astype(int)), DTypeError, "a.dtype"),
        (lambda x: algorithms.searchsorted(x[0], x, "middle"), CallerError, "'left' or"),
        (lambda x: algorithms.histogram(x, 0), CallerError, "histogram"),
        (lambda x: algorithms.histogram(x, "auto", 3), CallerError, "leave it out"),
        (lambda x: algorithms.histogram(x, "auto"), CallerError, "write how many bins"),
        (lambda x: algorithms.histogram(x, 3, (2, 1)), CallerError, "max must be larger"),
        (lambda x: algorithms.histogram(x, [3, 1]), CallerError, "monotonically"),
        (lambda x: algorithms.bincount(x), DTypeError, "write integers"),
        (lambda x: algorithms.bincount(x > 0, -1), CallerError, "minlength"),
    ],
)
def test_refused_at_once(call: Any, error: type[NumbasyncError], words: str) -> None:
    with pytest.raises(error, match=words):
        call(np.ones((2, 3), np.float32))


@pytest.mark.full
def test_no_races(device: na.Device) -> None:
    """The kernel, under the race finder."""
    x = np.random.default_rng(4).integers(0, 9, 600)
    counts = np.zeros(9, np.int64)

    def expected(*args: Any) -> Any:
        return (np.bincount(x, minlength=9),)

    na.testing.check_kernel(
        bin_kernel(x.dtype, named("max", x.dtype).lift, True, False),
        (counts, x, x),
        expected,
        grid=2,
        block=THREADS,
    )
    mask = x[:, None].repeat(7, 1).reshape(-1) > 4
    chosen = np.flatnonzero(mask)
    x = np.arange(mask.size)
    ends = np.array([mask[:MARKS].sum(), mask.sum()])
    z = np.zeros(chosen.size, x.dtype)
    na.testing.check_kernel(
        keep_marked, (z, x, mask, ends), lambda *_: (chosen,), grid=2, block=THREADS
    )
