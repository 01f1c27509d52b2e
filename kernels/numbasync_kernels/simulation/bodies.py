"""Bodies that attract one another, each all others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, float32
from numbasync_kernels.fits import FLOAT32, fits

THREADS = 128


@na.launcher(
    threads=THREADS,
    preconditions=[
        *fits("out", 2, FLOAT32), *fits("bodies", 2, FLOAT32), "bodies.shape[1] == 4",
        "out.shape == (bodies.shape[0], 3)", "softening > 0",
    ],
)  # fmt: skip
@cuda.jit(cache=True)
def accelerations(out: na.KernelOutput, bodies: na.KernelInput, softening: float) -> None:
    """The sum of the pulls of all bodies on each, by Newton's law with a constant of 1.

    Args:
        out: shape ``(n, 3)``, float32. Launch it with ``ceil(n / 128)`` blocks of 128 threads.
        bodies: shape ``(n, 4)``, float32: places and masses.
        softening: a distance above 0, whose square is added to that of each distance: so close
            bodies do not pull without bound.

    A block's threads load 128 bodies at a time into shared memory, where each reads all of them: n
    squared pulls, and ``n / 128`` times n bodies read.

    Error bound: ``(n + 16) u`` of the sum of sizes of the pulls, u = 2**-24, to first order: n
    sums, and a pull of up to 16 roundings, from differences that round once.

    Examples:
        >>> from numbasync_kernels import simulation
        >>> bodies = np.array([[0, 0, 0, 1], [2, 0, 0, 4]], np.float32)
        >>> out = await na.zeros((2, 3))
        >>> _ = await simulation.accelerations[1, 128](out, bodies, 1e-3)
        >>> (await out.to_host()).round(3).tolist()
        [[1.0, 0.0, 0.0], [-0.25, 0.0, 0.0]]
    """
    tile = cuda.shared.array((THREADS, 4), float32)
    t, n = cuda.threadIdx.x, bodies.shape[0]
    i = cuda.blockIdx.x * THREADS + t
    own = min(i, n - 1)  # no thread may stay away where all meet
    x, y, z = bodies[own, 0], bodies[own, 1], bodies[own, 2]
    soft = float32(softening) * float32(softening)
    pull_x = pull_y = pull_z = float32(0)
    for first in range(0, n, THREADS):
        if first + t < n:
            for k in range(4):
                tile[t, k] = bodies[first + t, k]
        cuda.syncthreads()
        for j in range(min(THREADS, n - first)):
            dx, dy, dz = tile[j, 0] - x, tile[j, 1] - y, tile[j, 2] - z
            square = dx * dx + dy * dy + dz * dz + soft
            size = tile[j, 3] / (square * math.sqrt(square))
            pull_x += dx * size
            pull_y += dy * size
            pull_z += dz * size
        cuda.syncthreads()
    if i < n:
        out[i, 0] = pull_x
        out[i, 1] = pull_y
        out[i, 2] = pull_z


def accelerations_reference(bodies: np.ndarray[Any, Any], softening: float) -> np.ndarray[Any, Any]:
    """What `accelerations` approximates, in float64; shape ``(n, 3)``."""
    wide = bodies.astype(np.float64)
    away = wide[None, :, :3] - wide[:, None, :3]
    square = (away**2).sum(axis=2) + softening**2
    result: np.ndarray[Any, Any] = (away * (wide[:, 3] / square**1.5)[..., None]).sum(axis=1)
    return result
