"""Arrays on a device between guard zones that a kernel must not write to.

Each array lies in the middle of its own allocation, between two zones of known bytes. A kernel
that writes beyond an end of the array, which a GPU would permit, changes a zone; a kernel that
reads there gets a NaN or an implausible number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from numbasync.dtypes import check_dtype, has_nan
from numbasync.errors import ShapeError
from numbasync.layout import Layout
from numbasync.tensors.create import from_host
from numbasync.tensors.tensor import Tensor
from numbasync.testing.check.closeness import Array

ZONE = 1024  # bytes before and behind the array; a multiple of the alignment of allocations


@dataclass(frozen=True, slots=True)
class OutsideWrite:
    """A write to a zone: `elements` past the array's end, or before its beginning (negative)."""

    elements: int
    count: int

    def __str__(self) -> str:
        side = "before its beginning" if self.elements < 0 else "past its end"
        more = f", and {self.count - 1} bytes more" if self.count > 1 else ""
        nth = abs(self.elements)
        return f"written {nth} element{'s' * (nth != 1)} {side}{more}"


class Guarded:
    """A C-contiguous copy of an array on the current device, between two zones.

    Attributes:
        tensor: the copy.
        given: the original content.
    """

    def __init__(self, given: Array) -> None:
        self.given = np.array(given, order="C")
        check_dtype(self.given.dtype, records=True)
        if self.given.dtype.itemsize == 0:
            raise ShapeError(f"an array of {self.given.dtype}, which has no bytes.")
        zone = _zone(self.given.dtype)
        self._bytes = np.concatenate([zone, self.given.reshape(-1).view(np.uint8), zone])
        self._whole: Tensor = from_host(self._bytes).sync()
        layout = Layout(ZONE, self.given.shape, self.given.strides)
        self.tensor = Tensor(
            self._whole.device, self._whole.storage, layout, self.given.dtype, self._whole.source
        )

    def read(self) -> tuple[Array, OutsideWrite | None]:
        """The array's present content, and the write outside of it, if there was one."""
        content: Array = self._whole.to_host().sync()
        end = ZONE + self.given.nbytes
        inside = content[ZONE:end].view(self.given.dtype).reshape(self.given.shape)
        return inside, self._outside_write(content, end)

    def _outside_write(self, found: Array, end: int) -> OutsideWrite | None:
        changed = np.flatnonzero(found != self._bytes)
        changed = changed[(changed < ZONE) | (changed >= end)]
        if changed.size == 0:
            return None
        item = self.given.dtype.itemsize
        past = changed[changed >= end]
        if past.size:
            return OutsideWrite(int(past[0] - end) // item + 1, int(changed.size))
        return OutsideWrite(-(int(ZONE - 1 - changed[-1]) // item + 1), int(changed.size))


def _zone(dtype: np.dtype[Any]) -> Array:
    # All bits set is a NaN for every float type, and -1 for every signed integer. An integer
    # kernel may use -1 as an index or a count, so zones of integers have another byte.
    return np.full(ZONE, 0xFF if has_nan(dtype) else 0xA7, np.uint8)
