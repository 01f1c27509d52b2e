"""Storing accumulators by tensor maps, on both devices."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32

import numbasync as na
from numbasync import tensor_cores as tc

ml_dtypes = pytest.importorskip("ml_dtypes")
COLUMNS = 64  # of an accumulator
WARPS = 2


@cuda.jit(device=True)
def number_at(value: Any, row: Any, column: Any, factor: Any) -> Any:
    return float32(factor * (row - 2 * column))


@cache
def kernel(dtype: Any, width: int, slots: int, rows: int) -> Any:
    """A kernel whose warps store, from a corner on, two accumulators one below the other; those of
    the first warp, and below them those of the second.
    """
    layout = na.shared_layout(
        tile=tc.tile(dtype, (WARPS, slots, rows, width), width * np.dtype(dtype).itemsize)
    )

    @na.launcher
    @cuda.jit
    def numbered(out: na.KernelOutput, row: int, column: int) -> None:
        warp = cuda.threadIdx.x // 32
        for part in range(2):
            corner = row + (2 * warp + part) * rows, column
            sums = tc.apply(number_at, tc.accumulator(rows, COLUMNS), corner, 1.0)
            tc.store_by_map(out, corner, layout.tile, (warp, 0, 0, 0), sums)
        tc.wait_stores(0)

    return numbered


@pytest.mark.parametrize(
    ("dtype", "width", "slots", "rows"),
    [
        (np.float16, 64, 1, 16), (np.float16, 32, 2, 32), (ml_dtypes.bfloat16, 32, 1, 16),
        (np.float32, 32, 2, 16), (np.float32, 16, 3, 32),
    ],
)  # fmt: skip
@pytest.mark.parametrize("corner", [(0, 0), (3, 24)])
async def test_what_lies_in_the_matrix_is_stored(
    device: na.Device, dtype: Any, width: int, slots: int, rows: int, corner: tuple[int, int]
) -> None:
    shape = 2 * WARPS * rows + 1, COLUMNS + 8
    out = await na.full(shape, -1, dtype)
    await kernel(dtype, width, slots, rows)[1, 32 * WARPS](
        na.tensor_map(out, (rows, width), width * np.dtype(dtype).itemsize), *corner
    )
    want = np.full(shape, -1.0, np.float32)
    y, x = np.indices(shape)
    is_stored = (y >= corner[0]) & (y < corner[0] + 2 * WARPS * rows)
    is_stored &= (x >= corner[1]) & (x < corner[1] + COLUMNS)
    want[is_stored] = (y - 2 * x)[is_stored]
    np.testing.assert_array_equal((await out.to_host()).astype(np.float32), want)


@pytest.mark.parametrize(
    ("width", "rows", "message"),
    [(64, 32, "16 x 64 elements through a tile of shape"), (16, 16, "columns of 64 or 128 bytes")],
)
def test_tiles_that_do_not_fit(device: na.Device, width: int, rows: int, message: str) -> None:
    layout = na.shared_layout(tile=tc.tile(np.float16, (1, rows, width), 2 * width))

    @na.launcher
    @cuda.jit
    def stored(out: na.KernelOutput) -> None:
        tc.store_by_map(out, (0, 0), layout.tile, (0, 0, 0), tc.accumulator(16, 64))
        tc.wait_stores(0)

    out = na.zeros((32, 64), np.float16).sync()
    with pytest.raises(na.errors.NumbasyncError, match=message):
        stored[1, 32](na.tensor_map(out, (rows, width), 2 * width)).sync()
