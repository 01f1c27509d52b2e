"""Products of sparse matrices in compressed rows: of each row, the elements that are not 0."""

from __future__ import annotations

from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, float32, int64
from numbasync_kernels.fits import FLOAT32, fits

WARP = 32
ROWS = 8  # of a block, each of which a warp takes
INDICES = ("int32", "int64")
ROW = (
    *fits("values", 1, FLOAT32), *fits("columns", 1, INDICES), *fits("offsets", 1, INDICES),
    "columns.shape == values.shape", "offsets.shape[0] == out.shape[0] + 1",
)  # fmt: skip


@na.launcher(threads=(WARP, ROWS), preconditions=[*fits("out x", 1, FLOAT32), *ROW])
@cuda.jit(cache=True)
def csr_matvec(
    out: na.KernelOutput, values: na.KernelInput, columns: na.KernelInput, offsets: na.KernelInput,
    x: na.KernelInput,
) -> None:  # fmt: skip
    """A sparse matrix times a vector.

    Args:
        out: shape ``(m,)``, float32. Any grid will do: ``csr_matvec[m // 8 + 1, (32, 8)]``.
        values: float32, the elements of one row after the other.
        columns: int32 or int64, the column of each; it must be one of `x`.
        offsets: shape ``(m + 1,)``, int32 or int64: where each row begins, and where the last ends.
        x: shape ``(n,)``, float32.

    A warp takes a row, so that neighbouring threads read neighbouring elements. Reads each value
    and column once.

    Error bound: ``(k / 32 + 7) u sum(abs(values * x))`` of a row of k elements, u = 2**-24, to
    first order: k / 32 products and sums a thread, and 5 sums of threads.

    Examples:
        >>> from numbasync_kernels import matrix
        >>> values, columns = np.array([5, 7], np.float32), np.array([2, 0], np.int32)
        >>> offsets, x = np.array([0, 1, 1, 2], np.int32), np.array([1, 2, 3], np.float32)
        >>> out = await na.zeros(3)
        >>> _ = await matrix.csr_matvec[1, (32, 8)](out, values, columns, offsets, x)
        >>> (await out.to_host()).tolist()
        [15.0, 0.0, 7.0]
    """
    step = cuda.gridDim.x * ROWS
    for row in range(cuda.blockIdx.x * ROWS + cuda.threadIdx.y, out.shape[0], step):
        own = float32(0)
        for k in range(offsets[row] + cuda.threadIdx.x, offsets[row + 1], WARP):
            own += values[k] * x[columns[k]]
        total = na.warp.sum(own)
        if cuda.threadIdx.x == 0:
            out[row] = total


def csr_matvec_reference(
    values: np.ndarray[Any, Any], columns: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any],
    x: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:  # fmt: skip
    """What `csr_matvec` approximates, in float64; shape ``(m,)``."""
    return csr_matmul_reference(values, columns, offsets, x[:, None])[:, 0]


@na.launcher(axes=(1, 0), preconditions=[*fits("out x", 2, FLOAT32), *ROW])
@cuda.jit(cache=True)
def csr_matmul(
    out: na.KernelOutput, values: na.KernelInput, columns: na.KernelInput, offsets: na.KernelInput,
    x: na.KernelInput,
) -> None:  # fmt: skip
    """A sparse matrix times a dense one.

    Args:
        out: shape ``(m, k)``, float32.
        values, columns, offsets: as of `csr_matvec`.
        x: shape ``(n, k)``, float32.

    A thread makes an element, and neighbours along a row of `out` read neighbours along a row of
    `x`. Reads each value once for 32 columns, and a row of `x` for each value.

    Error bound: ``(k + 1) u sum(abs(values * x))`` of a row of k elements, u = 2**-24, to first
    order: as many products and sums.

    Examples:
        >>> from numbasync_kernels import matrix
        >>> values, columns = np.array([5, 7], np.float32), np.array([1, 0], np.int32)
        >>> offsets, x = np.array([0, 1, 2], np.int32), np.array([[1, 2], [3, 4]], np.float32)
        >>> out = await na.zeros((2, 2))
        >>> _ = await matrix.csr_matmul(out, values, columns, offsets, x)
        >>> (await out.to_host()).tolist()
        [[15.0, 20.0], [7.0, 14.0]]
    """
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        total = float32(0)
        for k in range(int64(offsets[row]), int64(offsets[row + 1])):
            total += values[k] * x[columns[k], column]
        out[row, column] = total


def csr_matmul_reference(
    values: np.ndarray[Any, Any], columns: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any],
    x: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:  # fmt: skip
    """What `csr_matmul` approximates, in float64; shape ``(m, k)``."""
    result = np.zeros((len(offsets) - 1, x.shape[1]))
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    np.add.at(result, rows, values[:, None].astype(np.float64) * x[columns])
    return result
