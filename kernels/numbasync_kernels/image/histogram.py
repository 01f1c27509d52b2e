"""Counting levels with atomics: first in shared memory, then once a block in global memory."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, int32
from numbasync_kernels.fits import INT32, UINT8, fits

LEVELS = 256
PIXELS_A_THREAD = 16


@na.launcher(
    preconditions=[*fits("counts", 1, INT32), *fits("levels", 1, UINT8), "counts.shape[0] == 256"]
)
@cuda.jit(cache=True)
def histogram(counts: na.KernelOutput, levels: na.KernelInput) -> None:
    """Add to ``counts[v]`` how many elements of `levels` are ``v``.

    Args:
        counts: shape ``(256,)``, int32; start it at zero.
        levels: shape ``(n,)``, uint8.

    Launch it with 256 threads a block: ``histogram[histogram_grid(n), 256](...)``. Exact.

    Examples:
        >>> from numbasync_kernels import image
        >>> levels = np.array([7, 7, 9], np.uint8)
        >>> counts = await na.zeros(256, np.int32)
        >>> _ = await image.histogram[image.histogram_grid(3), 256](counts, levels)
        >>> (await counts.to_host())[[7, 8, 9]].tolist()
        [2, 0, 1]
    """
    own = cuda.shared.array(LEVELS, int32)
    thread = cuda.threadIdx.x
    own[thread] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), levels.shape[0], cuda.gridsize(1)):
        cuda.atomic.add(own, int32(levels[i]), 1)
    cuda.syncthreads()
    if own[thread] > 0:
        cuda.atomic.add(counts, thread, own[thread])


def histogram_grid(n: int) -> int:
    """Blocks for `n` elements: each thread takes about 16 of them.

    Examples:
        >>> from numbasync_kernels import image
        >>> image.histogram_grid(640 * 480)
        75
    """
    try:
        return max(1, -(-operator.index(n) // (LEVELS * PIXELS_A_THREAD)))
    except TypeError:
        raise na.errors.CallerError(
            f"histogram_grid(n) of n of type {type(n).__name__}: write a whole number."
        ) from None


def histogram_reference(levels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What `histogram` adds to zeros; shape ``(256,)``, int32."""
    return np.bincount(levels.ravel(), minlength=LEVELS).astype(np.int32)
