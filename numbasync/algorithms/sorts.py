"""Sorting along an axis: of elements, of their indices, and of values by keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from numbasync import dtypes
from numbasync.algorithms import cub
from numbasync.algorithms.look_back import words_of_row
from numbasync.algorithms.operation import Algorithm, contiguous, one_axis, permuted
from numbasync.algorithms.operators import BOOL, I64, U64
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
from numbasync.ops.constructors import value, zip
from numbasync.ops.op import DeviceOp
from numbasync.tensors.create import empty, zeros
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
    return _sorting("sort", x, axis, descending, "none").map(_first)


def argsort(x: Any, axis: Any = -1, *, descending: bool = False) -> DeviceOp[Tensor]:
    """The indices, int64, along an axis, that would sort the elements stably; see `sort`.

    Examples:
        >>> await na.algorithms.argsort(np.array([3, 1, 2, 1])).to_host()
        array([1, 3, 2, 0])
    """
    return _sorting("argsort", x, axis, descending, "places").map(_second)


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


def _first(pair: Pair) -> Tensor:
    return pair[0]


def _second(pair: Pair) -> Tensor:
    return pair[1]


def _sorting(
    name: str, x: Any, axis: Any, descending: Any, values: str, *given: Any
) -> DeviceOp[Pair]:
    down = check_bool(descending, f"descending of {name}")
    return Algorithm(name, x, partial(_plan, name, axis, down, values, None), *given)


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
    if not math.prod(whole) or not kept:
        result = (*whole[:along], kept, *whole[along + 1 :])
        return lambda *_: zip(empty(result, dtype), empty(result, carried))
    sorted_shape = tuple(whole[a] for a in order)

    def row_by_row(t: Tensor) -> DeviceOp[Tensor]:
        ready: DeviceOp[Tensor] = contiguous(t) if axis is None else contiguous(permuted(t, order))
        return ready.reshape((rows, n))

    def restored(t: Tensor) -> DeviceOp[Tensor]:
        cut = t.reshape((*sorted_shape[:-1], kept))
        return value(cut) if along == rank - 1 else contiguous(permuted(cut, back))

    def build(x: Tensor, given: Tensor | None = None) -> DeviceOp[Pair]:
        ready: DeviceOp[Pair] = (
            row_by_row(x).map(lambda t: (t, t))
            if given is None
            else zip(row_by_row(x), row_by_row(given))
        )
        arrange: Callable[..., DeviceOp[Pair]] = sort_rows
        if most is not None and LESS * kept <= n and n > THREADS * each_of(dtype):
            arrange = top_rows
        done = ready.then(lambda pair: arrange(pair[0], descending, values, pair[1], carried, kept))
        if values == "none":
            return done.then(lambda pair: restored(pair[0])).map(lambda t: (t, t))
        return done.then(lambda pair: zip(restored(pair[0]), restored(pair[1])))

    return build


def sort_rows(
    x: Tensor, descending: bool, values: str, given: Tensor, carried: np.dtype[Any], kept: int,
    may_be_cub: bool = True,
) -> DeviceOp[Pair]:  # fmt: skip
    """The first `kept` of each sorted row of two axes, and what moves with the keys: `given`, their
    places, or none.
    """
    rows, n = x.shape
    dtype = x.dtype
    by_cub = cub.kind_of(x, descending) if values == "none" and may_be_cub else None
    if by_cub is not None:
        own = partial(sort_rows, x, descending, values, given, carried, kept, may_be_cub=False)
        return cub.CubSort(by_cub, x, own)
    block = scan_block(n, 1, each_of(dtype))
    chunk = block.along * each_of(dtype)
    parts = -(-n // chunk)
    bits = x.reinterpret(bits_of(dtype))
    end = BITS if dtype == BOOL else 8 * dtype.itemsize

    def one_pass(
        kernel: Any, keys: Tensor, moved: Tensor, way: str, length: int, *more: Any
    ) -> DeviceOp[Pair]:
        def launch(made: Pair) -> DeviceOp[Pair]:
            return kernel(*made, keys, moved, *more).map(lambda _: made)  # type: ignore[no-any-return]

        room = (rows, length)
        if way == "none":
            return empty(room, keys.dtype).map(lambda z: (z, z)).then(launch)
        return zip(empty(room, keys.dtype), empty(room, carried)).then(launch)

    def restored(pair: Pair) -> Pair:
        keys = pair[0].reinterpret(dtype)
        return keys, keys if values == "none" else pair[1]

    if parts == 1:
        kernel = sort_kernel(dtype, descending, block, values)
        sorting = kernel[-(-rows // block.rows), THREADS]
        return one_pass(sorting, bits, given, values, kept, end, kept).map(restored)
    passes = -(-end // PASS_BITS)
    counting = count_kernel(dtype, descending, passes)
    parts = -(-n // (PASS_THREADS * pass_each(dtype)))
    blocks = rows * parts
    spans = min(parts, max(1, SPANS // rows))
    cells, words = rows * passes * PASS_BINS, blocks * PASS_BINS

    def count(scratch: Tensor) -> DeviceOp[Tensor]:
        counts = scratch[:cells].reshape((rows, passes, PASS_BINS))
        return counting[rows * spans, THREADS](counts, bits, spans).map(lambda _: scratch)  # type: ignore[no-any-return]

    def by_byte(made: tuple[Tensor, Pair], number: int) -> DeviceOp[tuple[Tensor, Pair]]:
        scratch, (keys, moved) = made
        way = "given" if number and values != "none" else values
        placing = place_kernel(dtype, descending, way)[blocks, PASS_THREADS]
        more = (
            scratch[:cells].reshape((rows, passes, PASS_BINS)),
            scratch[cells : cells + words],
            scratch[cells + words :],
            number,
        )
        return one_pass(placing, keys, moved, way, n, *more).map(lambda pair: (scratch, pair))

    scratch: DeviceOp[Tensor] = zeros(cells + words + passes, U64).then(count)
    made = scratch.map(lambda s: (s, (bits, given)))
    for number in range(passes):
        made = made.then(partial(by_byte, number=number))
    done = made.map(lambda all_: all_[1])
    if kept == n:
        return done.map(restored)
    return done.map(restored).then(
        lambda pair: zip(contiguous(pair[0][:, :kept]), contiguous(pair[1][:, :kept]))
    )


def top_rows(
    x: Tensor, descending: bool, values: str, given: Tensor, carried: np.dtype[Any], kept: int
) -> DeviceOp[Pair]:
    """As `sort_rows`, of few elements of long rows: only these are sorted."""
    rows, n = x.shape
    dtype = x.dtype
    digits = dtype.itemsize
    bits = x.reinterpret(bits_of(dtype))
    parts = -(-n // CHUNK)
    spans = min(parts, max(1, SPANS // rows))
    cells, told = rows * digits * PASS_BINS, rows * words_of_row(I64, parts) + 1
    counting = digit_kernel(dtype, descending)[rows * spans, THREADS]
    taking = take_kernel(dtype, descending)[rows * parts, THREADS]

    def parts_of(scratch: Tensor) -> tuple[Tensor, Tensor]:
        """The counts, and what was found of each number of digits."""
        counts, found = scratch[:cells], scratch[cells : cells + rows * digits * 2]
        return counts.reshape((rows, digits, PASS_BINS)), found.reshape((rows, digits, 2))

    def count(scratch: Tensor, number: int) -> DeviceOp[Tensor]:
        return counting(*parts_of(scratch), bits, number, kept, spans).map(lambda _: scratch)  # type: ignore[no-any-return]

    def take(scratch: Tensor) -> DeviceOp[Pair]:
        words = scratch[len(scratch) - told :].reinterpret(U64)
        made = zip(empty((rows, kept), bits.dtype), empty((rows, kept), I64))
        return made.then(
            lambda pair: taking(*pair, words, bits, *parts_of(scratch), kept).map(
                lambda _: (pair[0].reinterpret(dtype), pair[1])
            )
        )

    scratch: DeviceOp[Tensor] = zeros(cells + rows * digits * 2 + told, I64)
    for number in range(digits):
        scratch = scratch.then(partial(count, number=number))
    return scratch.then(take).then(
        lambda pair: sort_rows(pair[0], descending, "given", pair[1], carried, kept)
    )
