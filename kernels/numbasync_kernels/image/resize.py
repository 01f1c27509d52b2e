"""Pictures of another size: by the nearest pixel, by interpolation, by the mean of an area.

Pixels are squares: pixel i covers what lies from i to i + 1, and its centre is at i + 1/2. Where
`w` columns become `v`, column i has its centre at ``(i + 1/2) w / v`` of the former picture.
Places are computed in integers, and rounded once. Beyond the edge, the nearest pixel counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, float32, int64
from numbasync_kernels.fits import FLOATS, REAL, fits

SHARPNESS = float32(-0.75)  # of the cubic polynomial, as other libraries have it
FITS = (
    *fits("out", 2, FLOATS),
    *fits("levels", 2, REAL),
    "levels.shape[0] > 0 and levels.shape[1] > 0",
)


@cuda.jit(device=True)
def place_of(i: Any, size: Any, new_size: Any) -> Any:
    """The pixel whose centre is at a new pixel's centre or before it, from -1 on, and how far
    behind it that lies.
    """
    doubled = (2 * int64(i) + 1) * size - new_size
    whole = doubled // (2 * new_size)
    return whole, float32(doubled - whole * 2 * new_size) / float32(2 * new_size)


@na.launcher(axes=(1, 0), preconditions=("out.ndim == 2 and out.dtype == levels.dtype", *FITS[1:]))
@cuda.jit(cache=True)
def resize_nearest(out: na.KernelOutput, levels: na.KernelInput) -> None:
    """Each pixel is the one in which its centre lies.

    Args:
        out: shape ``(h, w)``, dtype of `levels`.
        levels: any shape but an empty one, any real dtype.

    Reads and writes hw elements. Exact.

    Examples:
        >>> from numbasync_kernels import image
        >>> out = await na.zeros((1, 6), np.uint8)
        >>> _ = await image.resize_nearest(out, np.array([[1, 2, 3]], np.uint8))
        >>> (await out.to_host()).tolist()
        [[1, 1, 2, 2, 3, 3]]
    """
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        row = (2 * int64(y) + 1) * levels.shape[0] // (2 * out.shape[0])
        column = (2 * int64(x) + 1) * levels.shape[1] // (2 * out.shape[1])
        out[y, x] = levels[row, column]


def resize_nearest_reference(
    levels: np.ndarray[Any, Any], shape: tuple[int, int]
) -> np.ndarray[Any, Any]:
    """What `resize_nearest` writes; of that shape."""
    rows, columns = (
        (2 * np.arange(new) + 1) * old // (2 * new)
        for old, new in zip(levels.shape, shape, strict=True)
    )
    result: np.ndarray[Any, Any] = levels[rows[:, None], columns]
    return result


@na.launcher(axes=(1, 0), preconditions=FITS)
@cuda.jit(cache=True)
def resize_bilinear(out: na.KernelOutput, levels: na.KernelInput) -> None:
    """Each pixel is interpolated linearly between the four whose centres are around its own.

    Args:
        out: shape ``(h, w)``, float16, bfloat16 or float32; a result is rounded to it once.
        levels: any shape but an empty one, any real dtype; computed in float32.

    Reads 4hw elements, most of them from the cache, and writes hw. To make a picture much smaller,
    `resize_area` misses no pixel.

    Error bound: 9 u of the largest size of a level, u = 2**-24, to first order: three
    interpolations, of which each rounds a difference, a product and a sum, the last two of sizes
    that are at most twice a level's, and a place that is rounded once.

    Examples:
        >>> from numbasync_kernels import image
        >>> out = await na.zeros((1, 4))
        >>> _ = await image.resize_bilinear(out, np.array([[0, 4]], np.uint8))
        >>> (await out.to_host()).tolist()
        [[0.0, 1.0, 3.0, 4.0]]
    """
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        row, down = place_of(y, levels.shape[0], out.shape[0])
        column, right = place_of(x, levels.shape[1], out.shape[1])
        top, left = max(row, 0), max(column, 0)
        bottom = min(row + 1, levels.shape[0] - 1)
        behind = min(column + 1, levels.shape[1] - 1)
        nw, ne = float32(levels[top, left]), float32(levels[top, behind])
        sw, se = float32(levels[bottom, left]), float32(levels[bottom, behind])
        upper = nw + (ne - nw) * right
        lower = sw + (se - sw) * right
        out[y, x] = upper + (lower - upper) * down


def _interpolated(
    levels: np.ndarray[Any, Any], shape: tuple[int, int], taps: dict[int, Any]
) -> np.ndarray[Any, Any]:
    """Along both axes, the sum of neighbours by weights: functions of how far a centre lies."""
    result = levels.astype(np.float64)
    for axis, new in enumerate(shape):
        old = levels.shape[axis]
        at = (np.arange(new) + 0.5) * old / new - 0.5
        first = np.floor(at).astype(int)
        total: Any = 0.0
        for tap, weight in taps.items():
            part = np.take(result, np.clip(first + tap, 0, old - 1), axis)
            total = total + part * np.expand_dims(weight(at - first), 1 - axis)
        result = total
    return result


def resize_bilinear_reference(
    levels: np.ndarray[Any, Any], shape: tuple[int, int]
) -> np.ndarray[Any, Any]:
    """What `resize_bilinear` approximates, in float64; of that shape."""
    return _interpolated(levels, shape, {0: lambda f: 1 - f, 1: lambda f: f})


@cuda.jit(device=True)
def near_weight(x: Any) -> Any:
    """Of a pixel whose centre is at most 1 away."""
    a = SHARPNESS
    return ((a + float32(2)) * x - (a + float32(3))) * x * x + float32(1)


@cuda.jit(device=True)
def far_weight(x: Any) -> Any:
    """Of a pixel whose centre is 1 to 2 away."""
    return SHARPNESS * (((x - float32(5)) * x + float32(8)) * x - float32(4))


@cuda.jit(device=True)
def cubic_row(levels: Any, row: Any, column: Any, weights: Any) -> Any:
    total = float32(0)
    for k in range(4):
        at = min(max(column - 1 + k, 0), levels.shape[1] - 1)
        total += weights[k] * float32(levels[row, at])
    return total


@na.launcher(axes=(1, 0), preconditions=FITS)
@cuda.jit(cache=True)
def resize_bicubic(out: na.KernelOutput, levels: na.KernelInput) -> None:
    """Each pixel is interpolated by cubic polynomials through 4 by 4 pixels around its centre.

    Args:
        out: shape ``(h, w)``, float16, bfloat16 or float32; a result is rounded to it once. Where
            levels change abruptly, results go beyond them.
        levels: any shape but an empty one, any real dtype; computed in float32.

    Reads 16hw elements, most of them from the cache, and writes hw.

    Error bound: 64 u of the largest size of a level, u = 2**-24, to first order: sizes of weights
    add up to at most 1.4 along an axis; each has up to 8 roundings of numbers of at most 3, from a
    place that is rounded once, and a product and four sums follow.
    Source: R. G. Keys, Cubic convolution interpolation for digital image processing, 1981.

    Examples:
        >>> from numbasync_kernels import image
        >>> out = await na.zeros((1, 4))
        >>> _ = await image.resize_bicubic(out, np.array([[0, 4]], np.uint8))
        >>> (await out.to_host()).astype(float).round(2).tolist()
        [[-0.42, 0.91, 3.09, 4.42]]
    """
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        row, down = place_of(y, levels.shape[0], out.shape[0])
        column, right = place_of(x, levels.shape[1], out.shape[1])
        one = float32(1)
        across = (
            far_weight(one + right), near_weight(right),
            near_weight(one - right), far_weight(one + (one - right)),
        )  # fmt: skip
        along = (
            far_weight(one + down), near_weight(down),
            near_weight(one - down), far_weight(one + (one - down)),
        )  # fmt: skip
        total = float32(0)
        for k in range(4):
            at = min(max(row - 1 + k, 0), levels.shape[0] - 1)
            total += along[k] * cubic_row(levels, at, column, across)
        out[y, x] = total


def resize_bicubic_reference(
    levels: np.ndarray[Any, Any], shape: tuple[int, int]
) -> np.ndarray[Any, Any]:
    """What `resize_bicubic` approximates, in float64; of that shape."""
    a = float(SHARPNESS)

    def near(x: Any) -> Any:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1

    def far(x: Any) -> Any:
        return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a

    taps = {-1: lambda f: far(1 + f), 0: near, 1: lambda f: near(1 - f), 2: lambda f: far(2 - f)}
    return _interpolated(levels, shape, taps)


@na.launcher(axes=(1, 0), preconditions=FITS)
@cuda.jit(cache=True)
def resize_area(out: na.KernelOutput, levels: na.KernelInput) -> None:
    """Each pixel is the mean of the part of the picture that it covers.

    Args:
        out: shape ``(h, w)``, float16, bfloat16 or float32; a result is rounded to it once.
        levels: any shape but an empty one, any real dtype; computed in float32.

    The mean of all results is that of all levels. Reads each element once or twice and writes hw.

    Error bound: ``(a + b + 5) u`` of the largest size of a level, u = 2**-24, to first order, where
    a and b are the rows and columns that a result covers: so many sums, and the weights, their
    products and the quotient round once each.

    Examples:
        >>> from numbasync_kernels import image
        >>> out = await na.zeros((1, 2))
        >>> _ = await image.resize_area(out, np.array([[0, 3, 6]], np.uint8))
        >>> (await out.to_host()).tolist()
        [[1.0, 5.0]]
    """
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        height, width = levels.shape
        rows, columns = out.shape
        # In units of 1 / rows of a pixel, and of 1 / columns.
        top, bottom = int64(y) * height, (int64(y) + 1) * height
        left, right = int64(x) * width, (int64(x) + 1) * width
        total = float32(0)
        for i in range(top // rows, (bottom - 1) // rows + 1):
            across = float32(0)
            for j in range(left // columns, (right - 1) // columns + 1):
                wide = min((j + 1) * columns, right) - max(j * columns, left)
                across += float32(wide) * float32(levels[i, j])
            high = min((i + 1) * rows, bottom) - max(i * rows, top)
            total += float32(high) * (across / float32(width))
        out[y, x] = total / float32(height)


def resize_area_reference(
    levels: np.ndarray[Any, Any], shape: tuple[int, int]
) -> np.ndarray[Any, Any]:
    """What `resize_area` approximates, in float64; of that shape."""
    result = levels.astype(np.float64)
    for axis, new in enumerate(shape):
        old = levels.shape[axis]
        edges = np.arange(old + 1) * new
        begins = np.arange(new)[:, None] * old
        overlap = np.minimum(edges[1:], begins + old) - np.maximum(edges[:-1], begins)
        weights = np.maximum(overlap, 0) / old
        result = np.moveaxis(np.tensordot(weights, result, axes=(1, axis)), 0, axis)
    return result
