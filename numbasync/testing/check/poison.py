"""Fills outputs with values that no result has, before the kernel writes them.

A kernel that omits an element gives a correct result wherever the array held that value before:
zeros of a fresh array, or the last run's result. Only arrays that the kernel's code stores to
and never reads are filled: an array that is read is part of the kernel's input.
"""

from __future__ import annotations

import numpy as np

from numbasync.dtypes import has_nan, limits_of
from numbasync.testing.check.closeness import Array


def poisoned(array: Array, generator: np.random.Generator) -> Array:
    """An array like `array`, filled: floats with NaN, others with bytes drawn by `generator`."""
    if has_nan(array.dtype):
        return np.full_like(array, np.nan)
    if array.dtype.kind == "b":
        return ~array  # the opposite of the content
    drawn = generator.integers(0, 256, array.nbytes, dtype=np.uint8)
    return drawn.view(array.dtype).reshape(array.shape)


def told_apart(filled: Array, want: Array) -> Array | None:
    """A copy of `filled` in which the elements that equal the expected values by chance, such as
    a NaN or one of two bools, are replaced. None if there are no such elements.
    """
    if has_nan(filled.dtype):
        same = np.isnan(want) & np.isnan(filled)
        replacement = np.full_like(filled, limits_of(filled.dtype).max / 3)
    elif filled.dtype.names is None:
        same = np.asarray(filled == want)
        replacement = ~filled
    else:
        same = np.asarray(filled == want.astype(filled.dtype))
        replacement = (~filled.view(np.uint8)).view(filled.dtype)
    return np.where(same, replacement, filled) if same.any() else None
