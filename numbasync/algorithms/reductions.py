"""Reductions: a result of all elements, or of those along some axes."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from numbasync.algorithms.launches import Array, Launches
from numbasync.algorithms.operation import Algorithm, axes_of, no_prefix
from numbasync.algorithms.operators import BOOL, Operator, operator_of
from numbasync.algorithms.prefix import put_filled
from numbasync.algorithms.reduce_kernels import THREADS, block_of, reduce_kernel
from numbasync.algorithms.scans import neutral
from numbasync.arguments import check_bool, check_whole, is_one_of, shown
from numbasync.errors import CallerError, ShapeError
from numbasync.layout import Shape
from numbasync.ops.op import DeviceOp
from numbasync.tensors.create import empty, full
from numbasync.tensors.create_ops import element
from numbasync.tensors.tensor import Tensor

# Of which something changes nothing, so that it may stand behind the end of a prefix.
OF_PREFIXES = ("sum", "prod", "min", "max", "any", "all", "count_nonzero", "norm")


def reduce(
    x: Any, op: Any = "sum", axis: Any = None, keepdims: bool = False, *, initial: Any = None
) -> DeviceOp[Tensor]:
    """The elements of `x` combined to one, or along some axes.

    Args:
        x: a tensor or a NumPy array of any shape, or an operation that gives one.
        op: `"sum"`, `"prod"`, `"mean"`, `"var"`, `"std"`, `"min"`, `"max"`, `"argmin"`, `"argmax"`,
            `"any"`, `"all"`, `"count_nonzero"`, `"norm"`; or a function of two numbers, your own or
            one that kernels know, such as `max`, which is compiled for the device. It has to be
            associative and commutative. Define it once: each function, and each lambda, is compiled
            by itself, and kept until the process ends.
        axis: which axis, or which several; None: all of them. `argmin` and `argmax` take one.
        keepdims: keep the reduced axes, with an extent of 1.
        initial: of a function: what is given for no elements.

    The result's dtype is NumPy's: of sums and products of integers and bool 64 bits, of their mean
    float64, else that of `x`. float16 and bfloat16 are computed in float32 and rounded once. `min`
    and `max` are NaN if an element is; `argmin` and `argmax` give the first index, and a NaN's
    before others. `var` merges counts, means and squares in one pass.

    The order of the combinations follows from the shape alone. So the bits are the same for every
    grid, in each run, on each GPU; the CPU device may contract products differently.

    Error bound of a sum of n elements, to first order: with u = ``2**-24`` for float32 and
    ``2**-53`` for float64, ``h u sum(abs(x))``, where h is the tree's height: at most 15 for up to
    4,096 elements, else 27 for each level of 16,384 (inner axes: 10 for each level of 128, or 13 of
    1,024 for 8 columns or fewer), so 42 for 67 million. Sums of integers are exact modulo
    ``2**64``. `norm` adds squares in float64. The relative error of `var` is about
    ``h u (6 + m / s)``, with m the largest size of the mean and s the deviation: it grows with
    their quotient, where a difference of sums has the square of that.

    Reads every element once and, if the axes are not neighbours or `x` is not contiguous, copies it
    first. Levels behind the first read a 64th of what came before, or less.
    Source of the merging of moments: T. F. Chan, G. H. Golub and R. J. LeVeque, Updating formulae
    and a pairwise algorithm for computing sample variances, 1979.

    Raises:
        ShapeError: there is no such axis, or there are no elements and `op` has no result of none.
        DTypeError: `op` is not defined of these elements.
        CallerError: there is no such operator.

    Examples:
        >>> t = await na.arange(6).reshape((2, 3))
        >>> await na.algorithms.reduce(t, "sum", axis=0).to_host()
        array([3., 5., 7.], dtype=float32)
        >>> def larger_size(a, b):
        ...     return a if abs(a) > abs(b) else b
        >>> await na.algorithms.reduce(np.array([1, -7, 3]), larger_size).item()
        -7
    """
    name = op if isinstance(op, str) else "reduce"
    if initial is not None and isinstance(op, str):
        raise CallerError(
            f"reduce(initial={shown(initial)}) is of a function, not of {shown(op)}: leave it out."
        )
    return _reduction(name, x, op, axis, keepdims, 0, initial)


def sum(x: Any, axis: Any = None, keepdims: bool = False) -> DeviceOp[Tensor]:
    """The sum of all elements, or along some axes; see `reduce`.

    Examples:
        >>> t = await na.arange(6).reshape((2, 3))
        >>> await na.algorithms.sum(t).item()
        15.0
        >>> await na.algorithms.sum(t, axis=1, keepdims=True).to_host()
        array([[ 3.],
               [12.]], dtype=float32)
    """
    return _reduction("sum", x, "sum", axis, keepdims)


def prod(x: Any, axis: Any = None, keepdims: bool = False) -> DeviceOp[Tensor]:
    """The product of all elements, or along some axes; see `reduce`.

    Examples:
        >>> await na.algorithms.prod(np.array([2, 3, 7])).item()
        42
    """
    return _reduction("prod", x, "prod", axis, keepdims)


def mean(x: Any, axis: Any = None, keepdims: bool = False) -> DeviceOp[Tensor]:
    """The mean of all elements, or along some axes; see `reduce`. NaN of no elements.

    Examples:
        >>> await na.algorithms.mean(na.arange(4)).item()
        1.5
    """
    return _reduction("mean", x, "mean", axis, keepdims)


def var(x: Any, axis: Any = None, keepdims: bool = False, *, ddof: int = 0) -> DeviceOp[Tensor]:
    """The variance of all elements, or along some axes, in one pass; see `reduce`.

    Args:
        ddof: the sum of squares is divided by ``n - ddof``: 0 of all elements, 1 of a sample.

    Examples:
        >>> await na.algorithms.var(na.arange(5)).item()
        2.0
        >>> await na.algorithms.var(na.arange(5), ddof=1).item()
        2.5
    """
    return _reduction("var", x, "var", axis, keepdims, ddof)


def std(x: Any, axis: Any = None, keepdims: bool = False, *, ddof: int = 0) -> DeviceOp[Tensor]:
    """The standard deviation: the root of `var`.

    Examples:
        >>> await na.algorithms.std(np.array([1.0, 5.0])).item()
        2.0
    """
    return _reduction("std", x, "std", axis, keepdims, ddof)


def min(x: Any, axis: Any = None, keepdims: bool = False) -> DeviceOp[Tensor]:
    """The least element, or the least along some axes; NaN if one is. See `reduce`.

    Examples:
        >>> await na.algorithms.min(np.array([[3, 1], [2, 5]]), axis=0).to_host()
        array([2, 1])
    """
    return _reduction("min", x, "min", axis, keepdims)


def max(x: Any, axis: Any = None, keepdims: bool = False) -> DeviceOp[Tensor]:
    """The largest element, or the largest along some axes; NaN if one is. See `reduce`.

    Examples:
        >>> await na.algorithms.max(np.array([[3, 1], [2, 5]]), axis=1).to_host()
        array([3, 5])
    """
    return _reduction("max", x, "max", axis, keepdims)


def argmin(x: Any, axis: Any = None, keepdims: bool = False) -> DeviceOp[Tensor]:
    """The index of the least element, int64; of the first of several, and of the first NaN before
    others. Of all elements (`axis` None) the index into ``x.reshape(-1)``.

    Examples:
        >>> await na.algorithms.argmin(np.array([3, 1, 1])).item()
        1
    """
    return _reduction("argmin", x, "argmin", axis, keepdims)


def argmax(x: Any, axis: Any = None, keepdims: bool = False) -> DeviceOp[Tensor]:
    """The index of the largest element; see `argmin`.

    Examples:
        >>> await na.algorithms.argmax(np.array([[3, 9], [4, 1]]), axis=1).to_host()
        array([1, 0])
    """
    return _reduction("argmax", x, "argmax", axis, keepdims)


def any(x: Any, axis: Any = None, keepdims: bool = False) -> DeviceOp[Tensor]:
    """Whether an element is not zero, bool; False of none. NaN is not zero. See `reduce`.

    Examples:
        >>> await na.algorithms.any(np.array([0, 2])).item()
        True
    """
    return _reduction("any", x, "any", axis, keepdims)


def all(x: Any, axis: Any = None, keepdims: bool = False) -> DeviceOp[Tensor]:
    """Whether no element is zero, bool; True of none. See `reduce`.

    Examples:
        >>> await na.algorithms.all(np.array([0, 2])).item()
        False
    """
    return _reduction("all", x, "all", axis, keepdims)


def count_nonzero(x: Any, axis: Any = None, keepdims: bool = False) -> DeviceOp[Tensor]:
    """How many elements are not zero, int64. See `reduce`.

    Examples:
        >>> await na.algorithms.count_nonzero(np.array([0.0, 2.0, -1.0])).item()
        2
    """
    return _reduction("count_nonzero", x, "count_nonzero", axis, keepdims)


def norm(x: Any, axis: Any = None, keepdims: bool = False) -> DeviceOp[Tensor]:
    """The Euclidean norm: the root of the sum of squares, which is formed in float64. See `reduce`.

    Examples:
        >>> await na.algorithms.norm(np.array([3.0, 4.0])).item()
        5.0
    """
    return _reduction("norm", x, "norm", axis, keepdims)


def _reduction(
    name: str, x: Any, op: Any, axis: Any, keepdims: Any, ddof: Any = 0, initial: Any = None
) -> DeviceOp[Tensor]:
    keep = keepdims if type(keepdims) is bool else check_bool(keepdims, f"keepdims of {name}")
    free = ddof if type(ddof) is int and ddof == 0 else check_whole(ddof, f"ddof of {name}", 0)
    plan = partial(_plan, name, op, axis, keep, free, initial)
    return Algorithm(name, x, plan, of_prefix=_plan_prefix)


def _plan_prefix(
    name: str, op: Any, axis: Any, keepdims: bool, _ddof: int, _initial: Any, shape: Shape,
    dtype: np.dtype[Any], one: Shape, whole: np.dtype[Any],
) -> Launches:  # fmt: skip
    """The launches that reduce a prefix: behind its end is what changes nothing."""
    if not is_one_of(op, OF_PREFIXES):
        raise no_prefix(name)
    axes_of(name, axis, 1)
    operator = operator_of(op, dtype)
    nothing = op == "min" if dtype == BOOL and op in ("min", "max") else neutral(op, dtype)
    launches = Launches((shape, dtype), (one, whole))
    x, extent = launches.operands
    result = (1,) if keepdims else ()
    if shape[0]:
        row = put_filled(launches, x, extent, nothing).reshape((1, *shape, 1))
        launches.give(put_reduction(launches, operator, row).reshape(result))
    else:
        launches.give(launches.full(result, nothing, operator.out))
    return launches


def _plan(
    name: str, op: Any, axis: Any, keepdims: bool, ddof: int, initial: Any, shape: Shape,
    dtype: np.dtype[Any],
) -> Any:  # fmt: skip
    """What builds the reduction of a tensor of this shape and dtype."""
    axes = axes_of(name, axis, len(shape))
    if name in ("argmin", "argmax") and axis is not None and len(axes) != 1:
        raise ShapeError(f"{name} along axis={shown(axis)}: write one axis, or None for all.")
    operator = operator_of(op, dtype)
    count = math.prod(shape[a] for a in axes)
    kept = [a for a in range(len(shape)) if a not in axes]
    result: Shape = (
        tuple(1 if a in axes else n for a, n in enumerate(shape))
        if keepdims
        else tuple(shape[a] for a in kept)
    )
    results: int = math.prod(result)
    if not count and results:
        none = operator.of_none if initial is None else initial
        if none is None:
            raise ShapeError(
                f"{name} of no elements, of shape {shape}, has no result"
                + ("." if isinstance(op, str) else ": write initial=.")
            )
        first = element(none, operator.out)
        return lambda _: full(result, first, operator.out)
    if not results:
        return lambda _: empty(result, operator.out)
    # One run of neighbouring axes is reduced where it is; others are brought behind the rest.
    are_neighbours = axes == tuple(range(axes[0], axes[0] + len(axes))) if axes else True
    order = None if are_neighbours else (*kept, *axes)
    columns = math.prod(shape[a] for a in kept if a > axes[-1]) if axes and are_neighbours else 1
    rows = results // columns
    launches = Launches((shape, dtype), orders=(order,))
    seen = launches.operands[0].reshape((rows, count, columns))
    launches.give(put_reduction(launches, operator, seen, ddof).reshape(result))
    return launches


def put_reduction(
    launches: Launches, operator: Operator, x: Array, ddof: int = 0, into: Array | None = None
) -> Array:
    """Put the reduction of the middle of three axes behind the launches; its result.

    Args:
        into: what the result is written to; None: memory of its own.
    """
    level = partial(_level, launches, operator, total=x.shape[1], ddof=ddof, into=into)
    arrays = level((x,), is_first=True)
    while arrays[0].shape[1] > 1:
        arrays = level(arrays, is_first=False)
    return arrays[0]


def _level(
    launches: Launches, operator: Operator, arrays: tuple[Array, ...], total: int, ddof: int,
    into: Array | None, is_first: bool,
) -> tuple[Array, ...]:  # fmt: skip
    """Reduce each chunk of the middle axis; what comes of that, by one launch."""
    rows, n, columns = arrays[0].shape
    block = block_of(n, columns)
    parts = -(-n // block.chunk)
    is_last = parts == 1
    kernel = reduce_kernel(
        operator.states, operator.lift, operator.combine, operator.finish, block, is_first, is_last,
        arrays[0].dtype,
    )  # fmt: skip
    if columns == 1:
        arrays = tuple([t.reshape((rows, 1, n)) for t in arrays])
    blocks = -(-columns // block.columns) * parts * -(-rows // block.rows)
    dtypes = (operator.out,) if is_last else operator.states
    if is_last and into is not None:
        outs: tuple[Array, ...] = (into,)
    else:
        outs = tuple([launches.empty((rows, parts, columns), d) for d in dtypes])
    z, x = ((*some, some[0], some[0])[:3] for some in (outs, arrays))
    launches.launch(kernel[blocks, THREADS], *z, *x, total, ddof)
    return outs
