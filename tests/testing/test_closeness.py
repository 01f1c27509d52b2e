"""What counts as close enough, and what as a tolerance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from numbasync.errors import CallerError
from numbasync.testing.check.closeness import Tolerance, compare

DEFAULT = Tolerance()


def bad(got: Any, want: Any, dtype: Any, tolerance: Tolerance = DEFAULT) -> list[int]:
    """Which elements are wrong."""
    found = compare(np.asarray(got, dtype), np.asarray(want), tolerance)
    return [] if found is None else np.flatnonzero(found.bad).tolist()


def test_integers_are_compared_to_the_last_digit() -> None:
    large = 2**53 + 1
    assert bad([large, 2**53], [float(2**53)] * 2, np.int64) == [0]
    assert bad([2, 2], [2.0, 2.5], np.int32) == [1]
    assert bad([2**63 - 1], [2.0**63], np.int64) == [0]
    assert bad([2**32 - 1], [-1], np.uint32) == [0]
    assert bad([0, 1], [np.nan, np.inf], np.int32) == [0, 1]
    near = Tolerance(atol=1)
    assert bad([2**60 + 10, 2**60 + 1], [2**60] * 2, np.int64, near) == [0]
    assert bad([250, 3], [251, 1], np.uint8, near) == [1]
    assert bad([2**64 - 1, 0], np.array([2**64 - 2, 2**64 - 1], np.uint64), np.uint64, near) == [1]
    assert bad([-(2**63)], [2**63 - 1], np.int64, near) == [0]
    assert bad([2**63, 2**63 + 2], [2**63 - 1] * 2, np.uint64, near) == [1]
    assert bad([True, False], [1, 2], np.bool_) == [1]


def test_parts_of_complex_numbers_that_are_no_numbers() -> None:
    nan, inf = np.nan, np.inf
    got = [complex(nan, 1), complex(nan, 1), complex(1, nan), complex(inf, 1), complex(inf, 1)]
    want = [complex(nan, 5), complex(nan, 1), complex(nan, 1), complex(inf, 1 + 1e-7), inf]
    assert bad(got, want, np.complex64) == [0, 2, 4]


def test_small_floats_are_compared_in_more_digits() -> None:
    assert bad([60000, -60000], [-60000, -60000], np.float16) == [0]
    assert bad([1], np.array([0], np.int8), np.float16) == [0]


def test_fields_of_records_are_compared_by_their_kind() -> None:
    kind = np.dtype([("a", np.float32), ("b", np.int32), ("c", np.float32, (2,))])
    want = np.zeros(4, kind)
    want["a"] = [1, 1, np.nan, 1]
    got = want.copy()
    got["a"][0] += np.float32(1e-6)
    got["a"][1] += np.float32(1e-2)
    got["c"][3, 1] = 1
    assert bad(got, want, kind) == [1, 3]
    got["b"][2] = 1
    assert bad(got, want, kind) == [1, 2, 3]


@pytest.mark.parametrize("value", [-1, np.nan, "1e-3", True])
def test_what_is_no_tolerance(value: Any) -> None:
    with pytest.raises(CallerError, match=r"atol=.*: a number of at least 0"):
        Tolerance(atol=value)
