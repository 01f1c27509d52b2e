"""Arrays of bytes around the sizes at which copies are made by several threads, in chunks."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbasync.device.staging_ring import Ring
from numbasync.tensors import parallel_copy

CHUNK = Ring.CHUNK
LARGE = parallel_copy.LARGE


def numbers(count: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)
