"""Products of batches and of groups of rows, in one launch each, and products in parts of k."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import numbasync as na
from numbasync.errors import CallerError, ShapeError
from numbasync_kernels import nn
from numbasync_kernels.nn.matmul_warpgroups import ROWS, THREADS, dtype_of, matmul_warpgroups
from numbasync_kernels.nn.matmul_warps import Tile
from numbasync_kernels.nn.split_k import sum_of_parts
from numbasync_kernels.nn.tiling import tiling
from tests.common import full

ENDS = [0, 3, 3, 140, 200, 200]  # of groups: short ones, empty ones, one of more than a tile


def integers(*shape: int, seed: int) -> np.ndarray[Any, Any]:
    """Small ones: their products and sums are exact in every dtype."""
    return np.random.default_rng(seed).integers(-3, 4, shape)


def grouped(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The products of the groups at `ENDS`; -1 in rows of no group."""
    want = np.full((len(a), b.shape[2]), -1.0)
    for i, (start, end) in enumerate(itertools.pairwise(ENDS)):
        want[start:end] = a[start:end] @ b[i]
    return want


@pytest.mark.parametrize("transposed", [False, full(True)])
async def test_a_batch(device: na.Device, transposed: bool) -> None:
    a, b = integers(3, 37, 40, seed=1), integers(3, 40, 70, seed=2)
    bias, residual = integers(70, seed=3), integers(3, 37, 70, seed=4)
    left, ends = [await na.from_host(x.astype(np.float16)) for x in (a, residual)]
    right = await na.from_host((b.swapaxes(1, 2).copy() if transposed else b).astype(np.float16))
    out = await na.full((3, 37, 70), np.nan, np.float16)
    result = await nn.batched_gemm(
        out, left, right.mT if transposed else right, activation="relu", residual=ends,
        bias=await na.from_host(bias.astype(np.float32)),
    )  # fmt: skip
    assert result.shape == out.shape
    want = np.maximum(a @ b + bias, 0) + residual
    np.testing.assert_array_equal((await out.to_host()).astype(np.float32), want)


@pytest.mark.full
async def test_a_batch_of_products_without_terms(device: na.Device) -> None:
    left, right = await na.zeros((3, 4, 0), np.float16), await na.zeros((3, 0, 5), np.float16)
    out = await na.full((3, 4, 5), 7, np.float16)
    await nn.batched_gemm(out, left, right)
    assert not (await out.to_host()).any()


@pytest.mark.full
async def test_a_batch_of_views(device: na.Device) -> None:
    a, b = integers(3, 30, 21, seed=1), integers(6, 21, 33, seed=2)
    left = await na.from_host(a.astype(np.float32))
    right = await na.from_host(b.astype(np.float32))
    for precision in ("float32", "tf32"):
        out = await na.full((3, 20, 33), np.nan, np.float32)
        await nn.batched_gemm(out, left[:, 5:25], right[::2], precision=precision)
        np.testing.assert_array_equal(await out.to_host(), a[:, 5:25] @ b[::2])


@pytest.mark.parametrize("dtype", ["float16", full("float32")])
async def test_groups(device: na.Device, dtype: str) -> None:
    a, b = integers(210, 40, seed=1), integers(5, 40, 72, seed=2)
    left, right = [await na.from_host(x.astype(dtype_of(dtype))) for x in (a, b)]
    offsets = await na.from_host(np.array(ENDS))
    out = await na.full((210, 72), -1, np.float32)
    await nn.grouped_gemm(out, left, right, offsets, precision="tf32")
    np.testing.assert_array_equal(await out.to_host(), grouped(a, b))


@pytest.mark.parametrize("transposed", [False, full(True)])
async def test_groups_of_int8(device: na.Device, transposed: bool) -> None:
    a, b = integers(210, 40, seed=1), integers(5, 40, 72, seed=2)
    left = await na.from_host(a.astype(np.int8))
    right = await na.from_host((b.swapaxes(1, 2).copy() if transposed else b).astype(np.int8))
    matrices = right.mT if transposed else right
    out = await na.full((210, 72), -1, np.int32)
    await nn.grouped_gemm(out, left, matrices, await na.from_host(np.array(ENDS)))
    np.testing.assert_array_equal(await out.to_host(), grouped(a, b))
    batch, ends = await na.full((5, 42, 72), -1, np.int32), a.reshape(5, 42, 40)
    await nn.batched_gemm(batch, left.reshape(5, 42, 40), matrices)
    np.testing.assert_array_equal(await batch.to_host(), ends @ b)


@pytest.mark.full
@pytest.mark.parametrize(
    ("dtype", "stored"),
    [full("float16", "rows"), ("bfloat16", "columns"), full("float16", "odd"),
     full("float32", "rows"), full("int8", "columns"), ("int8", "odd")],
)  # fmt: skip
async def test_groups_by_warps(
    device: na.Device, monkeypatch: pytest.MonkeyPatch, dtype: str, stored: str
) -> None:
    """On a device that says it has `mma` and no `wgmma`."""
    if device.limits.tensor_cores == "none":
        pytest.skip("mma needs compute capability 8.0")
    limits = dataclasses.replace(device.limits, tensor_cores="warps")
    monkeypatch.setattr(device, "limits", limits)
    routes, tiles = sys.modules["numbasync_kernels.nn.several_products"], []
    monkeypatch.setattr(routes, "tile_of", lambda *a: tiles.append(a) or Tile(64, 64, 2))
    k = 39 if stored == "odd" else 40
    a, b, bias = integers(210, k, seed=1), integers(5, k, 72, seed=2), integers(72, seed=3)
    element = dtype_of(dtype)
    placed = (b.swapaxes(1, 2).copy() if stored == "columns" else b).astype(element)
    left, right = await na.from_host(a.astype(element)), await na.from_host(placed)
    out = await na.full((210, 72), -1, np.int32 if dtype == "int8" else np.float32)
    added = None if dtype == "int8" else await na.from_host(bias.astype(np.float32))
    await nn.grouped_gemm(
        out, left, right.mT if stored == "columns" else right,
        await na.from_host(np.array(ENDS)), precision="tf32", bias=added,
    )  # fmt: skip
    want = grouped(a, b)
    want[: ENDS[-1]] += bias * (added is not None)
    np.testing.assert_array_equal(await out.to_host(), want)
    assert len(tiles) == 1, "another kernel was chosen"


@pytest.mark.parametrize("rows_of_k", [False, full(True)])
async def test_groups_by_warpgroups(device: na.Device, rows_of_k: bool) -> None:
    if device.limits.tensor_cores not in ("warpgroups", "emulated"):
        pytest.skip("wgmma needs compute capability 9.0")
    a, b = integers(210, 40, seed=1), integers(5, 40, 72, seed=2)
    kernel = matmul_warpgroups("bfloat16", 64, rows_of_k, several="groups")
    left = await na.from_host(a.astype(bfloat16))
    right = await na.from_host((b if rows_of_k else b.swapaxes(1, 2).copy()).astype(bfloat16))
    out = await na.full((210, 72), -1, np.float32)
    maps = na.tensor_map(left, kernel.box_a), na.tensor_map(right, kernel.box_b)
    await kernel.launcher[3, THREADS](out, *maps, 40, out.shape[1], 1, np.array(ENDS))
    np.testing.assert_array_equal(await out.to_host(), grouped(a, b))


async def test_parts_of_k_by_warpgroups(device: na.Device) -> None:
    if device.limits.tensor_cores not in ("warpgroups", "emulated"):
        pytest.skip("wgmma needs compute capability 9.0")
    m, n, k = 40, 72, 304
    a, b = integers(m, k, seed=1), integers(k, n, seed=2)
    kernel = matmul_warpgroups("float16", 64, True, several="parts")
    left, right = [await na.from_host(x.astype(np.float16)) for x in (a, b)]
    parts = await na.full((3 * m, n), np.nan, np.float32)
    maps = na.tensor_map(left, kernel.box_a), na.tensor_map(right, kernel.box_b)
    await kernel.launcher[2, THREADS](parts, *maps, 128, n, m)
    each = (await parts.to_host()).reshape(3, m, n)
    np.testing.assert_array_equal(each[1], a[:, 128:256] @ b[128:256])
    out = await na.full((m, n), np.nan, np.float16)
    bias = np.arange(n, dtype=np.float32)
    await sum_of_parts(out, parts.reshape(3, m, n), bias, None, 1)
    np.testing.assert_array_equal(await out.to_host(), np.maximum(a @ b + bias, 0))
    assert m < ROWS, "the rows behind the last part's are the next part's"


@pytest.mark.full
@pytest.mark.parametrize("dtype", [full("float16"), "float32"])
async def test_a_long_product_is_computed_in_parts(device: na.Device, dtype: str) -> None:
    m, n, k = 40, 72, 3000
    assert tiling(m, n, k // 64, 132).parts > 1
    a, b = integers(m, k, seed=1), integers(k, n, seed=2)
    left, right = [await na.from_host(x.astype(dtype)) for x in (a, b)]
    out = await na.full((m, n), np.nan, np.float32)
    bias = await na.from_host(np.arange(n, dtype=np.float32))
    await nn.gemm(out, left, right, bias=bias, precision="tf32")
    np.testing.assert_array_equal(await out.to_host(), a @ b + np.arange(n))


def test_few_tiles_become_smaller_and_divide_k() -> None:
    square = [tiling(n, n, n // 64, 132) for n in (8192, 4096, 2048, 1024, 128)]
    assert square == [(256, 1), (256, 1), (256, 1), (64, 1), (64, 1)]
    assert tiling(128, 4096, 64, 132) == (64, 2)
    assert tiling(64, 1024, 128, 132) == (64, 8)
    assert tiling(512, 512, 16, 132, count=64).parts == 1
    layers = [(1152, 6), (384, 6), (1536, 6), (384, 24)]  # of 4,096 tokens
    assert [tiling(4096, *layer, 132, unit=32).columns for layer in layers] == [96, 96, 192, 96]


def test_what_is_refused(device: na.Device) -> None:
    def zeros(*shape: int, dtype: Any = np.float16) -> na.Tensor:
        return na.zeros(shape, dtype).sync()

    out, a, b = zeros(2, 4, 6), zeros(2, 4, 5), zeros(2, 5, 6)
    ends = zeros(3, dtype=np.int64)
    for call, error, text in [
        (lambda: nn.batched_gemm(out, a, b[0]), ShapeError, "count, k, n"),
        (lambda: nn.batched_gemm(out, a[:1], b), ShapeError, "count, m, k"),
        (lambda: nn.batched_gemm(out, a, b.mT), ShapeError, "write"),
        (lambda: nn.batched_gemm(out.mT, b.mT, a.mT), CallerError, "C-contiguous"),
        (lambda: nn.batched_gemm(out, a, b, residual=zeros(3, 4, 6)), ShapeError, "residual"),
        (lambda: nn.grouped_gemm(out[0], a[0], b, ends[1:]), ShapeError, "int64"),
        (lambda: nn.grouped_gemm(out[0], a[0], b[0], ends), ShapeError, "groups, k, n"),
        (lambda: nn.grouped_gemm(out[0], a[0], b, ends, activation="x"), CallerError, "'relu'"),
    ]:
        with pytest.raises(error, match=text):
            call()
