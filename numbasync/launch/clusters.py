"""Clusters of a launch: how many blocks are one, and the grids that they divide."""

from __future__ import annotations

import math
from typing import Any

from numbasync.backend.protocols import Dim3, Limits
from numbasync.errors import LauncherError, LaunchError
from numbasync.launch.grid import AXES, dim3

ONE_BLOCK: Dim3 = (1, 1, 1)
MOST = 8  # blocks of a cluster that every device with clusters allows


def check_cluster(cluster: Any, kernel: str) -> Dim3:
    """The validated `cluster=` of a launcher; None stands for one block.

    Raises:
        LaunchError: it is not one to three whole numbers of at least 1.
        LauncherError: it has more than `MOST` blocks.
    """
    if cluster is None:
        return ONE_BLOCK
    extents = dim3(cluster, "cluster=", kernel)
    if math.prod(extents) > MOST:
        raise LauncherError(
            f"kernel {kernel}: cluster={cluster} has {math.prod(extents)} blocks, and not every "
            f"device has clusters of more than {MOST}.\nWrite 2, 4 or 8 blocks, such as cluster=2."
        )
    return extents


def check_grid(cluster: Dim3, grid: Dim3, kernel: str, limits: Limits) -> None:
    """
    Raises:
        LaunchError: the device has no clusters, or no whole number of them makes up the grid.
    """
    if math.prod(cluster) > limits.max_cluster:
        raise LaunchError(
            f"kernel {kernel}: cluster={cluster}, and this device has no clusters of blocks, which "
            "need compute capability 9.0 or higher.\nWrite a kernel without cluster= for it, whose "
            "blocks load all of their tiles themselves."
        )
    for letter, blocks, extent in zip(AXES, grid, cluster, strict=True):
        if blocks % extent:
            whole = tuple(-(-n // c) * c for n, c in zip(grid, cluster, strict=True))
            raise LaunchError(
                f"kernel {kernel}: a grid of {grid} has {blocks} blocks along {letter}, and "
                f"cluster={cluster} needs a multiple of {extent}.\n"
                f"Write {kernel}[grid, block](...) with a grid such as {whole}; blocks beyond the "
                "work have to skip it."
            )
