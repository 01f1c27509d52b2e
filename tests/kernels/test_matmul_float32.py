"""Products of float32 by `matmul_float32`, also on a device for which `nn.gemm` chooses another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync_kernels.nn import matmul_float32 as products
from numbasync_kernels.nn.finish import ACTIVATIONS
from numbasync_kernels.nn.matmul_float32 import COSTS, Tile, multiply_float32, tile_of
from tests.common import full, mostly_full

# Whether operands are transposed views, and m, n, k: less than a tile and a step, and several.
CASES = [
    (False, [(4, 8, 4), (132, 68, 44), (8, 4, 0)]),  # four elements at a time
    full(True, [(4, 8, 4), (132, 68, 44)]),
    (True, [(2, 3, 2), (131, 67, 45), (3, 129, 8)]),  # one
]


@pytest.fixture(autouse=True)
def _of_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 64, so that there are several, and few kernels are compiled."""
    monkeypatch.setattr(products, "tile_of", lambda *_: Tile(64, 64))


def normal(*shape: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


async def placed(x: np.ndarray[Any, Any], transposed: bool = False) -> na.Tensor:
    """A tensor of these elements; if it is transposed, those of a column are neighbours."""
    if transposed:
        return (await na.from_host(np.ascontiguousarray(x.T))).T
    return await na.from_host(x)


async def check(
    a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], left: na.Tensor, right: na.Tensor
) -> None:
    """Compare a product with float64, up to the bound of the docstring."""
    out = await na.full((a.shape[0], b.shape[1]), np.nan, np.float32)
    given = await multiply_float32(out, left, right)
    assert given.shape == out.shape
    exact = a.astype(np.float64) @ b
    bound = (a.shape[1] + 1) * 2.0**-24 * (abs(a).astype(np.float64) @ abs(b))
    assert (abs(await out.to_host() - exact) <= 1.01 * bound).all()


@pytest.mark.parametrize(("transposed", "sizes"), CASES, ids=str)
async def test_products(
    device: na.Device, transposed: bool, sizes: list[tuple[int, int, int]]
) -> None:
    for m, n, k in sizes:
        a, b = normal(m, k, seed=1), normal(k, n, seed=2)
        await check(a, b, await placed(a, transposed), await placed(b, transposed))


@pytest.mark.full
async def test_views_of_which_nothing_around_is_used(device: na.Device) -> None:
    a, b = np.full((50, 99), np.nan, np.float32), np.full((99, 77), np.nan, np.float32)
    in_a, in_b = np.s_[3:43, 1:60], np.s_[5:64, 11:44]
    a[in_a], b[in_b] = normal(40, 59, seed=1), normal(59, 33, seed=2)
    left, right = await placed(a), await placed(b)
    await check(a[in_a], b[in_b], left[in_a], right[in_b])


@pytest.mark.parametrize("tile", mostly_full(COSTS.keys() - {Tile(64, 64)}), ids=str)
async def test_what_is_done_at_the_end(
    device: na.Device, monkeypatch: pytest.MonkeyPatch, tile: Tile
) -> None:
    """Here in the other tiles."""
    monkeypatch.setattr(products, "tile_of", lambda *_: tile)
    a, b = normal(140, 28, seed=1), normal(28, 132, seed=2)
    bias, residual = normal(132, seed=3), normal(140, 132, seed=4)
    left, right, more, rest = [await placed(x) for x in (a, b, bias, residual)]
    out = await na.full((140, 132), np.nan, np.float32)
    await multiply_float32(out, left, right, more, rest, ACTIVATIONS["relu"])
    want = np.maximum(a.astype(np.float64) @ b + bias, 0) + residual
    np.testing.assert_allclose(await out.to_host(), want, rtol=1e-6, atol=1e-5)


async def test_no_rows(device: na.Device) -> None:
    out = await na.zeros((0, 4), np.float32)
    left, right = await na.zeros((0, 4), np.float32), await na.zeros((4, 4), np.float32)
    assert (await multiply_float32(out, left, right)).shape == (0, 4)


@pytest.mark.full
@pytest.mark.parametrize("offsets", [full(None), [0, 3, 3, 90, 140, 150]], ids=str)
async def test_groups_of_rows(device: na.Device, offsets: list[int] | None) -> None:
    """Groups of less than a tile, of no row, of more than a tile; rows behind the last group."""
    rows, ends = 32, [*range(0, 161, 32)] if offsets is None else offsets
    a, b, bias = normal(160, 28, seed=1), normal(5, 28, 68, seed=2), normal(68, seed=3)
    left, right, more = [await placed(x) for x in (a, b, bias)]
    out = await na.full((160, 68), 7, np.float32)
    given = None if offsets is None else await na.from_host(np.array(offsets))
    await multiply_float32(out, left, right, more, rows=rows, offsets=given)
    got = await out.to_host()
    for matrix, start, end in zip(b, ends[:-1], ends[1:], strict=True):
        want = a[start:end].astype(np.float64) @ matrix + bias
        np.testing.assert_allclose(got[start:end], want, rtol=1e-6, atol=1e-5)
    assert (got[ends[-1] :] == 7).all()


def test_the_tile_that_finishes_a_result_first() -> None:
    square = [tile_of(n, n, 132) for n in (8192, 4096, 2048, 1024, 100)]
    assert square == [(128, 128), (128, 128), (128, 128), (64, 64), (64, 64)]
    layers = [tile_of(4096, n, 132) for n in (384, 1152, 1536, 4096)]
    assert layers == [(64, 96), (64, 96), (64, 96), (128, 128)]
    assert [tile_of(512, 512, 132, count=c) for c in (1, 64)] == [(64, 64), (128, 128)]
