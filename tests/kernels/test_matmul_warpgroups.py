"""The kernel of products by warpgroups, also where `nn.gemm` would choose another one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync_kernels import nn
from numbasync_kernels.nn.finish import ACTIVATIONS
from numbasync_kernels.nn.matmul_warpgroups import THREADS, dtype_of, matmul_warpgroups
from tests.common import full


@pytest.fixture(autouse=True)
def _has_tensor_cores(device: na.Device) -> None:
    if device.limits.tensor_cores not in ("warpgroups", "emulated"):
        pytest.skip("wgmma needs compute capability 9.0")


def integers(*shape: int, seed: int) -> np.ndarray[Any, Any]:
    """Small ones: their products and sums are exact in every dtype."""
    return np.random.default_rng(seed).integers(-3, 4, shape)


@pytest.mark.parametrize(
    ("dtype", "columns", "rows_of_k", "stored"),
    [full("float16", 64, False, None), ("float16", 128, True, "float16"),
     full("bfloat16", 64, True, "bfloat16"), ("float32", 64, False, "float32"),
     full("float16", 256, False, None), full("float16", 96, False, "float16")],
)  # fmt: skip
async def test_products(
    device: na.Device, dtype: str, columns: int, rows_of_k: bool, stored: str | None
) -> None:
    m, n, k = 136, 72, 200
    a, b = integers(m, k, seed=1), integers(k, n, seed=2)
    element = dtype_of(dtype)
    kernel = matmul_warpgroups(dtype, columns, rows_of_k, stored=stored)
    left = await na.from_host(a.astype(element))
    right = await na.from_host((b if rows_of_k else b.T.copy()).astype(element))
    out = await na.full((m, n), np.nan, dtype_of(stored or "float32"))
    maps = na.tensor_map(left, kernel.box_a), na.tensor_map(right, kernel.box_b)
    await kernel.launcher[kernel.blocks(out, 2), THREADS](kernel.target(out), *maps, k, n, m)
    want = (a @ b).astype(np.float32).astype(out.dtype)
    np.testing.assert_array_equal(await out.to_host(), want)


@pytest.mark.parametrize("activation", [full("relu"), "gelu"])
async def test_finished_products(device: na.Device, activation: str) -> None:
    m, n, k = 40, 48, 64
    a, b = integers(m, k, seed=1), integers(k, n, seed=2)
    bias, residual = integers(n, seed=3), integers(m, n, seed=4)
    kernel = matmul_warpgroups("float16", 64, True, ACTIVATIONS[activation])
    left, right, more = [await na.from_host(x.astype(np.float16)) for x in (a, b, residual)]
    out = await na.full((m, n), np.nan, np.float16)
    maps = na.tensor_map(left, kernel.box_a), na.tensor_map(right, kernel.box_b)
    await kernel.launcher[1, THREADS](out, *maps, k, n, m, None, bias.astype(np.float32), more)
    want = nn.gemm_reference(a, b, bias, activation, residual)
    limit = 0 if activation == "relu" else 2.0**-11 + 2.0**-20
    np.testing.assert_allclose(await out.to_host(), want, rtol=limit, atol=limit)
