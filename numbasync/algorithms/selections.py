"""Selections: elements by a mask, distinct ones, places in sorted ones, and counts in bins."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from numbasync.algorithms import reductions
from numbasync.algorithms.launches import Launches
from numbasync.algorithms.operation import Algorithm, Number, contiguous
from numbasync.algorithms.operators import BOOL, F64, I64, U8, named, wide
from numbasync.algorithms.reduce_kernels import THREADS
from numbasync.algorithms.scans import scan_rows
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
from numbasync.algorithms.sorts import Pair, check_ordered, sort
from numbasync.arguments import as_whole, check_bool, check_whole, is_one_of, shown
from numbasync.errors import CallerError, DTypeError, ShapeError
from numbasync.layout import Shape
from numbasync.ops.constructors import zip
from numbasync.ops.op import DeviceOp
from numbasync.tensors.create import empty, from_host, zeros
from numbasync.tensors.tensor import Tensor

BLOCKS = 1024  # of a count: each block adds its bins to the result


class Prefix(NamedTuple):
    """Elements whose number only the device knows: the first ``extent[0]`` of `elements`, which is
    as long as all that there could be; `extent` has one int64. What is behind them is not written.

    A kernel takes it as one parameter, and reads the number where it is.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def double(z: na.KernelOutput, chosen: na.KernelInput):
        ...     i = cuda.grid(1)
        ...     if i < chosen.extent[0]:
        ...         z[i] = 2 * chosen.elements[i]
        >>> x = np.array([3, 8, 1, 9])
        >>> chosen = await na.algorithms.select(x, x > 2, on_device=True)
        >>> result = await double(na.zeros(4, np.int64), chosen)
        >>> await result.z.to_host(), await chosen.length()
        (array([ 6, 16, 18,  0]), 3)
    """

    elements: Tensor
    extent: Tensor

    def length(self) -> DeviceOp[int]:
        """An operation that brings the number of elements."""
        return self.extent.item()

    def trimmed(self) -> DeviceOp[Tensor]:
        """An operation that awaits the number, and gives a view of so many elements."""
        return Number(self.extent, "trimmed").map(lambda count: self.elements[:count])


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
    return Algorithm("select", x, partial(_plan_select, stays), mask)


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
    return Algorithm("unique", x, partial(_plan_unique, stays))


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
    return Algorithm("histogram", x, partial(_plan_histogram, bins, range))


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


def _flat(x: Tensor) -> DeviceOp[Tensor]:
    return contiguous(x).reshape(-1)


def _least_and_most(x: Tensor, name: str) -> DeviceOp[tuple[Any, ...]]:
    return zip(*(f(x).then(lambda t: Number(t, name)) for f in (reductions.min, reductions.max)))


def _blocks(n: int) -> int:
    return -(-n // THREADS)


def _kept(name: str, stays: bool, x: Tensor, mask: Tensor) -> DeviceOp[Any]:
    """The elements of one axis, not empty, where `mask` is true; `name` is the function's."""
    chunks = -(-len(x) // MARKS)
    counted = empty(chunks, I64).then(
        lambda z: count_marked[chunks, THREADS](z, mask).map(lambda _: z.reshape((1, -1, 1)))
    )
    counted = counted.then(lambda z: scan_rows(named("sum", I64), z)).reshape(-1)

    def write(ends: Tensor) -> DeviceOp[Any]:
        if stays:
            return zip(pack(ends, len(x)), ends[-1:].dup()).map(lambda pair: Prefix(*pair))
        return Number(ends[-1:], name).then(lambda count: pack(ends, count))

    def pack(ends: Tensor, count: int) -> DeviceOp[Tensor]:
        if not count:
            return empty(0, x.dtype)
        return empty(count, x.dtype).then(
            lambda z: keep_marked[chunks, THREADS](z, x, mask, ends).map(lambda _: z)
        )

    return counted.then(write)


def _none(stays: bool, dtype: np.dtype[Any]) -> DeviceOp[Any]:
    """No elements."""
    if stays:
        return zip(empty(0, dtype), zeros(1, I64)).map(lambda pair: Prefix(*pair))
    return empty(0, dtype)


def _plan_select(
    stays: bool, shape: Shape, dtype: np.dtype[Any], mask_shape: Shape, mask_dtype: np.dtype[Any]
) -> Any:
    if shape != mask_shape:
        raise ShapeError(f"select of shape {shape} by a mask of shape {mask_shape}: write one.")
    if mask_dtype != BOOL:
        raise DTypeError(f"select by a mask of {mask_dtype}: write one of bool, as x > 0 gives it.")
    if not math.prod(shape):
        return lambda *_: _none(stays, dtype)
    return lambda x, mask: zip(_flat(x), _flat(mask)).then(
        lambda pair: _kept("select", stays, *pair)
    )


def _plan_unique(stays: bool, shape: Shape, dtype: np.dtype[Any]) -> Any:
    check_ordered("unique", dtype)
    if not math.prod(shape):
        return lambda _: _none(stays, dtype)
    kernel = change_kernel(dtype)

    def mark(x: Tensor) -> DeviceOp[Any]:
        bits = x.reinterpret(bits_of(dtype))
        marked: DeviceOp[Tensor] = empty(x.shape, BOOL).then(
            lambda z: kernel[_blocks(len(x)), THREADS](z, bits).map(lambda _: z)
        )
        return marked.then(lambda mask: _kept("unique", stays, x, mask))

    return lambda x: sort(x, None).then(mark)


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
    if as_whole(bins) is None and outer is not None:
        raise CallerError(
            f"histogram(bins={shown(bins)}, range={shown(outer)}): a range is of a number of bins; "
            "beside edges leave it out."
        )

    def edges_of(least_and_most: Any) -> np.ndarray[Any, Any]:
        try:
            return np.histogram_bin_edges(np.array(least_and_most, numbers), bins, outer)
        except (TypeError, ValueError) as error:
            raise CallerError(
                f"histogram(bins={shown(bins)}, range={shown(outer)}): {error}"
            ) from None

    def count(x: Tensor, edges: np.ndarray[Any, Any]) -> DeviceOp[Pair]:
        compared = zip(from_host(edges), from_host(edges.astype(F64)))
        return compared.then(
            lambda both: _counted(x, len(edges) - 1, both[1]).map(lambda z: (z, both[0]))
        )

    if as_whole(bins) is None or outer is not None or not n:
        known = edges_of([])
        return lambda x: _flat(x).then(lambda flat: count(flat, known))
    edges_of([0, 1])  # checks the bins

    def between(flat: Tensor) -> DeviceOp[Pair]:
        return _least_and_most(flat, "histogram").then(lambda pair: count(flat, edges_of(pair)))

    return lambda x: _flat(x).then(between)


def _plan_bincount(least: int, shape: Shape, dtype: np.dtype[Any]) -> Any:
    if dtype.kind not in "biu":
        raise DTypeError(f"bincount of {dtype}: write integers, as await x.astype(np.int64) gives.")
    if not math.prod(shape):
        return lambda _: zeros(least, I64)

    def up_to(flat: Tensor) -> DeviceOp[Tensor]:
        return _least_and_most(flat, "bincount").then(
            lambda pair: counted(flat, int(pair[0]), int(pair[1]))
        )

    def counted(flat: Tensor, low: int, high: int) -> DeviceOp[Tensor]:
        if low < 0:
            raise CallerError(f"bincount of {low}: write integers that are not negative.")
        bins = max(high + 1, least)
        return _counted(flat, bins, None)

    return lambda x: _flat(x).then(up_to)


def _counted(x: Tensor, bins: int, edges: Tensor | None) -> DeviceOp[Tensor]:
    """Counts of one axis in bins, between edges in float64 or of whole numbers."""
    kernel = bin_kernel(x.dtype, named("max", x.dtype).lift, bins <= SHARED_BINS, edges is not None)
    n = math.prod(x.shape)
    if not n:
        return zeros(bins, I64)
    blocks = min(-(-n // (16 * THREADS)), BLOCKS)
    return zeros(bins, I64).then(
        lambda z: kernel[blocks, THREADS](z, x, x if edges is None else edges).map(lambda _: z)
    )
