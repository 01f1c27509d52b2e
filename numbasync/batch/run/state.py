"""What of a batch is on its device, and who has enqueued it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numbasync.batch.record.nodes import CONSTANT
from numbasync.batch.record.recorder import Recorder
from numbasync.device.device import Device
from numbasync.device.storage import HostMapped, MemoryPool
from numbasync.device.submission import Submission
from numbasync.errors import DeviceMismatchError
from numbasync.fork import in_child
from numbasync.ops import run as submitting
from numbasync.ops.reentrancy import unlocked
from numbasync.tensors.pinned import HostBuffer
from numbasync.tensors.tensor import Tensor

# Reentrant: a finaliser may look at another batch inside of it.
_making = threading.RLock()


@in_child
def _after_fork() -> None:
    """A thread that the child does not have may have held it."""
    global _making
    _making = threading.RLock()


CAPTURED = "a graph that was not replayed yet"


@dataclass(slots=True)
class Transfers:
    """Arrays that a batch has moved between the host and the device, by a copy or by a kernel."""

    uploads: int = 0
    downloads: int = 0


class Unmade(Protocol):
    """What makes the tensors of work that was enqueued at once, when somebody asks for one."""

    def tensors(
        self, made: Any, there: Mapping[int, Tensor], submission: Submission
    ) -> Mapping[int, Tensor]: ...


class Captured:
    """The tensors of a graph: its tensors are there, and stay."""

    @staticmethod
    def tensors(
        made: Mapping[int, Tensor], there: Mapping[int, Tensor], submission: Submission
    ) -> Mapping[int, Tensor]:
        return made


class BatchRun:
    """What running a batch has come to: its device, its tensors, its state and what it counts.

    Tensors of what was enqueued at once are made when somebody asks for one: who reads all that he
    wants by the same submission asks for none.
    """

    recorder: Recorder
    device: Device
    transfers: Transfers
    kernels_launched: int
    _state = "recording"
    _error: BaseException | None = None
    _captured: Mapping[int, Tensor]  # of a graph
    _there: dict[int, Tensor]
    _made: dict[int, Submission]
    _unmade: tuple[Unmade, Any, Submission] | None = None
    _pool: MemoryPool | None = None  # of what was enqueued at once

    @property
    def there(self) -> dict[int, Tensor]:
        """Tensors of inputs and results, by node."""
        if self._unmade is not None:
            self._make()
        return self._there

    @property
    def made(self) -> dict[int, Submission]:
        """Who enqueued what has them, or has used them."""
        if self._unmade is not None:
            self._make()
        return self._made

    def _make(self) -> None:
        with _making:
            if self._unmade is None:  # another thread was here
                return
            form, made, submission = self._unmade
            self._add(form.tensors(made, self._there, submission), submission)
            self._unmade = None

    def ran_fast(
        self, form: Unmade, made: tuple[Any, ...], submission: Submission, pool: MemoryPool
    ) -> None:
        """Work of it is enqueued; what a form has made, in memory of that pool."""
        self._unmade, self._pool = (form, made, submission), pool
        self._state = "executed"

    def own(self, number: int) -> Tensor:
        """A tensor for the program. Of what lies with the host, and of uploads of graphs, which the
        next replay overwrites, a copy, made now.
        """
        found = self.there[number]
        uploaded = isinstance(self.recorder.values.get(number), HostBuffer)  # of a graph
        if not uploaded and not isinstance(found.storage.pool, HostMapped):
            return found
        maker = self._made[number]
        maker.stream.advance()
        # Behind what has been done, it need not wait for what its stream does meanwhile.
        stream = maker.stream
        if maker.done:
            stream = stream.device.new_stream()
            stream.is_internal = True
        with unlocked():  # it may be asked for in a closure
            copied: Tensor = submitting.enqueued(found.dup(), stream, self._pool)[1]
        with _making:
            if self._there.get(number) is found:
                self._there[number] = copied
            return self._there.get(number, copied)

    def _add(self, tensors: Mapping[int, Tensor], submission: Submission) -> None:
        self._there |= tensors
        self._made |= dict.fromkeys(tensors, submission)

    def makers(self, numbers: Iterable[int]) -> list[Submission]:
        """Who has enqueued what these buffers hold."""
        made = self.made
        return list({made[n]: None for n in numbers if n in made})

    def absent(self, number: int) -> str:
        """Why a value of the batch was not written, and what to write instead."""
        if self.recorder.nodes[number].op == CONSTANT:
            return f"{self.recorder.label}: it is a number.\nWrite: await b.read(id)"
        return (
            f"{self.recorder.label}, which did not write it.\n"
            "Write: b.keep(id)        # before it is executed\n"
            "or:    await b.read(id)  # afterwards"
        )

    def check_device(self, device: Device) -> None:
        """Raises DeviceMismatchError if it is not the batch's."""
        if device is not self.device:
            raise DeviceMismatchError(
                f"{self.recorder.label} is for {self.device.label}, but runs on {device.label}.\n"
                "Write b.execute(), or run b.op() on a stream of that device."
            )

    def ran(self, tensors: Mapping[int, Tensor], submission: Submission) -> None:
        """Work of it is enqueued, by `submission`; the tensors of inputs and results."""
        self._add(tensors, submission)
        self._state = "executed"

    def captured(self) -> None:
        """It was recorded as a graph: nothing has been computed yet, and nothing counts."""
        self._state = CAPTURED
        self._captured = dict(self.there)
        self.transfers, self.kernels_launched = Transfers(), 0

    def replayed(self, submission: Submission) -> None:
        """Its tensors have new elements; what was computed from the old ones is forgotten."""
        self._there = {}
        self._unmade = Captured(), self._captured, submission
        self._state = "executed"

    def failed(self, error: BaseException) -> None:
        """It could not be enqueued."""
        self._state, self._error = "failed", error
