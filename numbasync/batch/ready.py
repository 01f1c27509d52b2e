"""Plans on a device on which all is compiled: a batch is enqueued at once, without steps.

What does not depend on arrays is worked out when a plan has been run for the first time: where each
kernel finds its arguments, what new tensors are like. All memory of a batch but tensors that it
uses in place is new, so nobody else knows it, and there is nothing to order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from numbasync.backend import base
from numbasync.batch.emit import KernelText, argument_value
from numbasync.batch.prepared import Prepared, partial_key
from numbasync.contiguous import Contiguous, contiguous
from numbasync.device import Device
from numbasync.host import HostBuffer
from numbasync.memory import MANY_READERS, MemoryPool, Storage
from numbasync.submission import Submission
from numbasync.tensor import Tensor
from numbasync.together import LARGE

if TYPE_CHECKING:
    from numbasync.batch.batch import CommandBatch

COUNTER = np.dtype(np.uint32)
_ZERO = np.uint32(0)


class _Line(NamedTuple):
    """An array of one axis in new memory, as kernels take it."""

    offset: int
    shape: tuple[int]
    strides: tuple[int]
    dtype: np.dtype[Any]

    @staticmethod
    def of(count: int, dtype: np.dtype[Any], offset: int = 0) -> _Line:
        return _Line(offset, (count,), (dtype.itemsize,), dtype)


class _New(NamedTuple):
    """A tensor that a run makes: its node, what it is like, the same with one axis."""

    number: int
    kind: Contiguous
    line: _Line


class Ready:
    """A plan on one device."""

    @staticmethod
    def of(prepared: Prepared, device: Device, works: Sequence[base.Work | None]) -> Ready | None:
        """The plan, by what is launched for each kernel; None if nothing is launched for some, or
        an array has no elements.
        """
        nodes = (prepared.nodes[n] for n in (*prepared.inputs, *prepared.outputs))
        found = [work for work in works if work is not None]
        if not works or len(found) < len(works) or any(node.size == 0 for node in nodes):
            return None
        return Ready(prepared, device, found)

    def __init__(self, prepared: Prepared, device: Device, works: Sequence[base.Work]) -> None:
        self._device = device
        nodes, texts, offsets = prepared.nodes, prepared.texts, prepared.arena.offsets

        def new(n: int) -> _New:
            dtype = nodes[n].dtype
            return _New(n, contiguous(nodes[n].shape, dtype.type), _Line.of(nodes[n].size, dtype))

        self._inputs = [new(n) for n in prepared.inputs]
        self._outputs = [new(n) for n in prepared.outputs]
        # What lies between kernels, and partial results of one, by their keys in the arena.
        between = {
            n: _Line.of(nodes[n].size, nodes[n].dtype, at) for n, at in offsets.items() if n >= 0
        }
        for group, text in enumerate(texts):
            for k, part in enumerate(text.partials):
                key = partial_key(group, k)
                between[key] = _Line.of(part.extent, part.dtype, offsets[key])
        # Allocations that nobody sees, with what lies in them; the counters are the last.
        self._scratch: list[tuple[list[_Line], int]] = []
        if between:
            self._scratch.append((list(between.values()), prepared.arena.nbytes))
        self._counts = prepared.counters > 0
        if self._counts:
            counters = _Line.of(prepared.counters, COUNTER)
            self._scratch.append(([counters], prepared.counters * COUNTER.itemsize))
        constants = {a.value for text in texts for a in text.arguments if a.role == "constant"}
        # To make a number of what is of its type already takes a microsecond.
        self._constants: list[tuple[int, type]] = [
            (n, type(argument_value(0, nodes[n].dtype))) for n in sorted(constants)
        ]
        self._numbers: list[Any] = []
        self._names = tuple(text.name for text in texts)
        # All kernels' arguments are one list, in this order.
        keys: list[Any] = [*prepared.inputs, *prepared.outputs, *between]
        keys += ["counter"] * self._counts
        places = {key: at for at, key in enumerate([*keys, *sorted(constants)])}
        self._launches = [
            (work, self._places(text, group, places))
            for group, (text, work) in enumerate(zip(texts, works, strict=True))
        ]

    def _places(self, text: KernelText, group: int, places: Mapping[Any, int]) -> list[int]:
        """Where a kernel's arguments are in the list of all."""
        found: list[int] = []
        for role, value in text.arguments:
            if role in ("read", "write", "constant"):
                found.append(places[value])
            elif role == "partial":
                found.append(places[partial_key(group, value)])
            elif role == "counter":
                found.append(places["counter"])
            else:
                found.append(len(places) + len(self._numbers))
                self._numbers.append(value)
        return found

    # --- running ---

    def enqueue(
        self, batch: CommandBatch, submission: Submission, pool: MemoryPool | None
    ) -> dict[int, Tensor] | None:
        """Enqueue such a batch: the tensors of its inputs and results. None, and nothing has
        happened, if memory must be asked for, an array needs more care, or others must be waited
        for.
        """
        device = self._device
        backend, values, there = device.backend, batch.recorder.values, batch.there
        pool = pool or device.pool
        # In one piece, and by loops of few turns: functions for the parts take a third longer.
        tensors: dict[int, Tensor] = {}
        arguments: list[Any] = []
        kept: list[Any] = []
        new: list[Storage] = []
        used: list[Storage] = []
        uploads: list[tuple[Any, Any]] = []
        nbytes = 0
        for n, kind, line in self._inputs:
            if n in there:
                tensor = tensors[n] = there[n]
                storage = tensor.own_storage
                if storage is None or storage.plain_device is not backend:
                    return None
                if tensor.source is not None or not tensor.is_contiguous:
                    return None
                used.append(storage)
                flat = tensor if len(kind.shape) == 1 else tensor.reshape(tensor.size)
                arguments.append(flat.handle)
                continue
            array = values[n]
            if kind.nbytes > LARGE or isinstance(array, HostBuffer):
                return None
            block = backend.host_block(kind.nbytes)
            storage = None if block is None else pool.reuse(kind.nbytes)
            if storage is None:
                return None
            np.ndarray(kind.shape, kind.dtype, block)[...] = array
            new.append(storage)
            kept.append(block)
            tensors[n] = Tensor.of(device, storage, kind)
            handle = backend.array(storage.memory, *line)
            arguments.append(handle)
            uploads.append((handle, block))
            nbytes += 2 * kind.nbytes
        for n, kind, line in self._outputs:
            storage = pool.reuse(kind.nbytes)
            if storage is None:
                return None
            new.append(storage)
            tensor = tensors[n] = Tensor.of(device, storage, kind)
            handle = backend.array(storage.memory, *line)
            if len(kind.shape) == 1:
                tensor.own_handle = handle
            arguments.append(handle)
            nbytes += kind.nbytes
        for lines, room in self._scratch:
            storage = pool.reuse(room)
            if storage is None:
                return None
            new.append(storage)
            arguments += [backend.array(storage.memory, *line) for line in lines]
            nbytes += room
        counters = arguments[-1] if self._counts else None
        for n, element in self._constants:
            value = values[n]
            arguments.append(value if type(value) is element else element(value))
        arguments += self._numbers
        with device.leasing:
            for storage in used:
                if _is_written_elsewhere(storage, submission):
                    return None
            # All questions have been asked. What keeps memory comes before what uses it.
            submission.nbytes += nbytes
            submission.kept += kept + new + used
            submission.launched += self._names
            for storage in new:
                storage.writer = submission
            for storage in used:
                _lease(storage, submission)
            stream, queue = submission.stream.backend, submission.queue
            for handle, block in uploads:
                queue = submission.queue = stream.upload(handle, block, queue)
            if counters is not None:
                queue = submission.queue = stream.fill(counters, _ZERO, queue)
            for work, places in self._launches:
                taken = [arguments[at] for at in places]
                queue = submission.queue = stream.launch(work, taken, queue)
        batch.transfers.uploads += len(uploads)
        batch.kernels_launched += len(self._launches)
        return tensors


def _is_written_elsewhere(storage: Storage, submission: Submission) -> bool:
    """Whether another stream writes it, as far as a look tells."""
    writer = storage.writer
    if writer is None or writer.done or writer.stream is submission.stream:
        return False
    writer.stream.advance()
    return not writer.done


def _lease(storage: Storage, submission: Submission) -> None:
    """It is read by the submission."""
    readers = storage.readers
    if len(readers) >= MANY_READERS:
        readers = storage.forget_readers()
    readers[submission.stream] = submission
