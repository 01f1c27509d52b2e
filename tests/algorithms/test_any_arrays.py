"""Every algorithm beside NumPy, for arrays of any shape, dtype, axis and strides."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numbasync as na
from numbasync import algorithms
from numbasync.algorithms.operation import permuted
from tests.algorithms.test_reductions import FLOATS, INTEGERS
from tests.algorithms.test_reductions import reference as reduced
from tests.algorithms.test_scans import reference as scanned
from tests.common import full, host, put

# On both sides of what a warp, a thread's run and a block's chunk hold.
EXTENTS = [0, 1, 2, 3, 8, 9, 31, 33, 129]
MANY = 20_000  # elements of an example
REDUCTIONS = ["sum", "min", "max", "mean", "var", "argmin", "argmax", "any", "all",
              "count_nonzero", "norm"]  # fmt: skip
SCANS = ["sum", "min", "max", "any", "all"]


class Given(NamedTuple):
    """A view of an array, and the same view of a tensor."""

    array: np.ndarray
    tensor: na.Tensor


@st.composite
def views(draw: Any, dtypes: list[str], least: int = 0) -> Given:
    """Views with axes in any order, and elements left out in front of them and between them."""
    extents = [n for n in EXTENTS if n >= least]
    shape: list[int] = []
    for _ in range(draw(st.integers(1, 3))):
        fits = [n for n in extents if n * int(np.prod(shape)) <= MANY]
        shape.append(draw(st.sampled_from(fits)))
    begins = [draw(st.integers(0, 1)) for _ in shape]
    steps = [draw(st.integers(1, 2)) for _ in shape]
    order = tuple(draw(st.permutations(range(len(shape)))))
    whole = [b + n * s for b, n, s in zip(begins, shape, steps, strict=True)]
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    base = random.integers(0 if dtype.kind in "bu" else -9, 2 if dtype.kind == "b" else 10, whole)
    base = (base / 4 if dtype.kind == "f" else base).astype(dtype)  # every sum is exact
    part = tuple(slice(b, None, s) for b, s in zip(begins, steps, strict=True))
    cut = tuple(slice(0, n) for n in shape)
    return Given(base[part][cut].transpose(order), permuted(put(base)[part][cut], order))


@st.composite
def with_axis(draw: Any, dtypes: list[str], least: int = 0) -> tuple[Given, int]:
    given = draw(views(dtypes, least))
    rank = given.array.ndim
    return given, draw(st.integers(-rank, rank - 1))


def check(got: Any, expected: Any) -> None:
    elements, expected = host(got), np.asarray(expected)
    assert elements.shape == expected.shape and elements.dtype == expected.dtype
    rtol = {2: 4e-3, 4: 1e-4}.get(expected.dtype.itemsize, 1e-9)
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(elements, expected)
    else:
        np.testing.assert_allclose(elements, expected, rtol=rtol, atol=rtol)


DTYPES = [["float32"], full(["bool", *INTEGERS, *FLOATS])]


@pytest.mark.parametrize("dtypes", DTYPES, ids=["one", "all"])
def test_reductions(device: na.Device, dtypes: list[str]) -> None:
    ops = REDUCTIONS if len(dtypes) > 1 else ["sum"]

    @settings(max_examples=8 * len(ops))
    @given(with_axis(dtypes, 1), st.sampled_from(ops), st.booleans())
    def check_one(drawn: Any, op: str, keepdims: bool) -> None:
        (array, tensor), axis = drawn
        with np.errstate(all="ignore"):
            expected = reduced(op, array, axis, keepdims)
        check(algorithms.reduce(tensor, op, axis, keepdims), expected)

    check_one()


@pytest.mark.parametrize("dtypes", DTYPES, ids=["one", "all"])
def test_scans(device: na.Device, dtypes: list[str]) -> None:
    ops = SCANS if len(dtypes) > 1 else ["sum"]

    @settings(max_examples=8 * len(ops))
    @given(with_axis(dtypes), st.sampled_from(ops))
    def check_one(drawn: Any, op: str) -> None:
        (array, tensor), axis = drawn
        check(algorithms.scan(tensor, op, axis), scanned(op, array, axis))

    check_one()


@pytest.mark.parametrize("dtypes", DTYPES, ids=["one", "all"])
def test_sorts(device: na.Device, dtypes: list[str]) -> None:
    @settings(max_examples=8 * len(dtypes))
    @given(with_axis(dtypes), st.integers(1, 5))
    def check_one(drawn: Any, k: int) -> None:
        (array, tensor), axis = drawn
        check(algorithms.sort(tensor, axis), np.sort(array, axis=axis))
        check(algorithms.argsort(tensor, axis), np.argsort(array, axis=axis, kind="stable"))
        most = min(k, array.shape[axis])
        values, places = algorithms.topk(tensor, most, axis).sync()
        down = np.flip(np.sort(array, axis=axis), axis).take(range(most), axis=axis)
        check(values, down)
        np.testing.assert_array_equal(np.take_along_axis(array, host(places), axis), down)

    check_one()


@pytest.mark.parametrize("dtypes", DTYPES, ids=["one", "all"])
def test_selections(device: na.Device, dtypes: list[str]) -> None:
    @settings(max_examples=6 * len(dtypes))
    @given(views(dtypes), st.sampled_from([-3, 0, 2]))
    def check_one(drawn: Given, level: int) -> None:
        array, tensor = drawn
        mask = array > level
        check(algorithms.select(tensor, np.ascontiguousarray(mask)), array[mask])
        check(algorithms.unique(tensor), np.unique(array))
        ascending = np.sort(array.reshape(-1)[:40])
        check(algorithms.searchsorted(put(ascending), tensor), np.searchsorted(ascending, array))
        counts, _ = algorithms.histogram(tensor, 5, (-4, 6)).sync()
        wide = array.astype(np.float64)
        check(counts, np.histogram(wide, 5, (-4, 6))[0])

    check_one()


@pytest.mark.full
def test_counts(device: na.Device) -> None:
    @settings(max_examples=40)
    @given(views(["uint8", "int16", "int64"]), st.integers(0, 30))
    def check_one(drawn: Given, least: int) -> None:
        array = abs(drawn.array)
        expected = np.bincount(array.reshape(-1).astype(np.int64), minlength=least)
        check(algorithms.bincount(array, least), expected)

    check_one()


@pytest.mark.full
def test_segments(device: na.Device) -> None:
    @settings(max_examples=30)
    @given(views(["float32", "int16"]), st.lists(st.integers(0, MANY), max_size=9), st.booleans())
    def check_one(drawn: Given, cuts: list[int], exclusive: bool) -> None:
        array = drawn.array.reshape(-1)
        offsets = np.array(sorted([0, len(array), *(c % (len(array) + 1) for c in cuts)]))
        parts = [array[a:b] for a, b in pairwise(offsets)]
        flat = drawn.tensor.dup().reshape(-1)
        sums = np.array([p.sum() for p in parts], scanned("sum", array, 0).dtype)
        check(algorithms.segmented_reduce(flat, offsets), sums)
        running = [scanned("sum", p, 0) - (p if exclusive else 0) for p in parts]
        flat = drawn.tensor.dup().reshape(-1)
        expected = np.concatenate(running).astype(sums.dtype)
        check(algorithms.segmented_scan(flat, offsets, exclusive=exclusive), expected)

    check_one()


@pytest.mark.full
def test_rows_of_scores(device: na.Device) -> None:
    @settings(max_examples=30)
    @given(with_axis(["float32", "float64"], 1))
    def check_one(drawn: Any) -> None:
        (array, tensor), axis = drawn
        wide = array.astype(np.float64)
        logarithms = wide - wide.max(axis, keepdims=True)
        logarithms -= np.log(np.exp(logarithms).sum(axis, keepdims=True))
        check(algorithms.softmax(tensor, axis), np.exp(logarithms).astype(array.dtype))
        check(algorithms.log_softmax(tensor, axis), logarithms.astype(array.dtype))
        targets = np.asarray(array.argmax(axis))
        picked = np.take_along_axis(logarithms, np.expand_dims(targets, axis), axis)
        losses = -picked.squeeze(axis).astype(array.dtype)
        check(algorithms.cross_entropy(tensor, targets, axis), losses)

    check_one()
