"""Attention of float32, without tensor cores, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync_kernels import nn

Host = np.ndarray[Any, Any]


def normal(*shape: int, seed: int) -> Host:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


async def _compare(q: Host, k: Host, v: Host, **arguments: Any) -> Host:
    """Attention of arrays is that of the reference; arrays among the arguments become tensors."""
    want = nn.dot_product_attention_reference(q, k, v, **arguments)
    for name, x in arguments.items():
        if isinstance(x, np.ndarray):
            arguments[name] = await na.from_host(x)
    out = await na.full(q.shape, np.nan)
    tensors = [await na.from_host(x) for x in (q, k, v)]
    given = await nn.dot_product_attention(out, *tensors, **arguments)
    assert given.shape == q.shape
    got = await out.to_host()
    # The bound of the docstring, with sums of products and ranges that these scores do not exceed.
    off = 2 * ((q.shape[-1] + 5) * 30 + 60) * 2.0**-24
    assert np.abs(got - want).max() <= off * np.abs(v).max()
    return got


@pytest.mark.parametrize("causal", [False, True])
async def test_lengths_and_shared_heads(device: na.Device, causal: bool) -> None:
    q = normal(3, 2, 70, 32, seed=1)
    k, v = normal(3, 1, 150, 32, seed=2), normal(3, 1, 150, 32, seed=3)
    lengths = np.array([150, 65, 0], np.int32)
    got = await _compare(q, k, v, lengths=lengths, causal=causal)
    assert not got[2].any()  # no key is seen


@pytest.mark.full
async def test_a_mask(device: na.Device) -> None:
    q, k, v = (normal(2, 2, n, 32, seed=i) for i, n in enumerate((9, 70, 70)))
    seen = np.random.default_rng(5).random((2, 1, 9, 70)) < 0.4
    seen[..., 7, :] = False
    mask = np.where(seen, np.float32(0.5), np.float32(-np.inf))
    got = await _compare(q, k, v, mask=mask, scale=0.3)
    assert not got[..., 7, :].any()


async def test_scores_that_grow_from_key_to_key(device: na.Device) -> None:
    """What was summed before a greater score is scaled; exp of these would be infinite."""
    q, k, v = (normal(1, 1, 140, 32, seed=n) for n in range(3))
    k[0, 0, :, 0], q[0, 0, :, 0] = np.arange(140) * 30, 8
    out, keys = await na.full(q.shape, np.nan), await na.full(1, 140, np.int32)
    tensors = [await na.from_host(x) for x in (q, k, v)]
    await nn.dot_product_attention(out, *tensors, lengths=keys)
    want = nn.dot_product_attention_reference(q, k, v)
    np.testing.assert_allclose(await out.to_host(), want, atol=2e-3)


@pytest.mark.full
async def test_sequences_one_behind_the_other(device: na.Device) -> None:
    projected = normal(160, 4, 32, seed=6)
    offsets, lengths = np.array([0, 3, 3, 140, 159], np.int32), np.array([2, 0, 130, 0], np.int32)
    q, k, v = projected[:, :2], projected[:, 2:3], projected[:, 3:]
    whole, ends, begins = [await na.from_host(x) for x in (projected, lengths, offsets)]
    want = nn.dot_product_attention_reference(q, k, v, lengths=lengths, offsets=offsets)
    out = await na.full((160, 2, 32), 7)
    await nn.dot_product_attention(
        out, whole[:, :2], whole[:, 2:3], whole[:, 3:], lengths=ends, offsets=begins, longest=137
    )
    got = await out.to_host()
    assert np.abs(got[:159] - want).max() <= 1e-4
    np.testing.assert_array_equal(got[159:], 7)  # of no sequence
