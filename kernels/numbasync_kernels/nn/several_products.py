"""Several matrix products in one launch: of a batch, or of groups of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

import numbasync as na
from numbasync_kernels.nn.finish import ACTIVATIONS
from numbasync_kernels.nn.gemm import check_product, fits_a_map, with_fitting_pitch
from numbasync_kernels.nn.matmul import GROUP_THREADS, blocks_of_groups, matmul_groups
from numbasync_kernels.nn.matmul_float32 import multiply_float32
from numbasync_kernels.nn.matmul_warpgroups import ROW_BYTES, THREADS, matmul_warpgroups
from numbasync_kernels.nn.tiling import tiling


def batched_gemm(
    out: na.Tensor,
    a: na.Tensor,
    b: na.Tensor,
    *,
    bias: na.Tensor | None = None,
    activation: str | None = None,
    residual: na.Tensor | None = None,
    precision: str = "float32",
) -> na.DeviceOp[na.Tensor]:
    """``out[i] = activation(a[i] @ b[i] + bias) + residual[i]`` for every i, as an operation that
    gives `out`.

    Args:
        out: shape ``(count, m, n)``, C-contiguous, of the dtype of `a`, or float32.
        a, b: shapes ``(count, m, k)`` and ``(count, k, n)``; k may be 0, other extents not. Views
            will do, of which `a` is copied; ``w.mT`` of C-contiguous w is as fast as such a b.
        bias: shape ``(n,)``.
        activation: "relu" or "gelu".
        residual: shape of `out`, C-contiguous.
        precision: "float32", or "tf32" of float32, as of `gemm`.

    float16, bfloat16, and float32 with "tf32", are multiplied by tensor cores on GPUs of capability
    9.0 (`matmul_warpgroups`); everything else by `matmul_groups`.

    Raises:
        CallerError, ShapeError, DTypeError: the operands do not fit.
    """
    if not out.ndim == a.ndim == b.ndim == 3 or not len(out) == len(a) == len(b) or not out.size:
        raise na.errors.ShapeError(
            f"batched_gemm of shapes {a.shape} and {b.shape} into {out.shape}: write "
            "(count, m, k), (count, k, n) and (count, m, n), none of count, m and n 0."
        )
    first_residual = None if residual is None else residual[0]
    check_product(out[0], a[0], b[0], bias, activation, first_residual, precision)
    if not out.is_contiguous or (residual is not None and residual.shape != out.shape):
        raise na.errors.ShapeError(
            f"batched_gemm into {out!r} with residual {residual!r}: write C-contiguous tensors of "
            f"shape {out.shape}."
        )
    if not a.is_contiguous:
        return na.dup(a).then(lambda copy: batched_gemm(
            out, copy, b, bias=bias, activation=activation, residual=residual, precision=precision
        ))  # fmt: skip
    count, m, n = out.shape
    rows, results = a.reshape(count * m, a.shape[2]), out.reshape(count * m, n)
    ends = None if residual is None else residual.reshape(count * m, n)
    launched = _launched(results, rows, b, m, None, precision, bias, ends, activation)
    return launched.map(lambda _: out)


def grouped_gemm(
    out: na.Tensor,
    a: na.Tensor,
    b: na.Tensor,
    offsets: na.Tensor,
    *,
    bias: na.Tensor | None = None,
    activation: str | None = None,
    residual: na.Tensor | None = None,
    precision: str = "float32",
) -> na.DeviceOp[na.Tensor]:
    """The products of groups of rows, each with a matrix of its own, as of experts, as an operation
    that gives `out`. With ``s, e = offsets[i], offsets[i + 1]``,
    ``out[s:e] = activation(a[s:e] @ b[i] + bias) + residual[s:e]``.

    Args:
        out: shape ``(m, n)``, C-contiguous, of the dtype of `a`, or float32.
        a, b: shapes ``(m, k)`` and ``(groups, k, n)``, all extents at least 1.
        offsets: shape ``(groups + 1,)``, int64, from 0 to at most m, none less than the one before.
            The device reads them. Rows of out that are of no group keep what they have.
        residual: shape of `out`.

    Everything else is as for `batched_gemm`.

    Raises:
        CallerError, ShapeError, DTypeError: the operands do not fit.
    """
    if b.ndim != 3 or not len(b) or not out.size:
        raise na.errors.ShapeError(
            f"grouped_gemm of shapes {a.shape} and {b.shape} into {out.shape}: write (m, k), "
            "(groups, k, n) and (m, n), of extents of at least 1."
        )
    check_product(out, a, b[0], bias, activation, residual, precision)
    if offsets.shape != (len(b) + 1,) or offsets.dtype != np.int64:
        raise na.errors.ShapeError(
            f"grouped_gemm: offsets are {offsets!r}; write int64, of shape {(len(b) + 1,)}."
        )
    return _launched(out, a, b, 1, offsets, precision, bias, residual, activation)


def _launched(
    out: na.Tensor,
    a: na.Tensor,
    b: na.Tensor,
    rows: int,
    offsets: na.Tensor | None,
    precision: str,
    bias: na.Tensor | None,
    residual: na.Tensor | None,
    activation: str | None,
) -> na.DeviceOp[na.Tensor]:
    """The launch for groups of rows of `out`: of so many rows each, or as offsets say."""
    device = out.device
    groups, k, n = b.shape
    tail = k, rows, offsets, bias, residual, ACTIVATIONS[activation]
    is_split = a.dtype != np.float32 or precision == "tf32"
    if device is None or device.limits.tensor_cores != "warpgroups" or not is_split or not k:
        if a.dtype == np.float32 and k and device and device.limits.loads_in_flight > 1:
            return multiply_float32(out, a, b, bias, residual, tail[-1], rows, offsets)
        launch: Any = matmul_groups[blocks_of_groups(out, groups), GROUP_THREADS]
        plain: na.DeviceOp[na.Tensor] = launch(out, a, b, *tail[1:]).first()
        return plain
    by_rows = b.strides[2] == b.dtype.itemsize  # each matrix' rows, not columns, are contiguous
    if by_rows and a.dtype == np.float32:  # rows of k are of 16-bit elements only
        return na.dup(b.mT).then(lambda copy: _launched(
            out, a, copy.mT, rows, offsets, precision, bias, residual, activation
        ))  # fmt: skip
    sources = a, (b if by_rows else b.mT)
    if not all(map(fits_a_map, sources)):
        copies = (na.value(t) if fits_a_map(t) else with_fitting_pitch(t) for t in sources)
        return na.zip(*copies).then(lambda both: _launched(
            out, both[0], both[1] if by_rows else both[1].mT, rows, offsets, precision, bias,
            residual, activation,
        ))  # fmt: skip
    height = rows if offsets is None else out.shape[0] // groups + 1
    multiprocessors = device.limits.multiprocessors
    finishes = bias is not None or activation is not None or residual is not None
    way = tiling(height, n, -(-k * a.dtype.itemsize // ROW_BYTES), multiprocessors, groups)
    kernel = matmul_warpgroups(a.dtype.name, way.columns, by_rows, finishes, "groups")
    maps = na.tensor_map(sources[0], kernel.box_a), na.tensor_map(sources[1], kernel.box_b)
    launch = kernel.launcher[kernel.blocks(out, multiprocessors, groups), THREADS]
    of_groups: na.DeviceOp[na.Tensor] = launch(out, *maps, k, n, *tail[1:]).first()
    return of_groups
