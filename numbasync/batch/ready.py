"""Plans on a device on which all is compiled: a batch is enqueued at once, without steps.

What does not depend on arrays is worked out when a plan has been run for the first time: where each
kernel finds its arguments, what new tensors are like. All memory of a batch but tensors that it
uses in place is new, so nobody else knows it, and there is nothing to order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numbasync.backend import base
from numbasync.batch.emit import KernelText, argument_value
from numbasync.batch.prepared import Prepared, partial_key
from numbasync.contiguous import Contiguous, contiguous
from numbasync.copies import HostArray
from numbasync.device import Device
from numbasync.host import HostBuffer
from numbasync.memory import MANY_READERS, MemoryPool, Storage
from numbasync.submission import Submission
from numbasync.tensor import Tensor
from numbasync.together import LARGE

if TYPE_CHECKING:
    from numbasync.batch.batch import CommandBatch

COUNTER = np.dtype(np.uint32)
Extents = tuple[int, int, np.dtype[Any]]  # offset in bytes, elements, type: of an array of one axis


class Ready:
    """A plan on one device."""

    @staticmethod
    def of(prepared: Prepared, device: Device, works: Sequence[base.Work | None]) -> Ready | None:
        """The plan, of what is launched for each kernel; None if there is nothing to launch for
        some, or an array has no elements.
        """
        nodes = (prepared.nodes[n] for n in (*prepared.inputs, *prepared.outputs))
        found = [work for work in works if work is not None]
        if not works or len(found) < len(works) or any(node.size == 0 for node in nodes):
            return None
        return Ready(prepared, device, found)

    def __init__(self, prepared: Prepared, device: Device, works: Sequence[base.Work]) -> None:
        self._device = device
        nodes, offsets = prepared.nodes, prepared.arena.offsets
        self._inputs = [(n, contiguous(nodes[n].shape, nodes[n].dtype.type)) for n in prepared.inputs]
        self._outputs = [(n, contiguous(nodes[n].shape, nodes[n].dtype.type)) for n in prepared.outputs]
        self._scratch = prepared.arena.nbytes if offsets else None
        self._between: list[Extents] = []
        self._counters = prepared.counters
        self._constants: list[tuple[int, Callable[[Any], Any]]] = []
        self._numbers: list[Any] = []
        self.names = tuple(text.name for text in prepared.texts)
        # Arguments are gathered in one list, in this order; each kernel takes its own from there.
        keys: list[Any] = [*prepared.inputs, *prepared.outputs]
        for n in offsets:
            if n >= 0:
                keys.append(n)
                self._between.append((offsets[n], nodes[n].size, nodes[n].dtype))
        for group, text in enumerate(prepared.texts):
            for k, part in enumerate(text.partials):
                keys.append(partial_key(group, k))
                self._between.append((offsets[keys[-1]], part.extent, part.dtype))
        if self._counters:
            keys.append("counter")
        for n in sorted({a.value for t in prepared.texts for a in t.arguments if a.role == "constant"}):
            keys.append(n)
            self._constants.append((n, type(argument_value(0, nodes[n].dtype))))
        place = {key: at for at, key in enumerate(keys)}
        self._launches: list[tuple[base.Work, list[int]]] = []
        for group, (text, work) in enumerate(zip(prepared.texts, works, strict=True)):
            self._launches.append((work, self._places(text, group, place)))

    def _places(self, text: KernelText, group: int, place: Mapping[Any, int]) -> list[int]:
        """Where a kernel's arguments are in the list of all."""
        found: list[int] = []
        for role, value in text.arguments:
            if role in ("read", "write", "constant"):
                found.append(place[value])
            elif role == "partial":
                found.append(place[partial_key(group, value)])
            elif role == "counter":
                found.append(place["counter"])
            else:
                found.append(len(place) + len(self._numbers))
                self._numbers.append(value)
        return found

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
        tensors: dict[int, Tensor] = {}
        given: list[Any] = []
        new: list[Storage] = []
        used: list[Storage] = []
        blocks: list[Any] = []
        uploads: list[tuple[Any, Any]] = []
        nbytes = 0
        for n, kind in self._inputs:
            if n in there:
                tensor = there[n]
                if tensor.source is not None or not tensor.is_contiguous:
                    return None
                storage = tensor.own_storage
                if storage is None or storage.plain_device is not backend:
                    return None
                tensors[n] = tensor
                used.append(storage)
                given.append(_flat(tensor).handle)
                continue
            block = _staged(values[n], kind, backend)
            storage = None if block is None else pool.reuse(kind.nbytes)
            if storage is None:
                return None
            tensors[n], handle = _tensor(device, storage, kind)
            new.append(storage)
            given.append(handle)
            blocks.append(block)
            uploads.append((handle, block))
            nbytes += 2 * kind.nbytes
        for n, kind in self._outputs:
            storage = pool.reuse(kind.nbytes)
            if storage is None:
                return None
            tensors[n], handle = _tensor(device, storage, kind)
            new.append(storage)
            given.append(handle)
            nbytes += kind.nbytes
        if self._scratch is not None:
            storage = pool.reuse(self._scratch)
            if storage is None:
                return None
            new.append(storage)
            nbytes += self._scratch
            for offset, count, dtype in self._between:
                step = (dtype.itemsize,)
                given.append(backend.array(storage.memory, offset, (count,), step, dtype))
        if self._counters:
            storage = pool.reuse(self._counters * COUNTER.itemsize)
            if storage is None:
                return None
            new.append(storage)
            nbytes += self._counters * COUNTER.itemsize
            counters = backend.array(
                storage.memory, 0, (self._counters,), (COUNTER.itemsize,), COUNTER
            )
            given.append(counters)
        given += [made(values[n]) for n, made in self._constants]
        given += self._numbers
        stream = submission.stream
        with device.leasing:
            for storage in used:
                if _is_written_elsewhere(storage, submission):
                    return None
            # All questions have been asked. First what keeps the memory, then what uses it.
            submission.nbytes += nbytes
            submission.kept += new + used + blocks
            submission.launched += self.names
            for storage in new:
                storage.writer = submission
            for storage in used:
                _lease(storage, submission)
            queue, enqueue = submission.queue, stream.backend
            for handle, block in uploads:
                queue = enqueue.upload(handle, block, queue)
            if self._counters:
                queue = enqueue.fill(counters, np.uint32(0), queue)
            for work, places in self._launches:
                queue = enqueue.launch(work, [given[at] for at in places], queue)
            submission.queue = queue
        batch.transfers.uploads += len(uploads)
        batch.kernels_launched += len(self._launches)
        return tensors


def _staged(array: HostArray, kind: Contiguous, backend: base.Device) -> Any:
    """The elements in memory that the device copies from; None if that needs other ways."""
    if isinstance(array, HostBuffer) or kind.nbytes > LARGE:
        return None
    block = backend.host_block(kind.nbytes)
    if block is not None:
        np.ndarray(kind.shape, kind.dtype, block)[...] = array
    return block


def _tensor(device: Device, storage: Storage, kind: Contiguous) -> tuple[Tensor, Any]:
    """The tensor that fills new memory, and the same with one axis, as kernels take it."""
    made = Tensor.of(device, storage, kind)
    step = kind.dtype.itemsize
    count = kind.nbytes // step
    flat = device.backend.array(storage.memory, 0, (count,), (step,), kind.dtype)
    if len(kind.shape) == 1:
        made.own_handle = flat
    return made, flat


def _flat(tensor: Tensor) -> Tensor:
    return tensor if len(tensor.shape) == 1 else tensor.reshape(tensor.size)


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
