"""Random points in a square, counted where they lie in its circle: the Monte Carlo method."""

from __future__ import annotations

import numbasync as na
from numbasync.kernel_names import cuda, int64
from numbasync_kernels.fits import fits


@na.launcher(preconditions=[*fits("counts", 1, ("int64",)), "draws >= 0"])
@cuda.jit(cache=True)
def points_in_circle(counts: na.KernelOutput, draws: int, seed: int) -> None:
    """How many of each thread's random points lie in the quarter of a circle of radius 1.

    Args:
        counts: shape ``(n,)``, int64, one of each thread. A fourth of pi is expected of
            ``counts.sum() / (n * draws)``, with a deviation of ``0.41 / sqrt(n * draws)``.
        draws: points of each thread, 0 or more.
        seed: of the random numbers; other threads, draws and seeds have other points.

    Writes n elements. The bits are the same on every device: points are float32, and squares and
    their sum are rounded in float64.

    Examples:
        >>> from numbasync_kernels import simulation
        >>> counts = await na.zeros(1000, np.int64)
        >>> _ = await simulation.points_in_circle(counts, 100, 7)
        >>> abs(4 * (await counts.to_host()).mean() / 100 - 3.14159) < 0.02
        np.True_
    """
    for i in range(cuda.grid(1), counts.shape[0], cuda.gridsize(1)):
        found = int64(0)
        for k in range(draws):
            x = float(na.random.philox_uniform_float32(seed, i, 2 * k))
            y = float(na.random.philox_uniform_float32(seed, i, 2 * k + 1))
            if x * x + y * y < 1.0:
                found += 1
        counts[i] = found
