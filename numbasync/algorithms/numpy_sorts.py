"""Sorting by NumPy, on devices whose memory the host computes with.

NumPy sorts by the processor's vector instructions, many times as fast as kernels that count digits,
and gives the same bits. It sorts on one thread: several share rows, and a very long row is left to
the kernels where more than two processors share their blocks. So are graphs, which cannot repeat
the call, and dtypes that NumPy itself has not.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from numbasync import dtypes
from numbasync.algorithms.launches import Launches, Order
from numbasync.device.device import Device
from numbasync.device.storage import MemoryPool
from numbasync.device.submission import Submission
from numbasync.extending import enqueue
from numbasync.launch.external import external
from numbasync.layout import Shape
from numbasync.ops.context import Context
from numbasync.ops.op import Steps
from numbasync.tensors.create import empty
from numbasync.tensors.parallel_copy import ParallelCopy
from numbasync.tensors.tensor import Tensor

HostArray = np.ndarray[Any, Any]

LONGEST = 2**18  # elements of a row, on which a thread is for some milliseconds
PART = 2**17  # elements of the rows that are sorted by one call
FEW = 2  # processors on which kernels take longer than NumPy on one


class Sort(Launches):
    """The launches of a sort, or NumPy's in their place.

    Args:
        operands: shape and dtype of the keys, and of values that move with them.
        order: the order of axes in which the kernels see them; None: as it is.
        axis: along which; None: of all elements, as one.
        results: the shape of the results, and their dtypes: of the keys, unless these are not
            wanted, and of what moves with them, if anything.
        put: puts the launches here; called before the first that is needed.
    """

    def __init__(
        self, operands: Sequence[tuple[Shape, np.dtype[Any]]], order: Order, axis: int | None,
        descending: bool, values: str, results: tuple[Shape, Sequence[np.dtype[Any]]],
        put: Callable[[Launches], None],
    ) -> None:  # fmt: skip
        super().__init__(*operands, orders=[order] * len(operands))
        shape, dtype = operands[0]
        self._extent = math.prod(shape) if axis is None else shape[axis]
        self._is_known = not dtypes.is_extension(dtype)
        self._call = partial(_sort, axis, descending, values)
        self._to = results
        self._put: Callable[[Launches], None] | None = put
        self._lock = threading.Lock()

    def _is_by_numpy(self, device: Device) -> bool:
        if not self._is_known or not device.backend.is_host:
            return False
        return self._extent <= LONGEST or (os.cpu_count() or 1) <= FEW

    def try_enqueue(
        self, operands: tuple[Tensor, ...], submission: Submission, pool: MemoryPool | None
    ) -> Any:
        if self._is_by_numpy(submission.stream.device):
            return None
        return super().try_enqueue(operands, submission, pool)

    def steps(self, ctx: Context, operands: Sequence[Tensor]) -> Steps[Any]:
        if ctx.records or not self._is_by_numpy(ctx.device):
            with self._lock:
                if self._put is not None:
                    self._put(self)
                    self._put = None
            return (yield from super().steps(ctx, operands))
        shape, kinds = self._to
        made = [empty(shape, dtype) for dtype in kinds]
        return (yield from enqueue(ctx, external(self._call, operands, made)))


def _sort(
    axis: int | None, descending: bool, values: str, stream: object, x: HostArray,
    *arrays: HostArray,
) -> None:  # fmt: skip
    """Sort the elements of `x`, and what moves with them, to the last of the arrays.

    Args:
        values: what moves: `"none"`, `"places"`, or `"given"`: the first of the arrays.
    """
    if axis is None:
        x, *arrays = (array.reshape(-1) for array in (x, *arrays))  # type: ignore[assignment]
    along = axis or 0
    others = [a for a in range(x.ndim) if a != along]
    cut = max(others, key=lambda a: x.shape[a], default=along)
    extent = x.shape[cut]
    count = extent if cut == along else max(1, PART * extent // x.size)
    move = _sort_rows if values == "none" else _move_rows

    def sort_part(first: int) -> None:
        part = (slice(None),) * cut + (slice(first, first + count),)
        if cut == along:
            part = (...,)
        move(along, descending, x[part], *(array[part] for array in arrays))

    ParallelCopy(range(0, extent, count), sort_part).run()


def _sort_rows(axis: int, descending: bool, x: HostArray, z: HostArray) -> None:
    """Sort along an axis to `z`."""
    is_stable = x.dtype.itemsize <= 2 or _differ(x)
    np.copyto(z, np.flip(x, axis) if is_stable and descending else x)
    z.sort(axis=axis, kind="stable" if is_stable else None)
    if descending:
        z[...] = np.flip(z, axis)


def _differ(x: HostArray) -> bool:
    """Whether equal elements may differ in their bits, so that their order matters."""
    if x.dtype.kind != "f":
        return False
    return bool(np.isnan(x).any() or (np.signbit(x) & (x == 0)).any())


def _move_rows(axis: int, descending: bool, x: HostArray, *arrays: HostArray) -> None:
    """Sort along an axis, to the last of `arrays` what moves with the keys, and to the one before
    it the keys. What moves are places, or the first of three arrays.
    """
    order = np.argsort(np.flip(x, axis) if descending else x, axis, kind="stable")
    if descending:
        order = x.shape[axis] - 1 - np.flip(order, axis)
    *first, moved = arrays
    order = order[(slice(None),) * axis + (slice(moved.shape[axis]),)]
    moved[...] = np.take_along_axis(first[0], order, axis) if len(first) == 2 else order
    if first:
        first[-1][...] = np.take_along_axis(x, order, axis)
