"""Kernels that choose their tiles: outputs that are passed whole are cut by them, and any number of
tiles can be launched.

Such a kernel counts its block through the grid, x first: blocks that are too many for an axis of
the grid lie in a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from numbasync.backend.protocols import Dim3, Limits
from numbasync.errors import LaunchError
from numbasync.launch.grid import Geometry

OwnTile = tuple[int | None, ...]  # an extent for each axis of the output; None: all of the axis

_ANY = 2**62  # blocks along an axis


def grid_of(shape: Sequence[int], tile: OwnTile, axes: tuple[int, ...] | None) -> Dim3:
    """A block for each tile of an output of this shape, on the CUDA axes of its axes."""
    grid = [1, 1, 1]
    order = range(len(shape)) if axes is None else axes
    for axis, extent, part in zip(order, shape, tile, strict=True):
        grid[axis] = -(-extent // part) if part is not None and extent else min(extent, 1)
    return grid[0], grid[1], grid[2]


def without_bounds(limits: Limits) -> Limits:
    """The limits, but those of grids, which `in_a_row` keeps to."""
    return replace(limits, max_grid=(_ANY, _ANY, _ANY))


def in_a_row(geometry: Geometry, limits: Limits, kernel: str) -> Geometry:
    """The same blocks, all on x if they are too many along another axis.

    Raises:
        LaunchError: they are too many for x, too.
    """
    grid = geometry.grid
    if any(map(int.__gt__, grid, limits.max_grid)):
        grid = math.prod(grid), 1, 1
    if grid[0] > limits.max_grid[0]:
        raise LaunchError(
            f"kernel {kernel}: {grid[0]:,} blocks, where the device allows {limits.max_grid[0]:,}."
        )
    return Geometry(grid, geometry.block)
