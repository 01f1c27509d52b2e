"""Selections: elements by a mask, distinct ones, places in sorted ones, and counts in bins."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, overload

import numpy as np

from numbasync.algorithms import cub
from numbasync.algorithms.launches import Array, Launches
from numbasync.algorithms.operation import Algorithm, InTwoParts
from numbasync.algorithms.operators import BOOL, F32, F64, I64, U8, named, operator_of, wide
from numbasync.algorithms.prefix import Prefix, put_filled
from numbasync.algorithms.reduce_kernels import THREADS
from numbasync.algorithms.reductions import put_reduction
from numbasync.algorithms.scans import put_scan
from numbasync.algorithms.select_kernels import (
    MARKS,
    SHARED_BINS,
    bin_kernel,
    change_kernel,
    count_marked,
    keep_marked,
    search_kernel,
)
from numbasync.algorithms.sort_kernels import bits_of
from numbasync.algorithms.sorts import Pair, check_ordered, last_of, put_sort, sort
from numbasync.arguments import as_whole, check_bool, check_whole, is_one_of, shown
from numbasync.errors import CallerError, DTypeError, ShapeError
from numbasync.layout import Shape
from numbasync.ops.constructors import zip
from numbasync.ops.op import DeviceOp
from numbasync.tensors.create import empty, zeros
from numbasync.tensors.tensor import Tensor

BLOCKS = 1024  # of a count: each block adds its bins to the result


@overload
def select(x: Any, mask: Any, *, on_device: Literal[False] = False) -> DeviceOp[Tensor]: ...
@overload
def select(x: Any, mask: Any, *, on_device: Literal[True]) -> DeviceOp[Prefix]: ...
def select(x: Any, mask: Any, *, on_device: bool = False) -> DeviceOp[Any]:
    """The elements where `mask` is true, in order, as one axis: NumPy's ``x[mask]``.

    Args:
        x: a tensor or a NumPy array of any shape, or an operation that gives one.
        mask: bool, of the same shape.
        on_device: their number stays on the device: the result is a `Prefix`.

    Else the number is awaited, to make the result, which so cannot be part of a graph. Reads the
    mask twice, and each element that is selected once.

    Raises:
        ShapeError: the shapes differ.
        DTypeError: the mask is not bool.

    Examples:
        >>> x = np.array([3, 8, 1, 9])
        >>> await na.algorithms.select(x, x > 2).to_host()
        array([3, 8, 9])
    """
    stays = check_bool(on_device, "on_device of select")
    plan = partial(_plan_select, stays)
    return Algorithm("select", x, plan, mask, of_prefix=_plan_select_prefix)


@overload
def unique(x: Any, *, on_device: Literal[False] = False) -> DeviceOp[Tensor]: ...
@overload
def unique(x: Any, *, on_device: Literal[True]) -> DeviceOp[Prefix]: ...
def unique(x: Any, *, on_device: bool = False) -> DeviceOp[Any]:
    """The distinct elements in ascending order, as one axis.

    Args:
        on_device: their number stays on the device: the result is a `Prefix`.

    All NaNs count as one, and both zeros; of these the first is given. Sorts them, and awaits their
    number where it does not stay; see `sort` and `select`.

    Raises:
        DTypeError: complex numbers have no order, and structures none.

    Examples:
        >>> await na.algorithms.unique(np.array([[3, 1], [3, 2]])).to_host()
        array([1, 2, 3])
    """
    stays = check_bool(on_device, "on_device of unique")
    plan = partial(_plan_unique, stays)
    return Algorithm("unique", x, plan, of_prefix=_plan_unique_prefix)


def searchsorted(a: Any, x: Any, side: str = "left") -> DeviceOp[Tensor]:
    """Where each element of `x` would have to stand in `a`, so that it stays sorted, int64.

    Args:
        a: one axis, in ascending order, of bool, integers or floats.
        x: of the dtype of `a`, and any shape, which the result has.
        side: `"left"`: in front of equal elements; `"right"`: behind them.

    NaNs are the largest. A binary search for each element.

    Raises:
        ShapeError: `a` has not one axis.
        DTypeError: the dtypes differ, or have no order.
        CallerError: another side.

    Examples:
        >>> a = np.array([10, 20, 20, 30])
        >>> await na.algorithms.searchsorted(a, np.array([20, 5, 99])).to_host()
        array([1, 0, 4])
    """
    if not is_one_of(side, ("left", "right")):
        raise CallerError(f"side={shown(side)} of searchsorted: write 'left' or 'right'.")
    return Algorithm("searchsorted", a, partial(_plan_search, side == "right"), x)


def histogram(x: Any, bins: Any = 10, range: Any = None) -> DeviceOp[Pair]:
    """How many elements lie in each bin, int64, and the edges of the bins.

    Args:
        x: bool, integers or floats, of any shape.
        bins: how many, of one width; or their ascending edges, an array of the host's.
        range: the outer edges, a pair of numbers; None: the least and the largest element, which
            are awaited. It is of a number of bins.

    A bin has its lower edge and not its upper one; the last bin has both. What lies outside, and
    NaN, is not counted. The edges are NumPy's, of float16 and bfloat16 those of
    float32, and are compared in float64.

    Raises:
        CallerError: no bins, a range that is none, or edges that do not ascend.
        DTypeError: complex numbers have no order.

    Examples:
        >>> counts, edges = await na.algorithms.histogram(na.arange(8), 4, (0, 8))
        >>> await counts.to_host(), await edges.to_host()
        (array([2, 2, 2, 2]), array([0., 2., 4., 6., 8.], dtype=float32))
    """
    if as_whole(bins) is not None:
        return Algorithm("histogram", x, partial(_plan_histogram, bins, range))
    if range is not None:
        raise CallerError(
            f"histogram(bins={shown(bins)}, range={shown(range)}): a range is of a number of bins; "
            "beside edges leave it out."
        )
    if isinstance(bins, str):
        raise CallerError(
            f"histogram(bins={shown(bins)}): NumPy's rules look at all elements; write how many "
            "bins, or their edges."
        )
    edges = _edges_of(bins, None, []).copy()
    compared = [] if edges.dtype in (F32, F64) else [edges.astype(F64)]
    return Algorithm("histogram", x, partial(_plan_counts), edges, *compared)


def bincount(x: Any, minlength: int = 0) -> DeviceOp[Tensor]:
    """How often each number from 0 on comes among integers, int64.

    Args:
        x: integers or bool that are not negative, of any shape.
        minlength: the least length of the result, which has a count for each number up to the
            largest. That one is awaited.

    Raises:
        DTypeError: no integers.
        CallerError: one of them is negative.

    Examples:
        >>> await na.algorithms.bincount(np.array([1, 3, 1])).to_host()
        array([0, 2, 0, 1])
    """
    least = check_whole(minlength, "minlength of bincount", 0)
    return Algorithm("bincount", x, partial(_plan_bincount, least))


def _blocks(n: int) -> int:
    return -(-n // THREADS)


def _put_marks(launches: Launches, mask: Array) -> Array:
    """Put the count of the marks of one axis, not empty, behind the launches: how many there are up
    to the end of each chunk.
    """
    (n,) = mask.shape
    chunks = -(-n // MARKS)
    counts = launches.empty((chunks,), I64)
    launches.launch(count_marked[chunks, THREADS], counts, mask)
    if chunks == 1:
        return counts
    return put_scan(launches, named("sum", I64), counts.reshape((1, chunks, 1))).reshape((chunks,))


def _put_marked(
    launches: Launches, name: str, stays: bool, x: Array, mask: Array
) -> Launches | Callable[..., DeviceOp[Any]]:
    """Put the selection of the elements of one axis, not empty, behind the launches: what builds
    it. `name` is the function's.
    """
    ends = _put_marks(launches, mask)
    (chunks,) = ends.shape
    keep = keep_marked[chunks, THREADS]
    count = ends.part(chunks - 1, (1,))
    if stays:
        z = launches.empty(x.shape, x.dtype)
        launches.launch(keep, z, x, mask, ends)
        launches.give(z, count, kind=Prefix)
        return launches
    launches.give(count, x, mask, ends)

    def pack(count: int, *arrays: Tensor) -> DeviceOp[Tensor]:
        made = empty(count, x.dtype)
        return made.then(lambda z: keep(z, *arrays).map(lambda _: z)) if count else made

    return lambda *tensors: InTwoParts(name, launches, tensors, pack)


def _none(stays: bool, dtype: np.dtype[Any]) -> DeviceOp[Any]:
    """No elements."""
    if stays:
        return zip(empty(0, dtype), zeros(1, I64)).map(lambda pair: Prefix(*pair))
    return empty(0, dtype)


def _plan_select(
    stays: bool, shape: Shape, dtype: np.dtype[Any], mask_shape: Shape, mask_dtype: np.dtype[Any]
) -> Any:
    _check_mask(shape, mask_shape, mask_dtype)
    if not math.prod(shape):
        return lambda *_: _none(stays, dtype)
    launches = Launches((shape, dtype), (shape, mask_dtype))
    x, mask = (array.reshape((math.prod(shape),)) for array in launches.operands)
    return _put_marked(launches, "select", stays, x, mask)


def _check_mask(shape: Shape, mask_shape: Shape, mask_dtype: np.dtype[Any]) -> None:
    if shape != mask_shape:
        raise ShapeError(f"select of shape {shape} by a mask of shape {mask_shape}: write one.")
    if mask_dtype != BOOL:
        raise DTypeError(f"select by a mask of {mask_dtype}: write one of bool, as x > 0 gives it.")


def _plan_select_prefix(
    stays: bool, shape: Shape, dtype: np.dtype[Any], one: Shape, whole: np.dtype[Any],
    mask_shape: Shape, mask_dtype: np.dtype[Any],
) -> Any:  # fmt: skip
    _check_mask(shape, mask_shape, mask_dtype)
    if not shape[0]:
        return lambda *_: _none(stays, dtype)
    launches = Launches((shape, dtype), (one, whole), (shape, mask_dtype))
    x, extent, mask = launches.operands
    return _put_marked(launches, "select", stays, x, put_filled(launches, mask, extent, False))


def _plan_unique_prefix(
    stays: bool, shape: Shape, dtype: np.dtype[Any], one: Shape, whole: np.dtype[Any]
) -> Any:
    check_ordered("unique", dtype)
    if not shape[0]:
        return lambda *_: _none(stays, dtype)
    launches = Launches((shape, dtype), (one, whole))
    x, extent = launches.operands
    filled = put_filled(launches, x, extent, last_of(dtype, False)).reshape((1, *shape))
    keys, _ = put_sort(launches, False, "none", filled, filled, dtype, shape[0])
    return _put_changes(launches, stays, keys.reshape(shape), extent)


def _plan_unique(stays: bool, shape: Shape, dtype: np.dtype[Any]) -> Any:
    check_ordered("unique", dtype)
    if not math.prod(shape):
        return lambda _: _none(stays, dtype)
    n = math.prod(shape)
    if n >= cub.LEAST:  # which CUB may sort
        return lambda x: sort(x, None).then(
            lambda t: Algorithm("unique", t, partial(_plan_sorted, stays))
        )
    launches = Launches((shape, dtype))
    row = launches.operands[0].reshape((1, n))
    keys, _ = put_sort(launches, False, "none", row, row, dtype, n)
    return _put_changes(launches, stays, keys.reshape((n,)))


def _plan_sorted(stays: bool, shape: Shape, dtype: np.dtype[Any]) -> Any:
    launches = Launches((shape, dtype))
    return _put_changes(launches, stays, launches.operands[0])


def _put_changes(launches: Launches, stays: bool, x: Array, extent: Array | None = None) -> Any:
    """Put the selection of the first of equal neighbours behind the launches: what builds it.

    Args:
        extent: has how many elements there are; None: all.
    """
    n, dtype = x.shape[0], x.dtype
    mask = launches.empty((n,), BOOL)
    kernel = change_kernel(dtype)
    launches.launch(kernel[_blocks(n), THREADS], mask, x.reinterpret(bits_of(dtype)))
    if extent is not None:
        mask = put_filled(launches, mask, extent, False)
    return _put_marked(launches, "unique", stays, x, mask)


def _plan_search(
    is_right: bool, a_shape: Shape, a_dtype: np.dtype[Any], shape: Shape, dtype: np.dtype[Any]
) -> Any:
    if len(a_shape) != 1:
        raise ShapeError(f"searchsorted in shape {a_shape}: write a of one axis.")
    if a_dtype != dtype:
        raise DTypeError(f"searchsorted of {dtype} in {a_dtype}: write await x.astype(a.dtype).")
    check_ordered("searchsorted", dtype)
    if not math.prod(shape):
        return lambda *_: empty(shape, I64)
    if not a_shape[0]:
        return lambda *_: zeros(shape, I64)
    kernel, bits, n = search_kernel(dtype, is_right), bits_of(dtype), math.prod(shape)

    launches = Launches((a_shape, dtype), (shape, dtype))
    a, x = (array.reinterpret(bits) for array in launches.operands)
    z = launches.empty((n,), I64)
    launches.launch(kernel[_blocks(n), THREADS], z, a, x.reshape((n,)))
    launches.give(z.reshape(shape))
    return launches


def _plan_histogram(bins: Any, outer: Any, shape: Shape, dtype: np.dtype[Any]) -> Any:
    check_ordered("histogram", dtype)
    n = math.prod(shape)
    numbers = U8 if dtype == BOOL else dtype if dtype.kind in "iu" else wide(dtype)
    if outer is not None or not n:
        launches = Launches((shape, dtype))
        edges = launches.constant(_edges_of(bins, outer, np.empty(0, numbers)))
        launches.give(_put_counts(launches, launches.operands[0], edges), edges)
        return launches
    _edges_of(bins, None, [0, 1])  # checks the bins

    def count(low: Any, high: Any, x: Tensor) -> DeviceOp[Pair]:
        edges = _edges_of(bins, None, np.array([low, high], numbers))
        return Algorithm("histogram", x, partial(_plan_counts), edges)

    return _least_and_most("histogram", shape, dtype, count)


def _edges_of(bins: Any, outer: Any, elements: Any) -> np.ndarray[Any, Any]:
    """NumPy's edges of bins of these elements."""
    try:
        return np.histogram_bin_edges(elements, bins, outer)
    except (TypeError, ValueError) as error:
        raise CallerError(f"histogram(bins={shown(bins)}, range={shown(outer)}): {error}") from None


def _plan_counts(
    shape: Shape, dtype: np.dtype[Any], edges: Shape, edges_dtype: np.dtype[Any], *wide: Any
) -> Launches:
    """The launches of a tensor of this shape and dtype, and of edges; `wide` is of these edges as
    float64, where they are no floats of 32 or 64 bits.
    """
    check_ordered("histogram", dtype)
    operands = [(shape, dtype), (edges, edges_dtype), (edges, F64)]
    launches = Launches(*operands[: 3 if wide else 2])
    x, given, *_ = launches.operands
    launches.give(_put_counts(launches, x, launches.operands[-1]), given)
    return launches


def _least_and_most(
    name: str, shape: Shape, dtype: np.dtype[Any], follow: Callable[..., DeviceOp[Any]]
) -> Callable[..., DeviceOp[Any]]:
    """What builds the operation that awaits the least and the largest element, and goes on as
    `follow` says, of these and the tensor.
    """
    launches = Launches((shape, dtype))
    (x,) = launches.operands
    both = launches.empty((2,), dtype)
    for i, op in enumerate(("min", "max")):
        row = x.reshape((1, math.prod(shape), 1))
        put_reduction(launches, operator_of(op, dtype), row, into=both.part(i, (1, 1, 1)))
    launches.give(both, x)
    return lambda x: InTwoParts(name, launches, (x,), follow)


def _plan_bincount(least: int, shape: Shape, dtype: np.dtype[Any]) -> Any:
    if dtype.kind not in "biu":
        raise DTypeError(f"bincount of {dtype}: write integers, as await x.astype(np.int64) gives.")
    if not math.prod(shape):
        return lambda _: zeros(least, I64)

    def counted(low: int, high: int, x: Tensor) -> DeviceOp[Tensor]:
        if low < 0:
            raise CallerError(f"bincount of {low}: write integers that are not negative.")
        return Algorithm("bincount", x, partial(_plan_numbers, max(int(high) + 1, least)))

    return _least_and_most("bincount", shape, dtype, counted)


def _plan_numbers(bins: int, shape: Shape, dtype: np.dtype[Any]) -> Launches:
    launches = Launches((shape, dtype))
    launches.give(_put_counts(launches, launches.operands[0], None, bins))
    return launches


def _put_counts(launches: Launches, x: Array, edges: Array | None, bins: int = 0) -> Array:
    """Put the counts of elements in bins behind the launches: of those between edges, or of whole
    numbers below `bins`.
    """
    bins = bins if edges is None else edges.shape[0] - 1
    n = math.prod(x.shape)
    counts = launches.full((bins,), 0, I64)
    if n:
        lift = named("max", x.dtype).lift
        kernel = bin_kernel(x.dtype, lift, bins <= SHARED_BINS, edges is not None)
        blocks = min(-(-n // (16 * THREADS)), BLOCKS)
        row = x.reshape((n,))
        launches.launch(kernel[blocks, THREADS], counts, row, row if edges is None else edges)
    return counts
