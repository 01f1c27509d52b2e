"""GELU, the activation of BERT: x times the chance that a normal variable is below x."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, float32
from numbasync_kernels.fits import FLOAT32, fits

GELU_THREADS = 256
ONE = float32(1.0)
# Powers 1 to 8 of -log2(chance that a normal variable is below -y) - 1, for y >= 0: the polynomial
# whose greatest error of the chance is least, 0.14 * 2**-24.
C1, C2, C3 = float32(1.15110517), float32(0.45920819), float32(0.0524961799)
C4, C5, C6 = float32(-0.00706342002), float32(0.00013693636), float32(0.000186180245)
C7, C8 = float32(-3.93776936e-05), float32(2.83491272e-06)


@cuda.jit(device=True)
def gelu_of(x: Any) -> Any:
    """GELU of one float32; for the kernels that end with it. `math.erf` has a branch, which kernels
    that end with 128 of them would have 128 times: they compile and run slower.
    """
    y = abs(x)
    power = C5 + y * (C6 + y * (C7 + y * C8))
    power = ONE + y * (C1 + y * (C2 + y * (C3 + y * (C4 + y * power))))
    below = math.exp2(-power)  # the chance of a value below -y
    return x * (ONE - below if x > float32(0.0) else below)


@na.launcher(
    threads=GELU_THREADS, preconditions=(*fits("out x", 1, FLOAT32), "x.shape == out.shape")
)
@cuda.jit(cache=True)
def gelu(out: na.KernelOutput, x: na.KernelInput) -> None:
    """``out = x / 2 * (1 + erf(x / sqrt(2)))``, element by element.

    Args:
        out: shape ``(n,)``, float32. Any grid of one axis will do.
        x: shape ``(n,)``, float32.

    Reads n and writes n elements; `gemm` does it where the product is made, without.

    Error bound: ``4 u abs(x)`` with u = 2**-24. The chance of a value below -abs(x), at most 1/2,
    is 2 to a polynomial, good to u / 7, which rounding moves by less than u / 2; the power itself
    is good to 2 ulps (2 u). One minus the chance rounds once (u / 2), and the product once.
    Source: D. Hendrycks and K. Gimpel, Gaussian Error Linear Units, arXiv:1606.08415, 2016.

    Examples:
        >>> from numbasync_kernels import nn
        >>> out = await na.zeros(3)
        >>> _ = await nn.gelu(out, np.array([-1, 0, 1], np.float32))
        >>> (await out.to_host()).round(3)
        array([-0.159,  0.   ,  0.841], dtype=float32)
    """
    for i in range(cuda.grid(1), out.shape[0], cuda.gridsize(1)):
        out[i] = gelu_of(x[i])


def gelu_reference(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What `gelu` approximates, in float64; shape of `x`."""
    wide = x.astype(np.float64)
    erf = np.array([math.erf(v) for v in (wide * math.sqrt(0.5)).flat]).reshape(wide.shape)
    result: np.ndarray[Any, Any] = 0.5 * wide * (1 + erf)
    return result
