"""What of a batch is on its device, and who has enqueued it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from numbasync import execute as submitting
from numbasync.batch.form import Form
from numbasync.batch.record import Recorder
from numbasync.exclusive import unlocked
from numbasync.host import HostBuffer
from numbasync.memory import MemoryPool, Reached
from numbasync.submission import Submission
from numbasync.tensor import Tensor

# Reentrant: a finaliser may look at another batch inside of it.
_making = threading.RLock()


def _after_fork() -> None:
    """A thread that the child does not have may have held it."""
    global _making
    _making = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Captured:
    """The form of a graph: its tensors are there, and stay."""

    @staticmethod
    def tensors(
        made: Mapping[int, Tensor], there: Mapping[int, Tensor], submission: Submission
    ) -> Mapping[int, Tensor]:
        return made


class Present:
    """The part of a batch that is there.

    Tensors of what was enqueued at once are made when somebody asks for one: who reads all that he
    wants by the same submission asks for none.
    """

    recorder: Recorder
    _state = "recording"
    _there: dict[int, Tensor]
    _made: dict[int, Submission]
    _unmade: tuple[Form | type[Captured], Any, Submission] | None = None
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

    def ran_at_once(
        self, form: Form, made: tuple[Any, ...], submission: Submission, pool: MemoryPool
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
        if not uploaded and not isinstance(found.storage.pool, Reached):
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
