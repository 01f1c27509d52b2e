"""The array handle that kernels and copies of the CPU device take."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbasync.native import known


@known
class CpuArray:
    """An array of the CPU device: a NumPy view of its memory."""

    __slots__ = ("array",)

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array


class CpuTensorMap:
    """A tensor map of the CPU device: the array, the extents of a box, and the swizzle."""

    __slots__ = ("box", "source", "swizzle")

    def __init__(self, source: np.ndarray[Any, Any], box: tuple[int, ...], swizzle: int) -> None:
        self.source = source
        self.box = box
        self.swizzle = swizzle
