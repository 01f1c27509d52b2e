"""Values that tests of kernels compare: of warps, and of integers as their types have them."""

from __future__ import annotations

from typing import Any

import numpy as np

FULL = 0xFFFFFFFF


def values(dtype: Any, shape: Any, seed: int = 0) -> np.ndarray:
    """Values that use both halves of a word."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype)


def signed(mask: int) -> int:
    """A mask as the int32 that Numba gives it as."""
    return mask - 2**32 if mask >> 31 else mask


def bits(flags: Any) -> int:
    return sum(1 << i for i, flag in enumerate(flags) if flag)


def wrapped(value: int, dtype: Any) -> int:
    """An integer as its type has it."""
    kind = np.dtype(dtype)
    low = value & (1 << 8 * kind.itemsize) - 1
    return int(np.array(low, f"u{kind.itemsize}").view(kind))
