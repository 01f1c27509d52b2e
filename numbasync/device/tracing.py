"""The recorder of a trace: what hears of operations, waits and compilations while one is open.

There is one recorder for the process, or none. The places that tell it compare one name with None,
which is all that a trace costs while none is open.
"""

from __future__ import annotations

from typing import Any, Protocol

from numbasync.device.journal import Journal
from numbasync.native import core

# `device.submission` and `device.stream` tell the recorder, so they are not imported here.
Submission = Any
Stream = Any


class Recorder(Protocol):
    """Hears of operations. No method raises, and none waits for work of the program.

    The core writes to the journals itself, and asks for marks.

    Attributes:
        journal: of the operations.
        waits: of those who waited.
    """

    journal: Journal
    waits: Journal

    def mark(self, stream: Stream, idle_at: int = 0) -> None:
        """Mark this point of a stream, so that the time is known when the device passes it.

        Args:
            idle_at: the stream had passed all at this time, and has got one operation since.
        """

    def begin(self, submission: Submission) -> None:
        """The host begins to enqueue an operation on its fast path."""

    def prepare(self, submission: Submission, parent: Submission | None = None) -> None:
        """The host begins to prepare an operation, of which nothing is enqueued yet.

        Args:
            parent: the operation that it is a part of; None: of none.
        """

    def reach(self, submission: Submission) -> None:
        """The next thing on the stream is the first work of this submission, or work behind it."""

    def pause(self, submission: Submission) -> None:
        """What is enqueued of the operation is all for now: something else has to be done first."""

    def drop(self, submission: Submission) -> None:
        """Nothing was enqueued: the operation begins anew, or has failed."""

    def commit(self, submission: Submission) -> None:
        """The whole operation is enqueued."""

    def follow(self, stream: Stream, other: Stream) -> None:
        """Later work of `stream` waits for what `other` holds now."""

    def now(self) -> int:
        """The host's time, in nanoseconds."""
        ...

    def awaited(self, submission: Submission, began: int | None) -> None:
        """A task has waited for an operation since `began`; None: since it was enqueued."""

    def blocked(self, stream: Stream, number: int, began: int) -> None:
        """A thread has waited since `began` until the stream was idle, with so many submissions."""

    def passed(self, stream: Stream, number: int) -> None:
        """Somebody has seen that a stream has passed a number."""

    def failed(self, submission: Submission) -> None:
        """The work of a submission has failed; its error is known."""

    def compiled(self, name: str, device: str, began: int) -> None:
        """A thread has compiled a kernel since `began`."""


recorder: Recorder | None = None


def record_by(new: Recorder | None) -> None:
    """Tell `new` from now on; None: nobody."""
    global recorder
    recorder = new
    if core is not None:
        core.know_recorder(new)
