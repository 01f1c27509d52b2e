"""Scans against NumPy: each operator, axis and dtype, and sizes around a kernel's bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import algorithms, dtypes
from numbasync.algorithms.look_back import words_of_row
from numbasync.algorithms.operators import named
from numbasync.algorithms.reduce_kernels import THREADS
from numbasync.algorithms.scan_kernels import (
    each_of,
    scan_block,
    scan_kernel,
    scan_row_kernel,
)
from numbasync.algorithms.scans import SCANS
from numbasync.errors import CallerError, DTypeError, NumbasyncError, OperationError, ShapeError
from tests.algorithms.test_reductions import FLOATS, INTEGERS, further, numbers
from tests.common import full, host, put

CHUNK = THREADS * 16
UFUNCS = {
    "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
    "any": np.logical_or, "all": np.logical_and,
}  # fmt: skip


def reference(op: str, x: np.ndarray, axis: int) -> np.ndarray:
    if op in ("sum", "prod"):
        return getattr(np, f"cum{op}")(x, axis=axis)
    return UFUNCS[op].accumulate(x != 0 if op in ("any", "all") else x, axis=axis)


def compare(op: str, x: np.ndarray, axis: int = -1) -> None:
    """The inclusive and the exclusive scan; the latter is one of a shifted row."""
    expected = reference(op, x, axis)
    got = host(algorithms.scan(put(x), op, axis))
    assert got.shape == expected.shape and got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)
    first = np.ones_like(expected[:1, :1, :1]).item()
    got = host(algorithms.scan(put(x), op, axis, exclusive=True, initial=first))
    assert got.shape == expected.shape and got.dtype == expected.dtype
    shifted = np.insert(x, 0, first, axis=axis).take(range(x.shape[axis]), axis=axis)
    np.testing.assert_array_equal(got, reference(op, shifted, axis))


def whole(shape: Any) -> np.ndarray:
    """Of which every sum is exact in float32, in whatever order."""
    return np.random.default_rng(5).integers(-5, 6, shape).astype(np.float32)


def test_rows(device: na.Device) -> None:
    x = whole((9, 33))
    np.testing.assert_array_equal(host(algorithms.cumsum(put(x), axis=1)), x.cumsum(axis=1))
    np.testing.assert_array_equal(host(algorithms.scan(x[::2])), x[::2].cumsum(axis=1))


@pytest.mark.full
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 511, 512, 513, CHUNK, CHUNK + 1, 100_003])
def test_sizes(device: na.Device, n: int) -> None:
    compare("sum", whole((1, 1, n)))
    compare("sum", whole((1, 3, n)))


@pytest.mark.full
def test_three_levels(device: na.Device) -> None:
    x = np.ones(THREADS * 8 * THREADS * 8 + 5, np.int8)
    assert (host(algorithms.cumsum(put(x))) == np.arange(1, x.size + 1)).all()


@pytest.mark.full
@pytest.mark.parametrize("columns", [2, 8, 9, 33, 100])
def test_columns(device: na.Device, columns: int) -> None:
    for n in (1, 7, 128, 129, 1025):
        compare("sum", whole((2, n, columns)), 1)


@pytest.mark.full
def test_axes(device: na.Device) -> None:
    x = whole((3, 20, 7))
    for axis in (0, 1, 2, -3):
        compare("sum", x, axis)
    for function in (algorithms.cumsum, algorithms.cumprod):
        expected = getattr(np, function.__name__)(x[:, :2, 0].astype(np.float32))
        np.testing.assert_array_equal(host(function(put(x[:, :2, 0]))), expected)
    assert host(algorithms.scan(put(x.T[0]))).tolist() == x.T[0].cumsum(-1).tolist()
    assert host(algorithms.scan(put(x[:, :0]), axis=1)).shape == (3, 0, 7)


@pytest.mark.parametrize("dtype", [full(d) for d in (*INTEGERS, *FLOATS, "bool", "complex128")])
def test_dtypes(device: na.Device, dtype: str) -> None:
    x = numbers((2, 3, 20), dtype)
    for op in SCANS:
        if dtype == "complex128" and op in ("min", "max"):
            continue
        short = x[..., :4] if op == "prod" else x  # products stay exact
        if dtype == "float16" and op == "prod":
            short = np.sign(short)
        compare(op, short)


@pytest.mark.full
def test_bfloat16(device: na.Device) -> None:
    x = whole((2, 9))
    got = host(algorithms.scan(put(x.astype(dtypes.of_name("bfloat16")))))
    assert got.dtype == dtypes.of_name("bfloat16")
    np.testing.assert_array_equal(got.astype(np.float32), x.cumsum(axis=1))


@pytest.mark.full
@pytest.mark.parametrize("op", SCANS)
def test_neutral_elements(device: na.Device, op: str) -> None:
    for x in (numbers((4, 5)), numbers((4, 5), "int8"), numbers((4, 5), "uint8")):
        got = host(algorithms.scan(put(x), op, exclusive=True))
        np.testing.assert_array_equal(got[:, 1:], reference(op, x, 1)[:, :-1])
        ends = {"sum": 0, "prod": 1, "any": 0, "all": 1}
        info = np.iinfo(x.dtype) if x.dtype.kind in "iu" else None
        ends |= {"min": info.max, "max": info.min} if info else {"min": np.inf, "max": -np.inf}
        assert (got[:, 0] == ends[op]).all()


@pytest.mark.full
def test_nan_wins_from_where_it_is(device: na.Device) -> None:
    x = np.array([[3, 1, np.nan, 0, 7], [np.inf, -np.inf, 2, np.nan, 1]], np.float32)
    for op in ("min", "max", "sum"):
        with np.errstate(invalid="ignore"):
            expected = reference(op, x, 1)
        np.testing.assert_array_equal(host(algorithms.scan(put(x), op)), expected)


def latest(a, b):
    return b if b != 0 else a


@pytest.mark.full
def test_an_operator_that_does_not_commute(device: na.Device) -> None:
    """The last element that is not zero, which only the right order gives."""
    x = whole(9000)
    x[np.random.default_rng(1).random(9000) < 0.9] = 0
    places = np.maximum.accumulate(np.where(x != 0, np.arange(9000), 0))
    np.testing.assert_array_equal(host(algorithms.scan(put(x), latest)), x[places])
    before = host(algorithms.scan(put(x), latest, exclusive=True, initial=8))
    assert before[0] == 8 and (before[1:] == np.where(x[places] == 0, 8, x[places])[:-1]).all()
    inclusive = host(algorithms.scan(put(x), "sum", initial=3))
    np.testing.assert_array_equal(inclusive, x.cumsum() + 3)


@pytest.mark.full
def test_the_bits_are_those_of_every_grid(device: na.Device) -> None:
    x = np.random.default_rng(3).standard_normal((5, 5000)).astype(np.float32)
    t = put(x)
    rows = host(algorithms.scan(t))
    alone = [host(algorithms.scan(t[i]))[None] for i in range(5)]
    assert rows.tobytes() == np.concatenate(alone).tobytes()
    bound = 71 * 2.0**-24 * abs(x).astype(np.float64).cumsum(axis=1)  # of two chunks
    assert (abs(rows - x.astype(np.float64).cumsum(axis=1)) <= bound).all()


@pytest.mark.full
def test_in_a_graph(device: na.Device) -> None:
    x = put(np.ones(5000, np.float32))
    host(algorithms.scan(x))  # compiled beforehand
    graph = algorithms.scan(x).graph()
    z = graph.take_output()
    assert z is not None
    na.fill(x, 2.0).sync()
    graph.launch().sync()
    assert (host(z) == np.arange(2, 10_001, 2)).all()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: algorithms.scan(x, axis=2), ShapeError, "axis 2, of 2 axes"),
        (lambda x: algorithms.scan(x, axis=(0, 1)), ShapeError, "write one axis"),
        (lambda x: algorithms.cumsum(x, axis="x"), ShapeError, "whole number"),
        (lambda x: algorithms.scan(x, "mean"), CallerError, "write one of sum"),
        (lambda x: algorithms.scan(x, 3), CallerError, "a function of two numbers"),
        (lambda x: algorithms.scan(x, exclusive=1), CallerError, "True or False"),
        (lambda x: algorithms.scan(x, further, exclusive=True), CallerError, "write initial="),
        (lambda x: algorithms.scan(x, lambda a, b: b, -1, True), CallerError, "by <lambda> needs"),
        (lambda x: algorithms.scan(x, initial="a"), DTypeError, "no element"),
        (lambda x: algorithms.scan(x.astype(complex), "max"), DTypeError, "no order"),
        (lambda x: algorithms.scan(x > 0, further), DTypeError, "convert it"),
        (lambda x: algorithms.scan([1, 2]), OperationError, "takes a tensor"),
    ],
)
def test_refused_at_once(call: Any, error: type[NumbasyncError], words: str) -> None:
    with pytest.raises(error, match=words):
        call(np.ones((2, 3), np.float32))


@pytest.mark.full
def test_no_races(device: na.Device) -> None:
    """The kernel, under the race finder."""
    state = np.dtype(np.float32)
    operator = named("sum", state)
    for rows, n, columns in ((3, 40, 1), (1, 50, 5)):
        block = scan_block(n, columns, each_of(state))
        kernel = scan_kernel(
            state, operator.lift, operator.combine, operator.finish, block,
            True, False, False, True, True,
        )  # fmt: skip
        x = whole((rows, n, columns))
        z = np.zeros_like(x)

        def expected(*args: Any, x: np.ndarray = x) -> Any:
            return (x.cumsum(axis=1) - x + 2,)

        grid = -(-columns // block.columns) * -(-rows // block.rows)
        na.testing.check_kernel(
            kernel, (z, x, x, np.float32(2), 1), expected, grid=grid, block=THREADS
        )


@pytest.mark.full
@pytest.mark.parametrize(("n", "parts"), [(1000, 1), (CHUNK, 1), (2 * CHUNK + 9, 3)])
def test_no_races_in_long_rows(device: na.Device, n: int, parts: int) -> None:
    state = np.dtype(np.float32)
    operator = named("sum", state)
    kernel = scan_row_kernel(
        state, operator.lift, operator.combine, operator.finish, state, state,
        True, parts > 1, False, False,
    )  # fmt: skip
    x = whole((2, 1, n))
    words = np.zeros(2 * words_of_row(state, parts) + 1, np.uint64)

    def expected(*args: Any) -> Any:
        return x.cumsum(axis=2), None

    na.testing.check_kernel(
        kernel, (np.zeros_like(x), x, words, 0, parts), expected, grid=2 * parts, block=THREADS
    )


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
def test_bits_do_not_depend_on_where_rows_begin(device: na.Device, dtype: str) -> None:
    """Rows that are aligned are loaded by vectors, others element by element."""
    x = np.random.default_rng(3).standard_normal(3 * CHUNK) * 9
    whole_, shifted = put(x.astype(dtype)), put(np.concatenate(([0], x)).astype(dtype))
    for op in (algorithms.cumsum, algorithms.sum, algorithms.argmax):
        np.testing.assert_array_equal(host(op(whole_)), host(op(shifted[1:])))
