"""Broadcast indexing: how values of several shapes are indexed while a kernel iterates over one.

All buffers are contiguous and are passed with one axis, so an element is a number. A kernel that
iterates over the elements `i` of a shape finds the elements of a value that is broadcast to that
shape by integer divisions of `i`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from numbasync.errors import InternalError
from numbasync.layout import Shape


class Step(NamedTuple):
    """One term of an index: `(i // below % extent) * stride`.

    Attributes:
        below: number of elements behind this part of the shape; 1: no division.
        extent: of this part; 0: the first part, whose quotient is within the extent already.
        stride: number of elements of the value behind this part of it.
    """

    below: int
    extent: int
    stride: int

    @property
    def form(self) -> str:
        """The part of the term that the kernel's source depends on: which of the three factors it
        has.
        """
        return f"{self.below != 1:d}{self.extent != 0:d}{self.stride != 1:d}"


def steps(shape: Shape, whole: Shape) -> tuple[Step, ...] | None:
    """The index of an element of a value of `shape` that is broadcast to `whole`: the terms of the
    index; () for a single element; None where both indices are equal.

    Raises:
        InternalError: a value of `shape` is not broadcast to `whole`.
    """
    if math.prod(shape) == math.prod(whole):
        return None
    if math.prod(shape) == 1:
        return ()
    padded = (1,) * (len(whole) - len(shape)) + shape
    if len(padded) > len(whole) or any(
        own_extent not in (1, extent) for own_extent, extent in zip(padded, whole, strict=True)
    ):
        raise InternalError(f"shape {shape} is looked for in {whole}")
    # neighbouring axes that are both kept or both broadcast are merged
    parts: list[tuple[bool, int]] = []
    for own_extent, extent in zip(padded, whole, strict=True):
        if extent == 1:
            continue
        kept = own_extent != 1
        if parts and parts[-1][0] == kept:
            parts[-1] = kept, parts[-1][1] * extent
        else:
            parts.append((kept, extent))
    terms: list[Step] = []
    below = stride = 1
    for position, (kept, extent) in reversed(list(enumerate(parts))):
        if kept:
            terms.append(Step(below, extent if position else 0, stride))
            stride *= extent
        below *= extent
    return tuple(reversed(terms))


class Space(NamedTuple):
    """The elements that a kernel iterates over, as rows of columns; or, for a reduced axis in the
    middle, as that axis between the axes before and behind it.

    Attributes:
        shape: of the values.
        axis: the reduced axis; None: no axis, or all elements.
        whole: all elements are reduced to one.
    """

    shape: Shape
    axis: int | None = None
    whole: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_reduced(self) -> bool:
        return self.whole or self.axis is not None

    @property
    def extent(self) -> int:
        """The number of elements that are reduced to one."""
        if self.axis is None:
            return self.size
        return self.shape[self.axis]

    @property
    def outer(self) -> int:
        """The number of elements before the axis: rows, if the axis is the last."""
        return 1 if self.axis is None else math.prod(self.shape[: self.axis])

    @property
    def inner(self) -> int:
        """The number of elements behind the axis."""
        return 1 if self.axis is None else math.prod(self.shape[self.axis + 1 :])

    @property
    def results(self) -> int:
        """The number of results."""
        return self.outer * self.inner

    @property
    def reduced_shape(self) -> Shape:
        """The shape of the results, with the reduced axes kept as 1."""
        if self.axis is None:
            return (1,) * len(self.shape)
        return (*self.shape[: self.axis], 1, *self.shape[self.axis + 1 :])

    def aligned(self, shape: Shape) -> bool:
        """Whether a value of `shape`, broadcast to `self.shape`, has one element for each result of
        the reduction, in the same order.
        """
        if self.axis is None:
            return math.prod(shape) == 1
        return (1,) * (len(self.shape) - len(shape)) + shape == self.reduced_shape


def reduced_space(shape: Shape, axis: int | None) -> Space:
    """The space of a reduction. Axes of one element around the axis do not count: if there are no
    other axes, all elements are reduced.
    """
    if axis is None or math.prod(shape[:axis]) * math.prod(shape[axis + 1 :]) == 1:
        return Space(shape, None, True)
    return Space(shape, axis)
