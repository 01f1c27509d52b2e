"""Colours in other spaces: hue and saturation, luma and chroma, L*a*b*; a thread for each pixel.

Channels are numbers around 0 to 1, computed in float32. With u = 2**-24, the bounds are of channels
from 0 to 1, to first order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, float32, int64
from numbasync_kernels.blocks import row_and_column
from numbasync_kernels.fits import FLOATS, REAL, fits

TILE = (8, 32, 3)  # of an output, for a block: rows, columns, channels
THREADS = (32, 8)
FITS = (
    *fits("out", 3, FLOATS), *fits("picture", 3, REAL), "picture.shape[2] == 3",
    "picture.shape == out.shape",
)  # fmt: skip
RED, BLUE = 0.299, 0.114  # weights of luma; green has the rest
GREEN = 1 - RED - BLUE
WHITE = (0.95047, 1.0, 1.08883)  # X, Y and Z of D65
TO_XYZ = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
TO_RGB = (
    (3.2404542, -1.5371385, -0.4985314),
    (-0.9692660, 1.8760108, 0.0415560),
    (0.0556434, -0.2040259, 1.0572252),
)
CUBE, SLOPE = 216 / 24389, 841 / 108  # of L*a*b*: below this, a line of this slope
FOOT = 4 / 29  # and that begins here


@cuda.jit(device=True, cache=True)
def _pixel(out: Any) -> Any:
    """The row and the column of a thread's pixel; blocks are counted through the grid, x first."""
    number = int64(cuda.blockIdx.y) * cuda.gridDim.x + cuda.blockIdx.x
    row, column = row_and_column(number, (out.shape[1] + TILE[1] - 1) // TILE[1])
    return row * TILE[0] + cuda.threadIdx.y, column * TILE[1] + cuda.threadIdx.x


@cuda.jit(device=True, cache=True)
def _hue(red: Any, green: Any, blue: Any) -> Any:
    most, least = max(red, max(green, blue)), min(red, min(green, blue))
    span = most - least
    hue = float32(0)
    if span > 0:
        if most == red:
            hue = (green - blue) / span
            if hue < 0:
                hue += float32(6)
        elif most == green:
            hue = (blue - red) / span + float32(2)
        else:
            hue = (red - green) / span + float32(4)
    saturation = span / most if most > 0 else float32(0)
    return hue / float32(6), saturation, most


@cuda.jit(device=True, cache=True)
def _of_hue(hue: Any, saturation: Any, most: Any, shift: Any) -> Any:
    at = float32(6) * hue + float32(shift)
    at -= float32(6) * float32(math.floor(at / float32(6)))
    part = max(float32(0), min(at, min(float32(4) - at, float32(1))))
    return most - most * saturation * part


@cuda.jit(device=True, cache=True)
def _linear(level: Any) -> Any:
    """The light that a level of sRGB stands for."""
    if level <= float32(0.04045):
        return level / float32(12.92)
    return ((level + float32(0.055)) / float32(1.055)) ** float32(2.4)


@cuda.jit(device=True, cache=True)
def _level(light: Any) -> Any:
    if light <= float32(0.0031308):
        return float32(12.92) * light
    return float32(1.055) * light ** float32(1 / 2.4) - float32(0.055)


@cuda.jit(device=True, cache=True)
def _lightness(part: Any) -> Any:
    if part > float32(CUBE):
        return part ** float32(1 / 3)
    return float32(SLOPE) * part + float32(FOOT)


@cuda.jit(device=True, cache=True)
def _part(lightness: Any) -> Any:
    if lightness > float32(6 / 29):
        return lightness * lightness * lightness
    return (lightness - float32(FOOT)) / float32(SLOPE)


@na.launcher(tile=TILE, axes=(1, 0, 2), threads=THREADS, preconditions=FITS)
@cuda.jit(cache=True)
def rgb_to_hsv(out: na.KernelOutput, picture: na.KernelInput) -> None:
    """Hue, saturation and value of every pixel, all from 0 to 1: red has hue 0, green 1/3.

    Args:
        out: shape ``(h, w, 3)``, float16, bfloat16 or float32.
        picture: the same shape, any real dtype; red, green, blue.

    Reads and writes each element once. Error bound: 3 u of the hue, 2 u of the saturation; the
    value is exact. Grey has hue 0, black saturation 0.
    Source: A. R. Smith, Color gamut transform pairs, 1978.

    Examples:
        >>> from numbasync_kernels import image
        >>> picture = np.array([[[1, 0, 0], [0, 0.5, 0]]], np.float32)
        >>> out = await na.zeros((1, 2, 3))
        >>> _ = await image.rgb_to_hsv(out, picture)
        >>> (await out.to_host()).round(3).tolist()[0]
        [[0.0, 1.0, 1.0], [0.3330000042915344, 1.0, 0.5]]
    """
    y, x = _pixel(out)
    if y < out.shape[0] and x < out.shape[1]:
        red, green = float32(picture[y, x, 0]), float32(picture[y, x, 1])
        blue = float32(picture[y, x, 2])
        out[y, x, 0], out[y, x, 1], out[y, x, 2] = _hue(red, green, blue)


@na.launcher(tile=TILE, axes=(1, 0, 2), threads=THREADS, preconditions=FITS)
@cuda.jit(cache=True)
def hsv_to_rgb(out: na.KernelOutput, picture: na.KernelInput) -> None:
    """Red, green and blue of hue, saturation and value; see `rgb_to_hsv`.

    Args:
        out: shape ``(h, w, 3)``, float16, bfloat16 or float32.
        picture: the same shape, any real dtype. A hue counts modulo 1.

    Reads and writes each element once. Error bound: 24 u: the place on the circle, of up to 11
    sixths, is rounded three times, and the three products and differences once each.
    Source: A. R. Smith, Color gamut transform pairs, 1978.

    Examples:
        >>> from numbasync_kernels import image
        >>> picture = np.array([[[0, 1, 1], [0.5, 0, 0.25]]], np.float32)
        >>> out = await na.zeros((1, 2, 3))
        >>> _ = await image.hsv_to_rgb(out, picture)
        >>> (await out.to_host()).tolist()[0]
        [[1.0, 0.0, 0.0], [0.25, 0.25, 0.25]]
    """
    y, x = _pixel(out)
    if y < out.shape[0] and x < out.shape[1]:
        hue, saturation = float32(picture[y, x, 0]), float32(picture[y, x, 1])
        most = float32(picture[y, x, 2])
        out[y, x, 0] = _of_hue(hue, saturation, most, 5)
        out[y, x, 1] = _of_hue(hue, saturation, most, 3)
        out[y, x, 2] = _of_hue(hue, saturation, most, 1)


@na.launcher(tile=TILE, axes=(1, 0, 2), threads=THREADS, preconditions=FITS)
@cuda.jit(cache=True)
def rgb_to_ycbcr(out: na.KernelOutput, picture: na.KernelInput) -> None:
    """Luma and the differences of blue and of red from it, as of JPEG: around 0.5, from 0 to 1.

    Args:
        out: shape ``(h, w, 3)``, float16, bfloat16 or float32.
        picture: the same shape, any real dtype; red, green, blue.

    Reads and writes each element once. Error bound: 6 u: three products, two sums, a difference, a
    product and a sum, of numbers up to 1.
    Source: ITU-T T.871, JPEG File Interchange Format, 2011.

    Examples:
        >>> from numbasync_kernels import image
        >>> out = await na.zeros((1, 1, 3))
        >>> _ = await image.rgb_to_ycbcr(out, np.ones((1, 1, 3), np.float32))
        >>> (await out.to_host()).round(3).tolist()
        [[[1.0, 0.5, 0.5]]]
    """
    y, x = _pixel(out)
    if y < out.shape[0] and x < out.shape[1]:
        red, green = float32(picture[y, x, 0]), float32(picture[y, x, 1])
        blue = float32(picture[y, x, 2])
        luma = float32(RED) * red + float32(GREEN) * green + float32(BLUE) * blue
        out[y, x, 0] = luma
        out[y, x, 1] = (blue - luma) * float32(0.5 / (1 - BLUE)) + float32(0.5)
        out[y, x, 2] = (red - luma) * float32(0.5 / (1 - RED)) + float32(0.5)


@na.launcher(tile=TILE, axes=(1, 0, 2), threads=THREADS, preconditions=FITS)
@cuda.jit(cache=True)
def ycbcr_to_rgb(out: na.KernelOutput, picture: na.KernelInput) -> None:
    """Red, green and blue of luma and chroma; see `rgb_to_ycbcr`. They are not clipped.

    Args:
        out: shape ``(h, w, 3)``, float16, bfloat16 or float32.
        picture: the same shape, any real dtype.

    Reads and writes each element once. Error bound: 8 u: two differences, two products and two
    sums, of numbers below 2.
    Source: ITU-T T.871, JPEG File Interchange Format, 2011.

    Examples:
        >>> from numbasync_kernels import image
        >>> out = await na.zeros((1, 1, 3))
        >>> _ = await image.ycbcr_to_rgb(out, np.full((1, 1, 3), 0.5, np.float32))
        >>> (await out.to_host()).tolist()
        [[[0.5, 0.5, 0.5]]]
    """
    y, x = _pixel(out)
    if y < out.shape[0] and x < out.shape[1]:
        luma = float32(picture[y, x, 0])
        blue = float32(picture[y, x, 1]) - float32(0.5)
        red = float32(picture[y, x, 2]) - float32(0.5)
        out[y, x, 0] = luma + float32(2 - 2 * RED) * red
        out[y, x, 1] = (
            luma
            - float32((2 - 2 * RED) * RED / GREEN) * red
            - float32((2 - 2 * BLUE) * BLUE / GREEN) * blue
        )
        out[y, x, 2] = luma + float32(2 - 2 * BLUE) * blue


@na.launcher(tile=TILE, axes=(1, 0, 2), threads=THREADS, preconditions=FITS)
@cuda.jit(cache=True)
def rgb_to_lab(out: na.KernelOutput, picture: na.KernelInput) -> None:
    """CIE L*a*b* of sRGB, under D65: lightness from 0 to 100, and two colours around 0.

    Args:
        out: shape ``(h, w, 3)``, float16, bfloat16 or float32.
        picture: the same shape, any real dtype; red, green, blue, of sRGB.

    Reads and writes each element once. Error bound: 8,000 u: light is right to about 10 u of
    itself, its sums to 14 u, their cube roots to 8 u; 500 times the difference of two is taken.
    Source: IEC 61966-2-1, sRGB, 1999; ISO/CIE 11664-4, CIE 1976 L*a*b* colour space, 2019.

    Examples:
        >>> from numbasync_kernels import image
        >>> out = await na.zeros((1, 1, 3))
        >>> _ = await image.rgb_to_lab(out, np.ones((1, 1, 3), np.float32))
        >>> abs(await out.to_host() - [100, 0, 0]).max() < 0.01
        np.True_
    """
    y, x = _pixel(out)
    if y < out.shape[0] and x < out.shape[1]:
        red, green = _linear(float32(picture[y, x, 0])), _linear(float32(picture[y, x, 1]))
        blue = _linear(float32(picture[y, x, 2]))
        part_x = _lightness(
            float32(TO_XYZ[0][0] / WHITE[0]) * red
            + float32(TO_XYZ[0][1] / WHITE[0]) * green
            + float32(TO_XYZ[0][2] / WHITE[0]) * blue
        )
        part_y = _lightness(
            float32(TO_XYZ[1][0]) * red
            + float32(TO_XYZ[1][1]) * green
            + float32(TO_XYZ[1][2]) * blue
        )
        part_z = _lightness(
            float32(TO_XYZ[2][0] / WHITE[2]) * red
            + float32(TO_XYZ[2][1] / WHITE[2]) * green
            + float32(TO_XYZ[2][2] / WHITE[2]) * blue
        )
        out[y, x, 0] = float32(116) * part_y - float32(16)
        out[y, x, 1] = float32(500) * (part_x - part_y)
        out[y, x, 2] = float32(200) * (part_y - part_z)


@na.launcher(tile=TILE, axes=(1, 0, 2), threads=THREADS, preconditions=FITS)
@cuda.jit(cache=True)
def lab_to_rgb(out: na.KernelOutput, picture: na.KernelInput) -> None:
    """Levels of sRGB of CIE L*a*b* under D65; see `rgb_to_lab`. None is clipped.

    Args:
        out: shape ``(h, w, 3)``, float16, bfloat16 or float32.
        picture: the same shape, any real dtype.

    Reads and writes each element once. Error bound, of colours that sRGB has: 1,500 u: light is
    right to about 100 u, and levels are at most 12.92 times as steep.
    Source: IEC 61966-2-1, sRGB, 1999; ISO/CIE 11664-4, CIE 1976 L*a*b* colour space, 2019.

    Examples:
        >>> from numbasync_kernels import image
        >>> out = await na.zeros((1, 1, 3))
        >>> _ = await image.lab_to_rgb(out, np.array([[[100, 0, 0]]], np.float32))
        >>> abs(await out.to_host() - 1).max() < 1e-3
        np.True_
    """
    y, x = _pixel(out)
    if y < out.shape[0] and x < out.shape[1]:
        middle = (float32(picture[y, x, 0]) + float32(16)) / float32(116)
        part_x = float32(WHITE[0]) * _part(middle + float32(picture[y, x, 1]) / float32(500))
        part_y = _part(middle)
        part_z = float32(WHITE[2]) * _part(middle - float32(picture[y, x, 2]) / float32(200))
        out[y, x, 0] = _level(
            float32(TO_RGB[0][0]) * part_x
            + float32(TO_RGB[0][1]) * part_y
            + float32(TO_RGB[0][2]) * part_z
        )
        out[y, x, 1] = _level(
            float32(TO_RGB[1][0]) * part_x
            + float32(TO_RGB[1][1]) * part_y
            + float32(TO_RGB[1][2]) * part_z
        )
        out[y, x, 2] = _level(
            float32(TO_RGB[2][0]) * part_x
            + float32(TO_RGB[2][1]) * part_y
            + float32(TO_RGB[2][2]) * part_z
        )


Picture = np.ndarray[Any, Any]


def rgb_to_hsv_reference(picture: Picture) -> Picture:
    """What `rgb_to_hsv` approximates, in float64."""
    red, green, blue = np.moveaxis(picture.astype(np.float64), 2, 0)
    most = picture.max(2).astype(np.float64)
    span = most - picture.min(2)
    with np.errstate(all="ignore"):
        sixths = np.where(
            most == red,
            (green - blue) / span % 6,
            np.where(most == green, (blue - red) / span + 2, (red - green) / span + 4),
        )
        hue = np.where(span > 0, sixths / 6, 0)
        return np.stack([hue, np.where(most > 0, span / most, 0), most], 2)


def hsv_to_rgb_reference(picture: Picture) -> Picture:
    """What `hsv_to_rgb` approximates, in float64."""
    hue, saturation, most = np.moveaxis(picture.astype(np.float64), 2, 0)
    at = (np.array([5, 3, 1])[:, None, None] + 6 * hue) % 6
    part = np.clip(np.minimum(at, 4 - at), 0, 1)
    return np.moveaxis(most - most * saturation * part, 0, 2)


def rgb_to_ycbcr_reference(picture: Picture) -> Picture:
    """What `rgb_to_ycbcr` approximates, in float64."""
    red, green, blue = np.moveaxis(picture.astype(np.float64), 2, 0)
    luma = RED * red + GREEN * green + BLUE * blue
    chroma = (blue - luma) / (2 - 2 * BLUE) + 0.5, (red - luma) / (2 - 2 * RED) + 0.5
    return np.stack([luma, *chroma], 2)


def ycbcr_to_rgb_reference(picture: Picture) -> Picture:
    """What `ycbcr_to_rgb` approximates, in float64."""
    luma, blue, red = np.moveaxis(picture.astype(np.float64), 2, 0)
    red, blue = (2 - 2 * RED) * (red - 0.5), (2 - 2 * BLUE) * (blue - 0.5)
    green = luma - (RED * red + BLUE * blue) / GREEN
    return np.stack([luma + red, green, luma + blue], 2)


def rgb_to_lab_reference(picture: Picture) -> Picture:
    """What `rgb_to_lab` approximates, in float64."""
    level = picture.astype(np.float64)
    curve = (np.maximum(level, 0.04) + 0.055) / 1.055
    light = np.where(level <= 0.04045, level / 12.92, curve**2.4)
    part = light @ (np.array(TO_XYZ).T / WHITE)
    x, y, z = np.moveaxis(np.where(part > CUBE, np.cbrt(part), SLOPE * part + FOOT), 2, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], 2)


def lab_to_rgb_reference(picture: Picture) -> Picture:
    """What `lab_to_rgb` approximates, in float64."""
    lightness, a, b = np.moveaxis(picture.astype(np.float64), 2, 0)
    y = (lightness + 16) / 116
    root = np.stack([y + a / 500, y, y - b / 200], 2)
    part = np.where(root > 6 / 29, root**3, (root - FOOT) / SLOPE) * WHITE
    light = part @ np.array(TO_RGB).T
    curve = 1.055 * np.maximum(light, 0.003) ** (1 / 2.4) - 0.055
    levels: Picture = np.where(light <= 0.0031308, 12.92 * light, curve)
    return levels
