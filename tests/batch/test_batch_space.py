"""Indices of broadcast values: the element that NumPy's broadcasting names."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numbasync.batch.fusion.indexing import Space, reduced_space, steps
from numbasync.errors import InternalError
from numbasync.layout import Shape

extents = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@given(extents, st.data())
def test_an_index_names_the_element_that_numpy_broadcasts(whole: list[int], data: object) -> None:
    draw = data.draw  # type: ignore[attr-defined]
    shape = tuple(draw(st.sampled_from([1, n])) for n in whole)[draw(st.integers(0, len(whole))) :]
    size = math.prod(shape)
    want = np.broadcast_to(np.arange(size).reshape(shape), whole).ravel()
    found = steps(shape, tuple(whole))
    flat = np.arange(math.prod(whole))
    if found is None:
        have = flat
    else:
        have = np.zeros_like(flat)
        for below, extent, stride in found:
            part = flat // below
            have += (part % extent if extent else part) * stride
    np.testing.assert_array_equal(have, want)


def test_the_usual_patterns_take_one_operation() -> None:
    assert steps((5,), (5,)) is None
    assert steps((1, 5), (5,)) is None
    assert steps((), (3, 5)) == ()
    assert [s.form for s in steps((3, 1), (3, 5)) or ()] == ["100"]
    assert [s.form for s in steps((5,), (3, 5)) or ()] == ["010"]
    assert [s.form for s in steps((2, 1, 5), (2, 3, 5)) or ()] == ["101", "010"]


@pytest.mark.parametrize(
    ("shape", "axis", "outer", "extent", "inner"),
    [
        ((2, 3, 4), None, 1, 24, 1),
        ((2, 3, 4), 0, 1, 2, 12),
        ((2, 3, 4), 1, 2, 3, 4),
        ((2, 3, 4), 2, 6, 4, 1),
        ((1, 7), 1, 1, 7, 1),
        ((0, 3), 0, 1, 0, 3),
        ((0, 3), 1, 0, 3, 1),
    ],
)
def test_a_reduction_lies_between_its_neighbours(
    shape: tuple[int, ...], axis: int | None, outer: int, extent: int, inner: int
) -> None:
    space = reduced_space(shape, axis)
    assert (space.outer, space.extent, space.inner) == (outer, extent, inner)


def test_results_are_aligned_with_their_rows() -> None:
    rows = Space((3, 3), 1)
    assert rows.aligned((3, 1))
    assert not rows.aligned((3,))
    assert not rows.aligned((1,))
    assert Space((3, 3), None, True).aligned((1, 1))
    between = Space((4, 7, 1), 1)
    assert between.reduced_shape == (4, 1, 1)
    assert between.aligned((4, 1, 1)) and not between.aligned((7, 1))


@pytest.mark.parametrize(("shape", "whole"), [((3,), (2, 5)), ((2, 1), (5,)), ((2, 3, 5), (3, 5))])
def test_what_is_not_broadcast_has_no_index(shape: Shape, whole: Shape) -> None:
    with pytest.raises(InternalError, match="is looked for in"):
        steps(shape, whole)
