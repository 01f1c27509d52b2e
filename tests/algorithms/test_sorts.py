"""Sorts against NumPy: each dtype, stable, and sizes around a kernel's bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import algorithms
from numbasync.algorithms.look_back import words_of_row
from numbasync.algorithms.operators import I64
from numbasync.algorithms.reduce_kernels import THREADS
from numbasync.algorithms.scan_kernels import each_of, scan_block
from numbasync.algorithms.sort_kernels import (
    PASS_BINS,
    PASS_THREADS,
    SUM_BITS,
    count_kernel,
    pass_each,
    place_kernel,
    sort_kernel,
)
from numbasync.algorithms.top_kernels import digit_kernel, take_kernel
from numbasync.dtypes import of_name
from numbasync.errors import CallerError, DTypeError, NumbasyncError, OperationError, ShapeError
from tests.algorithms.test_reductions import FLOATS, INTEGERS
from tests.common import full, host, put

CHUNK = THREADS * 16
RNG = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def by_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernels, also on the CPU device; `test_numpy_sorts.py` has the other way."""
    if "device" in request.fixturenames:
        device = request.getfixturevalue("device")
        monkeypatch.setattr(type(device.backend), "is_host", False)


def mixed(shape: Any, dtype: str) -> np.ndarray:
    """Numbers over the whole range, many of them twice, with what compares oddly."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return RNG.random(shape) < 0.5
    if kind.kind in "iu":
        info = np.iinfo(kind)
        x = RNG.integers(info.min, info.max, shape, kind, endpoint=True)
        return np.where(RNG.random(shape) < 0.3, x % 5, x).astype(kind)
    odd = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1, 1, -1], kind)
    x = (RNG.standard_normal(shape) * 100).astype(kind)
    return np.where(RNG.random(shape) < 0.3, RNG.choice(odd, shape), x)


def compare(x: np.ndarray, axis: int = -1) -> None:
    """Sorted, by index, and in the other direction; with the bits of each element."""
    order = np.argsort(x, axis, kind="stable")
    sorted_x = np.take_along_axis(x, order, axis)
    got = host(algorithms.sort(put(x), axis))
    assert got.dtype == x.dtype and got.tobytes() == sorted_x.tobytes()
    got = host(algorithms.argsort(put(x), axis))
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, order)


def test_rows(device: na.Device) -> None:
    x = mixed((5, 40), "float32")
    order = np.argsort(x, kind="stable")
    np.testing.assert_array_equal(host(algorithms.argsort(put(x))), order)


@pytest.mark.full
@pytest.mark.parametrize("n", [1, 2, 16, 17, 512, 513, CHUNK, CHUNK + 1, 3 * CHUNK, 100_003])
def test_sizes(device: na.Device, n: int) -> None:
    compare(mixed(n, "float32"))
    compare(mixed((3, n), "float32"))


@pytest.mark.parametrize("dtype", [full(d) for d in (*INTEGERS, *FLOATS, "bool")])
def test_dtypes(device: na.Device, dtype: str) -> None:
    compare(mixed((3, 50), dtype))
    compare(mixed(9000, dtype))


@pytest.mark.full
def test_bfloat16(device: na.Device) -> None:
    x = mixed((3, 50), "float32").astype(of_name("bfloat16"))
    expected = np.sort(x.astype(np.float32))
    got = host(algorithms.sort(put(x)))
    assert got.dtype == of_name("bfloat16")
    np.testing.assert_array_equal(got.astype(np.float32), expected)


@pytest.mark.full
def test_descending_is_stable(device: na.Device) -> None:
    for n in (50, 9000):
        x = mixed((2, n), "float32")
        reversed_order = np.argsort(x[:, ::-1], kind="stable")[:, ::-1]
        order = n - 1 - reversed_order
        got = host(algorithms.argsort(put(x), descending=True))
        np.testing.assert_array_equal(got, order)
        got = host(algorithms.sort(put(x), descending=True))
        np.testing.assert_array_equal(got, np.take_along_axis(x, order, 1))


@pytest.mark.full
def test_axes(device: na.Device) -> None:
    x = mixed((3, 20, 7), "int16")
    for axis in (0, 1, 2, -2):
        compare(x, axis)
    np.testing.assert_array_equal(host(algorithms.sort(put(x), None)), np.sort(x, None))
    np.testing.assert_array_equal(host(algorithms.sort(put(x).T)), np.sort(x.T))
    values, indices = algorithms.topk(put(x), 4, axis=1).sync()
    order = np.argsort(-x.astype(np.int32), axis=1, kind="stable")[:, :4]
    np.testing.assert_array_equal(host(indices), order)
    np.testing.assert_array_equal(host(values), np.take_along_axis(x, order, 1))


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["int8", "float64", "complex128"])
def test_values_move_with_their_keys(device: na.Device, dtype: str) -> None:
    for n in (60, 9000):
        keys = mixed((2, n), "int32")
        values = RNG.integers(0, 99, (2, n)).astype(dtype)
        order = np.argsort(keys, kind="stable")
        k, v = algorithms.sort_by_key(na.from_host(keys), values).sync()
        np.testing.assert_array_equal(host(k), np.sort(keys))
        np.testing.assert_array_equal(host(v), np.take_along_axis(values, order, 1))


@pytest.mark.full
def test_topk(device: na.Device) -> None:
    x = mixed((2, CHUNK * 2 + 3), "float32")
    for k in (1, 5, CHUNK // 8, CHUNK // 8 + 1, 5000):
        values, indices = algorithms.topk(put(x), k).sync()
        n = x.shape[1]
        order = n - 1 - np.argsort(x[:, ::-1], kind="stable")[:, ::-1][:, :k]
        np.testing.assert_array_equal(host(indices), order)
        np.testing.assert_array_equal(host(values), np.take_along_axis(x, order, 1))
        values, indices = algorithms.topk(put(x), k, largest=False).sync()
        order = np.argsort(x, kind="stable")[:, :k]
        np.testing.assert_array_equal(host(indices), order)
        np.testing.assert_array_equal(host(values), np.take_along_axis(x, order, 1))
    x = mixed(CHUNK * 40, "int8")  # three levels, and many equal ones
    indices = algorithms.topk(put(x), 300, largest=False).sync()[1]
    np.testing.assert_array_equal(host(indices), np.argsort(x, kind="stable")[:300])
    assert host(algorithms.topk(x.reshape(2, -1), 0).sync()[1]).shape == (2, 0)


@pytest.mark.full
def test_no_elements_and_the_input_stays(device: na.Device) -> None:
    assert host(algorithms.sort(put(np.empty((3, 0), np.int8)))).shape == (3, 0)
    assert host(algorithms.argsort(put(np.empty((0, 3))))).shape == (0, 3)
    x = mixed(9000, "float32")
    t = put(x)
    algorithms.sort(t).sync()
    assert host(t).tobytes() == x.tobytes()


@pytest.mark.full
def test_in_a_graph(device: na.Device) -> None:
    x = put(np.arange(9000, 0, -1).astype(np.int32))
    host(algorithms.sort(x))  # compiled beforehand
    graph = algorithms.sort(x).graph()
    z = graph.take_output()
    assert z is not None
    na.fill(x, 3).sync()
    graph.launch().sync()
    assert (host(z) == 3).all()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: algorithms.sort(x, 2), ShapeError, "axis 2, of 2 axes"),
        (lambda x: algorithms.argsort(x, (0, 1)), ShapeError, "write one axis"),
        (lambda x: algorithms.topk(x, 4), ShapeError, "write at most 3"),
        (lambda x: algorithms.topk(x, -1), CallerError, "k of topk"),
        (lambda x: algorithms.topk(x, 1, largest=2), CallerError, "True or False"),
        (lambda x: algorithms.sort(x, descending=2), CallerError, "True or False"),
        (lambda x: algorithms.sort_by_key(x, x[0]), ShapeError, "values.shape"),
        (lambda x: algorithms.sort_by_key(x, [1]), OperationError, "takes a tensor"),
        (lambda x: algorithms.sort(x.astype(complex)), DTypeError, "have an order"),
        (lambda x: algorithms.sort([1, 2]), OperationError, "takes a tensor"),
    ],
)
def test_refused_at_once(call: Any, error: type[NumbasyncError], words: str) -> None:
    with pytest.raises(error, match=words):
        call(np.ones((2, 3), np.float32))


@pytest.mark.full
def test_no_races(device: na.Device) -> None:
    """The kernels, under the race finder."""
    dtype = np.dtype(np.uint16)
    x = mixed((2, 40), "uint16")
    z = np.zeros_like(x)
    block = scan_block(40, 1, each_of(dtype))
    kernel = sort_kernel(dtype, False, block, "none")

    def expected(*args: Any) -> Any:
        return (np.sort(x),) * 2

    na.testing.check_kernel(kernel, (z, z, x, x, 16, 40), expected, grid=1, block=THREADS)
    x = mixed((1, CHUNK + 5), "uint16")
    counts = np.zeros((1, 2, PASS_BINS), np.uint64)
    found = np.stack([np.bincount(d, minlength=PASS_BINS) for d in (x[0] & 255, x[0] >> 8)])[None]

    def counted(*args: Any) -> Any:
        return (found.astype(np.uint64),)

    kernel = count_kernel(dtype, False, 2)
    na.testing.check_kernel(kernel, (counts, x, 2), counted, grid=2, block=THREADS)
    chunk = PASS_THREADS * pass_each(dtype)
    x = mixed((1, chunk + 5), "uint16")
    upto = [np.bincount(c & 255, minlength=PASS_BINS) for c in (x[0, :chunk], x[0])]
    words = np.concatenate(upto).astype(np.uint64) + np.uint64(2 << SUM_BITS)
    words[-1] += np.uint64(chunk - 5)  # places behind the end count as the largest digit
    z = np.zeros_like(x)
    by_byte = x[:, np.argsort(x[0] & 255, kind="stable")]

    def one_pass(*args: Any) -> Any:
        return by_byte, by_byte, words, np.array([2, 0], np.uint64)

    counts[0, 0] = upto[1]
    scratch = np.zeros_like(words), np.zeros(2, np.uint64)
    kernel = place_kernel(dtype, False, "none")
    args = (z, z, x, x, counts, *scratch, 0)
    na.testing.check_kernel(kernel, args, one_pass, grid=2, block=PASS_THREADS)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64", "bool"])
def test_topk_of_long_rows(device: na.Device, dtype: str) -> None:
    """By digits: with elements equal to the last one, of which the first are taken."""
    for rows, n, k in ((1, CHUNK + 1, 1), (2, 9001, 30), (1, 3 * CHUNK, CHUNK // 2 + 1)):
        x = mixed((rows, n), dtype)
        for largest in (True, False):
            values, places = algorithms.topk(put(x), k, largest=largest).sync()
            order = (
                n - 1 - np.argsort(x[:, ::-1], 1, kind="stable")[:, ::-1]
                if largest
                else np.argsort(x, 1, kind="stable")
            )[:, :k]
            np.testing.assert_array_equal(host(places), order)
            assert host(values).tobytes() == np.take_along_axis(x, order, 1).tobytes()


@pytest.mark.full
def test_no_races_of_digits(device: na.Device) -> None:
    """The kernels of topk, under the race finder."""
    dtype, n, wanted = np.dtype(np.uint16), CHUNK + 9, 40
    x = mixed((1, n), "uint16")
    ordered = np.sort(x[0])
    high = ordered[wanted - 1] >> 8
    counts = np.zeros((1, 2, 256), np.int64)
    counts[0, 0] = np.bincount(x[0] >> 8, minlength=256)
    all_counts = counts.copy()
    all_counts[0, 1] = np.bincount(x[x >> 8 == high] & 255, minlength=256)
    found = np.zeros((1, 2, 2), np.int64)
    found[0, 1] = high, wanted - np.searchsorted(ordered >> 8, high)
    na.testing.check_kernel(
        digit_kernel(dtype, False), (counts, np.zeros_like(found), x, 1, wanted, 2),
        lambda *_: (all_counts, found), grid=2, block=THREADS,
    )  # fmt: skip
    places = np.sort(np.argsort(x[0], kind="stable")[:wanted])[None]
    words = np.zeros(words_of_row(I64, 2) + 1, np.uint64)
    na.testing.check_kernel(
        take_kernel(dtype, False),
        (
            np.zeros((1, wanted), np.uint16), np.zeros((1, wanted), np.int64), words, x,
            all_counts, found, wanted,
        ),
        lambda *_: (x[0][places], places, None), grid=2, block=THREADS,
    )  # fmt: skip
