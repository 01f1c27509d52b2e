"""Numbers of bfloat16 for tests, and what counts as the same."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

number: Any = ml_dtypes.bfloat16
BF16: Any = np.dtype(number)
TENTH: Any = number(0.1)


def every(count: int = 4096, seed: int = 3) -> np.ndarray:
    """Numbers of all sizes: also those below 2**-126, infinities and NaN."""
    bits = np.random.default_rng(seed).integers(0, 2**16, count).astype(np.uint16)
    bits[:12] = [0, 0x8000, 1, 0x8001, 0x7F, 0x80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0x3F80]
    return bits.view(BF16)


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal, also in the sign of a zero; any NaN is one."""
    assert got.dtype == want.dtype == BF16
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    there = ~np.isnan(want)
    np.testing.assert_array_equal(got.view(np.uint16)[there], want.view(np.uint16)[there])
