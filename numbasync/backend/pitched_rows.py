"""Arrays as pitched rows, which hardware copies without a kernel: pure arithmetic."""

from __future__ import annotations

from typing import NamedTuple


class Rows(NamedTuple):
    """Contiguous rows at equal distances: their number, bytes of a row, bytes between starts."""

    height: int
    width: int
    pitch: int


NO_ROWS = Rows(0, 0, 0)
# Bytes. For narrower rows, a kernel, which needs a contiguous copy, is faster than the copy
# engine.
NARROWEST = 256


def rows(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> Rows | None:
    """The rows of an array; None if it has no such form, or no elements."""
    if 0 in shape:
        return None
    axes = [(n, stride) for n, stride in zip(shape, strides, strict=True) if n > 1]
    width = itemsize
    while axes and axes[-1][1] == width:
        width *= axes.pop()[0]
    if not axes:
        return Rows(1, width, width)
    height, pitch = axes.pop()
    while axes and axes[-1][1] == height * pitch:
        height *= axes.pop()[0]
    return None if axes or pitch < width else Rows(height, width, pitch)
