"""Layer normalisation of rows, with or without a residual to add first."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import numbasync as na
from numbasync import vectors
from numbasync.kernel_names import cuda, float32
from numbasync_kernels.fits import FLOATS, fits
from numbasync_kernels.nn.warp import WARP, warp_sum

NORM_ROWS = 4  # rows, and warps, of a block
EACH = 4  # neighbours that a thread loads at once

FITS = (
    *fits("out x", 2, FLOATS), *fits("scale shift", 1, FLOATS), "x.shape == out.shape",
    "scale.shape == (out.shape[1],)", "shift.shape == scale.shape",
)  # fmt: skip


@cuda.jit(device=True)
def _loaded(array: Any, index: Any, at_once: Any, other: Any) -> Any:
    """The `EACH` elements from `index` on; or, if not `at_once`, the first one, and `other`."""
    if at_once:
        a, b, c, d = vectors.load(array, index, 4)
        return float32(a), float32(b), float32(c), float32(d)
    return float32(array[index]), other, other, other


@cuda.jit(device=True)
def _summands(x: Any, residual: Any, index: Any, at_once: Any, other: Any) -> Any:
    """As `_loaded`, of ``x + residual``."""
    a, b, c, d = _loaded(x, index, at_once, other)
    if residual is not None:
        e, f, g, h = _loaded(residual, index, at_once, float32(0.0))
        return a + e, b + f, c + g, d + h
    return a, b, c, d


@cuda.jit(device=True)
def _normalise(
    out: Any, x: Any, residual: Any, scale: Any, shift: Any, eps: Any, at_once: Any
) -> None:
    """Write the warp's rows. Each pass reads them anew, from the first level of the cache."""
    width = out.shape[1]
    each = EACH if at_once else 1
    first = cuda.threadIdx.x * each
    apart = WARP * each
    zero = float32(0.0)
    step = cuda.gridDim.x * cuda.gridDim.y * cuda.gridDim.z * NORM_ROWS
    along_y = cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z
    block = cuda.blockIdx.x + cuda.gridDim.x * along_y
    for row in range(block * NORM_ROWS + cuda.threadIdx.y, out.shape[0], step):
        own = zero
        for i in range(first, width, apart):
            a, b, c, d = _summands(x, residual, (row, i), at_once, zero)
            own += (a + b) + (c + d)
        mean = warp_sum(own) / float32(width)
        own = zero
        for i in range(first, width, apart):
            a, b, c, d = _summands(x, residual, (row, i), at_once, mean)
            a, b, c, d = a - mean, b - mean, c - mean, d - mean
            own += (a * a + b * b) + (c * c + d * d)
        shrink = float32(1.0) / math.sqrt(warp_sum(own) / float32(width) + float32(eps))
        for i in range(first, width, apart):
            a, b, c, d = _summands(x, residual, (row, i), at_once, mean)
            e, f, g, h = _loaded(scale, i, at_once, zero)
            p, q, r, s = _loaded(shift, i, at_once, zero)
            a = (a - mean) * shrink * e + p
            if at_once:
                b, c = (b - mean) * shrink * f + q, (c - mean) * shrink * g + r
                vectors.store(out, (row, i), (a, b, c, (d - mean) * shrink * h + s))
            else:
                out[row, i] = a


@cuda.jit(device=True)
def _whole(out: Any, x: Any, scale: Any, shift: Any) -> Any:
    """Whether all rows can be loaded `EACH` elements at a time."""
    return (
        out.shape[0] > 0
        and out.shape[1] > 0
        and out.shape[1] % EACH == 0
        and vectors.is_aligned(out, (0, 0), 4)
        and vectors.is_aligned(x, (0, 0), 4)
        and vectors.is_aligned(scale, 0, 4)
        and vectors.is_aligned(shift, 0, 4)
    )


@na.launcher(tile=(NORM_ROWS, None), axes=(1, 0), threads=(WARP, NORM_ROWS), preconditions=FITS)
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
        out: shape ``(n, h)``. It and the other tensors are C-contiguous, of float16, bfloat16 or
            float32, not all of the same.
        x: shape ``(n, h)``.
        scale, shift: shape ``(h,)``.
        eps: added to the variance, which is the mean of squares (not the sample's), rounded to
            float32.

    A warp takes a row. Computes in float32, in two passes, so a mean far from zero costs no more
    than it must. Threads load 4 elements at a time where the width is a multiple of 4. Reads nh
    elements (three times, all but the first from the cache) and writes nh.

    Raises:
        LaunchError: the shapes do not fit, before anything is enqueued.
        KernelCompileError: a tensor is not C-contiguous.

    Error bound, to first order: with u = 2**-24, m the largest size in the row, s the root of its
    variance and `eps`, and z the normalised element,
    ``(ceil(h / 32) + 12) u abs(scale) (1 + abs(z)) (1 + m / s) + 2 u abs(shift)``, and half a unit
    of `out`. The mean is a sum of h / 32 elements a thread and 5 additions of threads; its error,
    and that of every difference from it, is divided by s; that of the variance counts half.
    Source: J. L. Ba, J. R. Kiros and G. E. Hinton, Layer Normalization, arXiv:1607.06450, 2016.

    Examples:
        >>> from numbasync_kernels import nn
        >>> x = np.array([[1, 2, 3, 4]], np.float32)
        >>> scale, shift = np.ones(4, np.float32), np.zeros(4, np.float32)
        >>> out = await na.zeros((1, 4))
        >>> _ = await nn.layer_norm(out.partition((nn.NORM_ROWS, 4)), x, scale, shift, 1e-12)
        >>> (await out.to_host()).round(2)
        array([[-1.34, -0.45,  0.45,  1.34]], dtype=float32)
    """
    _normalise(out, x, None, scale, shift, eps, _whole(out, x, scale, shift))


@na.launcher(
    tile=(NORM_ROWS, None),
    axes=(1, 0),
    threads=(WARP, NORM_ROWS),
    preconditions=(*FITS, *fits("residual", 2, FLOATS), "residual.shape == out.shape"),
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
    """`layer_norm` of ``x + residual``, which is written nowhere and not rounded.

    Args:
        residual: shape ``(n, h)``. The rest as in `layer_norm`.

    Reads 2nh elements and writes nh. Error bound: that of `layer_norm` with the sum for `x`; the
    sum's own rounding is among the 12.

    Examples:
        >>> from numbasync_kernels import nn
        >>> x, residual = np.ones((1, 4), np.float32), np.array([[0, 1, 2, 3]], np.float32)
        >>> scale, shift = np.ones(4, np.float32), np.full(4, 10, np.float32)
        >>> out = await na.zeros((1, 4))
        >>> tiles = out.partition((nn.NORM_ROWS, 4))
        >>> _ = await nn.add_layer_norm(tiles, x, residual, scale, shift, 1e-12)
        >>> (await out.to_host()).round(2)
        array([[ 8.66,  9.55, 10.45, 11.34]], dtype=float32)
    """
    at_once = _whole(out, x, scale, shift)
    at_once = at_once and vectors.is_aligned(residual, (0, 0), 4)
    _normalise(out, x, residual, scale, shift, eps, at_once)


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
