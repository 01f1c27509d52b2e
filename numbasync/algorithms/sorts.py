"""Sorting along an axis: of elements, of their indices, and of values by keys."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from numbasync import dtypes
from numbasync.algorithms import cub, numpy_sorts
from numbasync.algorithms.launches import Array, Launches
from numbasync.algorithms.look_back import words_of_row
from numbasync.algorithms.operation import Algorithm, contiguous, one_axis, permuted
from numbasync.algorithms.operators import BOOL, I64, U64
from numbasync.algorithms.prefix import Prefix, put_filled
from numbasync.algorithms.reduce_kernels import THREADS
from numbasync.algorithms.scan_kernels import each_of, scan_block
from numbasync.algorithms.sort_kernels import (
    BITS,
    PASS_BINS,
    PASS_BITS,
    PASS_THREADS,
    SPANS,
    bits_of,
    count_kernel,
    pass_each,
    place_kernel,
    sort_kernel,
)
from numbasync.algorithms.top_kernels import CHUNK, digit_kernel, take_kernel
from numbasync.arguments import check_bool, check_whole
from numbasync.errors import DTypeError, ShapeError
from numbasync.layout import Shape
from numbasync.ops.constructors import zip
from numbasync.ops.op import DeviceOp
from numbasync.tensors.create import empty
from numbasync.tensors.tensor import Tensor

LESS = 4  # times as many elements as are wanted: else all of them are sorted
Pair = tuple[Tensor, Tensor]  # the keys, and what moved with them; or the keys again


def sort(x: Any, axis: Any = -1, *, descending: bool = False) -> DeviceOp[Tensor]:
    """The elements in ascending order, along an axis, in a new tensor.

    Args:
        x: a tensor or a NumPy array of bool, integers or floats, of any shape, or an operation that
            gives one.
        axis: which axis; None: the elements of all axes, as one.
        descending: the largest first.

    The order is NumPy's: a NaN counts as the largest, and both zeros as equal. It is stable: equal
    elements stay in their order, also where `descending`. Exact.

    A radix sort. Rows of up to 4,096 elements (2,048 of 8 bytes) are sorted by one kernel, which
    reads and writes each element once. Longer ones are read once to count, and take a pass for each
    byte of an element, which reads and writes each once. Other axes than the last, and what is not
    contiguous, are copied first.

    On a GPU, where the extra `algorithms` is installed, CUB sorts one row of at least 4,194,304
    integers, to the same bits, in less time; not for `argsort` and `sort_by_key`. It is compiled
    for a dtype at the first such sort, which takes seconds. `NUMBASYNC_CUB=0` in the environment
    goes without it, and a graph does; `numbasync doctor` says whether it is installed.

    On the CPU device NumPy sorts, to the same bits; the kernels do in graphs, and where more than
    two processors share a row of more than 262,144 elements.

    Raises:
        ShapeError: there is no such axis.
        DTypeError: complex numbers have no order, and structures none.

    Examples:
        >>> x = np.array([3.0, np.nan, -1.0, 2.0])
        >>> await na.algorithms.sort(x).to_host()
        array([-1.,  2.,  3., nan])
        >>> await na.algorithms.sort(x, descending=True).to_host()
        array([nan,  3.,  2., -1.])
    """
    return _sorting("sort", x, axis, descending, "none")


def argsort(x: Any, axis: Any = -1, *, descending: bool = False) -> DeviceOp[Tensor]:
    """The indices, int64, along an axis, that would sort the elements stably; see `sort`.

    Examples:
        >>> await na.algorithms.argsort(np.array([3, 1, 2, 1])).to_host()
        array([1, 3, 2, 0])
    """
    return _sorting("argsort", x, axis, descending, "places")


def sort_by_key(
    keys: Any, values: Any, axis: Any = -1, *, descending: bool = False
) -> DeviceOp[Pair]:
    """The keys sorted along an axis, and the values in the same order; see `sort`.

    Args:
        values: of any dtype, and of the shape of `keys`.

    Raises:
        ShapeError: the shapes differ.

    Examples:
        >>> keys, values = np.array([3, 1, 2]), np.array([30.5, 10.5, 20.5])
        >>> k, v = await na.algorithms.sort_by_key(keys, values)
        >>> await k.to_host(), await v.to_host()
        (array([1, 2, 3]), array([10.5, 20.5, 30.5]))
    """
    return _sorting("sort_by_key", keys, axis, descending, "given", values)


def topk(x: Any, k: int, axis: Any = -1, *, largest: bool = True) -> DeviceOp[Pair]:
    """The `k` largest elements along an axis, the largest first, and their indices, int64.

    Args:
        k: how many: at most as many as the axis has.
        largest: False: the least, the least first.

    Of equal elements those with lesser indices come first; a NaN counts as the largest. Of an axis
    of up to 4,096 elements (2,048 of 8 bytes), and where more than a quarter of one are wanted, all
    are sorted; see `sort`. Of others the last one that is wanted is found first, a byte at a time:
    each element is read once for each of its bytes, and once more, and `k` are sorted.

    Raises:
        ShapeError: the axis has fewer than `k` elements.

    Examples:
        >>> values, indices = await na.algorithms.topk(np.array([3, 9, 4, 9]), 3)
        >>> await values.to_host(), await indices.to_host()
        (array([9, 9, 4]), array([1, 3, 2]))
    """
    most = check_whole(k, "k of topk", 0)
    down = check_bool(largest, "largest of topk")
    return Algorithm("topk", x, partial(_plan, "topk", axis, down, "places", most))


def _sorting(
    name: str, x: Any, axis: Any, descending: Any, values: str, *given: Any
) -> DeviceOp[Any]:
    down = check_bool(descending, f"descending of {name}")
    plan = partial(_plan, name, axis, down, values, None)
    return Algorithm(name, x, plan, *given, of_prefix=None if given else _plan_prefix)


def last_of(dtype: np.dtype[Any], descending: bool) -> Any:
    """An element that no other one comes after."""
    if dtypes.has_nan(dtype):
        return -math.inf if descending else math.nan
    if dtype == BOOL:
        return not descending
    return getattr(np.iinfo(dtype), "min" if descending else "max")


def _plan_prefix(
    name: str, axis: Any, descending: bool, values: str, _most: None, shape: Shape,
    dtype: np.dtype[Any], one: Shape, whole: np.dtype[Any],
) -> Launches:  # fmt: skip
    """The launches that sort a prefix: of equal elements, those behind its end come last."""
    check_ordered(name, dtype)
    if axis is not None:
        one_axis(name, axis, 1)
    launches = Launches((shape, dtype), (one, whole))
    x, extent = launches.operands
    if shape[0]:
        x = put_filled(launches, x, extent, last_of(dtype, descending)).reshape((1, *shape))
        pair = put_sort(launches, descending, values, x, x, I64, shape[0])
        x = pair[values == "places"].reshape(shape)
    launches.give(x, extent, kind=Prefix)
    return launches


def check_ordered(name: str, dtype: np.dtype[Any]) -> None:
    """Refuse what has no order."""
    if dtype.kind == "c" or not (dtypes.is_float(dtype) or dtype.kind in "biu"):
        raise DTypeError(
            f"{name} of {dtype}: only bool, integers and floats have an order here.\n"
            "Give a key of each instead: sort_by_key(keys, values)."
        )


def _plan(
    name: str, axis: Any, descending: bool, values: str, most: int | None, shape: Shape,
    dtype: np.dtype[Any], given_shape: Shape | None = None,
    given_dtype: np.dtype[Any] | None = None,
) -> Any:  # fmt: skip
    """What builds the sort of a tensor of this shape and dtype, and of values."""
    check_ordered(name, dtype)
    if given_shape not in (None, shape):
        raise ShapeError(
            f"{name} of keys of shape {shape} and values of shape {given_shape}: write "
            "values.shape as keys.shape."
        )
    whole: Shape = (math.prod(shape),) if axis is None else shape
    along = one_axis(name, axis, len(shape)) if axis is not None else 0
    n = whole[along]
    if most is not None and most > n:
        raise ShapeError(f"{name} of k={most} along an axis of {n} elements: write at most {n}.")
    kept = n if most is None else most
    rank = len(whole)
    order = (*(a for a in range(rank) if a != along), along)
    back = tuple(int(a) for a in np.argsort(order))
    rows = math.prod(whole) // n if n else 0
    carried = given_dtype or (I64 if values == "places" else dtype)
    what = {"sort": slice(1), "argsort": slice(1, 2)}.get(name, slice(2))  # of the pair
    result = (*whole[:along], kept, *whole[along + 1 :])
    if not math.prod(whole) or not kept:
        of: list[np.dtype[Any]] = [dtype, carried][what]
        made = partial(empty, result)
        return lambda *_: made(of[0]) if len(of) == 1 else zip(*map(made, of))
    if values == "none" and most is None and rows == 1 and n >= cub.LEAST:

        def build(x: Tensor) -> DeviceOp[Tensor]:
            row: DeviceOp[Tensor] = contiguous(x if axis is None else permuted(x, order))
            return row.reshape((1, n)).then(lambda t: _sort_row(t, descending)).reshape(whole)

        return build
    operands = [(shape, dtype)] if given_dtype is None else [(shape, dtype), (shape, given_dtype)]
    is_last = along == rank - 1
    is_searched = most is not None and LESS * kept <= n and n > THREADS * each_of(dtype)

    def put(launches: Launches) -> None:
        x, given = (a.reshape((rows, n)) for a in (*launches.operands, *launches.operands)[:2])
        if is_searched:
            found, places = put_top(launches, descending, kept, x)
            pair = put_sort(launches, descending, "given", found, places, I64, kept)
        else:
            pair = put_sort(launches, descending, values, x, given, carried, kept)
        left = tuple(whole[a] for a in order[:-1])
        launches.give(
            *(z.reshape((*left, z.shape[1])).first(kept).permuted(back) for z in [*pair][what]),
            are_copied=not is_last or pair[0].shape[1] > kept,
        )

    seen = None if is_last else order
    if is_searched:
        launches = Launches(*operands, orders=[seen])
        put(launches)
        return launches
    axis = None if axis is None else along
    results = result, [dtype, carried][what]
    return numpy_sorts.Sort(operands, seen, axis, descending, values, results, put)


def _sort_row(x: Tensor, descending: bool) -> DeviceOp[Tensor]:
    """The sort of a long row, of shape ``(1, n)``, by CUB where it can."""

    def own() -> DeviceOp[Tensor]:
        return Algorithm("sort", x, partial(_plan_row, descending))

    kind = cub.kind_of(x, descending)
    return own() if kind is None else cub.CubSort(kind, x, own)


def _plan_row(descending: bool, shape: Shape, dtype: np.dtype[Any]) -> Launches:
    def put(launches: Launches) -> None:
        (x,) = launches.operands
        launches.give(put_sort(launches, descending, "none", x, x, dtype, shape[1])[0])

    keys = [(shape, dtype)]
    return numpy_sorts.Sort(keys, None, 1, descending, "none", (shape, [dtype]), put)


def put_sort(
    launches: Launches, descending: bool, values: str, x: Array, given: Array,
    carried: np.dtype[Any], kept: int,
) -> tuple[Array, Array]:  # fmt: skip
    """Put the sort of the rows of two axes behind the launches.

    Returns:
        The sorted rows, the first `kept` elements of each at least, and what moved with the keys:
        `given`, their places, or the keys again.
    """
    rows, n = x.shape
    dtype = x.dtype
    block = scan_block(n, 1, each_of(dtype))
    parts = -(-n // (block.along * each_of(dtype)))
    bits = x.reinterpret(bits_of(dtype))
    end = BITS if dtype == BOOL else 8 * dtype.itemsize
    if parts == 1:
        kernel = sort_kernel(dtype, descending, block, values)[-(-rows // block.rows), THREADS]
        keys = launches.empty((rows, kept), bits.dtype)
        moved = keys if values == "none" else launches.empty((rows, kept), carried)
        launches.launch(kernel, keys, moved, bits, given, end, kept)
        keys = keys.reinterpret(dtype)
        return keys, keys if values == "none" else moved
    passes = -(-end // PASS_BITS)
    parts = -(-n // (PASS_THREADS * pass_each(dtype)))
    blocks = rows * parts
    spans = min(parts, max(1, SPANS // rows))
    cells, words = rows * passes * PASS_BINS, blocks * PASS_BINS
    scratch = launches.full((cells + words + passes,), 0, U64)
    counts = scratch.part(0, (rows, passes, PASS_BINS))
    more = counts, scratch.part(cells, (words,)), scratch.part(cells + words, (passes,))
    counting = count_kernel(dtype, descending, passes)
    launches.launch(counting[rows * spans, THREADS], counts, bits, spans)
    made = []  # each pass but the first reads one pair of these, and writes the other
    for _ in range(min(passes, 2)):
        keys = launches.empty((rows, n), bits.dtype)
        made.append((keys, keys if values == "none" else launches.empty((rows, n), carried)))
    read = bits, given
    for number in range(passes):
        way = "given" if number and values != "none" else values
        placing = place_kernel(dtype, descending, way)[blocks, PASS_THREADS]
        launches.launch(placing, *made[number % 2], *read, *more, number)
        read = made[number % 2]
    keys, moved = read[0].reinterpret(dtype), read[1]
    return keys, keys if values == "none" else moved


def put_top(launches: Launches, descending: bool, kept: int, x: Array) -> tuple[Array, Array]:
    """Put the search for the `kept` first elements of each row of two axes behind the launches:
    these and their places, in the order of the places.
    """
    rows, n = x.shape
    dtype = x.dtype
    bits = x.reinterpret(bits_of(dtype))
    digits = dtype.itemsize
    parts = -(-n // CHUNK)
    spans = min(parts, max(1, SPANS // rows))
    cells, told = rows * digits * PASS_BINS, rows * words_of_row(I64, parts) + 1
    scratch = launches.full((cells + rows * digits * 2 + told,), 0, I64)
    counts = scratch.part(0, (rows, digits, PASS_BINS))
    found = scratch.part(cells, (rows, digits, 2))
    words = scratch.part(cells + rows * digits * 2, (told,)).reinterpret(U64)
    counting = digit_kernel(dtype, descending)[rows * spans, THREADS]
    for number in range(digits):
        launches.launch(counting, counts, found, bits, number, kept, spans)
    keys, places = launches.empty((rows, kept), bits.dtype), launches.empty((rows, kept), I64)
    taking = take_kernel(dtype, descending)[rows * parts, THREADS]
    launches.launch(taking, keys, places, words, bits, counts, found, kept)
    return keys.reinterpret(dtype), places
