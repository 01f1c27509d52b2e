"""The fast path of a plan: a whole batch enqueued by one call, without steps.

What does not depend on arrays is worked out when the plan has been run for the first time. A call
then looks whether every array is plain, takes the memory of a batch, and hands the stream a list
of launches whose checks are done: no other submission knows the new memory, and only tensors that
the program has are asked for their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from numbasync.backend.protocols import Work
from numbasync.device.device import Device
from numbasync.device.storage import MemoryPool
from numbasync.extending import (
    ArraySpec,
    Storage,
    Submission,
    host_mapped,
    is_filled,
    is_large,
    is_written_elsewhere,
    record_read,
)
from numbasync.tensors.tensor import Tensor

if TYPE_CHECKING:
    from numbasync.batch.run.state import BatchRun

ZERO = np.uint32(0)  # what counters are set to
COUNTER = np.dtype(np.uint32)


class FlatArray(NamedTuple):
    """An array of one axis in new memory, as kernels take it."""

    offset: int
    shape: tuple[int]
    strides: tuple[int]
    dtype: np.dtype[Any]

    @staticmethod
    def of(count: int, dtype: np.dtype[Any], offset: int = 0) -> FlatArray:
        return FlatArray(offset, (count,), (dtype.itemsize,), dtype)


class New(NamedTuple):
    """A tensor that a run creates or uses.

    Attributes:
        number: its node.
        name: what kernels' arguments call it.
        flat: the same memory with one axis.
    """

    number: int
    name: str
    kind: ArraySpec
    flat: FlatArray


class Scratch(NamedTuple):
    """An allocation that no user sees: the arrays in it, by the names of kernels' arguments."""

    arrays: dict[str, FlatArray]
    nbytes: int


class Parts(NamedTuple):
    """The work of a plan on one device.

    Attributes:
        constants: nodes, with their names and the types that they are passed as.
        counters: the name of the array that is set to 0 first; empty: none.
        launches: work, with the names of its arguments, or numbers.
        small: every array is small enough for kernels to read inputs and write results in host
            memory, because a copy takes longer.
    """

    inputs: list[New]
    outputs: list[New]
    scratch: list[Scratch]
    constants: list[tuple[int, str, type]]
    counters: str
    names: tuple[str, ...]
    launches: list[tuple[Work, list[Any]]]
    small: bool


# For each new tensor in turn the storage, or the host block, and the handle; then the values read.
Enqueued = tuple[tuple[Any, ...], Any]


class FastPath:
    """One way to enqueue a plan: which inputs are tensors of the program, and which results the
    same submission copies back.
    """

    def __init__(
        self, device: Device, parts: Parts, borrowed: Sequence[int], reads: Sequence[int]
    ) -> None:
        self._device = device
        self._parts = parts
        self._borrowed = [new for new in parts.inputs if new.number in borrowed]
        uploads = [new for new in parts.inputs if new.number not in borrowed]
        by_number = {new.number: new for new in (*parts.inputs, *parts.outputs)}
        self._on_host = _on_host(parts, uploads, reads)
        self._new = [self._memory(new, new in uploads) for new in (*uploads, *parts.outputs)]
        self._uploads = len(uploads)
        self._reads = [(n, by_number.get(n)) for n in reads]
        self._downloads = sum(n in by_number for n in reads)
        # A name stands for what a run has made of it, a number for itself.
        self._launches = [(work, _getter(arguments)) for work, arguments in parts.launches]
        given = (a for _, arguments in parts.launches for a in arguments)
        self._numbers: dict[Any, Any] = {a: a for a in given if not isinstance(a, str)}
        staged = [new.kind for new in uploads]
        staged += [new.kind for _, new in self._reads if new is not None]
        self._is_possible = not any(map(is_large, staged))
        # What a run takes of the device and of page-locked memory: blocks of what is copied, too.
        copied = [new for new in uploads if new.number not in self._on_host]
        copied += [new for n, new in self._reads if new is not None and n not in self._on_host]
        self._nbytes = sum(new.kind.nbytes for new in (*uploads, *parts.outputs, *copied))
        self._nbytes += sum(scratch.nbytes for scratch in parts.scratch)

    def _memory(self, new: New, is_upload: bool) -> tuple[Any, ...]:
        """What a run asks of a new tensor, with what makes arrays of its block, if it is in host
        memory.
        """
        number, name, kind, flat = new
        make = self._device.backend.host_arrays
        arrays = make(kind.shape, kind.dtype) if number in self._on_host else None
        return number, name, kind, kind.nbytes, flat, arrays, is_upload

    def enqueue(self, batch: BatchRun, submission: Submission, pool: MemoryPool) -> Enqueued | None:
        """Enqueue a batch, with memory of a pool.

        Returns:
            None, with nothing done, if memory must be requested, an array needs more care, or the
            run must wait for other submissions.
        """
        if not self._is_possible:
            return None
        parts, backend, values = self._parts, self._device.backend, batch.recorder.values
        at = self._numbers.copy()  # what kernels' arguments stand for
        blocks: list[Any] = []  # page-locked
        created: list[Storage] = []
        memory: list[Any] = []  # for each new tensor its storage or block, and its handle
        in_blocks: dict[int, Any] = {}  # arrays in host memory that kernels read and write
        used = self._use(batch.tensors, at) if self._borrowed else ()
        if used is None:
            return None
        uploads: list[tuple[Any, Any]] = []
        for number, name, kind, size, flat, host_arrays, is_upload in self._new:
            value = handle = None
            if is_upload:
                value = values[number]
                if value.shape != kind.shape or not is_filled(value, submission):  # or resized
                    return None
            if host_arrays is None:
                storage = pool.reuse(size)
                if storage is None:
                    return None
                created.append(storage)
                handle = at[name] = backend.array(storage.memory, *flat)
                memory += storage, handle
                if not is_upload:
                    continue
            block = backend.host_block(size)
            if block is None:
                return None
            blocks.append(block)
            if host_arrays is not None:
                handle, array = host_arrays(block)
                at[name], in_blocks[number] = handle, array
                memory += block, handle
                if is_upload:
                    array[...] = value
            else:
                np.ndarray(kind.shape, kind.dtype, block)[...] = value
                uploads.append((block, handle))
        for arrays, size in parts.scratch:
            storage = pool.reuse(size)
            if storage is None:
                return None
            created.append(storage)
            for name, flat in arrays.items():
                at[name] = backend.array(storage.memory, *flat)
        for number, name, passed_as in parts.constants:
            value = values[number]
            at[name] = value if type(value) is passed_as else passed_as(value)

        results: list[Any] = []
        downloads: list[tuple[Any, Any]] = []
        copied_out: list[tuple[Any, Any]] = []
        for number, read in self._reads:
            if read is None:
                results.append(np.array(values[number]))
                continue
            kind = read.kind
            if number in in_blocks:
                results.append(np.empty(kind.shape, kind.dtype))
                copied_out.append((results[-1], in_blocks[number]))
                continue
            block = backend.host_block(kind.nbytes)
            if block is None:
                return None
            blocks.append(block)
            downloads.append((block, at[read.name]))
            results.append(np.ndarray(kind.shape, kind.dtype, block))

        stream = submission.stream
        with self._device.submit_lock:
            for storage in used:
                # Asked here: under this lock, a graph that another thread captures registers its
                # persistent access.
                if storage.fast_path_device is backend and not is_written_elsewhere(
                    storage, stream
                ):
                    continue
                return None
            submission.nbytes += self._nbytes
            submission.keep_alive += (*blocks, *created, *used)
            submission.launched += parts.names
            for storage in created:
                storage.writer = submission
            for storage in used:
                record_read(storage, submission)
            queue = stream.backend
            for block, handle in uploads:
                submission.queue = queue.upload(handle, block, submission.queue)
            if parts.counters:
                submission.queue = queue.fill(at[parts.counters], ZERO, submission.queue)
            submission.launch_all([(work, pick(at)) for work, pick in self._launches])
            for block, handle in downloads:
                submission.queue = queue.download(block, handle, submission.queue)
            for result, array in copied_out:
                submission.on_complete(partial(np.copyto, result, array))
        batch.kernels_launched += len(parts.launches)
        batch.transfers.uploads += self._uploads
        batch.transfers.downloads += self._downloads
        return tuple(memory), results[0] if len(results) == 1 else tuple(results)

    def _use(self, tensors: Mapping[int, Tensor], at: dict[Any, Any]) -> list[Storage] | None:
        """The storages of the tensors of the program; None if one needs more care."""
        used: list[Storage] = []
        for number, name, kind, _ in self._borrowed:
            tensor = tensors[number]
            storage = tensor.own_storage
            if storage is None or tensor.source is not None or not tensor.is_contiguous:
                return None
            on_one_axis = tensor if len(kind.shape) == 1 else tensor.reshape(tensor.size)
            at[name] = on_one_axis.handle
            used.append(storage)
        return used

    def tensors(
        self, memory: tuple[Any, ...], tensors: Mapping[int, Tensor], submission: Submission
    ) -> dict[int, Tensor]:
        """The tensors of inputs and results by node: those that `submission` has created, and the
        existing tensors that the run used. Some may be in host memory.
        """
        created = {new.number: tensors[new.number] for new in self._borrowed}
        for i, (n, _, spec, *_) in enumerate(self._new):
            storage = memory[2 * i]
            if n in self._on_host:
                created[n] = host_mapped(self._device, storage, spec)
                created[n].storage.writer = submission
                continue
            tensor = created[n] = Tensor.of(self._device, storage, spec)
            if len(spec.shape) == 1:
                tensor.own_handle = memory[2 * i + 1]
        return created


def _on_host(parts: Parts, uploads: list[New], reads: Sequence[int]) -> frozenset[int]:
    """The nodes whose elements kernels read or write in a host block. Empty if nothing is read: the
    program wants the results on the device.
    """
    if not parts.small or not reads:
        return frozenset()
    outputs = {new.number for new in parts.outputs}
    return frozenset([*(new.number for new in uploads), *(n for n in reads if n in outputs)])


def _getter(names: Sequence[Any]) -> Callable[[Mapping[Any, Any]], tuple[Any, ...]]:
    """A function that finds the values of these names."""
    if len(names) < 2:  # of one name, `itemgetter` gives no tuple
        return lambda at: tuple(at[name] for name in names)
    return itemgetter(*names)
