"""Rows made alike in size: by their mean and variance, or by their mean square.

Rows lie as in `numbasync.algorithms.softmaxes`, and are read once: threads keep what they load.
"""

from __future__ import annotations

import math
import operator
from builtins import zip as pairs
from functools import cache, partial
from typing import Any

import numpy as np

from numbasync import block, dtypes, warp
from numbasync.algorithms.launches import Launches
from numbasync.algorithms.operation import Algorithm
from numbasync.algorithms.operators import named, wide
from numbasync.algorithms.reduce_kernels import THREADS, numba_type
from numbasync.algorithms.softmaxes import grid_of, threads_of
from numbasync.arguments import shown
from numbasync.errors import CallerError, DTypeError, ShapeError
from numbasync.kernel_names import cuda, int64
from numbasync.launch.launcher import launcher
from numbasync.launch.parameters import KernelInput, KernelOutput
from numbasync.layout import Shape
from numbasync.ops.op import DeviceOp
from numbasync.tensors.create import empty


def layer_norm(x: Any, scale: Any = None, shift: Any = None, *, eps: float = 1e-5) -> DeviceOp[Any]:
    """``(x - mean) / sqrt(variance + eps) * scale + shift``, along the last axis.

    Args:
        x: a tensor or a NumPy array of floats, of one axis or more, or an operation that gives one.
        scale, shift: floats, of one axis with the last extent of `x`; None: 1, and 0.
        eps: added to the variance, which is the mean of squares: a number above 0.

    The result has the shape and dtype of `x`. float16 and bfloat16 are computed in float32, and
    each result is rounded once. The bits follow from the extent of the axis and its elements.

    Error bound, to first order: with u = ``2**-24`` for float32 and ``2**-53`` for float64, n the
    extent, p the threads of a row (see `softmax`), m the largest size in the row, s the root of
    variance and `eps`, and z the result without scale and shift,
    ``(n / p + 44) u abs(scale) (1 + abs(z)) (1 + m / s) + 2 u abs(shift)``: the mean is a sum of
    n / p elements a thread and of up to 36 threads' sums, and its error is divided by s.

    Reads and writes each element once, up to 8,192 along the axis, else reads each three times.

    Raises:
        ShapeError: `x` has no axis, or `scale` or `shift` another shape.
        DTypeError: no floats.
        CallerError: `eps` is not above 0.

    Source: J. L. Ba, J. R. Kiros and G. E. Hinton, Layer Normalization, arXiv:1607.06450, 2016.

    Examples:
        >>> x = np.array([[1, 2, 3, 4]], np.float32)
        >>> (await na.algorithms.layer_norm(x).to_host()).round(2)
        array([[-1.34, -0.45,  0.45,  1.34]], dtype=float32)
    """
    return _norm("layer_norm", x, scale, shift, eps)


def rms_norm(x: Any, scale: Any = None, *, eps: float = 1e-6) -> DeviceOp[Any]:
    """``x / sqrt(mean(x**2) + eps) * scale``, along the last axis; see `layer_norm`.

    Relative error of a result, to first order: ``(n / (2 p) + 24) u``, with the letters of
    `layer_norm`. All squares are positive, so that a sum of them has a relative error.

    Source: B. Zhang and R. Sennrich, Root Mean Square Layer Normalization, arXiv:1910.07467, 2019.

    Examples:
        >>> x = np.array([[3, -4]], np.float32)
        >>> (await na.algorithms.rms_norm(x).to_host()).round(2)
        array([[ 0.85, -1.13]], dtype=float32)
    """
    return _norm("rms_norm", x, scale, None, eps)


def _norm(name: str, x: Any, scale: Any, shift: Any, eps: Any) -> DeviceOp[Any]:
    is_number = isinstance(eps, int | float | np.floating | np.integer)
    if not is_number or isinstance(eps, bool) or not 0 < eps < math.inf:
        raise CallerError(f"eps={shown(eps)} of {name}: write a number above 0, as 1e-5.")
    which = tuple(what for what, given in (("scale", scale), ("shift", shift)) if given is not None)
    more = (given for given in (scale, shift) if given is not None)
    return Algorithm(name, x, partial(_plan, name, float(eps), which), *more)


def _plan(name: str, eps: float, which: tuple[str, ...], *known: Any) -> Any:
    """What builds the operation of a tensor, of the shape and dtype that `known` begins with, and
    of those of `which`, whose shapes and dtypes follow.
    """
    shape: Shape = known[0]
    dtype: np.dtype[Any] = known[1]
    if not shape:
        raise ShapeError(f"{name} of no axes: write x of one or more.")
    for what, its_dtype in (("x", dtype), *pairs(which, known[3::2], strict=True)):
        if not dtypes.is_float(its_dtype):
            raise DTypeError(
                f"{name} with {what} of {its_dtype}: write floats, as await "
                f"{what}.astype(np.float32) gives."
            )
    n = shape[-1]
    for what, its_shape in pairs(which, known[2::2], strict=True):
        if its_shape != (n,):
            raise ShapeError(
                f"{name} of shape {shape} with {what} of shape {its_shape}: write one of ({n},)."
            )
    count = math.prod(shape)
    if not count:
        return lambda *_: empty(shape, dtype)
    threads, each = threads_of(n)
    others = dict(pairs(which, known[3::2], strict=True))
    kernel = norm_kernel(
        dtype, others.get("scale"), others.get("shift"), threads, each, name == "layer_norm"
    )
    grid = grid_of(count // n, threads)

    launches = Launches((shape, dtype), *pairs(known[2::2], known[3::2], strict=True))
    x, *more = launches.operands
    given = dict(pairs(which, more, strict=True))
    flat = x.reshape((count,))  # where nothing is given: it is not read
    scale, shift = (given.get(what, flat) for what in ("scale", "shift"))
    z = launches.empty((count // n, n), dtype)
    launches.launch(kernel[grid], z, x.reshape((count // n, n)), scale, shift, eps)
    launches.give(z.reshape(shape))
    return launches


@cache
def norm_kernel(
    dtype: np.dtype[Any], scale: np.dtype[Any] | None, shift: np.dtype[Any] | None, threads: int,
    each: int, is_centred: bool,
) -> Any:  # fmt: skip
    """The launcher ``(z, x, scale, shift, eps)`` of rows, as `softmax_kernel`.

    Args:
        dtype, scale, shift: of the elements; None: there are none, and what is given is not read.
        threads, each: as of `softmax_kernel`.
        is_centred: the mean is taken away.
    """
    lift, kind = named("max", dtype).lift, numba_type(wide(dtype))
    lift_scale = named("max", scale or dtype).lift
    lift_shift = named("max", shift or dtype).lift
    has_scale, has_shift = scale is not None, shift is not None
    rows = max(THREADS // threads, 1)
    room = max(each, 1)
    meet = warp.reduce if threads == warp.WARP else block.reduce
    plus = operator.add

    @cuda.jit(device=True)
    def finish(away: Any, shrink: Any, scale: Any, shift: Any, i: Any) -> Any:
        result = away * shrink
        if has_scale:
            result = kind(result * kind(lift_scale(scale[i], 0)[0]))
        if has_shift:
            result = kind(result + kind(lift_shift(shift[i], 0)[0]))
        return result

    @launcher
    @cuda.jit
    def norm_rows(
        z: KernelOutput, x: KernelInput, scale: KernelInput, shift: KernelInput, eps: float
    ) -> None:
        kept = cuda.local.array(room, kind)
        t = int64(cuda.threadIdx.x)
        own, n = t % threads, x.shape[1]
        row = int64(cuda.blockIdx.x) * rows + t // threads
        row_in = min(row, x.shape[0] - 1)  # no thread may stay away where all meet
        for k in range(each):
            kept[k] = lift(x[row_in, min(own + k * threads, n - 1)], 0)[0]
        mean = kind(0)
        if is_centred:
            total = kind(0)
            if each:
                for k in range(each):
                    if own + k * threads < n:
                        total += kept[k]
            else:
                for i in range(own, n, threads):
                    total += lift(x[row_in, i], 0)[0]
            mean = kind(meet(total, plus) / kind(n))
        total = kind(0)
        if each:
            for k in range(each):
                kept[k] -= mean
                if own + k * threads < n:
                    total += kept[k] * kept[k]
        else:
            for i in range(own, n, threads):
                away = kind(lift(x[row_in, i], 0)[0] - mean)
                total += away * away
        size = kind(math.sqrt(kind(kind(meet(total, plus) / kind(n)) + kind(eps))))
        shrink = kind(kind(1) / size)
        if row < x.shape[0]:
            if each:
                for k in range(each):
                    if own + k * threads < n:
                        i = own + k * threads
                        z[row, i] = finish(kept[k], shrink, scale, shift, i)
            else:
                for i in range(own, n, threads):
                    away = kind(lift(x[row, i], 0)[0] - mean)
                    z[row, i] = finish(away, shrink, scale, shift, i)

    return norm_rows
