"""Gaussian blur through a tile in shared memory."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, float32
from numbasync_kernels.fits import FLOAT32, FLOATS, REAL, fits

TILE = 16  # threads along each side of a block
RADIUS = 3  # pixels on each side of the centre
WIDE = TILE + 2 * RADIUS  # the tile with its border


@na.launcher(
    tile=(TILE, TILE),
    axes=(1, 0),
    threads=(TILE, TILE),
    preconditions=[
        *fits("out", 2, FLOATS),
        *fits("levels", 2, REAL),
        *fits("weights", 1, FLOAT32),
        "levels.shape == out.shape",
        "weights.shape[0] == 7",
    ],
)
@cuda.jit(cache=True)
def gaussian_blur(out: na.KernelOutput, levels: na.KernelInput, weights: na.KernelInput) -> None:
    """Blur with a separable kernel of 7 taps; beyond the edge, the nearest pixel counts.

    Args:
        out: shape ``(h, w)``, float16, bfloat16 or float32; a result is rounded to it once.
        levels: shape ``(h, w)``, any real dtype.
        weights: shape ``(7,)``, float32, centre at 3; `gaussian_weights` makes them.

    Blocks of 16 by 16 threads. A block loads its tile with a border of 3 once, blurs the
    rows into shared memory, then the columns out of it: two barriers. Reads about 1.9 hw
    elements and writes hw.

    Error bound: 14 multiplications and additions a pass in float32, so at most 28 half ulps
    of the largest level.

    Examples:
        >>> from numbasync_kernels import image
        >>> levels = np.zeros((9, 9), np.uint8)
        >>> levels[4, 4] = 100  # one bright pixel
        >>> out = await na.zeros((9, 9))
        >>> weights = image.gaussian_weights(1.0)
        >>> _ = await image.gaussian_blur(out.partition((16, 16)), levels, weights)
        >>> (await out.to_host())[4, 2:7].round().tolist()
        [2.0, 10.0, 16.0, 10.0, 2.0]
    """
    tile = cuda.shared.array((WIDE, WIDE), float32)
    rows = cuda.shared.array((WIDE, TILE), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    height = out.shape[0]
    width = out.shape[1]
    along_y = cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z
    block = cuda.blockIdx.x + cuda.gridDim.x * along_y
    across = (width + TILE - 1) // TILE
    left = block % across * TILE - RADIUS
    top = block // across * TILE - RADIUS

    for i in range(ty * TILE + tx, WIDE * WIDE, TILE * TILE):
        y = min(max(top + i // WIDE, 0), height - 1)
        x = min(max(left + i % WIDE, 0), width - 1)
        tile[i // WIDE, i % WIDE] = float32(levels[y, x])
    cuda.syncthreads()

    for row in range(ty, WIDE, TILE):
        total = float32(0.0)
        for k in range(2 * RADIUS + 1):
            total += weights[k] * tile[row, tx + k]
        rows[row, tx] = total
    cuda.syncthreads()

    y = top + RADIUS + ty
    x = left + RADIUS + tx
    if y < height and x < width:
        total = float32(0.0)
        for k in range(2 * RADIUS + 1):
            total += weights[k] * rows[ty + k, tx]
        out[y, x] = total


def gaussian_weights(sigma: float) -> np.ndarray[Any, Any]:
    """The 7 taps of a Gaussian of standard deviation `sigma` pixels; float32, sum 1.

    Examples:
        >>> from numbasync_kernels import image
        >>> image.gaussian_weights(1.0).round(3)
        array([0.004, 0.054, 0.242, 0.399, 0.242, 0.054, 0.004], dtype=float32)
    """
    if not isinstance(sigma, Real) or not 0 < sigma < math.inf:
        raise na.errors.CallerError(
            f"gaussian_weights(sigma) of sigma of type {type(sigma).__name__}: write a number of "
            "more than 0."
        )
    taps = np.exp(-0.5 * (np.arange(-RADIUS, RADIUS + 1) / float(min(sigma, 1e100))) ** 2)
    weights: np.ndarray[Any, Any] = taps / taps.sum()
    return weights.astype(np.float32)


def gaussian_blur_reference(
    levels: np.ndarray[Any, Any], weights: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """What `gaussian_blur` approximates, in float64; shape ``(h, w)``."""
    result = levels.astype(np.float64)
    for axis in (0, 1):
        border = [(RADIUS, RADIUS) if a == axis else (0, 0) for a in (0, 1)]
        padded = np.pad(result, border, mode="edge")
        shifted = [
            np.take(padded, np.arange(k, k + result.shape[axis]), axis) for k in range(len(weights))
        ]
        result = np.tensordot(weights.astype(np.float64), np.array(shifted), axes=1)
    return result
