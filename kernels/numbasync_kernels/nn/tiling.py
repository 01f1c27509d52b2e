"""How a matrix product is divided among the multiprocessors of a device."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from numbasync_kernels.nn.matmul_warpgroups import ROWS

# Time in units of a column of a tile along 128 bytes of k (2.1 ns on an H200, where the other
# figures are from): what a tile costs beside its columns, one launch more, a byte of sums.
PER_TILE = 32
PER_LAUNCH = 1200
PER_BYTE = 1 / 3000
COLUMNS = (256, 192, 128, 96, 64)
MOST_PARTS = 16
LEAST_STEPS = 4  # of 128 bytes of k, of a part


class Tiling(NamedTuple):
    """The columns of tiles, and the parts of k that are computed beside each other and added."""

    columns: int
    parts: int


@cache
def tiling(
    m: int, n: int, steps: int, multiprocessors: int, count: int = 1, unit: int = 64
) -> Tiling:
    """The division by which `count` products of shape ``(m, n)`` are done first, by a model of
    their time; each has so many steps of 128 bytes along k. Only one product has parts. Columns
    are a multiple of `unit`: 64, or 32 where b is stored as ``(n, k)``.
    """

    def time(way: Tiling) -> float:
        tiles = count * way.parts * -(-m // ROWS) * -(-n // way.columns)
        rounds = -(-tiles // multiprocessors)
        products = rounds * -(-steps // way.parts) * (way.columns + PER_TILE)
        return products + (PER_LAUNCH + 4 * m * n * way.parts * PER_BYTE if way.parts > 1 else 0)

    most = max(1, min(MOST_PARTS, steps // LEAST_STEPS)) if count == 1 else 1
    columns = [c for c in COLUMNS if c % unit == 0]
    return min((Tiling(c, p) for c in columns for p in range(1, most + 1)), key=time)
