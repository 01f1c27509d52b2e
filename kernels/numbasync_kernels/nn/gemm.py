"""Matrix products of any layout, by the fastest kernel that the device and the dtype permit."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import numbasync as na
from numbasync.memo import Memo
from numbasync_kernels.fits import FLOATS, name_of
from numbasync_kernels.nn.finish import ACTIVATIONS, Finish
from numbasync_kernels.nn.gelu import gelu_reference
from numbasync_kernels.nn.matmul_float32 import float32_like
from numbasync_kernels.nn.matmul_threads import multiply_by_threads
from numbasync_kernels.nn.matmul_warpgroups import ROW_BYTES, THREADS, matmul_warpgroups
from numbasync_kernels.nn.matmul_warps import matmul_warps, tile_of
from numbasync_kernels.nn.operands import (
    UNIT,
    check_are_tensors,
    fits_a_map,
    fits_copies,
    is_transposed,
    with_copies,
    with_fitting_pitch,
    with_zeros,
)
from numbasync_kernels.nn.split_k import multiply_in_parts
from numbasync_kernels.nn.split_tf32 import LEFT, PARTS, RIGHT, split_tf32
from numbasync_kernels.nn.tiling import tiling

DTYPES = (*FLOATS, "int8")
PRECISIONS = ("float32", "tf32x3", "tf32")
Result: TypeAlias = na.DeviceOp[na.Tensor]


def gemm(
    out: na.Tensor,
    a: na.Tensor,
    b: na.Tensor,
    *,
    bias: na.Tensor | None = None,
    activation: str | None = None,
    residual: na.Tensor | None = None,
    precision: str = "float32",
) -> Result:
    """``out = activation(a @ b + bias) + residual``, as an operation that gives `out`.

    Args:
        out: shape ``(m, n)``, C-contiguous, of the dtype of `a`, or float32; of int8, int32.
        a, b: shapes ``(m, k)`` and ``(k, n)``, of one dtype: float16, bfloat16, float32 or int8.
            Views will do; ``w.T`` of a row-major ``w`` is as fast as a row-major b, and of int8
            faster. Rows of other pitches than multiples of 16 bytes are copied first.
        bias: shape ``(n,)``.
        activation: "relu" or "gelu".
        residual: shape of `out`.
        precision: of products of float32: "float32"; "tf32", which cuts operands to 11 bits and is
            many times faster on tensor cores; or "tf32x3", which cuts them to 22 bits, and takes
            three times as long as that, and memory for three copies of both operands.

    Products of int8 are exact, and nothing is done to them: bias, activation and residual are for
    floats. Which kernel computes what is the table `ROUTES`.

    Raises:
        CallerError, ShapeError, DTypeError: the operands do not fit.

    Examples:
        >>> from numbasync_kernels import nn
        >>> a, b = await na.ones((2, 3)), await na.full((3, 4), 2)
        >>> out, bias = await na.zeros((2, 4)), await na.full(4, -10)
        >>> _ = await nn.gemm(out, a, b, bias=bias, activation="relu")
        >>> _ = await nn.gemm(out, a, b, residual=await na.ones((2, 4)))
        >>> (await out.to_host()).tolist()
        [[7.0, 7.0, 7.0, 7.0], [7.0, 7.0, 7.0, 7.0]]
    """
    product = Arguments(out, a, b, bias, activation, residual)
    kind = _kind(product, precision)
    way = None if kind is None else _ways.get(kind)
    if way is None:
        check_product(out, a, b, bias, activation, residual, precision, DTYPES)
        way = _way_of(product, precision)
        if kind is not None:
            _ways[kind] = way
    return way(product)


def gemm_reference(
    a: np.ndarray[Any, Any],
    b: np.ndarray[Any, Any],
    bias: np.ndarray[Any, Any] | None = None,
    activation: str | None = None,
    residual: np.ndarray[Any, Any] | None = None,
) -> np.ndarray[Any, Any]:
    """What `gemm` and `batched_gemm` approximate, in float64."""
    result: np.ndarray[Any, Any] = a.astype(np.float64) @ b.astype(np.float64)
    if bias is not None:
        result = result + bias
    if activation == "relu":
        result = np.maximum(result, 0)
    elif activation == "gelu":
        result = gelu_reference(result)
    return result if residual is None else result + residual


class Arguments(NamedTuple):
    """The arguments of a `gemm`."""

    out: na.Tensor
    a: na.Tensor
    b: na.Tensor
    bias: na.Tensor | None = None
    activation: str | None = None
    residual: na.Tensor | None = None

    @property
    def finish(self) -> Finish:
        return Finish(self.bias, self.residual, ACTIVATIONS[self.activation])


# A way to compute products of one kind: of arguments of the same dtypes, shapes and strides. What
# follows from these is decided once, and takes longer than a launch.
Way: TypeAlias = Callable[[Arguments], Result]

_ways = Memo[Hashable, Way](1024)


def _kind(p: Arguments, precision: object) -> Hashable:
    """What the checks, and the way, of a product depend on; None: arguments that are to be checked,
    whose types are not known to be right.
    """
    out, a, b, bias, activation, residual = p
    if not (type(out) is type(a) is type(b) is na.Tensor and type(precision) is str):
        return None
    if not (bias is None or type(bias) is na.Tensor) or not (
        residual is None or type(residual) is na.Tensor
    ):
        return None
    if not (activation is None or type(activation) is str):
        return None
    device = out.device
    # The fingerprint of a matrix has no strides of a matrix with gaps, or along an extent of 1.
    return (
        device, None if device is None else device.limits.tensor_cores, out.fingerprint,
        out.strides, a.fingerprint, a.strides, b.fingerprint, b.strides,
        None if bias is None else bias.fingerprint,
        None if residual is None else residual.fingerprint, activation, precision,
    )  # fmt: skip


def _way_of(p: Arguments, precision: str) -> Way:
    out, a, device = p.out, p.a, p.out.device
    if not out.size:
        return _nothing
    cores = "none" if device is None or not a.size else device.limits.tensor_cores
    route = ROUTES[cores].get(precision if a.dtype == np.float32 else name_of(a.dtype), plain)
    return route(p)


def _nothing(p: Arguments) -> Result:
    return na.value(p.out)


# --- routes: each gives the way of arguments like these ---


def plain(p: Arguments) -> Way:
    """Without tensor cores: `multiply_without_tensor_cores`."""
    activation = ACTIVATIONS[p.activation]
    multiply = without_tensor_cores(p.out, p.a, p.b, *p.finish)
    return lambda p: multiply(p.out, p.a, p.b, p.bias, p.residual, activation)


def by_warpgroups(p: Arguments) -> Way:
    """`wgmma`: `matmul_warpgroups`."""
    rows_of_k = p.a.dtype.itemsize == 2 and not is_transposed(p.b)
    out, k = p.out, p.a.shape[1]
    multiprocessors = limits_of(p.out).multiprocessors
    m, n = out.shape
    unit = 64 if rows_of_k else 32
    steps = -(-k * p.a.dtype.itemsize // ROW_BYTES)
    way = tiling(m, n, steps, multiprocessors, unit=unit)
    fit = all(map(fits_a_map, (p.a, p.b if rows_of_k else p.b.T)))
    activation = ACTIVATIONS[p.activation]

    if way.parts > 1:

        def launch(p: Arguments, left: na.Tensor, right: na.Tensor) -> Result:
            return multiply_in_parts(
                p.out, left, right, way, rows_of_k, multiprocessors,
                Finish(p.bias, p.residual, activation),
            )  # fmt: skip

    else:
        stored = name_of(out.dtype) if fits_a_map(out) else None
        kernel = matmul_warpgroups(
            name_of(p.a.dtype), way.columns, rows_of_k, p.finish.compiled, stored=stored
        )
        call = kernel.launcher[kernel.blocks(out, multiprocessors), THREADS]
        box_a, box_b, target = kernel.box_a, kernel.box_b, kernel.target

        def launch(p: Arguments, left: na.Tensor, right: na.Tensor) -> Result:
            out = p.out
            launched: na.DeviceOp[Any] = call(
                target(out), na.tensor_map(left, box_a), na.tensor_map(right, box_b), k, n, m,
                None, p.bias, p.residual,
            )  # fmt: skip
            return launched.map(lambda _: out)

    def multiply(p: Arguments) -> Result:
        right = p.b if rows_of_k else p.b.T
        if fit:
            return launch(p, p.a, right)
        return with_copies(partial(launch, p), (p.a, right), fits_a_map, with_fitting_pitch)

    return multiply


def by_warps(p: Arguments) -> Way:
    """`mma`: `matmul_warps`."""
    halves = p.a.dtype.itemsize == 2
    rows_of_k = halves and is_transposed(p.a), halves and not is_transposed(p.b)
    limits = limits_of(p.out)
    tile = tile_of(p.out.shape, limits.multiprocessors, limits.max_dynamic_shared_bytes)
    kernel = matmul_warps(name_of(p.a.dtype), tile, rows_of_k, p.finish.compiled)
    launcher = kernel.launcher[kernel.blocks(p.out), tile.threads]
    k = p.a.shape[1]

    def operands(p: Arguments) -> tuple[na.Tensor, na.Tensor]:
        return p.a.T if rows_of_k[0] else p.a, p.b if rows_of_k[1] else p.b.T

    def launch(p: Arguments, left: na.Tensor, right: na.Tensor) -> Result:
        launched: na.DeviceOp[Any] = launcher(p.out, left, right, k, 0, None, p.bias, p.residual)
        return launched.first()

    fit = all(map(fits_copies, operands(p)))

    def multiply(p: Arguments) -> Result:
        if fit:
            return launch(p, *operands(p))
        return with_copies(partial(launch, p), operands(p), fits_copies, with_zeros)

    return multiply


def as_three_of_tf32(p: Arguments) -> Way:
    """Products of parts that TF32 holds, as one product."""

    def multiply(p: Arguments) -> Result:
        both = na.zip(_split(p.a, LEFT), _split(p.b.T, RIGHT))
        return both.then(lambda parts: gemm(
            p.out, parts[0], parts[1].T, bias=p.bias, activation=p.activation, residual=p.residual,
            precision="tf32",
        ))  # fmt: skip

    return multiply


# By `device.limits.tensor_cores`, and by the dtype, of float32 the precision: what is not here is
# `plain`. The operations that are "emulated" by the CPU device are for tests.
ROUTES: dict[str, dict[str, Callable[[Arguments], Way]]] = {
    "warpgroups": {
        "float16": by_warpgroups, "bfloat16": by_warpgroups, "tf32": by_warpgroups,
        "tf32x3": as_three_of_tf32, "int8": by_warps,
    },
    "warps": {
        "float16": by_warps, "bfloat16": by_warps, "tf32": by_warps,
        "tf32x3": as_three_of_tf32, "int8": by_warps,
    },
    "emulated": {},
    "none": {},
}  # fmt: skip


def without_tensor_cores(out: na.Tensor, a: na.Tensor, b: na.Tensor, *more: Any) -> Any:
    """The function that multiplies arguments like these: one of `float32_like` on GPUs, else
    `multiply_by_threads`.
    """
    device = out.device
    if a.dtype == np.float32 and a.size and device and device.limits.loads_in_flight > 1:
        return float32_like(out, a, b, *more)
    return multiply_by_threads


def multiply_without_tensor_cores(
    out: na.Tensor, a: na.Tensor, b: na.Tensor, *more: Any
) -> na.DeviceOp[na.Tensor]:
    """`multiply_float32` of float32 on GPUs, else `multiply_by_threads`; of the same arguments."""
    product: Result = without_tensor_cores(out, a, b, *more)(out, a, b, *more)
    return product


def check_product(
    out: na.Tensor,
    a: na.Tensor,
    b: na.Tensor,
    bias: na.Tensor | None,
    activation: str | None,
    residual: na.Tensor | None,
    precision: str,
    dtypes: tuple[str, ...] = FLOATS,
) -> None:
    """Refuse arguments of a product that do not fit; `dtypes` are those of operands.

    Raises:
        CallerError, ShapeError, DTypeError: they do not.
    """
    errors = na.errors
    check_are_tensors("gemm", out=out, a=a, b=b)
    check_are_tensors("gemm", True, bias=bias, residual=residual)
    if any(t.ndim != 2 for t in (out, a, b)):
        raise errors.ShapeError(f"gemm of {a!r} and {b!r} into {out!r}: write matrices.")
    if a.shape[1] != b.shape[0] or out.shape != (a.shape[0], b.shape[1]):
        raise errors.ShapeError(
            f"gemm of shapes {a.shape} and {b.shape} into {out.shape}: write (m, k), (k, n) and "
            "(m, n)."
        )
    if a.dtype != b.dtype or name_of(a.dtype) not in dtypes:
        raise errors.DTypeError(
            f"gemm of {a.dtype} and {b.dtype}: write two of {', '.join(dtypes)}, equal."
        )
    allowed = ("int32",) if a.dtype == np.int8 else (name_of(a.dtype), "float32")
    if name_of(out.dtype) not in allowed or not out.is_contiguous:
        raise errors.DTypeError(
            f"gemm into {out!r}: write a C-contiguous tensor of {' or '.join(allowed)}."
        )
    if not isinstance(activation, str | None) or activation not in ACTIVATIONS:
        known = ", ".join(repr(name) for name in ACTIVATIONS)
        raise errors.CallerError(f"gemm(activation={activation!r:.60}): write one of {known}.")
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise errors.CallerError(
            f"gemm(precision={precision!r:.60}): write float32, tf32x3 or tf32."
        )
    for name, extra, shape in (("bias", bias, out.shape[1:]), ("residual", residual, out.shape)):
        if extra is not None and extra.shape != shape:
            raise errors.ShapeError(f"gemm: {name} has shape {extra.shape}, not {shape}.")
    finishes = bias is not None or activation is not None or residual is not None
    if finishes and a.dtype == np.int8:
        raise errors.CallerError(
            "gemm of int8 with bias, activation or residual: its sums are int32.\n"
            "Leave them out, and write a kernel that scales and finishes the result."
        )


def _split(t: na.Tensor, low: int) -> na.DeviceOp[na.Tensor]:
    """An operand of float32 as parts that TF32 holds, three times as long along k."""
    rows, columns = t.shape
    unit = UNIT // t.dtype.itemsize
    wide = na.empty((rows, -(-PARTS * columns // unit) * unit), t.dtype)
    return wide.then(lambda w: split_tf32(w, t, low)).map(lambda r: r.out[:, : PARTS * columns])


def limits_of(out: na.Tensor) -> Any:
    """Those of the device, which the tensors of routes with tensor cores have."""
    assert out.device is not None
    return out.device.limits
