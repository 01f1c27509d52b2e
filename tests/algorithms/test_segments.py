"""Reductions of segments against NumPy."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import algorithms
from numbasync.algorithms.operators import OPERATORS, named
from numbasync.algorithms.scans import neutral
from numbasync.algorithms.segments import MANY, segment_kernel, segment_scan_kernel
from numbasync.errors import CallerError, DTypeError, NumbasyncError, ShapeError
from tests.algorithms.test_reductions import further, numbers, reference
from tests.algorithms.test_scans import reference as scanned
from tests.common import full, host, put

LENGTHS = [3, 0, 1, 31, 32, 33, 0, 100, 1]


def check(x: np.ndarray, lengths: Any, op: str, initial: Any = None) -> None:
    """Each segment is what NumPy's function gives of it."""
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    got = host(algorithms.segmented_reduce(put(x), put(offsets), op, initial=initial))
    none = OPERATORS[op](x.dtype).of_none if initial is None else initial
    parts = [x[a:b] for a, b in pairwise(offsets)]
    expected = [reference(op, p) if len(p) else none for p in parts]
    assert got.dtype == OPERATORS[op](x.dtype).out and got.shape == (len(parts),)
    rtol = {2: 2e-3, 4: 1e-5}.get(got.dtype.itemsize, 1e-12)
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol)


def test_short_segments(device: na.Device) -> None:
    check(numbers(sum(LENGTHS)), LENGTHS, "sum")


@pytest.mark.full
def test_long_segments(device: na.Device) -> None:
    lengths = [1000, 5, 0, 255, 256, 257, 2000]
    check(numbers(sum(lengths)), lengths, "sum")
    check(numbers(sum(lengths)), lengths, "argmax", -1)


@pytest.mark.parametrize("op", [full(op) for op in ("prod", "mean", "argmin", "any", "norm")])
def test_operators(device: na.Device, op: str) -> None:
    needs = op in ("min", "max", "argmin", "argmax")
    check(numbers(sum(LENGTHS)), LENGTHS, op, 7 if needs else None)


@pytest.mark.parametrize("dtype", [full(d) for d in ("bool", "int8", "float16", "float64")])
def test_dtypes(device: na.Device, dtype: str) -> None:
    check(numbers(sum(LENGTHS), dtype), LENGTHS, "sum")
    check(numbers(sum(LENGTHS), dtype), LENGTHS, "max", 1)


@pytest.mark.full
def test_a_function_and_what_is_not_contiguous(device: na.Device) -> None:
    x, offsets = np.array([1, 0, -7, 0, 3, 0, 4, 0]), np.array([0, 9, 3, 9, 3, 9, 4], np.int32)
    got = algorithms.segmented_reduce(put(x)[::2], put(offsets)[::2], further, initial=-1)
    assert host(got).tolist() == [-7, -1, 4]


def check_scan(x: np.ndarray, lengths: Any, op: str, exclusive: bool, initial: Any = None) -> None:
    """Each segment is what NumPy's function gives of it, behind a first element."""
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    got = host(algorithms.segmented_scan(put(x), put(offsets), op, exclusive, initial=initial))
    first = neutral(op, x.dtype) if initial is None and x.dtype != bool else initial or 0
    expected = np.empty(len(x), got.dtype)
    for a, b in pairwise(offsets):
        if initial is None and not exclusive:
            expected[a:b] = scanned(op, x[a:b], 0)
        else:
            run = scanned(op, np.insert(x[a:b], 0, first), 0)
            expected[a:b] = run[:-1] if exclusive else run[1:]
    assert got.dtype == OPERATORS[op](x.dtype).out
    rtol = {2: 4e-3, 4: 1e-4}.get(got.dtype.itemsize, 1e-12)
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("op", ["sum", full("min")])
def test_scans(device: na.Device, op: str) -> None:
    for lengths in (LENGTHS, [1000, 5, 0, 255, 256, 257, 2000]):
        x = np.sign(numbers(sum(lengths))) if op == "prod" else numbers(sum(lengths))
        check_scan(x, lengths, op, False)
        check_scan(x, lengths, op, True)
        check_scan(x, lengths, op, False, 1)


@pytest.mark.parametrize("dtype", [full(d) for d in ("bool", "float16")])
def test_dtypes_of_scans(device: na.Device, dtype: str) -> None:
    check_scan(numbers(sum(LENGTHS), dtype), LENGTHS, "sum", False)
    check_scan(numbers(sum(LENGTHS), dtype), LENGTHS, "max", True)


@pytest.mark.full
def test_scans_by_a_function(device: na.Device) -> None:
    x, offsets = np.array([1, -7, 3, 4, -5, 2]), np.array([0, 3, 3, 6], np.uint8)
    got = algorithms.segmented_scan(put(np.repeat(x, 2))[::2], offsets, further)
    assert host(got).tolist() == [1, -7, -7, 4, -5, -5]
    got = algorithms.segmented_scan(x, offsets, further, True, initial=2)
    assert host(got).tolist() == [2, 2, -7, 2, 4, -5]
    assert host(algorithms.segmented_scan(x[:0], np.zeros(3, int))).shape == (0,)


@pytest.mark.full
def test_nothing(device: na.Device) -> None:
    x, none = np.arange(3.0), np.array([0])
    assert host(algorithms.segmented_reduce(x, none)).shape == (0,)
    got = host(algorithms.segmented_reduce(x[:0], np.zeros(4, int), "prod"))
    assert got.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: algorithms.segmented_reduce(x[None], [0]), NumbasyncError, "takes a tensor"),
        (lambda x: algorithms.segmented_reduce(x[None], x), ShapeError, "one axis"),
        (lambda x: algorithms.segmented_reduce(x, x[:0]), ShapeError, "one more than"),
        (lambda x: algorithms.segmented_reduce(x / 2, x / 2), DTypeError, "write integers"),
        (lambda x: algorithms.segmented_reduce(x, x, "max"), CallerError, "write initial="),
        (lambda x: algorithms.segmented_reduce(x, x, "last"), CallerError, "write one of"),
        (lambda x: algorithms.segmented_scan(x, x[:0]), ShapeError, "one more than"),
        (lambda x: algorithms.segmented_scan(x, x, "mean"), CallerError, "write one of sum"),
        (lambda x: algorithms.segmented_scan(x, x, max, True), CallerError, "write initial="),
    ],
)
def test_refused_at_once(call: Any, error: type[NumbasyncError], words: str) -> None:
    with pytest.raises(error, match=words):
        call(np.arange(3))


@pytest.mark.full
def test_no_races(device: na.Device) -> None:
    """The kernel, under the race finder."""
    x, offsets = numbers(600), np.array([0, 300, 300, 600])

    def expected(*args: Any) -> Any:
        return (np.array([x[:300].sum(), 5, x[300:].sum()]),)

    kernel = segment_kernel(named("sum", x.dtype), MANY)
    z = np.zeros(3, np.float32)
    na.testing.check_kernel(kernel, (z, x, offsets, np.float32(5)), expected, grid=3, block=MANY)

    def sums(*args: Any) -> Any:
        return (np.concatenate((x[:300].cumsum(), x[300:].cumsum())),)

    kernel = segment_scan_kernel(named("sum", x.dtype), MANY, False, False)
    z = np.zeros(600, np.float32)
    na.testing.check_kernel(kernel, (z, x, offsets, 0), sums, grid=3, block=MANY, rtol=1e-4)
