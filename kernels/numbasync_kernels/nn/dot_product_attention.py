"""Attention of any length: `softmax(q k^T scale) v` for each head."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import numbasync as na
from numbasync.memo import Memo
from numbasync_kernels.fits import name_of
from numbasync_kernels.nn.attention_arguments import (
    check_offsets,
    check_tensors,
    flat_lengths,
    mask_pages,
)
from numbasync_kernels.nn.attention_threads import QUERIES, THREADS, attention_threads
from numbasync_kernels.nn.attention_tiles import KEYS
from numbasync_kernels.nn.attention_warpgroups import attention_warpgroups

DEVICES = ("warpgroups", "emulated")
TIME_OF_TWO = 1.17  # of a query in tiles of two warpgroups, beside one in tiles of three


def dot_product_attention(
    out: na.Tensor,
    q: na.Tensor,
    k: na.Tensor,
    v: na.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    mask: na.Tensor | None = None,
    lengths: na.Tensor | None = None,
    offsets: na.Tensor | None = None,
    longest: int | None = None,
) -> na.DeviceOp[na.Tensor]:
    """``softmax(q @ k.T * scale + mask) @ v`` of every head, as an operation that gives `out`.

    Args:
        out, q: shape ``(..., heads, queries, d)``, float16, bfloat16 or float32; d is 32, 64 or
            128.
        k, v: shape ``(..., key heads, keys, d)``, of the same dtype; the number of heads is a
            multiple of that of key heads, and neighbouring heads share one.
        causal: query i sees keys up to ``i + keys - queries`` only; there are at least as many keys
            as queries.
        scale: default ``1 / sqrt(d)``.
        mask: shape ``(keys,)``, ``(queries, keys)`` or ``(batch, heads, queries, keys)``, of which
            all but the keys may be 1. Of bool: True where a query sees a key; of float16, bfloat16
            or float32: added to scores, where less than -1e30 is as good as not seen.
        lengths: int32, one of each sequence, shape ``q.shape[:-3]`` (or ``(sequences,)``): keys
            from there on are padding, and not seen; what lies there must be finite. Padded queries
            are computed like others.
        offsets: int32, shape ``(sequences + 1,)``: sequences lie one behind the other, without
            padding, or padded if there are `lengths`; sequence i has the tokens from ``offsets[i]``
            to ``offsets[i + 1]``, and sees no other. Then out and q have the shape ``(tokens,
            heads, d)``, k and v ``(tokens, key heads, d)``, and there is no `mask`.
        longest: with offsets: at least the tokens of the longest sequence; more takes longer.
            Default: all tokens.

    A query that sees no key gives 0. All tensors are C-contiguous, but q, k and v of three axes may
    be views, with steps of multiples of 16 bytes, such as parts of one projection. Any length.
    Reads each operand about once, and writes out; scores stay in registers. A mask is read element
    by element: its kernel is slower than that of `causal` or `lengths`. On GPUs of capability 9.0,
    16-bit elements are multiplied by tensor cores (`attention_warpgroups`); else by threads, in
    float32 (`attention_threads`). See these for the bounds of the error, and their sources.

    Raises:
        ShapeError, DTypeError, CallerError: the arguments do not fit.

    Examples:
        >>> from numbasync_kernels import nn
        >>> q, k = await na.zeros((1, 2, 32)), await na.zeros((1, 2, 32))
        >>> v = np.stack([np.full(32, 2), np.full(32, 4)])[None].astype(np.float32)
        >>> out, v = await na.zeros((1, 2, 32)), await na.from_host(v)
        >>> _ = await nn.dot_product_attention(out, q, k, v, causal=True)
        >>> (await out.to_host())[0, :, 0].tolist()  # the first query sees the first key only
        [2.0, 3.0]
    """
    p = Arguments(out, q, k, v, causal, scale, mask, lengths, offsets, longest)
    kind = _kind(p)
    way = None if kind is None else _ways.get(kind)
    if way is None:
        way = _way_of(p)
        if kind is not None:
            _ways[kind] = way
    return way(p)


class Arguments(NamedTuple):
    """The arguments of a `dot_product_attention`."""

    out: na.Tensor
    q: na.Tensor
    k: na.Tensor
    v: na.Tensor
    causal: bool
    scale: float | None
    mask: na.Tensor | None
    lengths: na.Tensor | None
    offsets: na.Tensor | None
    longest: int | None


# The checks, and the choice of a kernel, are made once for arguments of one kind; as in `gemm`.
Way: TypeAlias = Callable[[Arguments], na.DeviceOp[na.Tensor]]

_ways = Memo[Hashable, Way](1024)


def _kind(p: Arguments) -> Hashable:
    """What the checks, and the way, depend on; None: arguments that are to be checked, whose types
    are not known to be right.
    """
    out, q, k, v, causal, scale, mask, lengths, offsets, longest = p
    if not (type(out) is type(q) is type(k) is type(v) is na.Tensor and type(causal) is bool):
        return None
    if not (scale is None or type(scale) is float) or not (longest is None or type(longest) is int):
        return None
    device = out.device
    cores = None if device is None else device.limits.tensor_cores
    key: list[Hashable] = [device, cores, causal, scale, longest]
    for t in (out, q, k, v):
        key += (t.fingerprint, t.strides)
    for extra in (mask, lengths, offsets):
        if extra is None:
            key.append(None)
        elif type(extra) is na.Tensor:
            key.append(extra.fingerprint)
        else:
            return None
    return tuple(key)


def _way_of(p: Arguments) -> Way:
    out, q, k, v, causal, scale, mask, lengths, offsets, longest = p
    is_packed = offsets is not None
    check_tensors(out, q, k, v, is_packed, causal)
    limits = None if out.device is None else out.device.limits
    by_threads = limits is None or limits.tensor_cores not in DEVICES or q.dtype.itemsize > 2
    multiprocessors = 1 if limits is None else limits.multiprocessors
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    shared: int
    if offsets is not None:
        if mask is not None:
            raise na.errors.CallerError(
                "dot_product_attention(offsets=...): write no mask; offsets and lengths say which "
                "keys there are."
            )
        check_offsets(offsets, longest)
        flat_lengths(lengths, (offsets.shape[0] - 1,))
        tokens, heads, width = q.shape
        shared = heads // k.shape[1]
        queries = tokens if longest is None else min(longest, tokens)
        all_heads = (offsets.shape[0] - 1) * heads
        if by_threads:
            return _by_threads(p, _heads_first, all_heads, heads, shared, queries, factor, 1, False)
        kernel = attention_warpgroups(name_of(q.dtype), width, causal)
        tiles = all_heads * -(-queries // kernel.queries)
        return _by_warpgroups(
            kernel, min(tiles, multiprocessors), _unchanged, (tokens, heads * width),
            (kernel.queries, 1, kernel.columns), (KEYS, 1, kernel.columns),
            (all_heads, heads, shared, queries, queries, factor), 1, False,
        )  # fmt: skip
    heads, queries, width = q.shape[-3:]
    key_heads, keys, _ = k.shape[-3:]
    shared = heads // key_heads
    all_heads = math.prod(q.shape[:-2])
    flat_lengths(lengths, q.shape[:-3])
    pages = mask_pages(mask, q, keys)
    if by_threads:
        return _by_threads(
            p, _of_heads, all_heads, heads, shared, queries, factor, pages.shared_by, pages.is_added
        )
    groups = groups_of_tile(width, all_heads, queries, keys, causal, multiprocessors)
    kernel = attention_warpgroups(name_of(q.dtype), width, causal, groups)
    tiles = all_heads * -(-queries // kernel.queries)
    return _by_warpgroups(
        kernel, kernel.blocks(tiles, keys, causal, multiprocessors), _of_heads, (-1, width),
        (1, kernel.queries, kernel.columns), (1, KEYS, kernel.columns),
        (all_heads, heads, shared, queries, keys, factor), pages.shared_by, pages.is_added,
    )  # fmt: skip


def _by_threads(
    p: Arguments, view: Callable[[na.Tensor], na.Tensor], all_heads: int, heads: int, shared: int,
    queries: int, factor: float, mask_shared: int, is_added: bool,
) -> Way:  # fmt: skip
    blocks = all_heads * -(-queries // QUERIES)
    call = attention_threads(p.q.shape[-1])[blocks, THREADS]
    numbers = heads, shared, queries, int(p.causal), factor
    added = int(is_added)

    def attend(p: Arguments) -> na.DeviceOp[na.Tensor]:
        out = p.out
        launched: na.DeviceOp[Any] = call(
            view(out), view(p.q), view(p.k), view(p.v), *numbers, _flat(p.lengths), p.offsets,
            _paged(p.mask), mask_shared, added,
        )  # fmt: skip
        return launched.map(lambda _: out)

    return attend


def _by_warpgroups(
    kernel: Any, blocks: int, view: Callable[[na.Tensor], na.Tensor], rows: tuple[int, int],
    box_q: tuple[int, ...], box_k: tuple[int, ...], numbers: tuple[float, ...], mask_shared: int,
    is_added: bool,
) -> Way:  # fmt: skip
    call, swizzle, added = kernel.launcher[blocks, kernel.threads], kernel.swizzle, int(is_added)

    def attend(p: Arguments) -> na.DeviceOp[na.Tensor]:
        out = p.out
        launched: na.DeviceOp[Any] = call(
            out.reshape(rows), na.tensor_map(view(p.q), box_q, swizzle),
            na.tensor_map(view(p.k), box_k, swizzle), na.tensor_map(view(p.v), box_k, swizzle),
            *numbers, _flat(p.lengths), p.offsets, _paged(p.mask), mask_shared, added,
        )  # fmt: skip
        return launched.map(lambda _: out)

    return attend


def _unchanged(t: na.Tensor) -> na.Tensor:
    return t


def _flat(lengths: na.Tensor | None) -> na.Tensor | None:
    """Checked lengths, along one axis."""
    return lengths if lengths is None or lengths.ndim == 1 else lengths.reshape(-1)


def _paged(mask: na.Tensor | None) -> na.Tensor | None:
    """A checked mask as the kernel takes it: `MaskPages.pages`."""
    if mask is None:
        return None
    rows, keys = mask.shape[-2:] if mask.ndim > 1 else (1, mask.shape[-1])
    return mask.reshape(-1, rows, keys)


def _of_heads(t: na.Tensor) -> na.Tensor:
    """The tensor with one axis of heads."""
    return t if t.ndim == 3 else t.reshape(-1, *t.shape[-2:])


def _heads_first(t: na.Tensor) -> na.Tensor:
    """The tensor, of tokens and heads, with the heads first."""
    return t.T.mT.T


@lru_cache(maxsize=1024)
def groups_of_tile(
    width: int, heads: int, queries: int, keys: int, causal: bool, multiprocessors: int
) -> int:
    """The warpgroups, of 64 queries each, by whose tiles attention is done first."""

    def time(groups: int) -> float:
        rows = 64 * groups
        blocks = -(-queries // rows)
        seen = [min(keys, (i + 1) * rows + keys - queries) if causal else keys
                for i in range(blocks)]  # fmt: skip
        steps = sum(-(-n // KEYS) for n in seen) / blocks
        return max(heads * blocks, multiprocessors) * steps * rows * (TIME_OF_TWO, 1)[groups - 2]

    return 2 if width == 128 else min((2, 3), key=time)


def dot_product_attention_reference(
    q: np.ndarray[Any, Any],
    k: np.ndarray[Any, Any],
    v: np.ndarray[Any, Any],
    causal: bool = False,
    scale: float | None = None,
    mask: np.ndarray[Any, Any] | None = None,
    lengths: np.ndarray[Any, Any] | None = None,
    offsets: np.ndarray[Any, Any] | None = None,
    longest: int | None = None,
) -> np.ndarray[Any, Any]:
    """What `dot_product_attention` approximates, in float64."""
    if offsets is not None:
        hq, hk, hv = (x.swapaxes(0, 1) for x in (q, k, v))
        ends = [None] * (len(offsets) - 1) if lengths is None else lengths
        parts = [
            dot_product_attention_reference(
                hq[:, a:b], hk[:, a:b], hv[:, a:b], causal, scale, lengths=n
            )
            for (a, b), n in zip(itertools.pairwise(offsets), ends, strict=True)
        ]
        return np.concatenate(parts, axis=1).swapaxes(0, 1)
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    shared_by = q.shape[-3] // k.shape[-3]
    k, v = (np.repeat(x, shared_by, axis=-3) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    queries, keys = scores.shape[-2:]
    seen = np.ones(scores.shape, bool)
    if causal:
        seen &= np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
    if lengths is not None:
        seen &= np.arange(keys) < lengths.reshape((*q.shape[:-3], 1, 1, 1))
    if mask is not None and mask.dtype == np.bool_:
        seen &= mask
    elif mask is not None:
        scores = scores + mask.astype(np.float64)
    scores = np.where(seen, scores, -np.inf)
    most = np.maximum(scores.max(-1, keepdims=True, initial=-np.inf), -1e30)
    weights = np.exp(scores - most)
    total = weights.sum(-1, keepdims=True)
    result: np.ndarray[Any, Any] = weights @ v / np.where(total == 0, 1, total)
    return result
