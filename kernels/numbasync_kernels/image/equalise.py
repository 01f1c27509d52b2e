"""Histogram equalisation: a table of new levels, and looking levels up in it."""

from __future__ import annotations

from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, int64
from numbasync_kernels.fits import INT32, UINT8, fits

LEVELS = 256


@na.launcher(
    threads=LEVELS,
    preconditions=[
        *fits("table", 1, UINT8),
        *fits("counts", 1, INT32),
        "counts.shape[0] == 256",
        "table.shape[0] == 256",
    ],
)
@cuda.jit(cache=True)
def equalisation_table(table: na.KernelOutput, counts: na.KernelInput) -> None:
    """The level that each level becomes, so that all are about equally frequent.

    Args:
        table: shape ``(256,)``, uint8.
        counts: shape ``(256,)``, int32: how often each level occurs.

    One block of 256 threads: a scan in shared memory, two barriers a step. A picture of one
    level is left as it is. Exact: integers only.
    Source: W. D. Hillis and G. L. Steele, Data parallel algorithms, CACM 29(12), 1986.

    Examples:
        >>> from numbasync_kernels import image
        >>> counts = np.zeros(256, np.int32)
        >>> counts[[100, 101, 102]] = 5  # three levels that are hard to tell apart
        >>> table = await na.zeros(256, np.uint8)
        >>> _ = await image.equalisation_table(table, counts)
        >>> (await table.to_host())[100:103].tolist()
        [0, 127, 255]
    """
    below = cuda.shared.array(LEVELS, int64)
    i = cuda.threadIdx.x
    below[i] = counts[i]
    cuda.syncthreads()
    step = 1
    while step < LEVELS:
        add = below[i - step] if i >= step else 0
        cuda.syncthreads()
        below[i] += add
        cuda.syncthreads()
        step *= 2
    # The lowest level that occurs becomes 0: what is below it does not count.
    first = 0
    while below[first] == 0 and first < LEVELS - 1:
        first += 1
    darkest = below[first]
    rest = below[LEVELS - 1] - darkest
    if rest > 0:
        table[i] = max(below[i] - darkest, 0) * (LEVELS - 1) // rest
    else:
        table[i] = i


def equalisation_table_reference(counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What `equalisation_table` writes; shape ``(256,)``, uint8."""
    below = np.cumsum(counts, dtype=np.int64)
    darkest = below[np.flatnonzero(below)[0]] if below[-1] else 0
    rest = below[-1] - darkest
    if rest <= 0:
        return np.arange(LEVELS, dtype=np.uint8)
    table: np.ndarray[Any, Any] = np.maximum(below - darkest, 0) * (LEVELS - 1) // rest
    return table.astype(np.uint8)


@na.launcher(
    axes=(1, 0),
    preconditions=[
        *fits("levels", 2, UINT8),
        "out.ndim == 2 and table.ndim == 1",
        "out.dtype == table.dtype",
        "levels.shape == out.shape",
        "table.shape[0] == 256",
    ],
)
@cuda.jit(cache=True)
def look_up(out: na.KernelOutput, levels: na.KernelInput, table: na.KernelInput) -> None:
    """``out[y, x] = table[levels[y, x]]``.

    Args:
        out: shape ``(h, w)``, dtype of the table.
        levels: shape ``(h, w)``, uint8.
        table: shape ``(256,)``.

    Reads hw levels and as many table entries, writes hw. Exact.

    Examples:
        >>> from numbasync_kernels import image
        >>> negative = np.arange(255, -1, -1, np.int64).astype(np.uint8)
        >>> out = await na.zeros((1, 3), np.uint8)
        >>> _ = await image.look_up(out, np.array([[0, 100, 255]], np.uint8), negative)
        >>> (await out.to_host()).tolist()
        [[255, 155, 0]]
    """
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        out[y, x] = table[int64(levels[y, x])]


def look_up_reference(
    levels: np.ndarray[Any, Any], table: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """What `look_up` writes; shape of `levels`."""
    result: np.ndarray[Any, Any] = table[levels]
    return result
