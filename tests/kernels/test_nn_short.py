"""Kernels of transformers, of float16 and bfloat16: they compute in float32, and round once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import numbasync as na
from numbasync_kernels import nn
from tests.common import full, host

Array = np.ndarray[Any, Any]
# A unit of 1, and what float32 may have been away before a result was rounded.
UNITS = {np.float16: 2.0**-10, bfloat16: 2.0**-7}
DTYPES = pytest.mark.parametrize("dtype", [np.float16, full(bfloat16)], ids=["float16", "bfloat16"])


def normal(dtype: Any, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def is_rounded(got: Array, want: Array, dtype: Any) -> None:
    """Refuse an element that is more than half a unit, and what float32 adds, from `want`."""
    assert got.dtype == dtype
    away = np.abs(got.astype(np.float64) - want)
    assert (away <= 0.5001 * UNITS[dtype] * np.abs(want) + 1e-5).all(), away.max()


@pytest.mark.parametrize("width", [132, 35])  # 4 elements at once, and one by one
def test_norms(device: na.Device, width: int) -> None:
    dtype = np.float16
    x, residual = normal(dtype, 5, width), normal(dtype, 5, width, seed=1)
    scale, shift = normal(dtype, width, seed=2), normal(np.float32, width, seed=3)
    out, added = (na.full(x.shape, np.nan, dtype).sync() for _ in range(2))
    tile = nn.NORM_ROWS, width
    nn.layer_norm(out.partition(tile), x, scale, shift, 1e-5).sync()
    nn.add_layer_norm(added.partition(tile), x, residual, scale, shift, 1e-5).sync()
    x, residual, scale = (a.astype(np.float64) for a in (x, residual, scale))
    is_rounded(host(out), nn.layer_norm_reference(x, scale, shift, 1e-5), dtype)
    want = nn.add_layer_norm_reference(x, residual, scale, shift, 1e-5)
    is_rounded(host(added), want, dtype)


@DTYPES
def test_sentences(device: na.Device, dtype: Any) -> None:
    x = normal(dtype, 3, 21, 40)
    mask = (np.arange(21) < np.array([[21], [5], [0]])).astype(np.int32)
    pooled = na.full((3, 40), np.nan, dtype).sync()
    nn.mean_pool(pooled.partition(nn.POOL_TILE), x, mask).sync()
    is_rounded(host(pooled), nn.mean_pool_reference(x, mask), dtype)
    unit = na.full((3, 40), np.nan).sync()
    nn.unit_rows(unit.partition((nn.UNIT_ROWS, 40)), pooled).sync()
    want = nn.unit_rows_reference(host(pooled).astype(np.float64))
    np.testing.assert_allclose(host(unit), want, rtol=2e-6)

    ids = np.array([[3, 0, 2]], np.int32)
    tables = [normal(dtype, n, 40, seed=n) for n in (5, 4, 2)]
    out = na.full((1, 3, 40), np.nan, dtype).sync()
    nn.embedding(out.partition(nn.EMBEDDING_TILE), ids, np.zeros_like(ids), *tables).sync()
    is_rounded(host(out), nn.embedding_reference(ids, np.zeros_like(ids), *tables), dtype)


@pytest.mark.full
def test_attention(device: na.Device) -> None:
    dtype = np.float16
    q, k, v = (normal(dtype, 2, n, 24, seed=n) for n in (9, 35, 36))
    v = v[:, :35]
    mask = (np.arange(35) < np.array([[35], [7]])).astype(np.int32)
    out = na.full(q.shape, np.nan, dtype).sync()
    nn.attention(out.partition(nn.attention_tile(24, 3)), q, k, v, mask, 3).sync()
    is_rounded(host(out), nn.attention_reference(q, k, v, mask, 3), dtype)
