"""The state of a batch's run: its tensors on the device, and the submissions that produced them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numbasync.batch.record.nodes import CONSTANT
from numbasync.batch.record.recorder import Recorder
from numbasync.device.device import Device
from numbasync.device.storage import MemoryPool
from numbasync.errors import DeviceMismatchError
from numbasync.extending import Submission, enqueue_on, is_host_mapped, unlocked
from numbasync.fork import in_child
from numbasync.tensors.pinned import HostBuffer
from numbasync.tensors.tensor import Tensor

# Reentrant: a finaliser may access another batch's tensors while this thread holds the lock.
_tensors_lock = threading.RLock()


@in_child
def _after_fork() -> None:
    """Replace the lock in a forked child: a thread that does not exist there may have held it."""
    global _tensors_lock
    _tensors_lock = threading.RLock()


CAPTURED = "a graph that was not replayed yet"


@dataclass(slots=True)
class Transfers:
    """Arrays that a batch has moved between the host and the device, by a copy or by a kernel.

    Examples:
        >>> b = na.CommandBatch()
        >>> y = b.upload(np.arange(4, dtype=np.float32)) * 2
        >>> _ = await b.compute(y)
        >>> b.transfers
        Transfers(uploads=1, downloads=1)
    """

    uploads: int = 0
    downloads: int = 0


class TensorFactory(Protocol):
    """Creates, on first access, the tensors of a run that was enqueued on the fast path."""

    def tensors(
        self, memory: Any, tensors: Mapping[int, Tensor], submission: Submission
    ) -> Mapping[int, Tensor]: ...


class Captured:
    """The tensors of a graph: these exist already, and persist."""

    @staticmethod
    def tensors(
        memory: Mapping[int, Tensor], tensors: Mapping[int, Tensor], submission: Submission
    ) -> Mapping[int, Tensor]:
        return memory


class BatchRun:
    """The run state of a batch: its device, tensors, status and counts.

    The tensors of a run on the fast path are created on first access: a program that reads all its
    results by the same submission needs none.
    """

    recorder: Recorder
    device: Device
    transfers: Transfers
    kernels_launched: int
    _state = "recording"
    _error: BaseException | None = None
    _captured: Mapping[int, Tensor]  # of a graph
    _tensors: dict[int, Tensor]
    _producers: dict[int, Submission]
    _not_created: tuple[TensorFactory, Any, Submission] | None = None
    _pool: MemoryPool | None = None  # of a run on the fast path

    @property
    def tensors(self) -> dict[int, Tensor]:
        """Tensors of inputs and results, by node."""
        if self._not_created is not None:
            self._create_tensors()
        return self._tensors

    @property
    def producers(self) -> dict[int, Submission]:
        """The submissions that produced or used the tensors, by node."""
        if self._not_created is not None:
            self._create_tensors()
        return self._producers

    def _create_tensors(self) -> None:
        with _tensors_lock:
            if self._not_created is None:  # another thread has created the tensors
                return
            path, new_memory, submission = self._not_created
            self._add(path.tensors(new_memory, self._tensors, submission), submission)
            self._not_created = None

    def ran_fast(
        self, path: TensorFactory, memory: tuple[Any, ...], submission: Submission, pool: MemoryPool
    ) -> None:
        """Record a run that was enqueued on the fast path, with the new memory that `path`
        returned, from `pool`.
        """
        self._not_created, self._pool = (path, memory, submission), pool
        self._state = "executed"

    def own(self, number: int) -> Tensor:
        """A tensor for the program. For an array in host memory, and for an upload of a graph,
        which the next replay overwrites, the tensor is a copy, made by this call.
        """
        tensor = self.tensors[number]
        uploaded = isinstance(self.recorder.values.get(number), HostBuffer)  # of a graph
        if not uploaded and not is_host_mapped(tensor):
            return tensor
        producer = self._producers[number]
        producer.stream.advance()
        # After a completed submission, the copy need not wait for later work on its stream.
        stream = producer.stream
        if producer.done:
            stream = stream.device.new_stream()
            stream.is_internal = True
        with unlocked():  # a closure may call this method
            copied: Tensor = enqueue_on(tensor.dup(), stream, self._pool)[1]
        with _tensors_lock:
            if self._tensors.get(number) is tensor:
                self._tensors[number] = copied
            return self._tensors.get(number, copied)

    def _add(self, tensors: Mapping[int, Tensor], submission: Submission) -> None:
        self._tensors |= tensors
        self._producers |= dict.fromkeys(tensors, submission)

    def producers_of(self, numbers: Iterable[int]) -> list[Submission]:
        """The submissions that produced the contents of these buffers."""
        submissions = self.producers
        return list({submissions[n]: None for n in numbers if n in submissions})

    def absent(self, number: int) -> str:
        """The message that a value of the batch was not written, and the remedy."""
        if self.recorder.nodes[number].op == CONSTANT:
            return f"{self.recorder.label}: it is a number.\nWrite: await b.read(id)"
        return (
            f"{self.recorder.label}, which did not write it.\n"
            "Write: b.keep(id)        # before it is executed\n"
            "or:    await b.read(id)  # afterwards"
        )

    def check_device(self, device: Device) -> None:
        """Raises DeviceMismatchError if the device is not the batch's."""
        if device is not self.device:
            raise DeviceMismatchError(
                f"{self.recorder.label} is for {self.device.label}, but runs on {device.label}.\n"
                "Write b.execute(), or run b.op() on a stream of that device."
            )

    def ran(self, tensors: Mapping[int, Tensor], submission: Submission) -> None:
        """Record a run that `submission` has enqueued, with the tensors of its inputs and
        results.
        """
        self._add(tensors, submission)
        self._state = "executed"

    def captured(self) -> None:
        """Record the capture as a graph: nothing has been computed yet, so the counts restart."""
        self._state = CAPTURED
        self._captured = dict(self.tensors)
        self.transfers, self.kernels_launched = Transfers(), 0

    def replayed(self, submission: Submission) -> None:
        """Record a replay: the tensors have new elements, and values computed from the old ones are
        dropped.
        """
        self._tensors = {}
        self._not_created = Captured(), self._captured, submission
        self._state = "executed"

    def failed(self, error: BaseException) -> None:
        """Record that the run could not be enqueued."""
        self._state, self._error = "failed", error
