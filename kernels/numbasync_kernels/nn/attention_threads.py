"""Attention without tensor cores: `softmax(q @ k.T * scale) @ v` for each head.

A block has 64 queries of a head, and goes through its keys, 64 at a time. Eight queries belong to
16 threads, each of which has every 16th key of the scores, and every 16th feature of the results.
Queries, keys, values and weights come from shared memory. Greatest scores and totals go along: what
was summed before a greater score is scaled.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

import numbasync as na
from numbasync import vectors
from numbasync.kernel_names import cuda, float32
from numbasync_kernels.nn.attention_tiles import (
    NEVER,
    heads_of,
    masked,
    page_of,
    sequence_of,
    tile_at,
)

QUERIES = 64  # of a block
KEYS = 64  # that are in shared memory at a time
EACH = 8  # queries of a thread
ACROSS = 16  # threads that have the same queries
THREADS = QUERIES // EACH * ACROSS
OF_KEYS = KEYS // ACROSS
PAD = 4  # elements; so that those of other features are in other banks
LOWEST = float32(-1e30)  # a key of a lower score is not seen
LINE = 8  # features beside each other that threads beside each other bring
CHUNK = 32  # features that are brought at a time
DOWN = QUERIES * LINE // THREADS
LOADS = DOWN * CHUNK // LINE  # of a thread, for them
EVERYONE = 0xFFFFFFFF


@cuda.jit(device=True)
def _bring(tile: Any, matrix: Any, first: Any, count: Any, by_feature: Any) -> None:
    """64 rows of a head into shared memory, from `first` on, of which `count` exist; 0 for others.
    `by_feature`: a feature's elements side by side, else a row's.
    """
    held = cuda.local.array(LOADS, float32)
    row = cuda.threadIdx.x // LINE
    features = tile.shape[0] if by_feature else tile.shape[1] - LINE
    for feature in range(cuda.threadIdx.x % LINE, features, CHUNK):
        for i in range(LOADS):  # all are under way before the first is used
            y, x = row + i % DOWN * (THREADS // LINE), feature + i // DOWN * LINE
            is_inside = y < count and x < matrix.shape[1]
            held[i] = float32(matrix[first + y, x]) if is_inside else float32(0.0)
        for i in range(LOADS):
            y, x = row + i % DOWN * (THREADS // LINE), feature + i // DOWN * LINE
            if by_feature:
                tile[x, y] = held[i]
            else:
                tile[y, x] = held[i]


@cuda.jit(device=True)
def _eight(held: Any, tile: Any, row: Any, column: Any) -> None:
    held[0], held[1], held[2], held[3] = vectors.load(tile, (row, column), 4)
    held[4], held[5], held[6], held[7] = vectors.load(tile, (row, column + 4), 4)


@cuda.jit(device=True)
def _over_row(value: Any, is_sum: Any) -> Any:
    """The greatest value, or the sum, of the threads that have the same queries."""
    step = ACROSS // 2
    while step > 0:
        other = cuda.shfl_xor_sync(EVERYONE, value, step)
        value = value + other if is_sum else max(value, other)
        step //= 2
    return value


@cuda.jit(device=True)
def _scaled(
    score: Any, query: Any, key: Any, mask: Any, page: Any, is_added: Any, scale: Any
) -> Any:
    """``score * scale``, and what a mask makes of it."""
    if mask is not None:
        return masked(score, query, key, mask, page, is_added, scale)
    return score * scale


@cache
def attention_threads(width: int) -> Any:
    """The launcher of ``out = softmax(q @ k.T * scale) @ v``, for each head.

    Args:
        width: features that a head has at most: a multiple of 32.

    The launcher's arguments, where "all heads" are those of all sequences: ``out``, ``q``, shape
    (all heads, queries, features), and ``k``, ``v``, shape (all key heads, keys, features), any
    views; the ``heads`` of a sequence; how many share a key head; ``queries``, of the longest
    sequence; ``causal``, 0 or 1; and ``scale``. The rest may be None: ``lengths``, the keys that
    exist of each sequence; ``offsets``; ``mask``, shape (n, queries or 1, keys), how many heads
    share one of the n, and whether it is added to scores. With ``offsets``, sequences lie one
    behind the other, and the shapes are (heads, tokens, features) and (key heads, tokens,
    features). A block for each 64 of `queries` of each head.

    Error bound, to first order, in the weighted sum of ``abs(v)``: with u = 2**-24, s the largest
    ``sum(abs(q) abs(k)) * scale`` of the query and r the range of its scores,
    ``2 ((width + 5) s + r + 4 + keys / 64) u`` for weights (a score's own error, that of the
    difference, 2 ulps of exp, and scaling, in one weight and in their total), and ``(2 keys + 3)
    u`` for the two sums; and half a unit of `out`.
    Source: M. Milakov, N. Gimelshein, Online normalizer calculation for softmax, 2018.
    """
    each = width // ACROSS
    resident = 3 if width < 128 else 1  # blocks of a multiprocessor, by their shared memory
    row = (EACH, OF_KEYS)
    mixed_shape = (EACH, each)
    tall = np.float32, (width, KEYS + PAD)
    layout = na.shared_layout(
        q=tall,
        k=tall,
        v=(np.float32, (KEYS, width + LINE)),
        weights=(np.float32, (KEYS, QUERIES + PAD)),
    )

    @na.launcher(threads=THREADS)
    @cuda.jit(launch_bounds=(THREADS, resident), cache=True)
    def attention_by_threads(
        out: na.KernelOutput, q: na.KernelInput, k: na.KernelInput, v: na.KernelInput,
        heads: int, shared_by: int, queries: int, causal: int, scale: float,
        lengths: na.KernelInput = None, offsets: na.KernelInput = None,
        mask: na.KernelInput = None, mask_shared: int = 1, mask_added: int = 0,
    ) -> None:  # fmt: skip
        asked, keys, values, weights = layout.q, layout.k, layout.v, layout.weights
        scores = cuda.local.array(row, float32)
        mixed = cuda.local.array(mixed_shape, float32)
        highest = cuda.local.array(EACH, float32)
        total = cuda.local.array(EACH, float32)
        held = cuda.local.array(EACH, float32)
        tx = cuda.threadIdx.x % ACROSS
        y = cuda.threadIdx.x // ACROSS * EACH
        blocks = (queries + QUERIES - 1) // QUERIES
        head, block = tile_at(cuda.blockIdx.x, 0, heads, blocks, False, offsets)
        begin, rows, count = sequence_of(head, heads, q.shape[1], k.shape[1], lengths, offsets)
        own, key_head = heads_of(head, heads, shared_by, offsets)
        shift = 0 if offsets is not None else k.shape[1] - q.shape[1]
        page = page_of(head, mask, mask_shared)
        top = block * QUERIES
        last = min(count, top + QUERIES + shift) if causal else count
        if top >= rows:
            last = 0
        for i in range(EACH):
            highest[i] = LOWEST
            total[i] = float32(0.0)
            for j in range(each):
                mixed[i, j] = float32(0.0)
        _bring(asked, q[own], begin + top, rows - top, True)
        for start in range(0, last, KEYS):
            _bring(keys, k[key_head], begin + start, last - start, True)
            _bring(values, v[key_head], begin + start, last - start, False)
            cuda.syncthreads()
            for i in range(EACH):
                for j in range(OF_KEYS):
                    scores[i, j] = float32(0.0)
            for feature in range(width):
                _eight(held, asked, feature, y)
                for j in range(OF_KEYS):
                    factor = keys[feature, tx + j * ACROSS]
                    for i in range(EACH):
                        scores[i, j] += held[i] * factor
            for i in range(EACH):
                query = top + y + i
                end = min(last, query + shift + 1) if causal else last
                most = highest[i]
                for j in range(OF_KEYS):
                    key = start + tx + j * ACROSS
                    score = _scaled(
                        scores[i, j], query, key, mask, page, mask_added, float32(scale)
                    )
                    scores[i, j] = score if key < end else NEVER
                    most = max(most, scores[i, j])
                most = _over_row(most, False)
                shrink = math.exp(highest[i] - most)
                highest[i] = most
                total[i] *= shrink
                for j in range(each):
                    mixed[i, j] *= shrink
                for j in range(OF_KEYS):
                    weight = math.exp(scores[i, j] - most)
                    scores[i, j] = weight
                    total[i] += weight
            for j in range(OF_KEYS):
                key = tx + j * ACROSS
                four = scores[0, j], scores[1, j], scores[2, j], scores[3, j]
                vectors.store(weights, (key, y), four)
                four = scores[4, j], scores[5, j], scores[6, j], scores[7, j]
                vectors.store(weights, (key, y + 4), four)
            cuda.syncthreads()
            for key in range(min(KEYS, last - start)):
                _eight(held, weights, key, y)
                for j in range(each):
                    factor = values[key, tx + j * ACROSS]
                    for i in range(EACH):
                        mixed[i, j] += held[i] * factor
            cuda.syncthreads()
        for i in range(EACH):
            sum_of_row = _over_row(total[i], True)
            share = float32(1.0) / sum_of_row if sum_of_row > float32(0.0) else float32(0.0)
            query = top + y + i
            if query < rows:
                for j in range(each):
                    feature = tx + j * ACROSS
                    if feature < out.shape[2]:
                        out[own, begin + query, feature] = mixed[i, j] * share

    return attention_by_threads
