"""From a vector a token to a vector a sentence: the mean of what counts, and unit length."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda, float32

import numbasync as na
from numbasync_kernels.fits import FLOAT32, INTEGERS, fits
from numbasync_kernels.nn.warp import WARP, warp_sum

POOL_TILE = (1, 128)
UNIT_ROWS = 4  # rows, and warps, of a block


@na.launcher(
    axes=(1, 0),
    preconditions=[
        *fits("out", 2, FLOAT32),
        *fits("x", 3, FLOAT32),
        *fits("mask", 2, INTEGERS),
        "out.shape == (x.shape[0], x.shape[2])",
        "mask.shape == (x.shape[0], x.shape[1])",
    ],
)
@cuda.jit(cache=True)
def mean_pool(out: na.KernelOutput, x: na.KernelInput, mask: na.KernelInput) -> None:
    """The mean of each sentence's tokens whose mask is not 0; zeros where there is none.

    Args:
        out: shape ``(sentences, h)``, float32; cut it by `POOL_TILE`.
        x: shape ``(sentences, tokens, h)``, float32.
        mask: shape ``(sentences, tokens)``, integers.

    A thread adds up one feature, so neighbouring threads read neighbouring elements. What is
    masked is not read. Reads at most ``sentences * tokens * h`` elements.

    Error bound: ``tokens u`` of the mean of sizes, u = 2**-24, to first order: tokens - 1
    additions and a division.
    """
    feature, sentence = cuda.grid(2)
    if sentence < out.shape[0] and feature < out.shape[1]:
        total = float32(0.0)
        count = 0
        for token in range(x.shape[1]):
            if mask[sentence, token] != 0:
                total += x[sentence, token, feature]
                count += 1
        out[sentence, feature] = total / float32(max(count, 1))


def mean_pool_reference(
    x: np.ndarray[Any, Any], mask: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """What `mean_pool` approximates, in float64; shape ``(sentences, h)``."""
    counts = (mask != 0).astype(np.float64)
    total = np.einsum("sth,st->sh", x.astype(np.float64), counts)
    result: np.ndarray[Any, Any] = total / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return result


@na.launcher(
    axes=(1, 0),
    threads=(WARP, UNIT_ROWS),
    preconditions=(*fits("out x", 2, FLOAT32), "x.shape == out.shape"),
)
@cuda.jit(cache=True)
def unit_rows(out: na.KernelOutput, x: na.KernelInput) -> None:
    """Every row divided by its length; a row of zeros stays one.

    Args:
        out: shape ``(n, h)``, float32; cut it by ``(UNIT_ROWS, h)``.
        x: shape ``(n, h)``, float32, whose squares float32 holds: sizes from 1e-18 to 1e18.

    A warp takes a row. Reads 2nh elements, half of them from the cache, and writes nh.

    Error bound: ``(ceil(h / 32) / 2 + 6) u`` of the result, u = 2**-24, to first order: the root
    leaves half of the error of a sum of h / 32 squares a thread and 5 additions of threads; it
    rounds once itself, and so does the quotient.
    """
    width = out.shape[1]
    step = cuda.gridDim.x * cuda.gridDim.y * UNIT_ROWS
    block = cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x
    for row in range(block * UNIT_ROWS + cuda.threadIdx.y, out.shape[0], step):
        own = float32(0.0)
        for i in range(cuda.threadIdx.x, width, WARP):
            own += x[row, i] * x[row, i]
        length = math.sqrt(warp_sum(own))
        if length == float32(0.0):
            length = float32(1.0)
        for i in range(cuda.threadIdx.x, width, WARP):
            out[row, i] = x[row, i] / length


def unit_rows_reference(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What `unit_rows` approximates, in float64; the last axis is the row."""
    wide = x.astype(np.float64)
    length = np.sqrt(np.square(wide).sum(axis=-1, keepdims=True))
    result: np.ndarray[Any, Any] = wide / np.where(length == 0, 1, length)
    return result
