"""The kernel of products by warps, also where `nn.gemm` would choose another one; its route."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync_kernels import nn
from numbasync_kernels.nn.finish import ACTIVATIONS
from numbasync_kernels.nn.matmul_warpgroups import dtype_of
from numbasync_kernels.nn.matmul_warps import Tile, matmul_warps, tile_of
from tests.common import full


@pytest.fixture(autouse=True)
def _has_tensor_cores(device: na.Device) -> None:
    if device.limits.tensor_cores == "none":
        pytest.skip("mma needs compute capability 8.0")


def integers(*shape: int, seed: int) -> np.ndarray[Any, Any]:
    """Small ones: their products and sums are exact in every dtype."""
    return np.random.default_rng(seed).integers(-3, 4, shape)


@pytest.mark.parametrize(
    ("dtype", "tile", "rows_of_k"),
    [full("float16", (64, 64, 2), (False, False)), ("float16", (64, 64, 3), (True, True)),
     ("bfloat16", (64, 128, 3), (False, True)), full("float16", (128, 64, 4), (True, False)),
     full("float32", (64, 64, 3), (False, False)), ("int8", (64, 64, 3), (False, False))],
)  # fmt: skip
async def test_products(
    device: na.Device, dtype: str, tile: tuple[int, int, int], rows_of_k: tuple[bool, bool]
) -> None:
    m, n, k = 72, 72, 144
    a, b = integers(m, k, seed=1), integers(k, n, seed=2)
    element = dtype_of(dtype)
    kernel = matmul_warps(dtype, Tile(*tile), rows_of_k)
    left = await na.from_host((a.T.copy() if rows_of_k[0] else a).astype(element))
    right = await na.from_host((b if rows_of_k[1] else b.T.copy()).astype(element))
    out = await na.full((m, n), 7, np.int32 if dtype == "int8" else np.float32)
    await kernel.launcher[kernel.blocks(out), kernel.tile.threads](out, left, right, k)
    np.testing.assert_array_equal(await out.to_host(), a @ b)


@pytest.mark.parametrize("size", [(1, 1, 0), (1, 3, 8), (65, 33, 64), (40, 70, 264)], ids=str)
async def test_sizes(device: na.Device, size: tuple[int, int, int]) -> None:
    m, n, k = size
    a, b = integers(m, k, seed=1), integers(n, k, seed=2)
    kernel = matmul_warps("float16", Tile(64, 64, 3))
    left, right = [await na.from_host(x.astype(np.float16)) for x in (a, b)]
    out = await na.full((m, n), 7, np.float16)
    await kernel.launcher[kernel.blocks(out), kernel.tile.threads](out, left, right, k)
    np.testing.assert_array_equal(await out.to_host(), a @ b.T)


@pytest.mark.parametrize("activation", [full("relu"), "gelu"])
async def test_finished_products(device: na.Device, activation: str) -> None:
    m, n, k = 40, 48, 64
    a, b = integers(m, k, seed=1), integers(k, n, seed=2)
    bias, residual = integers(n, seed=3), integers(m, n, seed=4)
    kernel = matmul_warps("float16", Tile(64, 64, 2), (False, True), ACTIVATIONS[activation])
    left, right, more = [await na.from_host(x.astype(np.float16)) for x in (a, b, residual)]
    out = await na.full((m, n), np.nan, np.float16)
    await kernel.launcher[kernel.blocks(out), kernel.tile.threads](
        out, left, right, k, 0, None, bias.astype(np.float32), more
    )
    want = nn.gemm_reference(a, b, bias, activation, residual)
    limit = 0 if activation == "relu" else 2.0**-11 + 2.0**-20
    np.testing.assert_allclose(await out.to_host(), want, rtol=limit, atol=limit)


# --- as a route of gemm ---


@pytest.fixture
def asked(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The kernels that `gemm` asks for, on a device that says it has `mma` and no `wgmma`."""
    kernels: list[tuple[Any, ...]] = []

    def noted(*arguments: Any) -> Any:
        kernels.append(arguments)
        return matmul_warps(*arguments)

    monkeypatch.setattr(device, "limits", dataclasses.replace(device.limits, tensor_cores="warps"))
    routes = sys.modules["numbasync_kernels.nn.gemm"]
    monkeypatch.setattr(routes, "matmul_warps", noted)
    monkeypatch.setattr(routes, "tile_of", lambda *_: Tile(64, 64, 2))
    return kernels


@pytest.mark.parametrize(
    ("dtype", "precision", "left", "right", "rows_of_k"),
    [full("float16", "float32", "rows", "rows", (False, True)),
     ("float16", "float32", "columns", "odd", (True, True)),
     full("bfloat16", "float32", "odd", "columns", (False, False)),
     full("float32", "tf32", "columns", "rows", (False, False)),
     ("float32", "tf32x3", "rows", "columns", (False, False)),
     full("int8", "float32", "odd", "rows", (False, False))],
)  # fmt: skip
def test_routes(
    device: na.Device, asked: list[Any], dtype: str, precision: str, left: str, right: str,
    rows_of_k: tuple[bool, bool],
) -> None:  # fmt: skip
    m, n, k = 72, 40, 88
    element = dtype_of(dtype)

    def stored(x: Any, order: str) -> na.Tensor:
        """The matrix by rows, by columns, or as a part of a larger one with an odd pitch."""
        x = x.astype(element)
        if order == "odd":
            return na.from_host(np.pad(x, ((1, 0), (3, 2)))).sync()[1:, 3:-2]
        return na.from_host(x).sync() if order == "rows" else na.from_host(x.T.copy()).sync().T

    a, b = integers(m, k, seed=1), integers(k, n, seed=2)
    out = na.full((m, n), 7, np.int32 if dtype == "int8" else element).sync()
    got = nn.gemm(out, stored(a, left), stored(b, right), precision=precision).sync()
    np.testing.assert_array_equal(got.to_host().sync().astype(float), a @ b)
    assert asked == [(dtype, Tile(64, 64, 2), rows_of_k, None)]


@pytest.mark.parametrize(
    ("shape", "multiprocessors", "shared_bytes", "tile"),
    [((4096, 4096), 132, 232448, (128, 256, 4)), ((2048, 2048), 132, 232448, (128, 256, 4)),
     ((1024, 1024), 132, 232448, (64, 128, 4)), ((64, 4096), 132, 232448, (64, 64, 3)),
     ((4096, 4096), 108, 166912, (128, 256, 3)), ((8192, 8192), 84, 101376, (128, 128, 3))],
)  # fmt: skip
def test_tiles(shape: Any, multiprocessors: int, shared_bytes: int, tile: Any) -> None:
    assert tile_of(shape, multiprocessors, shared_bytes) == tile
