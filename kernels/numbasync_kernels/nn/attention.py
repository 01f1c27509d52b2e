"""Softmax attention of many heads: scores, weights and their sum in one kernel."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, float32
from numbasync_kernels.fits import FLOATS, INTEGERS, fits
from numbasync_kernels.nn.warp import WARP, warp_max, warp_sum

QUERIES = 8  # of a block, a warp each
MAX_KEYS = 512  # a row of scores lies in shared memory
MAX_WIDTH = 128  # of a head
PADDED = MAX_WIDTH + 1
PARTS = MAX_WIDTH // WARP  # features of a thread
NEVER = float32(-math.inf)


@na.launcher(
    tile=(1, QUERIES, WARP),  # of narrower heads a block makes several
    axes=(2, 1, 0),
    threads=(WARP, QUERIES),
    preconditions=[
        *fits("out q k v", 3, FLOATS),
        *fits("mask", 2, INTEGERS),
        "heads >= 1",
        "q.shape == out.shape",
        "k.shape == v.shape",
        "k.shape[0] == q.shape[0]",
        "k.shape[2] == q.shape[2]",
        "mask.shape == (k.shape[0], k.shape[1])",
        "k.shape[1] <= 512",
        "q.shape[2] % heads == 0",
        "q.shape[2] // heads <= 128",
    ],
)
@cuda.jit(cache=True)
def attention(
    out: na.KernelOutput,
    q: na.KernelInput,
    k: na.KernelInput,
    v: na.KernelInput,
    mask: na.KernelInput,
    heads: int,
) -> None:
    """``softmax(q k^T / sqrt(d)) v`` of every head; keys whose mask is 0 have no weight.

    Args:
        out: shape ``(sentences, queries, heads * d)``. It and the others are of float16,
            bfloat16 or float32.
        q: shape of `out`; head i is features ``i d`` to ``(i + 1) d``.
        k, v: shape ``(sentences, keys, heads * d)``. Views will do, so all three may be parts of
            one product.
        mask: shape ``(sentences, keys)``, integers.
        heads: how many; d is at most 128.

    Computes in float32. A warp takes a query. Keys, and then values, come through shared memory,
    32 at a time, and serve all 8 queries; the scores of up to 512 keys stay there until they are
    weights. Values that are masked are not read. A query whose keys are all masked gives zeros.
    For each 8 queries of a head, reads their d features, and d of each key and value.

    Raises:
        LaunchError: the shapes do not fit, there are more than 512 keys, or d is above 128;
            before anything is enqueued.

    Error bound, to first order, in the weighted sum of ``abs(v)``: with u = 2**-24, s the largest
    ``sum(abs(q) abs(k)) / sqrt(d)`` of the query and r the range of its scores,
    ``2 ((d + 5) s + r + 4) u`` for weights (a score's own error, that of the difference, and 2
    ulps of exp, in one weight and in their total), and ``(2 keys + 3) u`` for the two sums; and
    half a unit of `out`.
    Source: A. Vaswani et al., Attention Is All You Need, arXiv:1706.03762, 2017. The greatest
    score is taken off before exp, so nothing overflows.

    Examples:
        >>> from numbasync_kernels import nn
        >>> q = k = np.zeros((1, 2, 4), np.float32)  # all keys are as good as each other
        >>> v = np.array([[[1, 2, 3, 4], [5, 6, 7, 8]]], np.float32)
        >>> out = await na.zeros((1, 2, 4))
        >>> tiles, mask = out.partition(nn.attention_tile(4, 2)), np.ones((1, 2), np.int32)
        >>> _ = await nn.attention(tiles, q, k, v, mask, 2)  # of two heads
        >>> (await out.to_host()).tolist()
        [[[3.0, 4.0, 5.0, 6.0], [3.0, 4.0, 5.0, 6.0]]]
    """
    asked = cuda.shared.array((QUERIES, MAX_WIDTH), float32)
    tile = cuda.shared.array((WARP, PADDED), float32)  # padded: a column touches every bank
    weights = cuda.shared.array((QUERIES, MAX_KEYS), float32)
    mixed = cuda.local.array(PARTS, float32)
    lane = cuda.threadIdx.x
    warp = cuda.threadIdx.y
    width = q.shape[2] // heads
    count = k.shape[1]
    zero = float32(0.0)
    shrink = float32(1.0) / math.sqrt(float32(width))
    tiles = (q.shape[1] + QUERIES - 1) // QUERIES
    along_y = cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z
    block = cuda.blockIdx.x + cuda.gridDim.x * along_y
    blocks = cuda.gridDim.x * cuda.gridDim.y * cuda.gridDim.z
    for item in range(block, q.shape[0] * tiles * heads, blocks):
        first = item % heads * width
        query = item // heads % tiles * QUERIES + warp
        sentence = item // heads // tiles

        for i in range(lane, width, WARP):
            asked[warp, i] = (
                float32(q[sentence, query, first + i]) * shrink if query < q.shape[1] else zero
            )

        highest = NEVER
        for start in range(0, count, WARP):
            for row in range(warp, WARP, QUERIES):
                key = start + row
                for i in range(lane, width, WARP):
                    tile[row, i] = float32(k[sentence, key, first + i]) if key < count else zero
            cuda.syncthreads()
            key = start + lane
            score = NEVER
            if key < count and mask[sentence, key] != 0:
                score = zero
                for i in range(width):
                    score += asked[warp, i] * tile[lane, i]
            weights[warp, key] = score
            highest = max(highest, score)
            cuda.syncthreads()

        highest = warp_max(highest)
        total = zero
        for start in range(0, count, WARP):
            score = weights[warp, start + lane]
            weight = math.exp(score - highest) if score > NEVER else zero
            weights[warp, start + lane] = weight
            total += weight
        total = warp_sum(total)

        for part in range(PARTS):
            mixed[part] = zero
        for start in range(0, count, WARP):
            for row in range(warp, WARP, QUERIES):
                key = start + row
                counts = key < count and mask[sentence, key] != 0
                for i in range(lane, width, WARP):
                    tile[row, i] = float32(v[sentence, key, first + i]) if counts else zero
            cuda.syncthreads()  # the weights, too, are everyone's from here on
            for row in range(WARP):
                weight = weights[warp, start + row]
                for part in range(PARTS):
                    i = part * WARP + lane
                    if i < width:
                        mixed[part] += weight * tile[row, i]
            cuda.syncthreads()

        if query < q.shape[1]:
            share = float32(1.0) / total if total > zero else zero
            for part in range(PARTS):
                i = part * WARP + lane
                if i < width:
                    out[sentence, query, first + i] = mixed[part] * share


def attention_tile(features: int, heads: int) -> tuple[int, int, int]:
    """How to cut the output of `attention`: one sentence, 8 queries, one head.

    Examples:
        >>> from numbasync_kernels import nn
        >>> nn.attention_tile(384, 12)
        (1, 8, 32)
    """
    try:
        return 1, QUERIES, operator.index(features) // operator.index(heads)
    except (TypeError, ZeroDivisionError):
        raise na.errors.CallerError(
            f"attention_tile of {type(features).__name__} features and {type(heads).__name__} "
            "heads: write whole numbers of at least 1."
        ) from None


def attention_reference(
    q: np.ndarray[Any, Any],
    k: np.ndarray[Any, Any],
    v: np.ndarray[Any, Any],
    mask: np.ndarray[Any, Any],
    heads: int,
) -> np.ndarray[Any, Any]:
    """What `attention` approximates, in float64; shape of `q`."""

    def split(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        sentences, tokens, features = x.shape
        parts = x.astype(np.float64).reshape(sentences, tokens, heads, features // heads)
        return parts.transpose(0, 2, 1, 3)

    scores = split(q) @ split(k).transpose(0, 1, 3, 2) / math.sqrt(q.shape[2] // heads)
    counts = (mask != 0)[:, None, None, :]
    highest = np.where(counts, scores, -np.inf).max(axis=-1, keepdims=True)
    highest = np.where(np.isfinite(highest), highest, 0)
    weights = np.exp(np.where(counts, scores, -np.inf) - highest)
    total = weights.sum(axis=-1, keepdims=True)
    mixed = weights / np.where(total == 0, 1, total) @ split(v)
    result: np.ndarray[Any, Any] = mixed.transpose(0, 2, 1, 3).reshape(q.shape)
    return result
