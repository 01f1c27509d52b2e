"""Operands of float32 as TF32 numbers, for products of nearly float32's accuracy on tensor cores.

A float32 is ``high + low``: its first 11 bits, which TF32 holds, and the rest, of which TF32 holds
11 bits again. Of the four products of the parts of two numbers three are computed, as one product
of operands that are three times as long along k: ``[high, high, low]`` and ``[high, low, high]``.
Left out are ``low * low``, and what TF32 cuts of ``low``.

Source: H. Ootomo, R. Yokota, Recovering single precision accuracy from tensor cores while
surpassing the FP32 theoretical peak performance, 2022.
"""

from __future__ import annotations

import numbasync as na
from numbasync.kernel_names import cuda, float32, int32, libdevice
from numbasync_kernels.fits import FLOAT32, fits

PARTS = 3  # of a row of a split operand
LEFT, RIGHT = 2, 1  # the part that is low
HIGH_BITS = -(1 << 13)  # of a float32, as a mask of 32 bits


@na.launcher(
    axes=(0, 1), threads=(1, 256),  # rows, which may be many, on x
    preconditions=[*fits("out x", 2, FLOAT32), "out.shape[0] == x.shape[0]",
                   "out.shape[1] >= 3 * x.shape[1]"],
)  # fmt: skip
@cuda.jit(cache=True)
def split_tf32(out: na.KernelOutput, x: na.KernelInput, low: int) -> None:
    """Write each row of `x` three times into a row of `out`: high, or, as the part `low`, low.

    Args:
        out: shape ``(m, n)``, float32, with n at least 3 k; columns behind 3 k get 0.
        x: shape ``(m, k)``, float32.
        low: `LEFT` or `RIGHT`: the operand that `x` is of a product.

    Reads mk elements, three times, and writes mn.
    """
    row, column = cuda.grid(2)
    k = x.shape[1]
    if row < out.shape[0] and column < out.shape[1]:
        value = float32(0.0)
        if column < PARTS * k:
            value = x[row, column % k]
            bits = int32(libdevice.float_as_int(value)) & int32(HIGH_BITS)
            high = libdevice.int_as_float(int32(bits))
            value = value - high if column // k == low else high
        out[row, column] = value
