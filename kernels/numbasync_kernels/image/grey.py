"""Colour to grey levels, in integers, so that every device gives the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda
from numbasync_kernels.fits import fits

LEVELS = ("uint8", "uint16")
FITS = (
    *fits("out", 2, LEVELS), *fits("picture", 3, LEVELS), "picture.dtype == out.dtype",
    "picture.shape[2] == 3",
    "picture.shape[0] == out.shape[0] and picture.shape[1] == out.shape[1]",
)  # fmt: skip


@na.launcher(axes=(1, 0), preconditions=FITS)
@cuda.jit(cache=True)
def grey(out: na.KernelOutput, picture: na.KernelInput) -> None:
    """Luma of every pixel: ``(77 R + 150 G + 29 B + 128) // 256``.

    Args:
        out: shape ``(h, w)``, uint8 or uint16.
        picture: shape ``(h, w, 3)``, dtype of `out`, red first.

    Reads 3hw and writes hw elements. Exact: the weights add up to 256.
    Source: ITU-R BT.601 luma weights (0.299, 0.587, 0.114), rounded to 1/256.

    Examples:
        >>> from numbasync_kernels import image
        >>> picture = np.zeros((2, 2, 3), np.uint8)
        >>> picture[0] = 255  # a white row above a black one
        >>> out = await na.zeros((2, 2), np.uint8)
        >>> _ = await image.grey(out, picture)
        >>> (await out.to_host()).tolist()
        [[255, 255], [0, 0]]
    """
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        red = picture[y, x, 0]
        green = picture[y, x, 1]
        blue = picture[y, x, 2]
        out[y, x] = (77 * red + 150 * green + 29 * blue + 128) >> 8


def grey_reference(picture: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What `grey` writes, computed by NumPy; shape ``(h, w)``, dtype of `picture`."""
    weights = np.array([77, 150, 29])
    levels: np.ndarray[Any, Any] = (picture.astype(np.int64) @ weights + 128) >> 8
    return levels.astype(picture.dtype)
