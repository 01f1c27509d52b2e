"""`na.shared_layout`: where arrays lie, what is refused, and what a layout shows."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from numba import float64, types

import numbasync as na
from numbasync.errors import CallerError, DTypeError, LauncherError, ShapeError

LAYOUT = na.shared_layout(a=(np.float32, (3, 5)), b=("i1", 7), c=(float64, np.int64(2)))


def test_arrays_follow_each_other_aligned() -> None:
    assert dict(LAYOUT.offsets) == {"a": 0, "b": 64, "c": 80}
    assert LAYOUT.nbytes == 96
    wide = na.shared_layout(align=1024, a=(np.uint8, 1), b=(np.uint8, 1))
    assert dict(wide.offsets) == {"a": 0, "b": 1024} and wide.nbytes == 1025
    dense = na.shared_layout(align=1, a=(np.int8, 3), b=(np.int8, 2), c=(np.float64, 1))
    assert dict(dense.offsets) == {"a": 0, "b": 3, "c": 8}


def test_a_layout_is_a_value_and_shows_itself() -> None:
    for same in (copy.deepcopy(LAYOUT), pickle.loads(pickle.dumps(LAYOUT))):
        assert same == LAYOUT and hash(same) == hash(LAYOUT)
    assert na.shared_layout(a=(np.float32, (5, 3))) != na.shared_layout(a=(np.float32, (3, 5)))
    with pytest.raises(AttributeError):
        LAYOUT.align = 4  # type: ignore[misc]
    with pytest.raises(AttributeError, match=r"kernels only.*offsets\['a'\]"):
        _ = LAYOUT.a
    assert repr(LAYOUT).splitlines() == [
        "SharedLayout of 96 bytes, align=16",
        "name  dtype    shape   offset  bytes",
        "a     float32  (3, 5)       0     60",
        "b     int8     (7,)        64      7",
        "c     float64  (2,)        80     16",
    ]


def test_arrays_overlap_by_hand_only_if_declared() -> None:
    phases: dict[str, Any] = {"tile": (np.float32, 64), "sums": (np.float64, 8)}
    with pytest.raises(
        LauncherError, match=r"tile and sums overlap: .* 0 to 256.* at 248.*\n.*union"
    ):
        na.shared_layout(**phases, offsets={"sums": 248})
    assert na.shared_layout(**phases, offsets={"sums": 256}).nbytes == 320
    union = na.shared_layout(**phases, offsets={"sums": 0}, union=True, tail=(np.int8, 4))
    assert dict(union.offsets) == {"tile": 0, "sums": 0, "tail": 64} and union.nbytes == 256


def test_mistakes_are_refused() -> None:
    pair = (np.float32, 4)
    mistakes: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (LauncherError, "has no arrays; write", {}),
        (LauncherError, r"a=\(dtype, shape\)", {"a": np.float32}),
        (LauncherError, "has an attribute nbytes", {"nbytes": pair}),
        (LauncherError, "has an attribute arrays", {"arrays": pair}),
        (LauncherError, "names b, which", {"a": pair, "offsets": {"b": 0}}),
        (LauncherError, "offset 2 of .* a: .* multiple of 4", {"a": pair, "offsets": {"a": 2}}),
        (ShapeError, r"a of shape \(4, 0\)", {"a": (np.float32, (4, 0))}),
        (ShapeError, r"a of shape \(\)", {"a": (np.float32, ())}),
        (LauncherError, "offset 4.0 of shared", {"a": pair, "offsets": {"a": 4.0}}),
        (DTypeError, "cannot hold", {"a": ("U3", 4)}),
        (DTypeError, "unicode_type is not a NumPy dtype", {"a": (types.unicode_type, 4)}),
        (CallerError, "align=24", {"a": pair, "align": 24}),
        (CallerError, "align=2048", {"a": pair, "align": 2048}),
    ]  # fmt: skip
    for cls, text, declared in mistakes:
        with pytest.raises(cls, match=text):
            na.shared_layout(**declared)
