"""Which elements meet: how values of several shapes are indexed while a kernel goes through one.

All buffers are contiguous and are passed with one axis, so an element is a number. A kernel that
goes through the elements `i` of a shape finds those of a value that is broadcast to it by whole
divisions of `i`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from numbasync.errors import InternalError
from numbasync.layout import Shape


class Step(NamedTuple):
    """One term of an index: `(i // below % extent) * stride`.

    Attributes:
        below: elements behind this part of the shape; 1: nothing to divide by.
        extent: of this part; 0: it is the first one, so the quotient is within it.
        stride: elements of the value behind this part of it.
    """

    below: int
    extent: int
    stride: int

    @property
    def form(self) -> str:
        """What of it the kernel's text depends on: which of the three there are."""
        return f"{self.below != 1:d}{self.extent != 0:d}{self.stride != 1:d}"


def steps(shape: Shape, whole: Shape) -> tuple[Step, ...] | None:
    """How to find an element of a value of `shape` that is broadcast to `whole`: the terms of its
    index; () for one element; None where it is the same one.

    Raises:
        InternalError: such a value is not broadcast to `whole`.
    """
    if math.prod(shape) == math.prod(whole):
        return None
    if math.prod(shape) == 1:
        return ()
    padded = (1,) * (len(whole) - len(shape)) + shape
    if len(padded) > len(whole) or any(
        own not in (1, extent) for own, extent in zip(padded, whole, strict=True)
    ):
        raise InternalError(f"shape {shape} is looked for in {whole}")
    parts: list[tuple[bool, int]] = []  # neighbours of one kind together
    for own, extent in zip(padded, whole, strict=True):
        if extent == 1:
            continue
        kept = own != 1
        if parts and parts[-1][0] == kept:
            parts[-1] = kept, parts[-1][1] * extent
        else:
            parts.append((kept, extent))
    found: list[Step] = []
    below = stride = 1
    for at, (kept, extent) in reversed(list(enumerate(parts))):
        if kept:
            found.append(Step(below, extent if at else 0, stride))
            stride *= extent
        below *= extent
    return tuple(reversed(found))


class Space(NamedTuple):
    """What a kernel goes through, as rows of columns; or, of an axis in the middle, as that axis
    between what is before and behind it.

    Attributes:
        shape: of the values.
        axis: along which it is reduced; None: along none, or all of it.
        whole: all of it is reduced.
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
        """Elements that become one."""
        if self.axis is None:
            return self.size
        return self.shape[self.axis]

    @property
    def outer(self) -> int:
        """Elements before the axis: rows, if it is the last."""
        return 1 if self.axis is None else math.prod(self.shape[: self.axis])

    @property
    def inner(self) -> int:
        """Elements behind the axis."""
        return 1 if self.axis is None else math.prod(self.shape[self.axis + 1 :])

    @property
    def results(self) -> int:
        """Elements that are left."""
        return self.outer * self.inner

    @property
    def reduced_shape(self) -> Shape:
        """The shape of the results, with the axes that were reduced kept as 1."""
        if self.axis is None:
            return (1,) * len(self.shape)
        return (*self.shape[: self.axis], 1, *self.shape[self.axis + 1 :])

    def aligned(self, shape: Shape) -> bool:
        """Whether a value of `shape`, broadcast to `self.shape`, has one element for each result
        of the reduction, in the same order.
        """
        if self.axis is None:
            return math.prod(shape) == 1
        return (1,) * (len(self.shape) - len(shape)) + shape == self.reduced_shape


def reduced_space(shape: Shape, axis: int | None) -> Space:
    """The space of a reduction. Axes of one element around the axis do not count: where nothing
    else is there, all of it is reduced.
    """
    if axis is None or math.prod(shape[:axis]) * math.prod(shape[axis + 1 :]) == 1:
        return Space(shape, None, True)
    return Space(shape, axis)
