"""NumPy's sorts in place of the kernels, on devices whose memory is the host's: the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import algorithms
from numbasync.algorithms import numpy_sorts
from numbasync.testing import counters
from tests.algorithms.test_sorts import mixed
from tests.common import host

DTYPES = ("int32", "uint8", "float16", "float32", "float64", "bool")


def ordered(x: np.ndarray[Any, Any], axis: int, descending: bool) -> np.ndarray[Any, Any]:
    """The stable order along an axis."""
    if not descending:
        return np.argsort(x, axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)


@pytest.mark.parametrize("descending", [False, True])
def test_orders_and_bits_are_the_kernels(cpu: na.Device, descending: bool) -> None:
    before = counters().launches
    for shape, axis in (((300,), 0), ((5, 40), 1), ((3, 40, 7), 1), ((2, 70_000), 1)):
        for dtype in DTYPES if shape[axis] < 1000 else DTYPES[3:4]:
            x, values = mixed(shape, dtype), mixed(shape, "uint8")
            t = na.from_host(x).sync()
            order = ordered(x, axis, descending)
            want = np.take_along_axis(x, order, axis)
            assert host(algorithms.sort(t, axis, descending=descending)).tobytes() == want.tobytes()
            given = algorithms.argsort(t, axis, descending=descending)
            np.testing.assert_array_equal(host(given), order)
            keys, moved = algorithms.sort_by_key(t, values, axis, descending=descending).sync()
            assert host(keys).tobytes() == want.tobytes()
            np.testing.assert_array_equal(host(moved), np.take_along_axis(values, order, axis))
            if shape[axis] < 1000:
                most, places = algorithms.topk(t, 2, axis, largest=descending).sync()
                np.testing.assert_array_equal(host(places), np.take(order, range(2), axis))
                assert host(most).tobytes() == np.take(want, range(2), axis).tobytes()
    assert counters().launches == before


def test_other_layouts_and_all_axes(cpu: na.Device) -> None:
    x = mixed((6, 50), "int16")
    t = na.from_host(x).sync()
    np.testing.assert_array_equal(host(algorithms.sort(t[::2].T, 0)), np.sort(x[::2].T, 0))
    np.testing.assert_array_equal(host(algorithms.sort(t.T, None)), np.sort(x, None))
    np.testing.assert_array_equal(host(t), x)


def test_graphs_and_very_long_rows_have_kernels(
    cpu: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = mixed((4, 50), "float32")
    want = np.sort(x, kind="stable").tobytes()
    graph = algorithms.sort(na.from_host(x).sync()).graph()
    z = graph.take_output()
    assert z is not None
    graph.launch().sync()
    assert host(z).tobytes() == want
    monkeypatch.setattr(numpy_sorts, "LONGEST", 49)
    monkeypatch.setattr(numpy_sorts.os, "cpu_count", lambda: 64)
    before = counters().launches
    assert host(algorithms.sort(na.from_host(x))).tobytes() == want
    assert counters().launches > before
