"""What is found in a square window around each pixel: its mean, its extremes, its median.

Beyond the edge of a picture, the nearest pixel counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, float32
from numbasync_kernels.fits import FLOATS, fits

TILE = 16  # threads along each side of a block
MOST = 8  # pixels on each side of the centre, at most
WIDE = TILE + 2 * MOST
EXACT = ("bool", "int8", "int16", "uint8", "uint16", "float16", "float32")  # as a float32
MEDIAN_MOST = 2
MEDIAN_SIZE = (2 * MEDIAN_MOST + 1) ** 2


@cuda.jit(device=True)
def first_pixel(width: Any) -> Any:
    """Row and column of the block's first pixel."""
    along_y = cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z
    block = cuda.blockIdx.x + cuda.gridDim.x * along_y
    across = (width + TILE - 1) // TILE
    return block // across * TILE, block % across * TILE


@cuda.jit(device=True)
def load_window(tile: Any, levels: Any, top: Any, left: Any, radius: Any) -> None:
    """The block's pixels with a border of `radius`."""
    wide = TILE + 2 * radius
    height, width = levels.shape
    for i in range(cuda.threadIdx.y * TILE + cuda.threadIdx.x, wide * wide, TILE * TILE):
        y = min(max(top - radius + i // wide, 0), height - 1)
        x = min(max(left - radius + i % wide, 0), width - 1)
        tile[i // wide, i % wide] = float32(levels[y, x])


@cuda.jit(device=True)
def in_window(levels: Any, radius: Any, combine: Any) -> Any:
    """The thread's pixel, and what its window combines to: along rows first, then along columns."""
    tile = cuda.shared.array((WIDE, WIDE), float32)
    rows = cuda.shared.array((WIDE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = first_pixel(levels.shape[1])
    load_window(tile, levels, top, left, radius)
    cuda.syncthreads()
    for row in range(ty, TILE + 2 * radius, TILE):
        total = tile[row, tx]
        for k in range(1, 2 * radius + 1):
            total = combine(total, tile[row, tx + k])
        rows[row, tx] = total
    cuda.syncthreads()
    total = rows[ty, tx]
    for k in range(1, 2 * radius + 1):
        total = combine(total, rows[ty + k, tx])
    return top + ty, left + tx, total


@cuda.jit(device=True)
def added(a: Any, b: Any) -> Any:
    return a + b


@cuda.jit(device=True)
def least(a: Any, b: Any) -> Any:
    return b if b < a or b != b else a  # a NaN wins


@cuda.jit(device=True)
def most(a: Any, b: Any) -> Any:
    return b if b > a or b != b else a


@na.launcher(
    tile=(TILE, TILE), axes=(1, 0), threads=(TILE, TILE),
    preconditions=[
        *fits("out", 2, FLOATS), *fits("levels", 2, EXACT), "levels.shape == out.shape",
        "0 <= radius <= 8",
    ],
)  # fmt: skip
@cuda.jit(cache=True)
def box_blur(out: na.KernelOutput, levels: na.KernelInput, radius: int) -> None:
    """The mean of the square around each pixel.

    Args:
        out: shape ``(h, w)``, float16, bfloat16 or float32.
        levels: shape ``(h, w)``, bool, integers of at most 16 bits, float16 or float32.
        radius: pixels on each side of the centre, 0 to 8.

    Blocks of 16 by 16 threads. A block loads its pixels with their border once, adds up along rows,
    then along columns. Reads 1.3 hw (radius 1) to 4 hw elements and writes hw.

    Error bound: ``(4 radius + 2) u`` of the largest size of a level, u = 2**-24, to first order:
    2 radius sums a pass, a reciprocal and a product. Three of them are nearly a Gaussian blur.

    Examples:
        >>> from numbasync_kernels import image
        >>> levels = np.zeros((5, 5), np.uint8)
        >>> levels[2, 2] = 9
        >>> out = await na.zeros((5, 5))
        >>> _ = await image.box_blur(out, levels, 1)
        >>> (await out.to_host())[2].round(3).tolist()
        [0.0, 1.0, 1.0, 1.0, 0.0]
    """
    y, x, total = in_window(levels, radius, added)
    if y < out.shape[0] and x < out.shape[1]:
        wide = 2 * radius + 1
        out[y, x] = total * (float32(1) / float32(wide * wide))


def _windows(levels: np.ndarray[Any, Any], radius: int) -> np.ndarray[Any, Any]:
    """The pixels of each window, along two more axes."""
    padded = np.pad(levels, radius, mode="edge")
    return np.lib.stride_tricks.sliding_window_view(padded, (2 * radius + 1,) * 2)


def box_blur_reference(levels: np.ndarray[Any, Any], radius: int) -> np.ndarray[Any, Any]:
    """What `box_blur` approximates, in float64; shape of `levels`."""
    result: np.ndarray[Any, Any] = _windows(levels.astype(np.float64), radius).mean(axis=(2, 3))
    return result


MORPHOLOGY = (
    *fits("out levels", 2, EXACT), "out.dtype == levels.dtype", "levels.shape == out.shape",
    "0 <= radius <= 8",
)  # fmt: skip


@na.launcher(tile=(TILE, TILE), axes=(1, 0), threads=(TILE, TILE), preconditions=MORPHOLOGY)
@cuda.jit(cache=True)
def erode(out: na.KernelOutput, levels: na.KernelInput, radius: int) -> None:
    """The least level in the square around each pixel; a NaN wins.

    Args:
        out: shape ``(h, w)``, dtype of `levels`.
        levels: shape ``(h, w)``, bool, integers of at most 16 bits, float16 or float32.
        radius: pixels on each side of the centre, 0 to 8.

    Blocks and reads as of `box_blur`. Exact. `dilate` after `erode` removes what is bright and
    small, `erode` after `dilate` what is dark.

    Examples:
        >>> from numbasync_kernels import image
        >>> out = await na.zeros((1, 5), np.uint8)
        >>> _ = await image.erode(out, np.array([[9, 9, 2, 9, 9]], np.uint8), 1)
        >>> (await out.to_host()).tolist()
        [[9, 2, 2, 2, 9]]
    """
    y, x, level = in_window(levels, radius, least)
    if y < out.shape[0] and x < out.shape[1]:
        out[y, x] = level


def erode_reference(levels: np.ndarray[Any, Any], radius: int) -> np.ndarray[Any, Any]:
    """What `erode` writes; shape of `levels`."""
    result: np.ndarray[Any, Any] = _windows(levels, radius).min(axis=(2, 3))
    return result


@na.launcher(tile=(TILE, TILE), axes=(1, 0), threads=(TILE, TILE), preconditions=MORPHOLOGY)
@cuda.jit(cache=True)
def dilate(out: na.KernelOutput, levels: na.KernelInput, radius: int) -> None:
    """The highest level in the square around each pixel; a NaN wins.

    Args:
        out: shape ``(h, w)``, dtype of `levels`.
        levels: shape ``(h, w)``, bool, integers of at most 16 bits, float16 or float32.
        radius: pixels on each side of the centre, 0 to 8.

    Blocks and reads as of `box_blur`. Exact.

    Examples:
        >>> from numbasync_kernels import image
        >>> out = await na.zeros((1, 5), np.uint8)
        >>> _ = await image.dilate(out, np.array([[0, 0, 7, 0, 0]], np.uint8), 1)
        >>> (await out.to_host()).tolist()
        [[0, 7, 7, 7, 0]]
    """
    y, x, level = in_window(levels, radius, most)
    if y < out.shape[0] and x < out.shape[1]:
        out[y, x] = level


def dilate_reference(levels: np.ndarray[Any, Any], radius: int) -> np.ndarray[Any, Any]:
    """What `dilate` writes; shape of `levels`."""
    result: np.ndarray[Any, Any] = _windows(levels, radius).max(axis=(2, 3))
    return result


@na.launcher(
    axes=(1, 0),
    preconditions=[
        *fits("out levels", 2, EXACT), "out.dtype == levels.dtype", "levels.shape == out.shape",
        "0 <= radius <= 2",
    ],
)  # fmt: skip
@cuda.jit(cache=True)
def median(out: na.KernelOutput, levels: na.KernelInput, radius: int) -> None:
    """The median of the square around each pixel.

    Args:
        out: shape ``(h, w)``, dtype of `levels`.
        levels: shape ``(h, w)``, bool, integers of at most 16 bits, float16 or float32, no NaN.
        radius: pixels on each side of the centre, 0 to 2: of 1, 9 or 25 pixels.

    Reads 9hw or 25hw elements, most of them from the cache, and writes hw. Exact.

    Examples:
        >>> from numbasync_kernels import image
        >>> levels = np.full((3, 3), 5, np.uint8)
        >>> levels[1, 1] = 200  # a speck
        >>> out = await na.zeros((3, 3), np.uint8)
        >>> _ = await image.median(out, levels, 1)
        >>> (await out.to_host())[1].tolist()
        [5, 5, 5]
    """
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        found = cuda.local.array(MEDIAN_SIZE, float32)
        wide = 2 * radius + 1
        for k in range(wide * wide):  # each is put among those before it
            row = min(max(y - radius + k // wide, 0), levels.shape[0] - 1)
            column = min(max(x - radius + k % wide, 0), levels.shape[1] - 1)
            level = float32(levels[row, column])
            at = k
            while at > 0 and found[at - 1] > level:
                found[at] = found[at - 1]
                at -= 1
            found[at] = level
        out[y, x] = found[wide * wide // 2]


def median_reference(levels: np.ndarray[Any, Any], radius: int) -> np.ndarray[Any, Any]:
    """What `median` writes; shape of `levels`."""
    flat = _windows(levels, radius).reshape(*levels.shape, -1)
    result: np.ndarray[Any, Any] = np.sort(flat, axis=2)[..., flat.shape[2] // 2]
    return result
