"""Elements whose number stays on the device, as operands of algorithms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import algorithms
from numbasync.errors import OperationError
from tests.common import full, host, put

N = 5000  # more than one chunk of a selection


def chosen(dtype: str, least: int = 3) -> tuple[np.ndarray, algorithms.Prefix]:
    """Elements that are not 0, and the prefix of them; behind it is what is to have no effect."""
    x = (np.arange(N) % 7 - (dtype != "uint8")).astype(dtype)
    mask = np.arange(N) % 7 > least
    prefix = algorithms.select(put(x), put(mask), on_device=True).sync()
    count = int(mask.sum())
    prefix.elements[count:].copy_from(np.full(N - count, 99, dtype)).sync()
    return x[mask], prefix


@pytest.mark.parametrize(
    ("dtype", "ops"),
    [
        ("int64", "sum min"),
        pytest.param("uint8", "max any", marks=pytest.mark.full),
        pytest.param("float32", "min max prod all count_nonzero norm", marks=pytest.mark.full),
    ],
)
def test_reductions(device: na.Device, dtype: str, ops: str) -> None:
    limits: Any = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else np.finfo(dtype)
    of_none: dict[str, Any] = {"min": limits.max, "max": limits.min}
    if dtype == "float32":
        of_none = {"min": np.inf, "max": -np.inf}
    for least in (3, 9):  # the second has no elements
        x, prefix = chosen(dtype, least)
        for op in ops.split():
            got = host(algorithms.reduce(prefix, op))
            if not x.size and op in of_none:
                assert got == of_none[op]
                continue
            expected = host(algorithms.reduce(x, op))
            assert got.dtype == expected.dtype
            np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_scans_and_sorts_are_prefixes_again(device: na.Device) -> None:
    x, prefix = chosen("int32")
    cases: list[tuple[na.DeviceOp[Any], np.ndarray]] = [
        (algorithms.cumsum(prefix), np.cumsum(x, dtype=np.int64)),
        (algorithms.sort(prefix), np.sort(x)),
        (algorithms.sort(prefix, descending=True), np.sort(x)[::-1]),
        (algorithms.argsort(prefix), np.argsort(x, kind="stable")),
        (algorithms.unique(prefix, on_device=True), np.unique(x)),
    ]
    for got, expected in cases:
        result = got.sync()
        assert type(result) is algorithms.Prefix
        trimmed = host(result.trimmed())
        assert trimmed.dtype == expected.dtype
        np.testing.assert_array_equal(trimmed, expected)
    np.testing.assert_array_equal(host(algorithms.unique(prefix)), np.unique(x))


def test_a_selection_of_a_selection(device: na.Device) -> None:
    """Also of one that has not run, and in a graph, whose prefix has another length each time."""
    x, mask = put(np.arange(N)), put(np.arange(N) < 9)
    every = put(np.arange(N) >= 0)

    def summed() -> na.DeviceOp[Any]:
        first = algorithms.select(x, mask, on_device=True)
        return algorithms.sum(algorithms.select(first, every, on_device=True))

    assert host(summed()) == 36
    graph = summed().graph()
    z = graph.take_output()
    for count in (9, 0, 4, N):
        mask.copy_from(np.arange(N) < count).sync()
        graph.launch().sync()
        assert host(z) == count * (count - 1) // 2


@pytest.mark.parametrize("dtype", ["complex128", full("bool"), full("float16"), full("complex64")])
def test_filled(device: na.Device, dtype: str) -> None:
    x, mask = np.arange(20).astype(dtype), np.arange(20) < 7
    prefix = algorithms.select(put(x), put(mask), on_device=True).sync()
    value = x[5] * (2 - 1j) if x.dtype.kind == "c" else x[5]
    got = host(prefix.filled(value))
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, np.where(mask, x, value))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: algorithms.mean(p), "mean takes no Prefix"),
        (lambda p: algorithms.topk(p, 2), r"write await p\.trimmed\(\)"),
        (lambda p: algorithms.sort_by_key(p, p.elements), "sort_by_key takes no Prefix"),
        (lambda p: algorithms.searchsorted(np.arange(3), p), "searchsorted takes a tensor"),
        (lambda p: algorithms.sum(p._replace(extent=p.elements)), "extent of one int64"),
        (lambda p: p._replace(elements=None).filled(0), "filled of Prefix"),
    ],
)
def test_what_takes_no_prefix(device: na.Device, call: Any, words: str) -> None:
    x = put(np.arange(6))
    prefix = algorithms.Prefix(x, x[:1])
    with pytest.raises(OperationError, match="(?i)" + words):
        call(prefix)
