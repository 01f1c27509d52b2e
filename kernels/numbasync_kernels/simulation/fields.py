"""Heat and waves on a rectangle, by differences of neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, float32
from numbasync_kernels.fits import FLOAT32, fits


@cuda.jit(device=True)
def laplacian(u: Any, y: Any, x: Any) -> Any:
    """The four neighbours' sum less four times the point, of a point within."""
    return (u[y - 1, x] + u[y + 1, x]) + (u[y, x - 1] + u[y, x + 1]) - float32(4) * u[y, x]


@na.launcher(axes=(1, 0), preconditions=[*fits("out u", 2, FLOAT32), "u.shape == out.shape"])
@cuda.jit(cache=True)
def heat(out: na.KernelOutput, u: na.KernelInput, rate: float) -> None:
    """A step of the heat equation; temperatures at the edges stay.

    Args:
        out: shape ``(h, w)``, float32: the next temperatures.
        u: shape ``(h, w)``, float32.
        rate: diffusivity times the step of time, by the square of the distance of points: at most
            1/4, beyond which differences grow.

    Reads 5hw elements, most of them from the cache, and writes hw.

    Error bound: 12 u of the largest size of a temperature, u = 2**-24, to first order, for rates up
    to 1/4: the sums and the multiple round sizes of at most 8, times the rate; then a product, a
    sum and the rate itself.

    Examples:
        >>> from numbasync_kernels import simulation
        >>> u = np.zeros((3, 3), np.float32)
        >>> u[1, 0] = 8  # a hot point at the edge
        >>> out = await na.zeros((3, 3))
        >>> _ = await simulation.heat(out, u, 0.25)
        >>> (await out.to_host())[1].tolist()
        [8.0, 2.0, 0.0]
    """
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        value = u[y, x]
        if 0 < y < out.shape[0] - 1 and 0 < x < out.shape[1] - 1:
            value += float32(rate) * laplacian(u, y, x)
        out[y, x] = value


def _laplacian(u: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    result = np.zeros(u.shape)
    w = u.astype(np.float64)
    result[1:-1, 1:-1] = w[:-2, 1:-1] + w[2:, 1:-1] + w[1:-1, :-2] + w[1:-1, 2:] - 4 * w[1:-1, 1:-1]
    return result


def heat_reference(u: np.ndarray[Any, Any], rate: float) -> np.ndarray[Any, Any]:
    """What `heat` approximates, in float64; shape of `u`."""
    return u + rate * _laplacian(u)


@na.launcher(
    axes=(1, 0),
    preconditions=[
        *fits("out u before", 2, FLOAT32), "u.shape == out.shape and before.shape == out.shape",
    ],
)  # fmt: skip
@cuda.jit(cache=True)
def wave(out: na.KernelOutput, u: na.KernelInput, before: na.KernelInput, rate: float) -> None:
    """A step of the wave equation; the edges are held at 0.

    Args:
        out: shape ``(h, w)``, float32: the next heights.
        u: shape ``(h, w)``, float32.
        before: shape ``(h, w)``, float32: the heights a step earlier.
        rate: the square of speed times the step of time, by the square of the distance of points:
            at most 1/2, beyond which differences grow.

    Reads 6hw elements, most of them from the cache, and writes hw.

    Error bound: 20 u of the largest size of a height, u = 2**-24, to first order, for rates up to
    1/2: as `heat`, with twice the rate, and two more sums of sizes of at most 7.

    Examples:
        >>> from numbasync_kernels import simulation
        >>> u = np.zeros((3, 4), np.float32)
        >>> u[1, 1] = 4
        >>> out = await na.zeros((3, 4))
        >>> _ = await simulation.wave(out, u, u, 0.25)
        >>> (await out.to_host())[1].tolist()
        [0.0, 0.0, 1.0, 0.0]
    """
    x, y = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        value = float32(0)
        if 0 < y < out.shape[0] - 1 and 0 < x < out.shape[1] - 1:
            speed = u[y, x] - before[y, x]
            value = u[y, x] + (speed + float32(rate) * laplacian(u, y, x))
        out[y, x] = value


def wave_reference(
    u: np.ndarray[Any, Any], before: np.ndarray[Any, Any], rate: float
) -> np.ndarray[Any, Any]:
    """What `wave` approximates, in float64; shape of `u`."""
    result = np.zeros(u.shape)
    w = u.astype(np.float64)
    result[1:-1, 1:-1] = (2 * w - before + rate * _laplacian(u))[1:-1, 1:-1]
    return result
