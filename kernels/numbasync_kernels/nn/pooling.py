"""From a vector a token to a vector a sentence: the mean of what counts, and unit length."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, float32, int32
from numbasync_kernels.fits import FLOATS, INTEGERS, fits
from numbasync_kernels.nn.warp import WARP, warp_sum

POOL_TILE = (1, WARP)
POOL_WARPS = 16  # of a block, which share the tokens of a sentence
UNIT_ROWS = 4  # rows, and warps, of a block


@na.launcher(
    tile=POOL_TILE,
    axes=(1, 0),
    threads=(WARP, POOL_WARPS),
    preconditions=[
        *fits("out", 2, FLOATS),
        *fits("x", 3, FLOATS),
        *fits("mask", 2, INTEGERS),
        "out.shape == (x.shape[0], x.shape[2])",
        "mask.shape == (x.shape[0], x.shape[1])",
    ],
)
@cuda.jit(cache=True)
def mean_pool(out: na.KernelOutput, x: na.KernelInput, mask: na.KernelInput) -> None:
    """The mean of each sentence's tokens whose mask is not 0; zeros where there is none.

    Args:
        out: shape ``(sentences, h)``. It and `x` are of float16, bfloat16 or float32.
        x: shape ``(sentences, tokens, h)``.
        mask: shape ``(sentences, tokens)``, integers.

    A thread adds up one feature of every 16th token, so neighbouring threads read neighbouring
    elements; the warps' sums are added in order. What is masked is not read. Computes in float32.
    Reads at most ``sentences * tokens * h`` elements.

    Error bound: ``(tokens / 16 + 16) u`` of the mean of sizes, u = 2**-24, to first order: that
    many additions and a division; and half a unit of `out`.

    Examples:
        >>> from numbasync_kernels import nn
        >>> x = np.array([[[1, 2], [3, 4], [90, 90]]], np.float32)  # the last token is padding
        >>> out = await na.zeros((1, 2))
        >>> _ = await nn.mean_pool(out.partition(nn.POOL_TILE), x, np.array([[1, 1, 0]], np.int32))
        >>> (await out.to_host()).tolist()
        [[2.0, 3.0]]
    """
    totals = cuda.shared.array((POOL_WARPS, WARP), float32)
    counts = cuda.shared.array((POOL_WARPS, WARP), int32)
    lane = cuda.threadIdx.x
    warp = cuda.threadIdx.y
    along_y = cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z
    block = cuda.blockIdx.x + cuda.gridDim.x * along_y
    across = (out.shape[1] + WARP - 1) // WARP
    sentence = block // across
    feature = block % across * WARP + lane
    total = float32(0.0)
    count = int32(0)
    if feature < out.shape[1]:
        for token in range(warp, x.shape[1], POOL_WARPS):
            if mask[sentence, token] != 0:
                total += float32(x[sentence, token, feature])
                count += int32(1)
    totals[warp, lane] = total
    counts[warp, lane] = count
    cuda.syncthreads()
    if warp == 0 and feature < out.shape[1]:
        for other in range(1, POOL_WARPS):
            total += totals[other, lane]
            count += counts[other, lane]
        out[sentence, feature] = total / float32(max(count, int32(1)))


def mean_pool_reference(
    x: np.ndarray[Any, Any], mask: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """What `mean_pool` approximates, in float64; shape ``(sentences, h)``."""
    counts = (mask != 0).astype(np.float64)
    total = np.einsum("sth,st->sh", x.astype(np.float64), counts)
    result: np.ndarray[Any, Any] = total / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return result


@na.launcher(
    tile=(UNIT_ROWS, None),
    axes=(1, 0),
    threads=(WARP, UNIT_ROWS),
    preconditions=(*fits("out x", 2, FLOATS), "x.shape == out.shape"),
)
@cuda.jit(cache=True)
def unit_rows(out: na.KernelOutput, x: na.KernelInput) -> None:
    """Every row divided by its length; a row of zeros stays one.

    Args:
        out: shape ``(n, h)``. It and `x` are of float16, bfloat16 or float32.
        x: shape ``(n, h)``, whose squares float32 holds: sizes from 1e-18 to 1e18.

    A warp takes a row. Reads 2nh elements, half of them from the cache, and writes nh.

    Error bound: ``(ceil(h / 32) / 2 + 6) u`` of the result, u = 2**-24, to first order: the root
    leaves half of the error of a sum of h / 32 squares a thread and 5 additions of threads; it
    rounds once itself, and so does the quotient; and half a unit of `out`.

    Examples:
        >>> from numbasync_kernels import nn
        >>> out = await na.zeros((1, 2))
        >>> tiles = out.partition((nn.UNIT_ROWS, 2))
        >>> _ = await nn.unit_rows(tiles, np.array([[3, 4]], np.float32))
        >>> (await out.to_host()).round(3)
        array([[0.6, 0.8]], dtype=float32)
    """
    width = out.shape[1]
    step = cuda.gridDim.x * cuda.gridDim.y * cuda.gridDim.z * UNIT_ROWS
    along_y = cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z
    block = cuda.blockIdx.x + cuda.gridDim.x * along_y
    for row in range(block * UNIT_ROWS + cuda.threadIdx.y, out.shape[0], step):
        own = float32(0.0)
        for i in range(cuda.threadIdx.x, width, WARP):
            value = float32(x[row, i])
            own += value * value
        length = math.sqrt(warp_sum(own))
        if length == float32(0.0):
            length = float32(1.0)
        for i in range(cuda.threadIdx.x, width, WARP):
            out[row, i] = float32(x[row, i]) / length


def unit_rows_reference(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What `unit_rows` approximates, in float64; the last axis is the row."""
    wide = x.astype(np.float64)
    length = np.sqrt(np.square(wide).sum(axis=-1, keepdims=True))
    result: np.ndarray[Any, Any] = wide / np.where(length == 0, 1, length)
    return result
