"""Matrix products of any layout, by the fastest kernel that the device and the dtype permit."""

from __future__ import annotations

from typing import Any

import numpy as np

import numbasync as na
from numbasync_kernels.nn.finish import ACTIVATIONS
from numbasync_kernels.nn.matmul import MATMUL_TILE, matmul_finished
from numbasync_kernels.nn.matmul_warpgroups import ROW_BYTES, THREADS, matmul_warpgroups
from numbasync_kernels.nn.split_k import multiply_in_parts
from numbasync_kernels.nn.split_tf32 import LEFT, PARTS, RIGHT, split_tf32
from numbasync_kernels.nn.tiling import tiling

DTYPES = ("float16", "bfloat16", "float32")
UNIT = 16  # bytes; of addresses and pitches that tensor maps take
PRECISIONS = ("float32", "tf32x3", "tf32")


def gemm(
    out: na.Tensor,
    a: na.Tensor,
    b: na.Tensor,
    *,
    bias: na.Tensor | None = None,
    activation: str | None = None,
    residual: na.Tensor | None = None,
    precision: str = "float32",
) -> na.DeviceOp[na.Tensor]:
    """``out = activation(a @ b + bias) + residual``, as an operation that gives `out`.

    Args:
        out: shape ``(m, n)``, C-contiguous, of the dtype of `a`, or float32.
        a, b: shapes ``(m, k)`` and ``(k, n)``, of one dtype: float16, bfloat16 or float32. Views
            will do; ``w.T`` of a row-major ``w`` is as fast as a row-major b. Rows of other pitches
            than multiples of 16 bytes are copied first.
        bias: shape ``(n,)``.
        activation: "relu" or "gelu".
        residual: shape of `out`.
        precision: of products of float32: "float32"; "tf32", which cuts operands to 11 bits and is
            many times faster on tensor cores; or "tf32x3", which cuts them to 22 bits, and takes
            three times as long as that, and memory for three copies of both operands.

    float16 and bfloat16, and float32 with "tf32" or "tf32x3", are multiplied by tensor cores on
    GPUs of capability 9.0 (`matmul_warpgroups`); everything else by `matmul_finished`.

    Raises:
        CallerError, ShapeError, DTypeError: the operands do not fit.
    """
    check_product(out, a, b, bias, activation, residual, precision)
    device = out.device
    on_tensor_cores = device is not None and device.limits.tensor_cores == "warpgroups"
    if a.dtype == np.float32 and precision == "float32":
        on_tensor_cores = False
    if not on_tensor_cores:
        tiles = out.partition(MATMUL_TILE)
        plain = matmul_finished(tiles, a, b, bias, residual, ACTIVATIONS[activation])
        return _unpartitioned(plain)
    if precision == "tf32x3" and a.dtype == np.float32:
        return na.zip(_split(a, LEFT), _split(b.T, RIGHT)).then(lambda both: gemm(
            out, both[0], both[1].T, bias=bias, activation=activation, residual=residual,
            precision="tf32",
        ))  # fmt: skip
    rows_of_k = not _is_transposed(b)
    if a.dtype == np.float32 and rows_of_k:  # rows of k are of 16-bit elements only
        return na.dup(b.T).then(lambda bt: gemm(
            out, a, bt.T, bias=bias, activation=activation, residual=residual, precision=precision
        ))  # fmt: skip
    multiprocessors = device.limits.multiprocessors if device is not None else 1
    k = a.shape[1]
    m, n = out.shape
    unit = 64 if rows_of_k else 32
    way = tiling(m, n, -(-k * a.dtype.itemsize // ROW_BYTES), multiprocessors, unit=unit)
    finish = bias, residual, ACTIVATIONS[activation]
    finishes = bias is not None or activation is not None or residual is not None

    def launch(left: na.Tensor, right: na.Tensor) -> na.DeviceOp[na.Tensor]:
        if way.parts > 1:
            return multiply_in_parts(out, left, right, way, rows_of_k, multiprocessors, finish)
        kernel = matmul_warpgroups(a.dtype.name, way.columns, rows_of_k, finishes)
        maps = na.tensor_map(left, kernel.box_a), na.tensor_map(right, kernel.box_b)
        call = kernel.launcher[kernel.blocks(out, multiprocessors), THREADS]
        launched: na.DeviceOp[Any] = call(out, *maps, k, len(out), None, *finish)
        return launched.first()

    sources = a, (b if rows_of_k else b.T)
    if all(map(fits_a_map, sources)):
        return launch(*sources)
    copies = (na.value(t) if fits_a_map(t) else with_fitting_pitch(t) for t in sources)
    return na.zip(*copies).then(lambda both: launch(*both))


def _unpartitioned(launched: na.DeviceOp[Any]) -> na.DeviceOp[na.Tensor]:
    """The output of a launch, as the tensor."""
    return launched.first().unpartition()


def check_product(
    out: na.Tensor,
    a: na.Tensor,
    b: na.Tensor,
    bias: na.Tensor | None,
    activation: str | None,
    residual: na.Tensor | None,
    precision: str,
) -> None:
    """Refuse arguments of `gemm` that do not fit.

    Raises:
        CallerError, ShapeError, DTypeError: they do not.
    """
    errors = na.errors
    if any(t.ndim != 2 for t in (out, a, b)):
        raise errors.ShapeError(f"gemm of {a!r} and {b!r} into {out!r}: write matrices.")
    if a.shape[1] != b.shape[0] or out.shape != (a.shape[0], b.shape[1]):
        raise errors.ShapeError(
            f"gemm of shapes {a.shape} and {b.shape} into {out.shape}: write (m, k), (k, n) and "
            "(m, n)."
        )
    if a.dtype != b.dtype or a.dtype.name not in DTYPES:
        raise errors.DTypeError(
            f"gemm of {a.dtype} and {b.dtype}: write two of {', '.join(DTYPES)}, equal."
        )
    if out.dtype not in (a.dtype, np.float32) or not out.is_contiguous:
        raise errors.DTypeError(
            f"gemm into {out!r}: write a C-contiguous tensor of {a.dtype} or float32."
        )
    if activation not in ACTIVATIONS:
        known = ", ".join(repr(name) for name in ACTIVATIONS)
        raise errors.CallerError(f"gemm(activation={activation!r:.60}): write one of {known}.")
    if precision not in PRECISIONS:
        raise errors.CallerError(
            f"gemm(precision={precision!r:.60}): write float32, tf32x3 or tf32."
        )
    for name, extra, shape in (("bias", bias, out.shape[1:]), ("residual", residual, out.shape)):
        if extra is not None and extra.shape != shape:
            raise errors.ShapeError(f"gemm: {name} has shape {extra.shape}, not {shape}.")


def _split(t: na.Tensor, low: int) -> na.DeviceOp[na.Tensor]:
    """An operand of float32 as parts that TF32 holds, three times as long along k."""
    rows, columns = t.shape
    unit = UNIT // t.dtype.itemsize
    wide = na.empty((rows, -(-PARTS * columns // unit) * unit), t.dtype)
    return wide.then(lambda w: split_tf32(w, t, low)).map(lambda r: r.out[:, : PARTS * columns])


def _is_transposed(t: na.Tensor) -> bool:
    """Whether the elements of a column, not those of a row, are neighbours."""
    size = t.dtype.itemsize
    return t.strides[1] != size and t.strides[0] == size


def fits_a_map(t: na.Tensor) -> bool:
    """Whether a tensor map can be made of the matrix, or matrices."""
    size = t.dtype.itemsize
    return t.strides[-1] == size and t.is_aligned and not any(s % UNIT for s in t.strides[:-1])


def with_fitting_pitch(t: na.Tensor) -> na.DeviceOp[na.Tensor]:
    """A copy with rows at multiples of 16 bytes."""
    *outer, columns = t.shape
    unit = UNIT // t.dtype.itemsize
    wide = na.empty((*outer, -(-columns // unit) * unit), t.dtype)
    return wide.then(lambda w: w[..., :columns].copy_from(t))
