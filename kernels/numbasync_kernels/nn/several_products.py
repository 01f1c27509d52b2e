"""Several matrix products in one launch: of a batch, or of groups of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

import numbasync as na
from numbasync_kernels.fits import name_of
from numbasync_kernels.nn.finish import ACTIVATIONS, Finish
from numbasync_kernels.nn.gemm import (
    DTYPES,
    check_product,
    limits_of,
    multiply_without_tensor_cores,
)
from numbasync_kernels.nn.matmul_warpgroups import ROW_BYTES, THREADS, matmul_warpgroups
from numbasync_kernels.nn.matmul_warps import matmul_warps, tile_of
from numbasync_kernels.nn.operands import (
    check_are_tensors,
    fits_a_map,
    fits_copies,
    is_transposed,
    with_copies,
    with_fitting_pitch,
    with_zeros,
)
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
        out: shape ``(count, m, n)``, C-contiguous, of the dtype of `a`, or float32; of int8, int32.
        a, b: shapes ``(count, m, k)`` and ``(count, k, n)``; k may be 0, other extents not. Views
            will do, of which `a` is copied; ``w.mT`` of C-contiguous w is as fast as such a b.
        bias: shape ``(n,)``.
        activation: "relu" or "gelu".
        residual: shape of `out`, C-contiguous.
        precision: "float32", or "tf32" of float32, as of `gemm`.

    All dtypes, float32 with "tf32", are multiplied by tensor cores on GPUs of capability 9.0
    (`matmul_warpgroups`, int8 by `matmul_warps`) and 8.0 (`matmul_warps`); everything else by
    `matmul_float32` or `matmul_threads`. Nothing is done to products of int8, as in `gemm`.

    Raises:
        CallerError, ShapeError, DTypeError: the operands do not fit.

    Examples:
        >>> from numbasync_kernels import nn
        >>> a, b = await na.ones((2, 1, 3)), await na.full((2, 3, 2), 2)
        >>> out = await nn.batched_gemm(await na.zeros((2, 1, 2)), a, b)
        >>> (await out.to_host()).tolist()
        [[[6.0, 6.0]], [[6.0, 6.0]]]
    """
    check_are_tensors("batched_gemm", out=out, a=a, b=b)
    check_are_tensors("batched_gemm", True, residual=residual)
    if not out.ndim == a.ndim == b.ndim == 3 or not len(out) == len(a) == len(b) or not out.size:
        raise na.errors.ShapeError(
            f"batched_gemm of shapes {a.shape} and {b.shape} into {out.shape}: write "
            "(count, m, k), (count, k, n) and (count, m, n), none of count, m and n 0."
        )
    first_residual = None if residual is None else residual[0]
    check_product(out[0], a[0], b[0], bias, activation, first_residual, precision, DTYPES)
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
        out: shape ``(m, n)``, C-contiguous, of the dtype of `a`, or float32; of int8, int32.
        a, b: shapes ``(m, k)`` and ``(groups, k, n)``, all extents at least 1.
        offsets: shape ``(groups + 1,)``, int64, from 0 to at most m, none less than the one before.
            The device reads them. Rows of out that are of no group keep what they have.
        residual: shape of `out`.

    Everything else is as for `batched_gemm`.

    Raises:
        CallerError, ShapeError, DTypeError: the operands do not fit.

    Examples:
        >>> from numbasync_kernels import nn
        >>> a, b = await na.ones((3, 2)), np.stack([np.eye(2), 5 * np.eye(2)]).astype(np.float32)
        >>> offsets = await na.from_host(np.array([0, 1, 3]))  # one row, and two
        >>> out = await nn.grouped_gemm(await na.zeros((3, 2)), a, await na.from_host(b), offsets)
        >>> (await out.to_host()).tolist()
        [[1.0, 1.0], [5.0, 5.0], [5.0, 5.0]]
    """
    check_are_tensors("grouped_gemm", out=out, a=a, b=b, offsets=offsets)
    if b.ndim != 3 or not len(b) or not out.size:
        raise na.errors.ShapeError(
            f"grouped_gemm of shapes {a.shape} and {b.shape} into {out.shape}: write (m, k), "
            "(groups, k, n) and (m, n), of extents of at least 1."
        )
    check_product(out, a, b[0], bias, activation, residual, precision, DTYPES)
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
    finish = Finish(bias, residual, ACTIVATIONS[activation])
    device, k = out.device, a.shape[1]
    cores = "none" if device is None or not k else device.limits.tensor_cores
    if a.dtype == np.float32 and precision != "tf32":
        cores = "none"
    if cores == "warps" or (cores == "warpgroups" and a.dtype == np.int8):
        return _by_warps(out, a, b, rows, offsets, finish)
    if cores == "warpgroups":
        return _by_warpgroups(out, a, b, rows, offsets, finish)
    return multiply_without_tensor_cores(out, a, b, *finish, rows, offsets)


def _by_warpgroups(
    out: na.Tensor, a: na.Tensor, b: na.Tensor, rows: int, offsets: na.Tensor | None,
    finish: Finish,
) -> na.DeviceOp[na.Tensor]:  # fmt: skip
    """`wgmma`: `matmul_warpgroups`."""
    groups, k, n = b.shape
    rows_of_k = a.dtype.itemsize == 2 and not is_transposed(b)
    height = rows if offsets is None else out.shape[0] // groups + 1
    multiprocessors = limits_of(out).multiprocessors
    steps = -(-k * a.dtype.itemsize // ROW_BYTES)
    way = tiling(height, n, steps, multiprocessors, groups)
    kernel = matmul_warpgroups(name_of(a.dtype), way.columns, rows_of_k, finish.compiled, "groups")
    launcher = kernel.launcher[kernel.blocks(out, multiprocessors, groups), THREADS]

    def launch(left: na.Tensor, right: na.Tensor) -> na.DeviceOp[na.Tensor]:
        maps = na.tensor_map(left, kernel.box_a), na.tensor_map(right, kernel.box_b)
        launched: na.DeviceOp[Any] = launcher(out, *maps, k, n, rows, offsets, *finish[:2])
        return launched.first()

    operands = a, b if rows_of_k else b.mT
    return with_copies(launch, operands, fits_a_map, with_fitting_pitch)


def _by_warps(
    out: na.Tensor, a: na.Tensor, b: na.Tensor, rows: int, offsets: na.Tensor | None,
    finish: Finish,
) -> na.DeviceOp[na.Tensor]:  # fmt: skip
    """`mma`: `matmul_warps`."""
    groups, k, n = b.shape
    rows_of_k = a.dtype.itemsize == 2 and not is_transposed(b)
    height = rows if offsets is None else out.shape[0] // groups + 1
    limits = limits_of(out)
    shared_bytes = limits.max_dynamic_shared_bytes
    tile = tile_of((height, n), limits.multiprocessors, shared_bytes, groups)
    kernel = matmul_warps(name_of(a.dtype), tile, (False, rows_of_k), finish.compiled, True)
    launcher = kernel.launcher[kernel.blocks(out, groups), tile.threads]

    def launch(left: na.Tensor, right: na.Tensor) -> na.DeviceOp[na.Tensor]:
        launched: na.DeviceOp[Any] = launcher(out, left, right, k, rows, offsets, *finish[:2])
        return launched.first()

    operands = a, b if rows_of_k else b.mT
    return with_copies(launch, operands, fits_copies, with_zeros)
