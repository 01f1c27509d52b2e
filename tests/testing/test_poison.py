"""What is put into outputs before a kernel stores to them: what no result has."""

from __future__ import annotations

import numpy as np
import pytest

from numbasync.testing.check.poison import poisoned, told_apart


@pytest.mark.parametrize("dtype", ["f2", "c8", "i1", "u8", "?", "i4, f4"])
def test_what_is_wanted_is_not_there_already(dtype: str) -> None:
    filled = poisoned(np.zeros((2, 3), dtype), np.random.default_rng(0))
    other = told_apart(filled, filled)
    assert other is not None and other.dtype == filled.dtype
    assert not (other == filled).any()
    assert not np.isnan(other).any() if other.dtype.kind in "fc" else True
    half = filled.copy()
    half[0] = np.ones(3, dtype)
    mixed = told_apart(filled, half)
    assert mixed is not None and not (mixed == half).any()
    assert told_apart(filled, other) is None
