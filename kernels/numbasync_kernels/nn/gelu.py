"""GELU, the activation of BERT: x times the chance that a normal variable is below x."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda, float32

import numbasync as na
from numbasync_kernels.fits import FLOAT32, fits

GELU_THREADS = 256
HALF = float32(0.5)
ROOT_HALF = float32(math.sqrt(0.5))
ONE = float32(1.0)


@cuda.jit(device=True)
def gelu_of(x: Any) -> Any:
    """GELU of one float32; for the kernels that end with it."""
    return HALF * x * (ONE + math.erf(x * ROOT_HALF))


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

    Error bound: ``4 u abs(x)`` with u = 2**-24. Two roundings of erf's argument move erf by less
    than u, erf itself is good to 2 ulps (2 u), the sum rounds once (u): 4 u of x / 2. The product
    rounds once, the halving not at all.
    Source: D. Hendrycks and K. Gimpel, Gaussian Error Linear Units, arXiv:1606.08415, 2016.
    """
    for i in range(cuda.grid(1), out.shape[0], cuda.gridsize(1)):
        out[i] = gelu_of(x[i])


def gelu_reference(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What `gelu` approximates, in float64; shape of `x`."""
    wide = x.astype(np.float64)
    erf = np.array([math.erf(v) for v in (wide * math.sqrt(0.5)).flat]).reshape(wide.shape)
    result: np.ndarray[Any, Any] = 0.5 * wide * (1 + erf)
    return result
