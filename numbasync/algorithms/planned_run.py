"""A run of an algorithm whose kernels are compiled, enqueued by one call.

Of operands of known shapes, dtypes and alignment, all but addresses is known beforehand: bytes,
extents, the kernels' other arguments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from numbasync.backend import protocols
from numbasync.device import access
from numbasync.device.device import Device
from numbasync.device.storage import MemoryPool, Storage
from numbasync.device.submission import Submission
from numbasync.layout import Layout
from numbasync.native import core
from numbasync.tensors.array_spec import ArraySpec
from numbasync.tensors.tensor import Tensor


class View(NamedTuple):
    """An array of a run: where it lies in an operand, or in memory that the run makes.

    Attributes:
        place: the operands come first, then what is made.
        at: its layout, from the operand's first element on.
        spec: of an array that lies in C order from the first byte on; else None.
    """

    place: int
    at: Layout
    dtype: np.dtype[Any]
    spec: ArraySpec | None


class Made(NamedTuple):
    """Memory that a run makes.

    Attributes:
        value: what it is filled with, or an array whose elements it gets; None: nothing.
    """

    spec: ArraySpec
    value: Any


class PlannedLaunch(NamedTuple):
    """A launch of a run.

    Attributes:
        values: the arguments; None in the place of an array.
        arrays: the arrays' places, and their numbers among the views of the run.
    """

    work: protocols.Work
    values: tuple[Any, ...]
    arrays: tuple[tuple[int, int], ...]


class PlannedRun:
    """The launches of an algorithm on one device, for operands aligned in one way.

    Args:
        aligned: of each operand, whether it `is_aligned`.
        views: what the launches get.
        names: of the kernels.
    """

    def __init__(
        self,
        aligned: tuple[bool, ...],
        made: tuple[Made, ...],
        views: tuple[View, ...],
        launches: tuple[PlannedLaunch, ...],
        results: tuple[View, ...],
        names: tuple[str, ...],
    ) -> None:
        self._aligned = aligned
        self._made = made
        self._views = views
        self._launches = launches
        self._results = results
        self._names = names
        self.packed: Any = self  # what enqueues the run: the core, where it is
        if core is not None and len(aligned) + len(made) <= core.MOST_AREAS:
            fields = tuple([(v.place, v.at.offset, _fields(v.at, v.dtype)) for v in views])
            self.packed = core.PackedRun(aligned, made, fields, launches, results, names, self)

    def enqueue(
        self, operands: tuple[Tensor, ...], submission: Submission, pool: MemoryPool | None
    ) -> tuple[Tensor, ...] | None:
        """Enqueue all of it; the results. None, with nothing done, if the pool lacks a free block,
        another stream must be waited for, or an operand is not as it was planned.

        Args:
            operands: contiguous tensors of the planned shapes and dtypes.
        """
        stream = submission.stream
        device = stream.device
        pool = pool or device.pool
        made = list[Storage]()
        for spec, _ in self._made:
            storage = pool.reuse(spec.nbytes)
            if storage is None:
                return None
            made.append(storage)
        blocks = device.backend.host_block
        constants = {
            i: blocks(spec.nbytes)
            for i, (spec, value) in enumerate(self._made)
            if isinstance(value, np.ndarray)
        }
        if any(block is None for block in constants.values()):
            return None
        with device.submit_lock:
            used = list[Storage]()
            for x, is_aligned in zip(operands, self._aligned, strict=True):
                known = x.own_storage
                if (
                    known is None
                    or known.fast_path_device is not device.backend
                    or access.is_written_elsewhere(known, stream)
                    or (x.source is not None and not x.source.is_nonblocking)
                    or x.is_aligned is not is_aligned
                ):
                    return None
                used.append(known)
            for x in operands:
                if x.source is not None:
                    x.source.order(stream.backend)
            submission.keep_alive += (*used, *made, *constants.values())
            submission.launched += self._names  # first: a fault's message lists them
            for storage in made:
                storage.writer = submission
            for storage in used:
                access.record_read(storage, submission)
            memory = [(s.memory, x._layout.offset) for s, x in zip(used, operands, strict=True)]
            memory += [(storage.memory, 0) for storage in made]
            self._launch(submission, memory, constants)
        return tuple([_seen(view, operands, made, device) for view in self._results])

    def _launch(
        self, submission: Submission, memory: list[tuple[Any, int]], constants: dict[int, Any]
    ) -> None:
        stream = submission.stream
        backend = stream.device.backend

        def handle(place: int, at: Layout, dtype: np.dtype[Any]) -> protocols.Array:
            block, begin = memory[place]
            return backend.array(block, begin + at.offset, at.shape, at.strides, dtype)

        for i, (spec, value) in enumerate(self._made):
            submission.nbytes += spec.nbytes
            if value is None:
                continue
            new = handle(len(self._aligned) + i, spec.at, spec.dtype)
            if i in constants:
                np.ndarray(spec.shape, spec.dtype, constants[i])[...] = value
                submission.nbytes += spec.nbytes
                submission.copied += spec.nbytes
                submission.queue = stream.backend.upload(new, constants[i], submission.queue)
            else:
                submission.queue = stream.backend.fill(new, value, submission.queue)
        handles = [handle(*view[:3]) for view in self._views]
        launches = list[tuple[protocols.Work, tuple[Any, ...]]]()
        for work, values, arrays in self._launches:
            args = list(values)
            for i, view in arrays:
                args[i] = handles[view]
            launches.append((work, tuple(args)))
        submission.launch_all(launches)


def _fields(at: Layout, dtype: np.dtype[Any]) -> bytes:
    """What a kernel of numba-cuda gets of an array, with an address of 0."""
    fields = 0, 0, math.prod(at.shape), dtype.itemsize, 0, *at.shape, *at.strides
    return np.array(fields, np.int64).tobytes()


def _seen(
    view: View, operands: Sequence[Tensor], made: Sequence[Storage], device: Device
) -> Tensor:
    own = view.place - len(operands)
    if own < 0:
        x = operands[view.place]
        offset, shape, strides = view.at
        return x._view(Layout(x._layout.offset + offset, shape, strides), view.dtype)
    if view.spec is not None:
        return Tensor.of(device, made[own], view.spec)
    return Tensor(device, made[own], view.at, view.dtype)
