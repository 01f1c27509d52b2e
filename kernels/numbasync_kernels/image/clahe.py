"""Equalisation by parts of a picture, whose contrast is limited: a table for each part, and looking
levels up between them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, float32, int32, int64
from numbasync_kernels.fits import UINT8, fits

LEVELS = 256


@na.launcher(
    tile=(1, 1, LEVELS),
    axes=(2, 1, 0),
    threads=LEVELS,
    preconditions=[
        *fits("tables", 3, UINT8), *fits("levels", 2, UINT8), "tables.shape[2] == 256",
        "limit >= 1",
    ],
)  # fmt: skip
@cuda.jit(cache=True)
def clahe_tables(tables: na.KernelOutput, levels: na.KernelInput, limit: float) -> None:
    """For each part of a picture, the level that each level becomes.

    Args:
        tables: shape ``(p, q, 256)``, uint8: of p by q parts, each ``ceil(h / p)`` by
            ``ceil(w / q)`` pixels; the last ones have what is left.
        levels: shape ``(h, w)``, uint8.
        limit: how many times as often as on average a level counts at most, 1 or more. What is
            above it is divided among all levels, what is left among the first ones.

    A block of 256 threads a part, which counts in shared memory. A part without pixels leaves
    levels as they are. Reads hw levels. Exact: integers only, after the limit is one.
    Source: K. Zuiderveld, Contrast limited adaptive histogram equalization, Graphics Gems IV, 1994.

    Examples:
        >>> from numbasync_kernels import image
        >>> levels = np.array([[10, 10, 20, 20]], np.uint8)
        >>> tables = await na.zeros((1, 2, 256), np.uint8)
        >>> _ = await image.clahe_tables(tables, levels, 256.0)
        >>> (await tables.to_host())[0][:, [9, 10, 20]].tolist()
        [[0, 255, 255], [0, 0, 255]]
    """
    found = cuda.shared.array(LEVELS, int32)
    t = cuda.threadIdx.x
    part_row, part_column = cuda.blockIdx.z, cuda.blockIdx.y
    height, width = levels.shape
    high = (height + tables.shape[0] - 1) // tables.shape[0]
    wide = (width + tables.shape[1] - 1) // tables.shape[1]
    top, left = part_row * high, part_column * wide
    rows = max(min(high, height - top), 0)
    columns = max(min(wide, width - left), 0)
    found[t] = 0
    cuda.syncthreads()
    for k in range(t, rows * columns, LEVELS):
        cuda.atomic.add(found, int32(levels[top + k // columns, left + k % columns]), 1)
    cuda.syncthreads()
    area = int64(rows * columns)
    count = int64(found[t])
    most = max(int64(limit * area / LEVELS), int64(1))
    excess = na.block.sum(max(count - most, int64(0)))
    count = min(count, most) + excess // LEVELS
    if t < excess % LEVELS:
        count += 1
    below = na.block.scan(count)
    if area > 0:
        tables[part_row, part_column, t] = (below * (LEVELS - 1) + area // 2) // area
    else:
        tables[part_row, part_column, t] = t


def clahe_tables_reference(
    levels: np.ndarray[Any, Any], parts: tuple[int, int], limit: float
) -> np.ndarray[Any, Any]:
    """What `clahe_tables` writes; shape ``(*parts, 256)``, uint8."""
    high, wide = (-(-n // p) for n, p in zip(levels.shape, parts, strict=True))
    tables = np.zeros((*parts, LEVELS), np.uint8)
    for i, j in np.ndindex(*parts):
        part = levels[i * high : (i + 1) * high, j * wide : (j + 1) * wide]
        if not part.size:
            tables[i, j] = np.arange(LEVELS)
            continue
        counts = np.bincount(part.ravel(), minlength=LEVELS)
        most = max(int(limit * part.size / LEVELS), 1)
        excess = np.maximum(counts - most, 0).sum()
        counts = np.minimum(counts, most) + excess // LEVELS
        counts[: excess % LEVELS] += 1
        tables[i, j] = (counts.cumsum() * (LEVELS - 1) + part.size // 2) // part.size
    return tables


@cuda.jit(device=True)
def part_of(i: Any, size: Any, parts: Any) -> Any:
    """The part whose centre is at a pixel or before it, and how far behind it the pixel lies."""
    doubled = 2 * int64(i) + 1 - size
    whole = doubled // (2 * size)
    away = float32(doubled - whole * 2 * size) / float32(2 * size)
    return max(whole, int64(0)), min(whole + 1, int64(parts - 1)), away


@na.launcher(
    axes=(1, 0),
    preconditions=[
        *fits("out levels", 2, UINT8), *fits("tables", 3, UINT8), "levels.shape == out.shape",
        "tables.shape[2] == 256",
    ],
)  # fmt: skip
@cuda.jit(cache=True)
def clahe(out: na.KernelOutput, levels: na.KernelInput, tables: na.KernelInput) -> None:
    """Each pixel's level, looked up in the tables of the four parts around it, by their distance.

    Args:
        out: shape ``(h, w)``, uint8.
        levels: shape ``(h, w)``, uint8.
        tables: shape ``(p, q, 256)``, uint8, of `clahe_tables`.

    Reads hw levels and four table entries each, writes hw. Off by at most 1 from rounding the exact
    interpolation: it is computed in float32, and 1/2 is added before the fraction is dropped.

    Examples:
        >>> from numbasync_kernels import image
        >>> levels = np.array([[100, 101], [102, 103]], np.uint8)
        >>> tables = await na.zeros((1, 1, 256), np.uint8)
        >>> _ = await image.clahe_tables(tables, levels, 256.0)
        >>> out = await na.zeros((2, 2), np.uint8)
        >>> _ = await image.clahe(out, levels, tables)
        >>> (await out.to_host()).tolist()
        [[64, 128], [191, 255]]
    """
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        high = (out.shape[0] + tables.shape[0] - 1) // tables.shape[0]
        wide = (out.shape[1] + tables.shape[1] - 1) // tables.shape[1]
        top, bottom, down = part_of(y, high, tables.shape[0])
        left, behind, right = part_of(x, wide, tables.shape[1])
        level = int64(levels[y, x])
        nw, ne = float32(tables[top, left, level]), float32(tables[top, behind, level])
        sw, se = float32(tables[bottom, left, level]), float32(tables[bottom, behind, level])
        upper = nw + (ne - nw) * right
        lower = sw + (se - sw) * right
        out[y, x] = int32(upper + (lower - upper) * down + float32(0.5))


def clahe_reference(
    levels: np.ndarray[Any, Any], tables: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """What `clahe` approximates, in float64, not rounded; shape of `levels`."""
    places = []
    for n, parts in zip(levels.shape, tables.shape[:2], strict=True):
        size = -(-n // parts)
        at = (np.arange(n) + 0.5) / size - 0.5
        first = np.floor(at).astype(int)
        places.append((np.maximum(first, 0), np.minimum(first + 1, parts - 1), at - first))
    (top, bottom, down), (left, behind, right) = places
    wide = tables.astype(np.float64)

    def look_up(rows: Any, columns: Any) -> Any:
        return wide[rows[:, None], columns[None, :], levels]

    upper = look_up(top, left) * (1 - right) + look_up(top, behind) * right
    lower = look_up(bottom, left) * (1 - right) + look_up(bottom, behind) * right
    result: np.ndarray[Any, Any] = upper * (1 - down[:, None]) + lower * down[:, None]
    return result
