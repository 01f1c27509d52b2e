"""Softmax and its logarithm against float64, within the stated bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import algorithms
from numbasync.algorithms.softmaxes import KEPT, softmax_kernel, threads_of
from numbasync.errors import DTypeError, NumbasyncError, OperationError, ShapeError
from tests.common import full, host, put

RNG = np.random.default_rng(46)
UNITS = {"float16": 2.0**-24, "float32": 2.0**-24, "float64": 2.0**-53}


def logarithms(x: np.ndarray, axis: int) -> np.ndarray:
    wide = x.astype(np.longdouble)
    away = wide - wide.max(axis, keepdims=True)
    return away - np.log(np.exp(away).sum(axis, keepdims=True))


def compare(x: np.ndarray, axis: int = -1) -> None:
    n = x.shape[axis]
    threads, _ = threads_of(n)
    away = (x.max(axis, keepdims=True) - x).astype(np.float64)
    bound = (2 * away.max() + n / threads + 40) * UNITS[x.dtype.name]
    exact = logarithms(x, axis)
    half = np.finfo(x.dtype).eps / 2
    got = host(algorithms.softmax(put(x), axis))
    assert got.dtype == x.dtype and got.shape == x.shape
    expected = np.exp(exact)
    tiny = np.finfo(x.dtype).smallest_subnormal
    assert (abs(got - expected) <= (bound + half) * expected + tiny).all()
    got = host(algorithms.log_softmax(put(x), axis))
    assert (abs(got - exact) <= bound + (2 * UNITS[x.dtype.name] + half) * abs(exact)).all()


@pytest.mark.parametrize("n", [1, 33, full(512), 513, full(4097), full(KEPT + 1)])
def test_sizes(device: na.Device, n: int) -> None:
    compare((RNG.standard_normal((3, n)) * 3).astype(np.float32))


@pytest.mark.parametrize("dtype", [full("float16"), "float64"])
def test_dtypes(device: na.Device, dtype: str) -> None:
    compare((RNG.standard_normal((9, 100)) * 3).astype(dtype))


def test_other_axes(device: na.Device) -> None:
    x = RNG.standard_normal((3, 40, 2)).astype(np.float32)
    for axis in (0, 1, 2):
        compare(x, axis)
    got = host(algorithms.softmax(put(x)[:, ::2], 1))
    np.testing.assert_allclose(got, np.exp(logarithms(x[:, ::2], 1)), rtol=1e-5)


@pytest.mark.parametrize("n", [1, full(33), 513, full(4097), full(KEPT + 1)])
@pytest.mark.parametrize("dtype", ["float32", full("float16"), full("float64")])
def test_losses(device: na.Device, n: int, dtype: str) -> None:
    x = (RNG.standard_normal((5, n, 2)) * 3).astype(dtype)
    targets = RNG.integers(0, n, (5, 2)).astype(np.int16 if n < 4000 else np.int64)
    got = host(algorithms.cross_entropy(put(x), put(targets), axis=1))
    exact = -np.take_along_axis(logarithms(x, 1), targets[:, None].astype(int), 1)[:, 0]
    away = (x.max(1, keepdims=True) - x).astype(np.float64).max()
    unit = UNITS[dtype]
    assert got.shape == (5, 2) and got.dtype == ("float64" if dtype == "float64" else "float32")
    bound = (2 * away + n / threads_of(n)[0] + 40) * unit + 2 * unit * abs(exact)
    assert (abs(got - exact) <= bound).all()


def test_losses_of_no_class(device: na.Device) -> None:
    x = np.array([[0, 0], [0, 0], [np.nan, 0], [-np.inf, 0], [0, -1000]], np.float32)
    got = host(algorithms.cross_entropy(x, np.array([2, -1, 1, 0, 0])))
    np.testing.assert_array_equal(got, np.array([np.nan, np.nan, np.nan, np.inf, 0], np.float32))
    assert host(algorithms.cross_entropy(np.zeros((0, 3)), np.zeros(0, int))).shape == (0,)


def test_sizes_of_numbers(device: na.Device) -> None:
    nan, inf = np.nan, np.inf
    x = np.array([[1e30, 0, -inf], [nan, 0, 0], [inf, 0, 0], [-inf, -inf, -inf]], np.float32)
    expected = np.array([[1, 0, 0], [nan] * 3, [nan] * 3, [nan] * 3])
    np.testing.assert_array_equal(host(algorithms.softmax(put(x))), expected)
    got = host(algorithms.log_softmax(put(x)))
    np.testing.assert_array_equal(got[0], np.array([0, -1e30, -inf], np.float32))


def test_no_elements(device: na.Device) -> None:
    assert host(algorithms.softmax(np.zeros((0, 3)))).shape == (0, 3)
    assert host(algorithms.softmax(np.zeros((3, 0)))).shape == (3, 0)


def test_in_a_graph(device: na.Device) -> None:
    x = put(np.zeros((2, 40), np.float32))
    host(algorithms.softmax(x))  # compiled beforehand
    graph = algorithms.softmax(x).graph()
    z = graph.take_output()
    assert z is not None
    na.fill(x, 2.0).sync()
    graph.launch().sync()
    np.testing.assert_array_equal(host(z), np.full((2, 40), 1 / 40, np.float32))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: algorithms.softmax(x, 2), ShapeError, "axis 2, of 2 axes"),
        (lambda x: algorithms.log_softmax(x, (0, 1)), ShapeError, "write one axis"),
        (lambda x: algorithms.softmax(x.astype(int)), DTypeError, "write floats"),
        (lambda x: algorithms.cross_entropy(x, x[0]), DTypeError, "write numbers of classes"),
        (lambda x: algorithms.cross_entropy(x, [0, 1, 2]), OperationError, "takes a tensor"),
        (lambda x: algorithms.cross_entropy(x, np.arange(3)), ShapeError, r"of shape \(2,\)"),
        (lambda x: algorithms.cross_entropy(x > 0, np.arange(2)), DTypeError, "write floats"),
    ],
)
def test_refused_at_once(call: Any, error: type[NumbasyncError], words: str) -> None:
    with pytest.raises(error, match=words):
        call(np.ones((2, 3), np.float32))


@pytest.mark.full
def test_no_races(device: na.Device) -> None:
    """The kernel, under the race finder."""
    for n, threads, each in ((40, 32, 4), (600, 256, 4), (600, 256, 0)):
        x = RNG.standard_normal((2, n)).astype(np.float32)
        kernel = softmax_kernel(x.dtype, threads, each, "softmax")

        def expected(*args: Any, x: np.ndarray = x) -> Any:
            return (np.exp(logarithms(x, 1)).astype(np.float32),)

        grid = 1 if threads == 32 else 2
        na.testing.check_kernel(
            kernel, (np.zeros_like(x), x, x), expected, grid=grid, block=256, rtol=1e-5
        )
