"""The array handle that kernels and copies of the CPU device take."""

from __future__ import annotations

from typing import Any

import numpy as np


class CpuArray:
    """An array of the CPU device: a NumPy view of its memory."""

    __slots__ = ("array",)

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
