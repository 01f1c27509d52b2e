"""Reductions and scans of segments: parts of one axis, side by side, each of a length of its own.

A block reduces a segment: each thread combines elements a block's length apart, and the block
combines what its threads have. A thread without elements has nothing to combine, so that no
operator needs a neutral element. Of a scan the block goes through its segment from tile to tile,
and begins each with what is before it. The order follows from the segment's length and the mean
one.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from numbasync import block
from numbasync.algorithms.launches import Launches
from numbasync.algorithms.operation import Algorithm
from numbasync.algorithms.operators import Operator, operator_of
from numbasync.algorithms.reduce_kernels import numba_type
from numbasync.algorithms.scans import check_scan, start_of
from numbasync.arguments import shown
from numbasync.errors import CallerError, DTypeError, ShapeError
from numbasync.kernel_names import cuda, int64, uint8
from numbasync.launch.launcher import launcher
from numbasync.launch.parameters import KernelInput, KernelOutput
from numbasync.layout import Shape
from numbasync.ops.op import DeviceOp
from numbasync.tensors.create import empty, full
from numbasync.tensors.create_ops import element
from numbasync.tensors.tensor import Tensor

FEW, MANY = 32, 256  # threads of a block
LONG = 256  # elements of the mean segment, from which on a block has many threads


def segmented_reduce(
    x: Any, offsets: Any, op: Any = "sum", *, initial: Any = None
) -> DeviceOp[Tensor]:
    """The elements of each segment combined to one.

    Args:
        x: one axis of elements, or an operation that gives it.
        offsets: integers, one more than there are segments: segment i has the elements from
            ``offsets[i]`` up to, and without, ``offsets[i + 1]``. The caller must see to it that
            they ascend, and lie between 0 and ``len(x)``: they are on the device, and not looked
            at. The CPU device raises `OutOfBoundsError` for those beyond the end.
        op: as in `reduce`. `argmin` and `argmax` count from the segment's beginning.
        initial: the result of a segment without elements. None: what `op` gives of none, as 0 of a
            sum; `min`, `max`, `argmin`, `argmax` and functions need it.

    The dtypes are those of `reduce`. The bits of a result follow from its segment, and from whether
    segments have 256 elements and more on average.

    Error bound of a sum of n elements, to first order: ``h u sum(abs(x))``, where h is
    ``n / 256 + 13``, or ``n / 32 + 6`` if the mean segment has less than 256, and u as in `reduce`.

    Reads each element once. A block for each segment: one that is much longer than the others
    is waited for.

    Raises:
        ShapeError: `x` or `offsets` has not one axis, or there is no offset.
        DTypeError: offsets are no integers, or `op` is not defined of these elements.
        CallerError: there is no such operator, or no result of a segment without elements.

    Examples:
        >>> x, offsets = np.array([4, 1, 5, 2, 9]), np.array([0, 2, 2, 5])
        >>> await na.algorithms.segmented_reduce(x, offsets).to_host()
        array([ 5,  0, 16])
        >>> await na.algorithms.segmented_reduce(x, offsets, "max", initial=-1).to_host()
        array([ 4, -1,  9])
    """
    return Algorithm("segmented_reduce", x, partial(_plan, op, initial), offsets)


def segmented_scan(
    x: Any, offsets: Any, op: Any = "sum", exclusive: bool = False, *, initial: Any = None
) -> DeviceOp[Tensor]:
    """In each segment, each element combined with all before it.

    Args:
        x: one axis of elements, or an operation that gives it.
        offsets: as of `segmented_reduce`; the first is 0 and the last ``len(x)``, or else what is
            in no segment is left unwritten.
        op, exclusive, initial: as of `scan`; each segment begins anew.

    The result has the shape of `x`. Its dtypes are those of `scan`. The bits of a result follow
    from its segment, and from whether segments have 256 elements and more on average.

    Error bound of a sum, to first order: ``h u scan(abs(x))``, where h is ``n / 256 + 14`` for n
    elements up to the result's, or ``n / 32 + 7`` if the mean segment has less than 256, and u as
    in `scan`: a tile's sums have up to 13 roundings, and each tile adds one.

    Reads and writes each element once. A block for each segment: one that is much longer than the
    others is waited for.

    Raises:
        ShapeError, DTypeError, CallerError: as `segmented_reduce` and `scan`.

    Examples:
        >>> x, offsets = np.array([4, 1, 5, 2, 9]), np.array([0, 2, 2, 5])
        >>> await na.algorithms.segmented_scan(x, offsets).to_host()
        array([ 4,  5,  5,  7, 16])
        >>> await na.algorithms.segmented_scan(x, offsets, exclusive=True).to_host()
        array([0, 4, 0, 5, 7])
    """
    is_exclusive = check_scan("segmented_scan", op, exclusive, initial)
    return Algorithm("segmented_scan", x, partial(_plan_scan, op, is_exclusive, initial), offsets)


def _operator(
    name: str, op: Any, shape: Shape, dtype: np.dtype[Any], places: Shape,
    place_dtype: np.dtype[Any],
) -> Operator:  # fmt: skip
    """The operator of a tensor of this shape and dtype, by offsets that are such, too."""
    if len(shape) != 1 or len(places) != 1 or not places[0]:
        raise ShapeError(
            f"{name} of shape {shape}, by offsets of shape {places}: write one axis of elements, "
            "and one of offsets, with one more than there are segments."
        )
    if place_dtype.kind not in "iu":
        raise DTypeError(f"{name} by offsets of {place_dtype}: write integers.")
    return operator_of(op, dtype)


def _plan_scan(
    op: Any, is_exclusive: bool, initial: Any, shape: Shape, dtype: np.dtype[Any],
    places: Shape, place_dtype: np.dtype[Any],
) -> Any:  # fmt: skip
    """What builds the scan of a tensor of this shape and dtype, and of offsets."""
    operator = _operator("segmented_scan", op, shape, dtype, places, place_dtype)
    start = start_of(op, operator, is_exclusive, initial)
    segments = places[0] - 1
    if not segments or not shape[0]:
        return lambda *_: empty(shape, operator.out)
    threads = MANY if shape[0] >= LONG * segments else FEW
    kernel = segment_scan_kernel(operator, threads, start is not None, is_exclusive)
    first = 0 if start is None else start

    launches = Launches((shape, dtype), (places, place_dtype))
    z = launches.empty(shape, operator.out)
    launches.launch(kernel[segments, threads], z, *launches.operands, first)
    launches.give(z)
    return launches


def _plan(
    op: Any, initial: Any, shape: Shape, dtype: np.dtype[Any], places: Shape,
    place_dtype: np.dtype[Any],
) -> Any:  # fmt: skip
    """What builds the reduction of a tensor of this shape and dtype, and of offsets."""
    operator = _operator("segmented_reduce", op, shape, dtype, places, place_dtype)
    none = operator.of_none if initial is None else initial
    if none is None:
        raise CallerError(
            f"segmented_reduce by {shown(op)} has no result of a segment without elements: write "
            "initial=."
        )
    of_none = element(none, operator.out)
    segments = places[0] - 1
    if not segments or not shape[0]:
        return lambda *_: full(segments, of_none, operator.out)
    threads = MANY if shape[0] >= LONG * segments else FEW
    kernel = segment_kernel(operator, threads)

    launches = Launches((shape, dtype), (places, place_dtype))
    z = launches.empty((segments,), operator.out)
    launches.launch(kernel[segments, threads], z, *launches.operands, of_none)
    launches.give(z)
    return launches


@cache
def segment_kernel(operator: Operator, threads: int) -> Any:
    """The launcher ``(z, x, offsets, none)`` of blocks with so many threads, one for a segment."""
    lift, combine, finish = operator.lift, operator.combine, operator.finish

    @cuda.jit(device=True)
    def combine_those_there(a: Any, b: Any) -> Any:
        if b[0] == 0:
            return a
        if a[0] == 0:
            return b
        return (uint8(1), *combine(a[1:], b[1:]))

    @launcher
    @cuda.jit
    def reduce_segments(z: KernelOutput, x: KernelInput, offsets: KernelInput, none: Any) -> None:
        segment, t = int64(cuda.blockIdx.x), int64(cuda.threadIdx.x)
        first = int64(offsets[segment])
        count = int64(offsets[segment + 1]) - first
        state = lift(x[min(first + t, x.shape[0] - 1)], t)
        for k in range(t + threads, count, threads):
            state = combine(state, lift(x[first + k], k))
        total = block.reduce((uint8(t < count), *state), combine_those_there)
        if t == 0:
            if count > 0:
                z[segment] = finish(total[1:], count, 0)
            else:
                z[segment] = none

    return reduce_segments


@cache
def segment_scan_kernel(
    operator: Operator, threads: int, has_start: bool, is_exclusive: bool
) -> Any:
    """The launcher ``(z, x, offsets, start)`` of blocks with so many threads, one for a segment.

    Args:
        operator: whose states are single numbers.
        has_start: `start` is combined before the first element of each segment.
        is_exclusive: each result is of what is before its element, of which there is a start.
    """
    lift, combine, finish = operator.lift, operator.combine, operator.finish
    kind = numba_type(operator.states[0])

    @launcher
    @cuda.jit
    def scan_segments(z: KernelOutput, x: KernelInput, offsets: KernelInput, start: Any) -> None:
        edge = cuda.shared.array(1, kind)
        segment, t = int64(cuda.blockIdx.x), int64(cuda.threadIdx.x)
        first, end = int64(offsets[segment]), int64(offsets[segment + 1])
        carry = (kind(start),)
        for base in range(first, end, threads):
            i = base + t
            # Behind the end stands the last element, which nothing in front of it sees.
            own = lift(x[min(i, end - 1)], 0)
            if is_exclusive:
                run = block.scan(own, combine, exclusive=True, initial=carry)
                total = combine(run, own)
            else:
                run = block.scan(own, combine)
                if has_start or base > first:
                    run = combine(carry, run)
                total = run
            if i < end:
                z[i] = finish(run, 1, 0)
            if t == threads - 1:
                edge[0] = total[0]
            cuda.syncthreads()
            carry = (edge[0],)

    return scan_segments
