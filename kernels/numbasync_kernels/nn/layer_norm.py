"""Layer normalisation of rows, with or without a residual to add first."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda, float32

import numbasync as na
from numbasync_kernels.fits import FLOAT32, fits
from numbasync_kernels.nn.warp import WARP, warp_sum

NORM_ROWS = 4  # rows, and warps, of a block

FITS = (
    *fits("out x", 2, FLOAT32), *fits("scale shift", 1, FLOAT32), "x.shape == out.shape",
    "scale.shape == (out.shape[1],)", "shift.shape == scale.shape",
)  # fmt: skip


# What threads do by themselves; they meet in the kernels. Each touches its own elements only.


@cuda.jit(device=True)
def _squares(out: Any, row: Any, mean: Any) -> Any:
    """The thread's share of the squared distances from the mean."""
    own = float32(0.0)
    for i in range(cuda.threadIdx.x, out.shape[1], WARP):
        away = out[row, i] - mean
        own += away * away
    return own


@cuda.jit(device=True)
def _finish(out: Any, row: Any, mean: Any, variance: Any, scale: Any, shift: Any) -> None:
    """Normalise the thread's share of a row that `out` holds as it came."""
    shrink = float32(1.0) / math.sqrt(variance)
    for i in range(cuda.threadIdx.x, out.shape[1], WARP):
        out[row, i] = (out[row, i] - mean) * shrink * scale[i] + shift[i]


@na.launcher(axes=(1, 0), threads=(WARP, NORM_ROWS), preconditions=FITS)
@cuda.jit(cache=True)
def layer_norm(
    out: na.KernelOutput,
    x: na.KernelInput,
    scale: na.KernelInput,
    shift: na.KernelInput,
    eps: float,
) -> None:
    """``out = (x - mean) / sqrt(variance + eps) * scale + shift``, row by row.

    Args:
        out: shape ``(n, h)``, float32; cut it by ``(NORM_ROWS, h)``.
        x: shape ``(n, h)``, float32.
        scale, shift: shape ``(h,)``, float32.
        eps: added to the variance, which is the mean of squares (not the sample's), rounded to
            float32.

    A warp takes a row, each thread every 32nd element, and reads what it wrote itself: no
    barrier. Two passes, so a mean far from zero costs no more than it must. Reads nh elements
    (and what it has just written, from the cache) and writes nh.

    Raises:
        LaunchError: the shapes do not fit, before anything is enqueued.

    Error bound, to first order: with u = 2**-24, m the largest size in the row, s the root of its
    variance and `eps`, and z the normalised element,
    ``(ceil(h / 32) + 12) u abs(scale) (1 + abs(z)) (1 + m / s) + 2 u abs(shift)``. The mean is a
    sum of h / 32 elements a thread and 5 additions of threads; its error, and that of every
    difference from it, is divided by s; that of the variance counts half.
    Source: J. L. Ba, J. R. Kiros and G. E. Hinton, Layer Normalization, arXiv:1607.06450, 2016.
    """
    width = out.shape[1]
    step = cuda.gridDim.x * cuda.gridDim.y * NORM_ROWS
    block = cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x
    for row in range(block * NORM_ROWS + cuda.threadIdx.y, out.shape[0], step):
        own = float32(0.0)
        for i in range(cuda.threadIdx.x, width, WARP):
            value = x[row, i]
            out[row, i] = value
            own += value
        mean = warp_sum(own) / float32(width)
        variance = warp_sum(_squares(out, row, mean)) / float32(width)
        _finish(out, row, mean, variance + float32(eps), scale, shift)


@na.launcher(
    axes=(1, 0),
    threads=(WARP, NORM_ROWS),
    preconditions=(*FITS, *fits("residual", 2, FLOAT32), "residual.shape == out.shape"),
)
@cuda.jit(cache=True)
def add_layer_norm(
    out: na.KernelOutput,
    x: na.KernelInput,
    residual: na.KernelInput,
    scale: na.KernelInput,
    shift: na.KernelInput,
    eps: float,
) -> None:
    """`layer_norm` of ``x + residual``, which is written nowhere else.

    Args:
        residual: shape ``(n, h)``, float32. The rest as in `layer_norm`.

    Reads 2nh elements and writes nh. Error bound: that of `layer_norm` with the sum for `x`; the
    sum's own rounding is among the 12.
    """
    width = out.shape[1]
    step = cuda.gridDim.x * cuda.gridDim.y * NORM_ROWS
    block = cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x
    for row in range(block * NORM_ROWS + cuda.threadIdx.y, out.shape[0], step):
        own = float32(0.0)
        for i in range(cuda.threadIdx.x, width, WARP):
            value = x[row, i] + residual[row, i]
            out[row, i] = value
            own += value
        mean = warp_sum(own) / float32(width)
        variance = warp_sum(_squares(out, row, mean)) / float32(width)
        _finish(out, row, mean, variance + float32(eps), scale, shift)


def layer_norm_reference(
    x: np.ndarray[Any, Any],
    scale: np.ndarray[Any, Any],
    shift: np.ndarray[Any, Any],
    eps: float,
) -> np.ndarray[Any, Any]:
    """What `layer_norm` approximates, in float64; the last axis is the row."""
    wide = x.astype(np.float64)
    away = wide - wide.mean(axis=-1, keepdims=True)
    variance = np.square(away).mean(axis=-1, keepdims=True)
    result: np.ndarray[Any, Any] = away / np.sqrt(variance + eps) * scale + shift
    return result


def add_layer_norm_reference(
    x: np.ndarray[Any, Any],
    residual: np.ndarray[Any, Any],
    scale: np.ndarray[Any, Any],
    shift: np.ndarray[Any, Any],
    eps: float,
) -> np.ndarray[Any, Any]:
    """What `add_layer_norm` approximates, in float64; the last axis is the row."""
    return layer_norm_reference(x.astype(np.float64) + residual, scale, shift, eps)
