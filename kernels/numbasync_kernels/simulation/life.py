"""Conway's game of life, on a torus."""

from __future__ import annotations

from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda
from numbasync_kernels.fits import UINT8, fits


@na.launcher(axes=(1, 0), preconditions=[*fits("out cells", 2, UINT8), "cells.shape == out.shape"])
@cuda.jit(cache=True)
def life(out: na.KernelOutput, cells: na.KernelInput) -> None:
    """A generation: a cell lives on with two or three neighbours, and is born with three.

    Args:
        out: shape ``(h, w)``, uint8: the next cells, 1 where one lives.
        cells: shape ``(h, w)``, uint8, 0 or 1. The last row is beside the first, the last column
            beside the first.

    Reads 9hw bytes, most of them from the cache, and writes hw. Exact.
    Source: M. Gardner, The fantastic combinations of John Conway's new solitaire game "life", 1970.

    Examples:
        >>> from numbasync_kernels import simulation
        >>> cells = np.zeros((5, 5), np.uint8)
        >>> cells[2, 1:4] = 1  # a row of three becomes a column
        >>> out = await na.zeros((5, 5), np.uint8)
        >>> _ = await simulation.life(out, cells)
        >>> (await out.to_host())[:, 2].tolist()
        [0, 1, 1, 1, 0]
    """
    x, y = cuda.grid(2)
    height, width = cells.shape
    if y < height and x < width:
        up, down = (y - 1 if y > 0 else height - 1), (y + 1 if y < height - 1 else 0)
        left, right = (x - 1 if x > 0 else width - 1), (x + 1 if x < width - 1 else 0)
        count = cells[up, left] + cells[up, x] + cells[up, right]
        count += cells[y, left] + cells[y, right]
        count += cells[down, left] + cells[down, x] + cells[down, right]
        out[y, x] = 1 if count == 3 or (count == 2 and cells[y, x] == 1) else 0


def life_reference(cells: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What `life` writes; shape of `cells`."""
    shifts = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
    count = np.array([np.roll(cells, shift, (0, 1)) for shift in shifts]).sum(axis=0)
    result: np.ndarray[Any, Any] = (count == 3) | ((count == 2) & (cells == 1))
    return result.astype(np.uint8)
