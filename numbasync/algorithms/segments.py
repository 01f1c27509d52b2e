"""Reductions of segments: of parts of one axis, side by side, each with a length of its own.

A block reduces a segment: each thread combines elements a block's length apart, and the block
combines what its threads have. A thread without elements has nothing to combine, so that no
operator needs a neutral element. The order follows from the segment's length and the mean one.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
from numba import cuda, int64, uint8

from numbasync import block
from numbasync.algorithms.operation import Algorithm, contiguous
from numbasync.algorithms.operators import Operator, operator_of
from numbasync.arguments import shown
from numbasync.errors import CallerError, DTypeError, ShapeError
from numbasync.launch.launcher import launcher
from numbasync.launch.parameters import KernelInput, KernelOutput
from numbasync.layout import Shape
from numbasync.ops.constructors import zip
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


def _plan(
    op: Any, initial: Any, shape: Shape, dtype: np.dtype[Any], places: Shape,
    place_dtype: np.dtype[Any],
) -> Any:  # fmt: skip
    """What builds the reduction of a tensor of this shape and dtype, and of offsets."""
    if len(shape) != 1 or len(places) != 1 or not places[0]:
        raise ShapeError(
            f"segmented_reduce of shape {shape}, by offsets of shape {places}: write one axis of "
            "elements, and one of offsets, with one more than there are segments."
        )
    if place_dtype.kind not in "iu":
        raise DTypeError(f"segmented_reduce by offsets of {place_dtype}: write integers.")
    operator = operator_of(op, dtype)
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

    def reduce(pair: tuple[Tensor, Tensor]) -> DeviceOp[Tensor]:
        return empty(segments, operator.out).then(
            lambda z: kernel[segments, threads](z, *pair, of_none).map(lambda _: z)
        )

    return lambda x, offsets: zip(contiguous(x), contiguous(offsets)).then(reduce)


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
