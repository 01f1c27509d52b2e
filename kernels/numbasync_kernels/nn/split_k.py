"""Matrix products in parts along k, which are computed beside each other and then added."""

from __future__ import annotations

from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, float32
from numbasync_kernels.fits import FLOAT32, FLOATS, fits, name_of
from numbasync_kernels.nn.finish import Finish, finished
from numbasync_kernels.nn.matmul_warpgroups import ROW_BYTES, THREADS, matmul_warpgroups
from numbasync_kernels.nn.tiling import Tiling


@na.launcher(
    axes=(0, 1), threads=(1, 256),  # rows, which may be many, on x
    preconditions=[*fits("out", 2, FLOATS), *fits("parts", 3, FLOAT32),
                   "out.shape[0] == parts.shape[1]", "out.shape[1] == parts.shape[2]"],
)  # fmt: skip
@cuda.jit(cache=True)
def sum_of_parts(
    out: na.KernelOutput, parts: na.KernelInput, bias: na.KernelInput = None,
    residual: na.KernelInput = None, activation: int = 0,
) -> None:  # fmt: skip
    """``out = finished(parts.sum(0))``.

    Args:
        out: shape ``(m, n)``, float16, bfloat16 or float32.
        parts: shape ``(count, m, n)``, float32. They are added in order, the first one first.

    The other arguments are those of `finished`. Reads every element of parts once, and writes mn.

    Error bound: with u = 2**-24, ``(count - 1) u abs(parts).sum(0)``, to first order.
    """
    row, column = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        value = float32(0.0)
        for i in range(parts.shape[0]):
            value += parts[i, row, column]
        out[row, column] = finished(value, row, column, bias, residual, activation)


def multiply_in_parts(
    out: na.Tensor,
    a: na.Tensor,
    b: na.Tensor,
    way: Tiling,
    rows_of_k: bool,
    multiprocessors: int,
    finish: Finish,
) -> na.DeviceOp[na.Tensor]:
    """``out = finished(a @ b)`` by `matmul_warpgroups` in parts, and `sum_of_parts`.

    Args:
        a, b: as `matmul_warpgroups` maps them.
        way: with two parts at least.
        finish: the last arguments of `sum_of_parts`.
    """
    (m, n), k = out.shape, a.shape[1]
    step = ROW_BYTES // a.dtype.itemsize
    length = -(-k // (way.parts * step)) * step
    parts = -(-k // length)
    kernel = matmul_warpgroups(name_of(a.dtype), way.columns, rows_of_k, several="parts")
    maps = na.tensor_map(a, kernel.box_a), na.tensor_map(b, kernel.box_b)
    blocks = min(parts * kernel.tiles(m, n), multiprocessors)

    def multiply(sums: na.Tensor) -> na.DeviceOp[na.Tensor]:
        products: na.DeviceOp[Any] = kernel.launcher[blocks, THREADS](sums, *maps, length, n, m)
        return products.then(
            lambda r: sum_of_parts(out, r.out.reshape(parts, m, n), *finish).first()
        )

    return na.empty((parts * m, n), np.float32).then(multiply)
