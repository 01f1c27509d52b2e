"""Layout arithmetic agrees with NumPy, for layouts that NumPy itself made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from numbasync import dtypes, layout
from numbasync.errors import DTypeError, ShapeError
from numbasync.layout import Layout


def of(array: np.ndarray, base: np.ndarray) -> Layout:
    start = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return Layout(start, array.shape, array.strides)


@st.composite
def indexed(draw: st.DrawFn) -> tuple[np.ndarray, Any]:
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5))
    index = draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    return np.zeros(shape, np.float32), index


@given(indexed())
def test_index_is_numpys(case: tuple[np.ndarray, Any]) -> None:
    base, index = case
    want = base[index]
    got = layout.index(of(base, base), index, base.itemsize)
    assert got.shape == np.shape(want)
    if isinstance(want, np.ndarray) and want.size:
        assert got == of(want, base)


@given(indexed(), indexed())
def test_offsets_of_views_of_views_add_up(first: tuple, second: tuple) -> None:
    base, index = first
    view = base[index]
    if not isinstance(view, np.ndarray) or view.shape != second[0].shape or not view.size:
        return
    got = layout.index(layout.index(of(base, base), index, 4), second[1], 4)
    want = view[second[1]]
    if isinstance(want, np.ndarray) and want.size:
        assert got == of(want, base)


@given(indexed())
def test_contiguity_is_numpys(case: tuple[np.ndarray, Any]) -> None:
    base, index = case
    view = base[index]
    if isinstance(view, np.ndarray):
        flags = view.flags
        want = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        assert layout.order(view.shape, view.strides, 4) == want


@given(hnp.array_shapes(max_dims=4, max_side=4), st.sampled_from([1, 4, 16]))
def test_contiguous_strides_are_numpys(shape: tuple[int, ...], itemsize: int) -> None:
    array = np.zeros(shape, np.dtype((np.void, itemsize)))
    assert layout.contiguous_strides(shape, itemsize) == array.strides


@pytest.mark.parametrize("index", [3, -4, (0, 9), (0, 0, 0)])
def test_an_index_out_of_range_is_refused(index: object) -> None:
    at = Layout(0, (3, 4), (16, 4))
    with pytest.raises(ShapeError, match=r"\(3, 4\)"):
        layout.index(at, index, 4)


@pytest.mark.parametrize("index", [[0, 1], np.array([0]), "x", 1.5, True])
def test_only_basic_indices_make_views(index: object) -> None:
    with pytest.raises(ShapeError, match="a view is made by"):
        layout.index(Layout(0, (3,), (4,)), index, 4)


def test_reshape_needs_the_same_size() -> None:
    at = Layout(8, (4, 6), (24, 4))
    assert layout.reshape(at, (2, -1), 4) == Layout(8, (2, 12), (48, 4))
    for shape in ((5, 5), (-1, -1), (7, -1)):
        with pytest.raises(ShapeError, match="cannot have the shape"):
            layout.reshape(at, shape, 4)


def test_a_view_with_gaps_cannot_be_reshaped() -> None:
    with pytest.raises(ShapeError, match="without a copy"):
        layout.reshape(Layout(0, (4, 3), (24, 4)), 12, 4)


def test_reinterpret_scales_the_last_axis() -> None:
    at = Layout(8, (2, 4), (16, 4))
    assert layout.reinterpret(at, 4, 8) == Layout(8, (2, 2), (16, 8))
    assert layout.reinterpret(at, 4, 1) == Layout(8, (2, 16), (16, 1))
    with pytest.raises(ShapeError, match="no whole number"):
        layout.reinterpret(Layout(0, (3,), (4,)), 4, 8)
    with pytest.raises(ShapeError, match="cannot start at byte 4"):
        layout.reinterpret(Layout(4, (4,), (4,)), 4, 8)


@pytest.mark.parametrize("dtype", [object, "U4", ">M8[s]", ">f4", np.dtype([("a", "f4")]), "nope"])
def test_dtypes_that_memory_cannot_hold_are_refused(dtype: object) -> None:
    with pytest.raises(DTypeError):
        dtypes.check_dtype(dtype)


@pytest.mark.parametrize("shape", [-1, (2, -3), 1.5, ("a",), None])
def test_shapes_that_are_none_are_refused(shape: object) -> None:
    with pytest.raises(ShapeError):
        layout.check_shape(shape)
