"""Softmax along an axis, its logarithm, and the cross-entropy of rows.

A row is the work of a warp or of a block. Each thread loads its elements at once, an equal distance
apart, and keeps them in registers: so each is read once. The threads combine what they have by
`numbasync.warp` or `numbasync.block`: first the maximum, then the sum of the exponentials of what
is below it. Rows of more than `KEPT` elements are read again for each of these.
"""

from __future__ import annotations

import math
import operator
from functools import cache, partial
from typing import Any

import numpy as np

from numbasync import block, dtypes, warp
from numbasync.algorithms.launches import Launches
from numbasync.algorithms.operation import Algorithm, one_axis
from numbasync.algorithms.operators import named, wide
from numbasync.algorithms.reduce_kernels import THREADS, numba_type
from numbasync.errors import DTypeError, ShapeError
from numbasync.kernel_names import cuda, int64
from numbasync.launch.launcher import launcher
from numbasync.launch.parameters import KernelInput, KernelOutput
from numbasync.layout import Shape
from numbasync.ops.op import DeviceOp
from numbasync.tensors.create import empty, full
from numbasync.tensors.tensor import Tensor

EACH = 16  # elements that a thread keeps
KEEPERS = 512  # threads of a row that is kept: twice as many would have too few registers
KEPT = EACH * KEEPERS
MOST_THREADS = 1024  # of a row that is read again


def softmax(x: Any, axis: Any = -1) -> DeviceOp[Tensor]:
    """``exp(x) / sum(exp(x))`` along an axis, for numbers of any size.

    Args:
        x: a tensor or a NumPy array of floats, of any shape, or an operation that gives one.
        axis: which axis.

    The result has the shape and dtype of `x`. float16 and bfloat16 are computed in float32, and
    each result is rounded once. Where an element is NaN or infinite, and where all are ``-inf``,
    the results along the axis are NaN; a single ``-inf`` gives 0. The bits follow from the extent
    of the axis and its elements.

    Relative error of a result, to first order: with u = ``2**-24`` for float32 and ``2**-53`` for
    float64, ``(2 d + n / p + 40) u``, where d is the largest distance from the maximum of those
    elements whose results are not 0, n the extent of the axis, and p the threads of a row: 32 for
    up to 512 elements, 256 for up to 4,096, 512 for up to 8,192, else 1,024. Each exponential is of
    a rounded distance, and so is each summand; a thread adds n / p of these, and the threads up to
    36.

    Reads and writes each element once, for up to 8,192 along the axis; reads each three times for
    more. Other axes than the last, and what is not contiguous, are copied first.

    Raises:
        ShapeError: there is no such axis.
        DTypeError: no floats.

    Examples:
        >>> x = np.array([[0.0, 0.0], [1000.0, 0.0]])
        >>> await na.algorithms.softmax(x).to_host()
        array([[0.5, 0.5],
               [1. , 0. ]])
    """
    return Algorithm("softmax", x, partial(_plan, "softmax", axis))


def log_softmax(x: Any, axis: Any = -1) -> DeviceOp[Tensor]:
    """The logarithms of `softmax`, which are finite where that is 0.

    Absolute error of a result r, to first order: ``(2 d + n / p + 40 + 2 abs(r)) u``, with the
    letters of `softmax`.

    Examples:
        >>> await na.algorithms.log_softmax(np.array([1000.0, 0.0])).to_host()
        array([    0., -1000.])
    """
    return Algorithm("log_softmax", x, partial(_plan, "log_softmax", axis))


def cross_entropy(x: Any, targets: Any, axis: Any = -1) -> DeviceOp[Tensor]:
    """The losses ``-log_softmax(x)[target]`` along an axis; their mean is `mean` of the result.

    Args:
        x: scores, as in `softmax`, along the axis those of the classes.
        targets: the number of each row's class: integers of the shape of `x` without the axis, or
            an operation that gives them. The loss of a row whose target is no class is NaN.
        axis: which axis.

    The result has the shape of `targets`, and is float64 of float64, else float32. A row with a NaN
    or ``inf`` has the loss NaN, a target whose score is ``-inf`` the loss ``inf``.

    Absolute error, to first order: that of `log_softmax` without its last rounding.

    Reads each element once, for up to 8,192 along the axis; reads each twice for more.

    Raises:
        ShapeError: there is no such axis, or `targets` has another shape.
        DTypeError: `x` are no floats, or `targets` no integers.

    Examples:
        >>> scores = np.array([[0, 0, 0], [0, 100, 0]], np.float32)
        >>> losses = await na.algorithms.cross_entropy(scores, np.array([2, 1])).to_host()
        >>> losses.round(4)
        array([1.0986, 0.    ], dtype=float32)
    """
    return Algorithm("cross_entropy", x, partial(_plan_losses, axis), targets)


def threads_of(n: int) -> tuple[int, int]:
    """How many threads a row of `n` elements has, and how many elements each keeps; 0: none."""
    if n > KEPT:
        return MOST_THREADS, 0
    threads = warp.WARP if n <= 512 else THREADS if n <= EACH * THREADS else KEEPERS
    return threads, next(k for k in (1, 4, EACH) if n <= k * threads)


def grid_of(rows: int, threads: int) -> tuple[int, int]:
    """The blocks and their threads, of rows of so many threads."""
    of_block = max(THREADS // threads, 1)
    return -(-rows // of_block), of_block * threads


def _plan(name: str, axis: Any, shape: Shape, dtype: np.dtype[Any]) -> Any:
    """What builds the operation of a tensor of this shape and dtype."""
    if not dtypes.is_float(dtype):
        raise DTypeError(f"{name} of {dtype}: write floats, as await x.astype(np.float32) gives.")
    along = one_axis(name, axis, len(shape))
    if not math.prod(shape):
        return lambda _: empty(shape, dtype)
    n = shape[along]
    rows = math.prod(shape) // n
    order = (*(a for a in range(len(shape)) if a != along), along)
    back = tuple(int(a) for a in np.argsort(order))
    is_last = along == len(shape) - 1
    threads, each = threads_of(n)
    kernel = softmax_kernel(dtype, threads, each, name)
    grid = grid_of(rows, threads)

    launches = Launches((shape, dtype), orders=(None if is_last else order,))
    x = launches.operands[0].reshape((rows, n))
    z = launches.empty((rows, n), dtype)
    launches.launch(kernel[grid], z, x, x)
    z = z.reshape(tuple(shape[a] for a in order))
    launches.give(z.permuted(back), are_copied=not is_last)
    return launches


def _plan_losses(
    axis: Any, shape: Shape, dtype: np.dtype[Any], which: Shape, which_dtype: np.dtype[Any]
) -> Any:
    """What builds the operation of scores and targets of these shapes and dtypes."""
    if not dtypes.is_float(dtype):
        raise DTypeError(f"cross_entropy of {dtype}: write floats.")
    if which_dtype.kind not in "iu":
        raise DTypeError(f"cross_entropy by targets of {which_dtype}: write numbers of classes.")
    along = one_axis("cross_entropy", axis, len(shape))
    left = shape[:along] + shape[along + 1 :]
    if which != left:
        raise ShapeError(
            f"cross_entropy of shape {shape} along axis {along}, by targets of shape {which}: "
            f"write one for each row, of shape {left}."
        )
    rows, out = math.prod(left), wide(dtype)
    n = shape[along]
    if not rows or not n:
        return lambda *_: full(left, math.nan, out)
    order = (*(a for a in range(len(shape)) if a != along), along)
    threads, each = threads_of(n)
    kernel = softmax_kernel(dtype, threads, each, "cross_entropy")
    grid = grid_of(rows, threads)

    is_last = along == len(shape) - 1
    launches = Launches(
        (shape, dtype), (which, which_dtype), orders=(None if is_last else order, None)
    )
    x, targets = launches.operands
    z = launches.empty((rows, 1), out)
    launches.launch(kernel[grid], z, x.reshape((rows, n)), targets.reshape((rows,)))
    launches.give(z.reshape(left))
    return launches


@cuda.jit(device=True)
def _larger(a: Any, b: Any) -> Any:
    return b if b > a or b != b else a  # NaN wins


@cache
def softmax_kernel(dtype: np.dtype[Any], threads: int, each: int, name: str) -> Any:
    """The launcher ``(z, x, targets)`` of rows, of so many threads each, by blocks of 256 threads
    or more.

    Args:
        dtype: of the elements.
        threads: a warp's, or a block's.
        each: elements that a thread keeps: enough for a row. 0: a row is read anew.
        name: of the function. Only `cross_entropy` reads targets, and writes one loss of a row.
    """
    is_log, is_loss = name == "log_softmax", name == "cross_entropy"
    lift, kind = named("max", dtype).lift, numba_type(wide(dtype))
    rows = max(THREADS // threads, 1)
    room = max(each, 1)
    meet = warp.reduce if threads == warp.WARP else block.reduce
    plus = operator.add

    @cuda.jit(device=True)
    def finish(away: Any, total: Any) -> Any:
        return away - math.log(total) if is_log else math.exp(away) / total

    @launcher
    @cuda.jit
    def softmax_rows(z: KernelOutput, x: KernelInput, targets: KernelInput) -> None:
        kept = cuda.local.array(room, kind)
        t = int64(cuda.threadIdx.x)
        own, n = t % threads, x.shape[1]
        row = int64(cuda.blockIdx.x) * rows + t // threads
        row_in = min(row, x.shape[0] - 1)  # no thread may stay away where all meet
        for k in range(each):
            kept[k] = lift(x[row_in, min(own + k * threads, n - 1)], 0)[0]
        most = lift(x[row_in, min(own, n - 1)], 0)[0]
        if each:
            for k in range(each):
                most = _larger(most, kept[k])
        else:
            for i in range(own + threads, n, threads):
                most = _larger(most, lift(x[row_in, i], 0)[0])
        most = meet(most, _larger)
        total = kind(0)
        if each:
            for k in range(each):
                kept[k] -= most
                if own + k * threads < n:
                    total += math.exp(kept[k])
        else:
            for i in range(own, n, threads):
                total += math.exp(lift(x[row_in, i], 0)[0] - most)
        total = meet(total, plus)
        if is_loss:
            if row < x.shape[0] and own == 0:
                target = int64(targets[row])
                if 0 <= target < n:
                    z[row, 0] = math.log(total) - (lift(x[row, target], 0)[0] - most)
                else:
                    z[row, 0] = math.nan
        elif row < x.shape[0]:
            if each:
                for k in range(each):
                    if own + k * threads < n:
                        z[row, own + k * threads] = finish(kept[k], total)
            else:
                for i in range(own, n, threads):
                    z[row, i] = finish(lift(x[row, i], 0)[0] - most, total)

    return softmax_rows
