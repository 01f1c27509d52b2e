"""Shapes, strides and offsets: pure arithmetic, which follows NumPy's rules.

Views are computed by indexing a NumPy array that has the tensor's shape and strides but memory for
one element only; basic indexing never accesses that memory.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from numbasync.arguments import as_wholes, shown
from numbasync.errors import ShapeError
from numbasync.memo import Memo

Shape = tuple[int, ...]

MOST_BYTES = 2**63 - 1
MOST_AXES = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32  # of NumPy's arrays


class Layout(NamedTuple):
    """The positions of an array's elements: offset and strides in bytes."""

    offset: int
    shape: Shape
    strides: Shape


MOST_FINGERPRINTS = 65536

_fingerprints = Memo[Hashable, int](MOST_FINGERPRINTS)
_numbers = itertools.count()  # next() is one C call: no two threads get the same number


def fingerprint(of: Hashable) -> int:
    """A number that stands for `of`: fast to hash and compare, unlike nested tuples.

    Unequal values never have the same number. An equal value gets a new number after the memo has
    been cleared, which happens at `MOST_FINGERPRINTS` entries.
    """
    return _fingerprints.setdefault(of, next(_numbers))


def check_shape(shape: Any) -> Shape:
    """A shape as a tuple of non-negative ints; a single int is one axis.

    Raises:
        ShapeError: an extent is negative or no integer.
    """
    # The usual cases first: `as_wholes` takes longer than the rest of `na.empty`.
    if type(shape) is int and 0 <= shape <= MOST_BYTES:
        return (shape,)
    if type(shape) is tuple:
        for extent in shape:
            if type(extent) is not int or not 0 <= extent <= MOST_BYTES:
                break
        else:
            return shape
    extents = as_wholes(shape)
    if extents is None:
        raise ShapeError(f"a shape is a whole number or a tuple of them, not {shown(shape)}.")
    if any(n < 0 for n in extents):
        raise ShapeError(f"a shape has no negative extents: {shown(extents)}.")
    if any(n > MOST_BYTES for n in extents):
        raise ShapeError(f"a shape has no extents beyond 2**63 - 1: {shown(extents)}.")
    return extents


def contiguous_strides(shape: Shape, itemsize: int) -> Shape:
    """C-order strides in bytes.

    Raises:
        ShapeError: no memory has so many bytes, or NumPy, in whose arrays the elements lie on the
            CPU device and on their way there, has not so many axes.
    """
    strides = []
    step = itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= extent or 1
    if step > MOST_BYTES:
        raise ShapeError(
            f"the shape {shown(shape)}, in elements of {itemsize} bytes, takes more than the "
            "2**63 - 1 bytes that addresses can tell apart; write smaller extents."
        )
    if len(strides) > MOST_AXES:
        raise ShapeError(f"a shape has at most {MOST_AXES} axes, not {len(strides)}.")
    return tuple(reversed(strides))


def span(shape: Shape, strides: Shape, itemsize: int) -> tuple[int, int]:
    """The byte range of the elements' memory (begin, end), relative to the first element."""
    if 0 in shape:
        return 0, 0
    ends = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
    return sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends) + itemsize


def is_contiguous(shape: Shape, strides: Shape, itemsize: int) -> bool:
    """Whether the elements lie in C order without gaps. Extents of 0 and 1 do not count."""
    if 0 in shape:
        return True
    step = itemsize
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1:
            if stride != step:
                return False
            step *= extent
    return True


def order(shape: Shape, strides: Shape, itemsize: int) -> str:
    """`"C"`, `"F"` or `"A"` (neither), as Numba's array types name it."""
    if is_contiguous(shape, strides, itemsize):
        return "C"
    return "F" if is_contiguous(shape[::-1], strides[::-1], itemsize) else "A"


@lru_cache(64)  # NumPy forgets an exception that comes while it makes one, ^C too
def _bytes(itemsize: int) -> np.dtype[np.void]:
    return np.dtype((np.void, itemsize))


def index(at: Layout, key: Any, itemsize: int) -> Layout:
    """The layout of `array[key]`, for integers, slices, `...` and None.

    Raises:
        ShapeError: an index is out of range, or of another type.
    """
    parts = key if isinstance(key, tuple) else (key,)
    for part in parts:
        if not (part is None or part is Ellipsis or isinstance(part, slice) or _is_index(part)):
            raise ShapeError(
                f"a view is made by integers, slices, ... and None, not by {shown(part)}.\n"
                "To gather elements, write a kernel, or index the array of to_host()."
            )
    if not any(part is Ellipsis for part in parts):
        parts = (*parts, Ellipsis)  # so that the result is a view, even of one element
    # itemsize bytes of real memory; nothing is read, since only views are made.
    memory = np.empty(1, _bytes(itemsize))
    base = np.lib.stride_tricks.as_strided(memory, at.shape, at.strides)
    try:
        part = base[parts]
    except (IndexError, OverflowError, TypeError, ValueError) as error:
        raise ShapeError(f"{error}; the shape is {at.shape}.") from None
    start = part.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return Layout(at.offset + start, part.shape, part.strides)


def _is_index(part: Any) -> bool:
    if isinstance(part, bool | np.bool_):
        return False  # NumPy takes it for a mask
    try:
        operator.index(part)
    except TypeError:
        return False
    return True


def reshape(at: Layout, shape: Any, itemsize: int) -> Layout:
    """The layout with another shape of the same size; one extent may be -1.

    Raises:
        ShapeError: the sizes differ, or the elements do not lie in C order.
    """
    size = math.prod(at.shape)
    extents = as_wholes(shape)
    if extents is None:
        raise ShapeError(f"a shape is whole numbers, one of which may be -1, not {shown(shape)}.")
    if extents.count(-1) == 1:
        rest = math.prod(n for n in extents if n != -1)
        if rest > 0 and size % rest == 0:
            extents = tuple(size // rest if n == -1 else n for n in extents)
    if any(n < 0 for n in extents) or math.prod(extents) != size:
        raise ShapeError(
            f"{size} elements of shape {at.shape} cannot have the shape {shown(extents)}."
        )
    if not is_contiguous(at.shape, at.strides, itemsize):
        raise ShapeError(
            f"a view of shape {at.shape} with gaps or another order cannot be reshaped without "
            "a copy.\nCopy it first: (await t.dup()).reshape(...)"
        )
    return Layout(at.offset, extents, contiguous_strides(extents, itemsize))


def reinterpret(at: Layout, old: int, new: int) -> Layout:
    """The layout of the same bytes in elements of `new` bytes instead of `old`.

    Raises:
        ShapeError: the last axis does not hold a whole number of new elements, the elements
            do not lie in C order, or the first one is not aligned for the new type.
    """
    if not is_contiguous(at.shape, at.strides, old):
        raise ShapeError(
            f"a view of shape {at.shape} and strides {at.strides}, with gaps or in another order, "
            "cannot be reinterpreted; dup() it."
        )
    if at.offset % new:
        raise ShapeError(f"elements of {new} bytes cannot start at byte {at.offset}.")
    if old == new:
        return at
    last = (at.shape[-1] if at.shape else 1) * old
    if last % new:
        raise ShapeError(
            f"the last axis holds {last} bytes, no whole number of {new}-byte elements."
        )
    shape = (*at.shape[:-1], last // new)
    return Layout(at.offset, shape, contiguous_strides(shape, new))
