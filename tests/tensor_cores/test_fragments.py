"""Fragments, products of a warp, and what is done with accumulators: each against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16
from numba import cuda, float32, int32

import numbasync as na
from numbasync import tensor_cores as tc

ROWS, COLUMNS = 32, 48  # of the result of one warp


def operands(dtype: Any, k: int, seed: int = 0) -> tuple[Any, Any]:
    """Small integers, whose products and sums are exact in every type; float32 of 11 bits."""
    rng = np.random.default_rng(seed)
    a = rng.integers(-4, 5, (ROWS, k)).astype(dtype)
    b = rng.integers(-4, 5, (COLUMNS, k)).astype(dtype)
    return a, b


def warp_product(dtype: Any, swizzle: int, transposed: bool, total: Any = float32) -> Any:
    """A kernel of one warp: out = a @ b.T, with tiles of one row's length along k."""
    size = np.dtype(dtype).itemsize
    width = (swizzle or 96) // size  # elements of a row
    step = 32 // size
    if transposed:
        wide = 64 if swizzle == 0 else width
        layout = na.shared_layout(
            a=tc.tile(dtype, (width, wide), swizzle), b=tc.tile(dtype, (width, wide), swizzle)
        )
    else:
        layout = na.shared_layout(
            a=tc.tile(dtype, (ROWS, width), swizzle), b=tc.tile(dtype, (COLUMNS, width), swizzle)
        )
    count = 16 // size

    @na.launcher
    @cuda.jit
    def kernel(out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
        lane = cuda.threadIdx.x
        for chunk in range(lane, a.shape[0] * a.shape[1] // count, 32):
            at = chunk * count
            row, column = at // a.shape[1], at % a.shape[1]
            tc.copy_async(layout.a, (row, column), a, (row, column), count)
        for chunk in range(lane, b.shape[0] * b.shape[1] // count, 32):
            at = chunk * count
            row, column = at // b.shape[1], at % b.shape[1]
            tc.copy_async(layout.b, (row, column), b, (row, column), count)
        tc.commit_copies()
        tc.wait_copies(0)
        cuda.syncwarp()
        acc = tc.accumulator(ROWS, COLUMNS, total)
        for k in range(0, width, step):
            if transposed:
                left = tc.load_a(layout.a, (k, 0), ROWS, True)
                right = tc.load_b(layout.b, (k, 0), COLUMNS, True)
            else:
                left = tc.load_a(layout.a, (0, k), ROWS)
                right = tc.load_b(layout.b, (0, k), COLUMNS)
            acc = tc.mma(acc, left, right)
        tc.store(out, (0, 0), acc)

    return kernel, width


@pytest.mark.parametrize("swizzle", [128, 64, 32, 0])
@pytest.mark.parametrize("dtype", [np.float16, bfloat16, np.float32, np.int8])
async def test_products_of_a_warp(device: na.Device, dtype: Any, swizzle: int) -> None:
    integers = dtype is np.int8
    kernel, k = warp_product(dtype, swizzle, False, int32 if integers else float32)
    a, b = operands(dtype, k)
    out = await na.zeros((ROWS, COLUMNS), np.int32 if integers else np.float32)
    await kernel[1, 32](out, a, b)
    np.testing.assert_array_equal(await out.to_host(), a.astype(float) @ b.astype(float).T)


@pytest.mark.parametrize("swizzle", [128, 0])
async def test_transposed_tiles(device: na.Device, swizzle: int) -> None:
    kernel, k = warp_product(np.float16, swizzle, True)
    rng = np.random.default_rng(1)
    wide = 64
    a, b = (rng.integers(-4, 5, (k, wide)).astype(np.float16) for _ in range(2))
    out = await na.zeros((ROWS, COLUMNS), np.float32)
    await kernel[1, 32](out, a, b)
    want = a[:, :ROWS].astype(float).T @ b[:, :COLUMNS].astype(float)
    np.testing.assert_array_equal(await out.to_host(), want)


# --- accumulators ---

HALF = na.shared_layout(a=tc.tile(np.float16, (ROWS, 64)), b=tc.tile(np.float16, (COLUMNS, 64)))


@cuda.jit(device=True)
def loaded(a, b):
    """The product of a whole row of both tiles."""
    lane = cuda.threadIdx.x % 32
    for chunk in range(lane, ROWS * 8, 32):
        tc.copy_async(HALF.a, (chunk // 8, chunk % 8 * 8), a, (chunk // 8, chunk % 8 * 8), 8)
    for chunk in range(lane, COLUMNS * 8, 32):
        tc.copy_async(HALF.b, (chunk // 8, chunk % 8 * 8), b, (chunk // 8, chunk % 8 * 8), 8)
    tc.commit_copies()
    tc.wait_copies(0)
    cuda.syncwarp()
    acc = tc.accumulator(ROWS, COLUMNS)
    for k in range(0, 64, 16):
        acc = tc.mma(acc, tc.load_a(HALF.a, (0, k), ROWS), tc.load_b(HALF.b, (0, k), COLUMNS))
    return acc


@cuda.jit(device=True)
def with_place(x, row, column, factor, bias):
    return x * factor + float32(1000 * row + column) + bias[column]


@na.launcher
@cuda.jit
def applied(out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, bias: na.KernelInput):
    acc = loaded(a, b)
    tc.store(out, (0, 0), tc.apply(with_place, acc, (0, 0), float32(2.0), bias))


async def test_a_function_of_every_element_and_its_place(device: na.Device) -> None:
    a, b = operands(np.float16, 64)
    bias = np.arange(COLUMNS, dtype=np.float32) / 4
    out = await na.zeros((ROWS, COLUMNS), np.float32)
    await applied[1, 32](out, a, b, bias)
    want = 2 * (a.astype(float) @ b.astype(float).T) + bias
    want += 1000 * np.arange(ROWS)[:, None] + np.arange(COLUMNS)
    np.testing.assert_array_equal(await out.to_host(), want)


@na.launcher
@cuda.jit
def row_numbers(
    maxima: na.KernelOutput, sums: na.KernelOutput, scaled: na.KernelOutput, a: na.KernelInput,
    b: na.KernelInput,
):  # fmt: skip
    acc = loaded(a, b)
    low = float32(-1e30)
    most = tc.row_max(acc, (low, low, low, float32(50.0)))
    total = tc.row_sum(acc)
    lane = cuda.threadIdx.x
    if lane % 4 == 0:
        for i in range(4):
            row = 8 * i + lane // 4
            maxima[row] = most[i]
            sums[row] = total[i]
    scaled_acc = tc.scale_rows(acc, (float32(1.0), float32(2.0), float32(3.0), float32(4.0)))
    tc.store(scaled, (0, 0), scaled_acc)


async def test_numbers_of_rows(device: na.Device) -> None:
    a, b = operands(np.float16, 64)
    product = a.astype(float) @ b.astype(float).T
    maxima, sums = await na.zeros(ROWS, np.float32), await na.zeros(ROWS, np.float32)
    scaled = await na.zeros((ROWS, COLUMNS), np.float32)
    await row_numbers[1, 32](maxima, sums, scaled, a, b)
    want = product.max(1)
    want[24:] = np.maximum(want[24:], 50)
    np.testing.assert_array_equal(await maxima.to_host(), want)
    np.testing.assert_array_equal(await sums.to_host(), product.sum(1))
    factors = np.repeat([1, 2, 3, 4], 8)[:, None]
    np.testing.assert_array_equal(await scaled.to_host(), product * factors)


@na.launcher
@cuda.jit
def powers(out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
    acc = loaded(a, b)
    low = float32(-1e30)
    most = tc.row_max(acc, (low, low, low, low))
    tc.store(out, (0, 0), tc.exp2_rows(acc, float32(0.125), most))


async def test_powers_of_rows(device: na.Device) -> None:
    a, b = operands(np.float16, 64)
    product = a.astype(float) @ b.astype(float).T
    out = await na.zeros((ROWS, COLUMNS), np.float32)
    await powers[1, 32](out, a, b)
    want = np.exp2(0.125 * (product - product.max(1, keepdims=True)))
    np.testing.assert_allclose(await out.to_host(), want, rtol=4e-7)


@na.launcher
@cuda.jit
def stored(
    out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, row: int, column: int
):  # fmt: skip
    tc.store(out, (row, column), loaded(a, b))


@pytest.mark.parametrize("dtype", [np.float16, bfloat16, np.float32])
@pytest.mark.parametrize(
    ("shape", "corner"),
    [((32, 48), (0, 0)), ((64, 96), (16, 24)), ((29, 41), (0, 0)), ((40, 50), (20, 8))],
)  # fmt: skip
async def test_storing_leaves_out_what_is_outside(
    device: na.Device, dtype: Any, shape: tuple[int, int], corner: tuple[int, int]
) -> None:
    a, b = operands(np.float16, 64)
    out = await na.full(shape, -7, dtype)
    await stored[1, 32](out, a, b, *corner)
    want = np.full(shape, -7, dtype)
    part = want[corner[0] : corner[0] + ROWS, corner[1] : corner[1] + COLUMNS]
    part[...] = (a.astype(float) @ b.astype(float).T)[: part.shape[0], : part.shape[1]]
    np.testing.assert_array_equal(await out.to_host(), want)


@na.launcher
@cuda.jit
def parts_of_rows(
    sums: na.KernelOutput, powers: na.KernelOutput, a: na.KernelInput, b: na.KernelInput
):
    acc = loaded(a, b)
    own = tc.row_sum(acc, False)
    lane = cuda.threadIdx.x
    for i in range(4):
        total = tc.sum_over_row(own[i])
        if lane % 4 == 3:
            sums[8 * i + lane // 4] = total
    powers[lane] = tc.exp2(float32(lane - 16) / float32(3.0))


async def test_sums_of_parts_of_rows_and_powers(device: na.Device) -> None:
    a, b = operands(np.float16, 64)
    sums, powers = await na.zeros(ROWS, np.float32), await na.zeros(32, np.float32)
    await parts_of_rows[1, 32](sums, powers, a, b)
    want = (a.astype(float) @ b.astype(float).T).sum(1)
    np.testing.assert_array_equal(await sums.to_host(), want)
    exact = np.exp2((np.arange(32) - 16) / 3)
    np.testing.assert_allclose(await powers.to_host(), exact, rtol=1e-6)
