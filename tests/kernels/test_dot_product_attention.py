"""Attention by tensor cores against float64."""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from ml_dtypes import bfloat16

import numbasync as na
from numbasync.errors import CallerError, DTypeError, ShapeError
from numbasync_kernels import nn
from numbasync_kernels.nn.dot_product_attention import groups_of_tile
from tests.common import full

Host = np.ndarray[Any, Any]

# Batch, heads, key heads, queries, keys, features of a head.
SHAPES = [
    (1, 4, 2, 17, 200, 128), (1, 2, 1, 1, 5, 64), full((1, 1, 1, 128, 128, 128)),
    full((2, 3, 3, 20, 30, 64)), full((1, 1, 1, 130, 257, 64)), full((1, 2, 1, 70, 140, 32)),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _has_tensor_cores(device: na.Device) -> None:
    if device.limits.tensor_cores not in ("warpgroups", "emulated"):
        pytest.skip("wgmma needs compute capability 9.0")


@pytest.mark.parametrize("causal", [full(False), True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
async def test_attention(device: na.Device, shape: tuple[int, ...], causal: bool) -> None:
    batch, heads, key_heads, queries, keys, width = shape
    rng = np.random.default_rng(0)
    q = rng.standard_normal((batch, heads, queries, width)).astype(np.float16)
    k, v = (
        rng.standard_normal((batch, key_heads, keys, width)).astype(np.float16) for _ in range(2)
    )
    await _compare(q, k, v, causal=causal)


async def _compare(q: Host, k: Host, v: Host, **arguments: Any) -> Host:
    """Attention of arrays is that of the reference; arrays among the arguments become tensors."""
    want = nn.dot_product_attention_reference(q, k, v, **arguments)
    for name, x in arguments.items():
        if isinstance(x, np.ndarray):
            arguments[name] = await na.from_host(x)
    out = await na.full(q.shape, np.nan, np.float16)
    tensors = [await na.from_host(x) for x in (q, k, v)]
    await nn.dot_product_attention(out, *tensors, **arguments)
    got = await out.to_host()
    bound = 2**-11 * (np.abs(want) + 2 * np.abs(v).max()) + q.shape[-1] * 2**-23
    away = np.abs(got - want)
    assert (away <= bound).all(), (away / bound).max()
    return got


@pytest.mark.full
@pytest.mark.parametrize("causal", [full(False), True])
async def test_lengths(device: na.Device, causal: bool) -> None:
    rng = np.random.default_rng(3)
    q = rng.standard_normal((4, 1, 40, 32)).astype(np.float16)
    k, v = (rng.standard_normal((4, 1, 150, 32)).astype(np.float16) for _ in range(2))
    lengths = np.array([150, 129, 3, 0], np.int32)
    for i, n in enumerate(lengths):
        k[i, :, n:] = 1000  # of padding nothing is seen
        v[i, :, n:] = 1
    got = await _compare(q, k, v, lengths=lengths, causal=causal)
    assert not got[3].any()  # no key is seen


MASKS = [
    ((2, 1, 40, 150), np.float16), full((150,), np.bool_), full((1, 2, 1, 150), np.float32),
    full((2, 2, 40, 150), np.bool_),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "dtype"), MASKS, ids=str)
async def test_masks(device: na.Device, shape: tuple[int, ...], dtype: type) -> None:
    rng = np.random.default_rng(4)
    q, k, v = (rng.standard_normal((2, 2, n, 32)).astype(np.float16) for n in (40, 150, 150))
    if dtype == np.bool_:
        mask = rng.random(shape) < 0.3
        mask[..., 128:] = False
    else:
        mask = (4 * rng.standard_normal(shape)).astype(dtype)
        mask[rng.random(shape) < 0.5] = -np.inf
    if len(shape) > 1 and shape[-2] > 1:
        mask[..., 7, :] = False if dtype == np.bool_ else -np.inf
    got = await _compare(q, k, v, mask=mask)
    if len(shape) > 1 and shape[-2] > 1:
        assert not got[..., 7, :].any()  # no key is seen


@pytest.mark.full
async def test_a_mask_with_lengths_a_scale_and_causal(device: na.Device) -> None:
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((2, 1, n, 64)).astype(np.float16) for n in (140, 150, 150))
    mask = rng.standard_normal((140, 150)).astype(np.float32)
    lengths = np.array([140, 20], np.int32)
    await _compare(q, k, v, mask=mask, lengths=lengths, scale=0.3, causal=True)


@pytest.mark.full
@pytest.mark.parametrize(
    ("causal", "longest", "key_heads"), [(False, 137, 1), full(True, None, 2)], ids=str
)
async def test_sequences_one_behind_the_other(
    device: na.Device, causal: bool, longest: int | None, key_heads: int
) -> None:
    rng = np.random.default_rng(6)
    first_v = 2 + key_heads
    projected = rng.standard_normal((200, first_v + key_heads, 64)).astype(np.float16)
    offsets = np.array([0, 3, 3, 140, 199], np.int32)
    q, k, v = projected[:, :2], projected[:, 2:first_v], projected[:, first_v:]
    want = nn.dot_product_attention_reference(q, k, v, causal, offsets=offsets)
    whole = await na.from_host(projected)
    out = await na.full((200, 2, 64), 7, np.float16)
    await nn.dot_product_attention(
        out, whole[:, :2], whole[:, 2:first_v], whole[:, first_v:], causal=causal,
        offsets=await na.from_host(offsets), longest=longest,
    )  # fmt: skip
    got = await out.to_host()
    assert np.abs(got[:199] - want).max() <= 4e-3
    np.testing.assert_array_equal(got[199:], 7)  # of no sequence

    lengths = np.array([2, 0, 130, 0], np.int32)
    want = nn.dot_product_attention_reference(q, k, v, causal, lengths=lengths, offsets=offsets)
    await nn.dot_product_attention(
        out, whole[:, :2], whole[:, 2:first_v], whole[:, first_v:], causal=causal,
        lengths=await na.from_host(lengths), offsets=await na.from_host(offsets), longest=longest,
    )  # fmt: skip
    assert np.abs((await out.to_host())[:199] - want).max() <= 4e-3


@pytest.mark.full
async def test_tiles_of_three_warpgroups(device: na.Device) -> None:
    rng = np.random.default_rng(7)
    q, k, v = (rng.standard_normal((2, 200, 64)).astype(np.float16) for _ in range(3))
    module = sys.modules["numbasync_kernels.nn.dot_product_attention"]
    with patch.object(module, "groups_of_tile", lambda *_: 3):
        await _compare(q, k, v, causal=True)


def test_the_warpgroups_of_a_tile() -> None:
    def groups(length: int, causal: bool, width: int = 64, heads: int = 256) -> int:
        return groups_of_tile(width, heads, length, length, causal, 132)

    assert [groups(512, c) for c in (False, True)] == [3, 2]
    assert [groups(2048, c, heads=64) for c in (False, True)] == [3, 3]
    assert [groups(n, False) for n in (1, 128, 256, 384)] == [2, 2, 2, 3]
    assert groups(4096, False, 128) == 2
    assert groups(192, False, heads=12) == 2  # all at once


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
    narrow = zeros(4, 8, 16)
    for tensors, error, text in [
        ((zeros(4, 8, 64, dtype=np.float32), q, k, k), DTypeError, "out is"),
        ((zeros(4, 9, 64), q, k, k), ShapeError, "into"),
        ((narrow, narrow, narrow, narrow), ShapeError, "d is 16"),
        ((zeros(3, 8, 64), zeros(3, 8, 64), k, k), ShapeError, "multiple of 2"),
        ((zeros(4, 8, 128)[:, :, :64], q, k, k), ShapeError, "out.*not C-contiguous"),
    ]:
        with pytest.raises(error, match=text):
            nn.dot_product_attention(*tensors)
    offsets = zeros(3, dtype=np.int32)
    for arguments, error, text in [
        ({"causal": True}, ShapeError, "some queries would see no key"),
        ({"lengths": zeros(1)}, DTypeError, "int32"),
        ({"lengths": zeros(2, dtype=np.int32)}, ShapeError, "a length for each sequence"),
        ({"mask": zeros(8, 5, dtype=np.int32)}, DTypeError, "bool"),
        ({"mask": zeros(5, 8)}, ShapeError, "C-contiguous mask of shape"),
        ({"mask": zeros(2, 8, 5)}, ShapeError, "C-contiguous mask of shape"),
        ({"mask": zeros(1, 4, 8, 5)}, ShapeError, "C-contiguous mask of shape"),
    ]:
        with pytest.raises(error, match=text):
            nn.dot_product_attention(zeros(4, 8, 64), q, k, k, **arguments)
    for arguments, error, text in [
        ({"offsets": zeros(3)}, DTypeError, "int32"),
        ({"offsets": zeros(1, dtype=np.int32)}, ShapeError, "where each\\s+sequence begins"),
        ({"offsets": offsets, "longest": 0}, CallerError, "at least 1"),
        ({"offsets": offsets, "mask": zeros(5, 8)}, CallerError, "write no mask"),
        ({"offsets": offsets, "lengths": offsets}, ShapeError, "a length for each sequence"),
    ]:
        with pytest.raises(error, match=text):
            nn.dot_product_attention(zeros(4, 8, 64), q, q, q, **arguments)
    with pytest.raises(ShapeError, match="the same tokens"):
        fewer = zeros(2, 8, 64)
        nn.dot_product_attention(zeros(4, 8, 64), q, fewer, fewer, offsets=offsets)
