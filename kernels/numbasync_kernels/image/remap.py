"""A picture taken apart and put together: each pixel from a place that is told."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, float32, int64
from numbasync_kernels.fits import FLOAT32, FLOATS, REAL, fits

NEAREST, REFLECT, WRAP, CONSTANT = range(4)  # what is beyond the edges
FAR = 1e9  # pixels, beyond which a place is no place


@cuda.jit(device=True)
def index_within(i: Any, n: Any, border: Any) -> Any:
    """An index of the axis that stands for index `i`; -1: none."""
    if 0 <= i < n:
        return i
    if border == NEAREST:
        return min(max(i, 0), n - 1)
    if border == WRAP:
        return i % n
    if border == REFLECT:
        period = max(2 * (n - 1), 1)
        inside = i % period
        return min(inside, period - inside) if n > 1 else int64(0)
    return int64(-1)


@cuda.jit(device=True)
def level_at(levels: Any, y: Any, x: Any, border: Any, fill: Any) -> Any:
    row = index_within(y, int64(levels.shape[0]), border)
    column = index_within(x, int64(levels.shape[1]), border)
    if row < 0 or column < 0:
        return float32(fill)
    return float32(levels[row, column])


@na.launcher(
    axes=(1, 0),
    preconditions=[
        *fits("out", 2, FLOATS),
        *fits("ys xs", 2, FLOAT32),
        *fits("levels", 2, REAL),
        "levels.shape[0] > 0 and levels.shape[1] > 0",
        "ys.shape == out.shape and xs.shape == out.shape",
        "0 <= border < 4",
    ],
)
@cuda.jit(cache=True)
def remap(
    out: na.KernelOutput, levels: na.KernelInput, ys: na.KernelInput, xs: na.KernelInput,
    border: int, fill: float,
) -> None:  # fmt: skip
    """Each pixel is interpolated linearly at a place of its own: `levels` at ``ys[i], xs[i]``.

    Args:
        out: shape ``(h, w)``, float16, bfloat16 or float32; a result is rounded to it once.
        levels: any shape but an empty one, any real dtype; computed in float32.
        ys, xs: shape ``(h, w)``, float32: rows and columns; pixel i has its centre at i.
        border: `image.NEAREST`: beyond the edge, the nearest pixel counts; `image.REFLECT`: the
            picture is mirrored at the centres of its edges; `image.WRAP`: it begins again;
            `image.CONSTANT`: `fill` counts.
        fill: a number. It is also the result where a place is NaN or 1e9 pixels away.

    Reads 6hw elements, and writes hw.

    Error bound: 9 u of the largest size of a level or `fill`, u = 2**-24, as `resize_bilinear`; how
    far a place is from a pixel is exact.

    Examples:
        >>> from numbasync_kernels import image
        >>> levels = np.array([[0, 10, 20]], np.uint8)
        >>> xs = np.array([[0.5, 2.5, -1.0]], np.float32)
        >>> out = await na.zeros((1, 3))
        >>> _ = await image.remap(out, levels, np.zeros_like(xs), xs, image.NEAREST, 0.0)
        >>> (await out.to_host()).tolist()
        [[5.0, 20.0, 0.0]]
    """
    j, i = cuda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        y, x = ys[i, j], xs[i, j]
        if abs(y) < float32(FAR) and abs(x) < float32(FAR):
            row, column = int64(math.floor(y)), int64(math.floor(x))
            down, right = y - float32(row), x - float32(column)
            nw = level_at(levels, row, column, border, fill)
            ne = level_at(levels, row, column + 1, border, fill)
            sw = level_at(levels, row + 1, column, border, fill)
            se = level_at(levels, row + 1, column + 1, border, fill)
            upper = nw + (ne - nw) * right
            lower = sw + (se - sw) * right
            out[i, j] = upper + (lower - upper) * down
        else:
            out[i, j] = fill


def remap_reference(
    levels: np.ndarray[Any, Any], ys: np.ndarray[Any, Any], xs: np.ndarray[Any, Any], border: int,
    fill: float,
) -> np.ndarray[Any, Any]:  # fmt: skip
    """What `remap` approximates, in float64; shape of `ys`."""
    is_place = (np.abs(ys) < FAR) & (np.abs(xs) < FAR)
    y, x = (np.where(is_place, a, 0).astype(np.float64) for a in (ys, xs))
    result = np.zeros(y.shape)
    modes = {NEAREST: "edge", REFLECT: "reflect", WRAP: "wrap"}
    for down in (0, 1):
        for right in (0, 1):
            rows, columns = np.floor(y).astype(int) + down, np.floor(x).astype(int) + right
            weights = (1 - np.abs(y - rows)) * (1 - np.abs(x - columns))
            if border == CONSTANT:
                inside = (rows >= 0) & (rows < levels.shape[0])
                inside &= (columns >= 0) & (columns < levels.shape[1])
                at = np.where(inside, rows, 0), np.where(inside, columns, 0)
                part = np.where(inside, levels[at], fill)
            else:
                far = int(max(np.abs(rows).max(), np.abs(columns).max())) + 1
                padded = np.pad(levels.astype(np.float64), far, mode=modes[border])  # type: ignore[call-overload]
                part = padded[rows + far, columns + far]
            result += weights * part
    return np.where(is_place, result, fill)
