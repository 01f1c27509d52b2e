"""Attention of any length by tensor cores: `softmax(q k^T scale) v` for each head."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

import numbasync as na
from numbasync_kernels.nn.attention_warpgroups import attention_warpgroups

DTYPES = ("float16", "bfloat16")
WIDTHS = (64, 128)
DEVICES = ("warpgroups", "emulated")


def dot_product_attention(
    out: na.Tensor,
    q: na.Tensor,
    k: na.Tensor,
    v: na.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> na.DeviceOp[na.Tensor]:
    """``softmax(q @ k.T * scale) @ v`` of every head, as an operation that gives `out`.

    Args:
        out, q: shape ``(..., heads, queries, d)``, float16 or bfloat16; d is 64 or 128.
        k, v: shape ``(..., key heads, keys, d)``, of the same dtype; the number of heads is a
            multiple of that of key heads, and neighbouring heads share one.
        causal: query i sees keys up to ``i + keys - queries`` only; there are at least as many keys
            as queries.
        scale: default ``1 / sqrt(d)``.

    All tensors are C-contiguous. Any length. Reads each operand about once, and writes out; scores
    stay in registers. See `attention_warpgroups` for the bound of the error, and its source.

    Raises:
        ShapeError, DTypeError: the tensors do not fit.
        UnsupportedKernelError: the device has no tensor cores of capability 9.0.
    """
    _check(out, q, k, v, causal)
    device = out.device
    if device is None or device.limits.tensor_cores not in DEVICES:
        raise na.errors.UnsupportedKernelError(
            f"dot_product_attention on {out!r}: only GPUs of capability 9.0 have `wgmma`.\n"
            "Write nn.attention, of float32 and at most 512 keys."
        )
    heads, _, width = q.shape[-3:]
    key_heads, keys, _ = k.shape[-3:]

    def of_heads(t: na.Tensor) -> na.Tensor:
        return t if t.ndim == 3 else t.reshape(-1, *t.shape[-2:])

    flat = of_heads(out)
    kernel = attention_warpgroups(q.dtype.name, width, causal)
    maps = [
        na.tensor_map(of_heads(q), kernel.box_q),
        na.tensor_map(of_heads(k), kernel.box_k),
        na.tensor_map(of_heads(v), kernel.box_k),
    ]
    blocks = kernel.blocks(flat, keys, causal, device.limits.multiprocessors)
    factor = 1 / math.sqrt(width) if scale is None else scale
    launched: na.DeviceOp[Any] = kernel.launcher[blocks, kernel.threads](
        flat, *maps, keys, heads // key_heads, factor
    )
    result: na.DeviceOp[na.Tensor] = launched.first()
    return result if flat is out else result.reshape(out.shape)


@cache
def _is_supported(dtype: np.dtype[Any]) -> bool:
    return dtype.name in DTYPES  # NumPy computes the name each time


def _check(out: na.Tensor, q: na.Tensor, k: na.Tensor, v: na.Tensor, causal: bool) -> None:
    errors = na.errors
    tensors = {"out": out, "q": q, "k": k, "v": v}
    for name, t in tensors.items():
        if t.dtype != q.dtype or not _is_supported(t.dtype):
            raise errors.DTypeError(
                f"dot_product_attention: {name} is {t!r}; write {DTYPES}, all equal."
            )
        if t.ndim < 3 or not t.is_contiguous or not t.size:
            raise errors.ShapeError(
                f"dot_product_attention: {name} is {t!r}; write a C-contiguous tensor of shape "
                "(..., heads, length, d)."
            )
    if q.shape[-1] not in WIDTHS or k.shape[-1] != q.shape[-1]:
        raise errors.ShapeError(
            f"dot_product_attention: d is {q.shape[-1]} and {k.shape[-1]}; write 64 or 128, equal."
        )
    if out.shape != q.shape or k.shape != v.shape or k.shape[:-3] != q.shape[:-3]:
        raise errors.ShapeError(
            f"dot_product_attention of shapes {q.shape}, {k.shape} and {v.shape} into {out.shape}: "
            "write (..., heads, queries, d) and (..., key heads, keys, d)."
        )
    if q.shape[-3] % k.shape[-3]:
        raise errors.ShapeError(
            f"dot_product_attention: {q.shape[-3]} heads are no multiple of {k.shape[-3]} key "
            "heads."
        )
    if causal and k.shape[-2] < q.shape[-2]:
        raise errors.ShapeError(
            f"dot_product_attention(causal=True) of {q.shape[-2]} queries and {k.shape[-2]} keys: "
            "some queries would see no key."
        )


def dot_product_attention_reference(
    q: np.ndarray[Any, Any],
    k: np.ndarray[Any, Any],
    v: np.ndarray[Any, Any],
    causal: bool = False,
    scale: float | None = None,
) -> np.ndarray[Any, Any]:
    """What `dot_product_attention` approximates, in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    shared_by = q.shape[-3] // k.shape[-3]
    k, v = (np.repeat(x, shared_by, axis=-3) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        queries, keys = scores.shape[-2:]
        hidden = np.arange(keys) > np.arange(queries)[:, None] + keys - queries
        scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    result: np.ndarray[Any, Any] = weights @ v / weights.sum(-1, keepdims=True)
    return result
