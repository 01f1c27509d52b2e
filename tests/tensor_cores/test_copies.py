"""Boxes of matrices that the threads of a block copy together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16
from numba import cuda, float32, int32

import numbasync as na
from numbasync import tensor_cores as tc

ROWS, THREADS = 64, 64


def box_of(dtype: Any, swizzle: int, parts: int) -> tuple[Any, int]:
    """A kernel that copies a box into the second of two tiles, and stores it: multiplied by the
    unit matrix, as only products read tiles.
    """
    size = np.dtype(dtype).itemsize
    width = (swizzle or 32) // size  # elements of a row
    step = 32 // size
    total = int32 if np.dtype(dtype) == np.int8 else float32
    layout = na.shared_layout(
        a=tc.tile(dtype, (2, ROWS, width), swizzle), unit=tc.tile(dtype, (width, width), swizzle)
    )
    chunk = 16 // size
    part_rows = ROWS // parts

    @na.launcher
    @cuda.jit
    def kernel(
        out: na.KernelOutput, x: na.KernelInput, unit: na.KernelInput, row: int, column: int
    ):
        thread = cuda.threadIdx.x
        for part in range(parts):
            first = part * part_rows
            tc.copy_rows(layout.a, (1, first, 0), x, (row + first, column), thread, THREADS, parts)
        for i in range(thread, width * width // chunk, THREADS):
            line, at = i * chunk // width, i * chunk % width
            tc.copy_async(layout.unit, (line, at), unit, (line, at), chunk)
        tc.commit_copies()
        tc.wait_copies(0)
        cuda.syncthreads()
        own = thread // 32 * 32
        sums = tc.accumulator(32, width, total)
        for k in range(0, width, step):
            left = tc.load_a(layout.a, (1, own, k), 32)
            sums = tc.mma(sums, left, tc.load_b(layout.unit, (0, k), width))
        tc.store(out, (own, 0), sums)

    return kernel, width


@pytest.mark.parametrize(
    ("dtype", "swizzle", "parts"),
    [(np.float16, 128, 4), (bfloat16, 64, 1), (np.float16, 32, 2), (np.float16, 0, 1),
     (np.int8, 32, 2), (np.float32, 128, 8)],
)  # fmt: skip
async def test_boxes_of_a_matrix(device: na.Device, dtype: Any, swizzle: int, parts: int) -> None:
    kernel, width = box_of(dtype, swizzle, parts)
    integers = np.dtype(dtype) == np.int8
    whole = np.random.default_rng(2).integers(1, 9, (100, 2 * width + 16)).astype(dtype)
    x = await na.from_host(whole)
    chunk = 16 // np.dtype(dtype).itemsize
    unit = await na.from_host(np.eye(width).astype(dtype))
    view = x[3:, : width + chunk]  # rows that are further apart than they are long
    for row, column in [(0, 0), (60, width), (3, 2 * width), (200, 0)]:
        out = await na.full((ROWS, width), 7, np.int32 if integers else np.float32)
        await kernel[1, THREADS](out, view, unit, row, column)
        want = np.zeros((ROWS, width))
        inside = whole[3:, : width + chunk][row : row + ROWS, column : column + width]
        want[: inside.shape[0], : inside.shape[1]] = inside
        np.testing.assert_array_equal(await out.to_host(), want)


TILE = na.shared_layout(a=tc.tile(np.float16, (64, 64)))


@na.launcher
@cuda.jit
def by_three_threads(out: na.KernelOutput, x: na.KernelInput):
    tc.copy_rows(TILE.a, (0, 0), x, (0, 0), cuda.threadIdx.x, 3)


@na.launcher
@cuda.jit
def in_many_parts(out: na.KernelOutput, x: na.KernelInput):
    tc.copy_rows(TILE.a, (0, 0), x, (0, 0), cuda.threadIdx.x, 256, 4)


@na.launcher
@cuda.jit
def of_other_elements(out: na.KernelOutput, x: na.KernelInput):
    tc.copy_rows(TILE.a, (0, 0), out, (0, 0), cuda.threadIdx.x, 64)


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        (by_three_threads, "by 3 threads: 128 bytes are a row"),
        (in_many_parts, "64 rows in 4 parts: 256 threads copy 32 at a time"),
        (of_other_elements, "their elements differ"),
    ],
)
def test_what_cannot_be_divided(device: na.Device, kernel: Any, told: str) -> None:
    out, x = na.zeros((8, 8)).sync(), na.zeros((64, 64), np.float16).sync()
    with pytest.raises(na.errors.KernelCompileError, match=told):
        kernel[1, 32](out, x).sync()
