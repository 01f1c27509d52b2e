"""Attention by tensor cores against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import numbasync as na
from numbasync.errors import DTypeError, ShapeError
from numbasync_kernels import nn

# Batch, heads, key heads, queries, keys, features of a head.
SHAPES = [
    (1, 1, 1, 128, 128, 128), (2, 2, 2, 20, 30, 64), (1, 4, 2, 17, 200, 128), (1, 2, 1, 1, 5, 64),
    (1, 1, 1, 130, 257, 64),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _has_tensor_cores(device: na.Device) -> None:
    if device.limits.tensor_cores not in ("warpgroups", "emulated"):
        pytest.skip("wgmma needs compute capability 9.0")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
async def test_attention(device: na.Device, shape: tuple[int, ...], causal: bool) -> None:
    batch, heads, key_heads, queries, keys, width = shape
    rng = np.random.default_rng(0)
    q = rng.standard_normal((batch, heads, queries, width)).astype(np.float16)
    k, v = (
        rng.standard_normal((batch, key_heads, keys, width)).astype(np.float16) for _ in range(2)
    )
    tensors = [await na.from_host(x) for x in (q, k, v)]
    out = await na.full(q.shape, np.nan, np.float16)
    await nn.dot_product_attention(out, *tensors, causal=causal)
    want = nn.dot_product_attention_reference(q, k, v, causal)
    bound = 2**-11 * (np.abs(want) + 2 * np.abs(v).max()) + width * 2**-23
    away = np.abs(await out.to_host() - want)
    assert (away <= bound).all(), (away / bound).max()


async def test_attention_of_bfloat16(device: na.Device) -> None:
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((2, 40, 64)).astype(bfloat16) for _ in range(3))
    out = await na.full(q.shape, 7, bfloat16)
    await nn.dot_product_attention(out, *[await na.from_host(x) for x in (q, k, v)])
    want = nn.dot_product_attention_reference(q, k, v)
    away = np.abs((await out.to_host()).astype(float) - want)
    assert away.max() <= 2**-8 * (np.abs(want).max() + 2 * np.abs(v.astype(float)).max())


async def test_the_scale(device: na.Device) -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 40, 64)).astype(np.float16) for _ in range(3))
    out = await na.full(q.shape, np.nan, np.float16)
    await nn.dot_product_attention(out, *[await na.from_host(x) for x in (q, k, v)], scale=0.5)
    want = nn.dot_product_attention_reference(q, k, v, scale=0.5)
    np.testing.assert_allclose(await out.to_host(), want, atol=4e-3)


def test_what_is_refused(device: na.Device) -> None:
    def zeros(*shape: int, dtype: Any = np.float16) -> na.Tensor:
        return na.zeros(shape, dtype).sync()

    q, k = zeros(4, 8, 64), zeros(2, 5, 64)
    for tensors, error, text in [
        ((zeros(4, 8, 64, dtype=np.float32), q, k, k), DTypeError, "out is"),
        ((zeros(4, 9, 64), q, k, k), ShapeError, "into"),
        ((zeros(4, 8, 32), zeros(4, 8, 32), zeros(2, 5, 32), zeros(2, 5, 32)), ShapeError, "d is"),
        ((zeros(3, 8, 64), zeros(3, 8, 64), k, k), ShapeError, "multiple of 2"),
    ]:
        with pytest.raises(error, match=text):
            nn.dot_product_attention(*tensors)
    with pytest.raises(ShapeError, match="some queries would see no key"):
        nn.dot_product_attention(zeros(4, 8, 64), q, k, k, causal=True)
