"""Arrays of bytes around the sizes at which copies are made by several threads, in chunks."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbasync.device.staging_ring import Ring
from numbasync.tensors import parallel_copy

CHUNK = Ring.CHUNK
LARGE = parallel_copy.LARGE


def numbers(count: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Random bytes, again and again: their number is prime, so no two chunks are the same."""
    few = np.random.default_rng(seed).integers(0, 256, min(count, 65_537), np.uint8)
    return np.resize(few, count)


def assert_equal(found: Any, want: Any) -> None:
    """As NumPy's function does, which looks at all elements six times for what it says of them."""
    if not np.array_equal(found, want):
        np.testing.assert_array_equal(found, want, strict=True)
