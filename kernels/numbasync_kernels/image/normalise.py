"""From a picture of bytes to what a network reads: channels first, around 0, of unit size."""

from __future__ import annotations

from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, float32
from numbasync_kernels.fits import FLOAT32, FLOATS, REAL, fits


@na.launcher(
    axes=(2, 1, 0),
    preconditions=[
        *fits("out", 3, FLOATS),
        *fits("picture", 3, REAL),
        *fits("mean deviation", 1, FLOAT32),
        "out.shape == (picture.shape[2], picture.shape[0], picture.shape[1])",
        "mean.shape == (picture.shape[2],) and deviation.shape == mean.shape",
    ],
)
@cuda.jit(cache=True)
def normalise(
    out: na.KernelOutput, picture: na.KernelInput, mean: na.KernelInput, deviation: na.KernelInput,
    scale: float,
) -> None:  # fmt: skip
    """``out[c, y, x] = (picture[y, x, c] * scale - mean[c]) / deviation[c]``.

    Args:
        out: shape ``(channels, h, w)``, float16, bfloat16 or float32: a part ``batch[i]`` of a
            batch, for example.
        picture: shape ``(h, w, channels)``, any real dtype; computed in float32.
        mean, deviation: shape ``(channels,)``, float32.
        scale: a number, such as ``1 / 255``.

    Reads and writes each element once. Error bound: with u = 2**-24 and p a scaled level,
    ``(3 abs(p) + 2 abs(mean)) / deviation u``, to first order, and half a unit of `out`: a scale,
    a product, a difference and a quotient round once each.

    Examples:
        >>> from numbasync_kernels import image
        >>> half = np.full(3, 0.5, np.float32)
        >>> out = await na.zeros((3, 1, 2))
        >>> picture = np.array([[[0, 0, 0], [255, 255, 255]]], np.uint8)
        >>> _ = await image.normalise(out, picture, half, half, 1 / 255)
        >>> (await out.to_host()).tolist()
        [[[-1.0, 1.0]], [[-1.0, 1.0]], [[-1.0, 1.0]]]
    """
    x, y, c = cuda.grid(3)
    if c < out.shape[0] and y < out.shape[1] and x < out.shape[2]:
        level = float32(picture[y, x, c]) * float32(scale)
        out[c, y, x] = (level - mean[c]) / deviation[c]


def normalise_reference(
    picture: np.ndarray[Any, Any], mean: np.ndarray[Any, Any], deviation: np.ndarray[Any, Any],
    scale: float,
) -> np.ndarray[Any, Any]:  # fmt: skip
    """What `normalise` approximates, in float64; shape ``(channels, h, w)``."""
    wide = (picture.astype(np.float64) * scale - mean) / deviation.astype(np.float64)
    return np.moveaxis(wide, 2, 0)
