"""Kernels that choose their tiles: outputs that are passed whole are cut by them, and any number of
tiles can be launched.

Such a kernel counts its block through the grid, x first: blocks that are too many for an axis of
the grid lie in a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from numbasync.arguments import as_items, as_whole, shown
from numbasync.backend.protocols import Dim3, Limits
from numbasync.errors import LauncherError, LaunchError
from numbasync.launch.grid import Geometry
from numbasync.launch.parameters import Parameter, Role

OwnTile = tuple[int | None, ...]  # an extent for each axis of the output; None: all of the axis

_ANY = 2**62  # blocks along an axis


def check_own_tile(
    tile: Any, axes: tuple[int, ...] | None, parameters: Iterable[Parameter], kernel: str
) -> OwnTile | None:
    """The validated `tile=` of a launcher with these `axes=` and parameters.

    Raises:
        LauncherError: it is no extent for each axis; or the tiles are those of partitions.
    """
    if tile is None:
        return None
    extents = as_items(tile)
    own = (tile,) if extents is None else extents
    are_extents = all(n is None or (as_whole(n) or 0) > 0 for n in own)
    if not are_extents or not 1 <= len(own) <= 3:
        raise LauncherError(
            f"kernel {kernel}: tile= is what a block computes of an output: one to three whole "
            f"numbers of at least 1, or None for all of an axis, as in (4, None); not "
            f"{shown(tile)}."
        )
    if axes is not None and len(axes) != len(own):
        raise LauncherError(
            f"kernel {kernel}: tile={shown(tile)} has {len(own)} axes, and axes={shown(axes)} has "
            f"{len(axes)}: write as many extents as axes."
        )
    taken = next((p.name for p in parameters if p.role is Role.TILE), None)
    if taken is not None:
        raise LauncherError(
            f"kernel {kernel}: {taken} is a na.Tile, which is a partition's: leave tile= out, or "
            f"annotate {taken} as na.KernelOutput."
        )
    return tuple(None if n is None else as_whole(n) for n in own)


def grid_of(shape: Sequence[int], tile: OwnTile, axes: tuple[int, ...] | None, kernel: str) -> Dim3:
    """A block for each tile of an output of this shape, on the CUDA axes of its axes.

    Raises:
        LaunchError: the output has another number of axes.
    """
    if len(shape) != len(tile):
        raise LaunchError(
            f"kernel {kernel}: tile={tile} has {len(tile)} axes, the output has {len(shape)}."
        )
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
