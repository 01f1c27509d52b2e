"""Edges: the length of the gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda
from numbasync_kernels.fits import FLOAT32, fits


@na.launcher(
    axes=(1, 0), preconditions=[*fits("out levels", 2, FLOAT32), "levels.shape == out.shape"]
)
@cuda.jit(cache=True)
def sobel(out: na.KernelOutput, levels: na.KernelInput) -> None:
    """Length of the Sobel gradient; beyond the edge, the nearest pixel counts.

    Args:
        out: shape ``(h, w)``, float32.
        levels: shape ``(h, w)``, float32.

    Reads 8hw elements, most of them from the cache, and writes hw.

    Error bound: at most 12 float32 roundings, each half an ulp of eight times the largest
    level.
    Source: I. Sobel and G. Feldman, A 3x3 isotropic gradient operator, 1968.

    Examples:
        >>> from numbasync_kernels import image
        >>> levels = np.tile(np.array([0, 0, 1, 1], np.float32), (3, 1))  # an edge
        >>> out = await na.zeros((3, 4))
        >>> _ = await image.sobel(out, levels)
        >>> (await out.to_host())[1].tolist()
        [0.0, 4.0, 4.0, 0.0]
    """
    x, y = cuda.grid(2)
    height = levels.shape[0]
    width = levels.shape[1]
    if y < height and x < width:
        up = max(y - 1, 0)
        down = min(y + 1, height - 1)
        left = max(x - 1, 0)
        right = min(x + 1, width - 1)
        nw = levels[up, left]
        ne = levels[up, right]
        sw = levels[down, left]
        se = levels[down, right]
        across = (ne - nw) + (se - sw)
        across += (levels[y, right] - levels[y, left]) + (levels[y, right] - levels[y, left])
        along = (sw - nw) + (se - ne)
        along += (levels[down, x] - levels[up, x]) + (levels[down, x] - levels[up, x])
        out[y, x] = math.sqrt(across * across + along * along)


def sobel_reference(levels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What `sobel` approximates, in float64; shape ``(h, w)``."""
    p = np.pad(levels.astype(np.float64), 1, mode="edge")
    across = p[:-2, 2:] + 2 * p[1:-1, 2:] + p[2:, 2:] - p[:-2, :-2] - 2 * p[1:-1, :-2] - p[2:, :-2]
    along = p[2:, :-2] + 2 * p[2:, 1:-1] + p[2:, 2:] - p[:-2, :-2] - 2 * p[:-2, 1:-1] - p[:-2, 2:]
    result: np.ndarray[Any, Any] = np.hypot(across, along)
    return result
