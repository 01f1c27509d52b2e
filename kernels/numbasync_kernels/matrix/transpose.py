"""Two axes swapped, through a tile in shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, int64

TILE = 32
ROWS = 8  # of threads, each of which has four rows of the tile
WIDE = TILE + 1  # by a column more, the elements of a column are in different banks
EACH = TILE // ROWS


@na.launcher(
    threads=(TILE, ROWS),
    preconditions=[
        "out.ndim == 3 and x.ndim == 3 and out.dtype == x.dtype",
        "out.shape == (x.shape[0], x.shape[2], x.shape[1])",
    ],
)
@cuda.jit
def swap_axes(out: na.KernelOutput, x: na.KernelInput) -> None:
    """``out[i, k, j] = x[i, j, k]``: the last two of three axes swapped.

    Args:
        out: shape ``(p, n, m)``, of any dtype. Any grid will do: ``swap_axes[blocks, (32, 8)]``.
        x: shape ``(p, m, n)``, dtype of `out`.

    A matrix is one of ``p = 1``; other axes of a contiguous tensor are made three by `reshape`.
    Tiles of 32 by 32 are read by rows and written by rows, so that neighbouring threads access
    neighbouring elements both times. Reads and writes each element once. Exact.

    Examples:
        >>> from numbasync_kernels import matrix
        >>> x = np.arange(6, dtype=np.int16).reshape(1, 2, 3)
        >>> out = await na.zeros((1, 3, 2), np.int16)
        >>> _ = await matrix.swap_axes[1, (32, 8)](out, x)
        >>> (await out.to_host()).tolist()
        [[[0, 3], [1, 4], [2, 5]]]
    """
    tile = cuda.shared.array((TILE, WIDE), x.dtype)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    down = (x.shape[1] + TILE - 1) // TILE
    across = (x.shape[2] + TILE - 1) // TILE
    blocks = int64(cuda.gridDim.x) * cuda.gridDim.y * cuda.gridDim.z
    along_y = cuda.blockIdx.y + int64(cuda.gridDim.y) * cuda.blockIdx.z
    number = cuda.blockIdx.x + cuda.gridDim.x * along_y
    while number < x.shape[0] * down * across:
        layer = number // (down * across)
        top = number // across % down * TILE
        left = number % across * TILE
        for k in range(EACH):
            row, column = top + ty + k * ROWS, left + tx
            if row < x.shape[1] and column < x.shape[2]:
                tile[ty + k * ROWS, tx] = x[layer, row, column]
        cuda.syncthreads()
        for k in range(EACH):
            row, column = left + ty + k * ROWS, top + tx
            if row < out.shape[1] and column < out.shape[2]:
                out[layer, row, column] = tile[tx, ty + k * ROWS]
        cuda.syncthreads()
        number += blocks


def swap_axes_reference(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What `swap_axes` writes; shape ``(p, n, m)``."""
    return np.swapaxes(x, 1, 2)
