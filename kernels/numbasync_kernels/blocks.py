"""Blocks of kernels that choose their tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec

from numba import cuda, int64, uint32

import numbasync as na

P = ParamSpec("P")


def cut_by(*tile: int | None) -> Callable[[na.Launcher[P]], na.Launcher[P]]:
    """Let a launcher cut outputs that are passed whole by `tile`; None is all of an axis. Its
    kernel must count its blocks through the grid, x first: too many for y or z lie in a row.
    """

    def cutting(launcher: na.Launcher[P]) -> na.Launcher[P]:
        launcher.planner.tile = tile
        return launcher

    return cutting


@cuda.jit(device=True)
def row_and_column(number: Any, across: Any) -> Any:
    """Where a number is, counted along rows of `across`. Of 32 bits, which GPUs divide sooner."""
    row = uint32(number) // uint32(across)
    return int64(row), int64(uint32(number) % uint32(across))
