"""The recorder of a trace: what hears of operations, waits and compilations while one is open.

There is one recorder for the process, or none. The places that tell it compare one name with None,
which is all that a trace costs while none is open.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from numbasync.device.announcing import Announcer, Announcing, SubmitLog, watch_levels
from numbasync.device.journal import Journal
from numbasync.native import core

# `device.submission` and `device.stream` tell the recorder, so they are not imported here.
Submission = Any
Stream = Any


class Recorder(Protocol):
    """Hears of operations. No method raises, and none waits for work of the program.

    The core writes to the journals itself, and asks for marks.

    Attributes:
        journal: of the operations; None: the core calls the methods instead.
        waits: of those who waited; None likewise.
    """

    @property
    def journal(self) -> Journal | None: ...
    @property
    def waits(self) -> Journal | None: ...

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


recorder: Recorder | None = None  # of the open trace, else that of the flight recorder
flight: Recorder | None = None
_trace: Recorder | None = None
_on_loss: Callable[[Any], None] | None = None
_announcers: list[Announcer] = []


def record_by(new: Recorder | None) -> None:
    """Tell `new`, of a trace, from now on; None: the flight recorder's, if there is one."""
    global _trace
    _trace = new
    _tell(new or flight)


def open_trace() -> Recorder | None:
    """The recorder of the open trace, if there is one."""
    return _trace


def fly_with(new: Recorder | None, on_loss: Callable[[Any], None] | None) -> None:
    """Tell `new` while no trace is open; None: nobody.

    Args:
        on_loss: called with the fault when a device is lost.
    """
    global flight, _on_loss
    flight, _on_loss = new, on_loss
    _tell(_trace or new)


def announce_to(announcer: Announcer, is_on: bool = True) -> None:
    """Tell `announcer` of each operation from now on; `is_on` False: no more."""
    if is_on != (announcer in _announcers):
        (_announcers.append if is_on else _announcers.remove)(announcer)
        _tell(_trace or flight)


def _tell(new: Recorder | None) -> None:
    global recorder
    announcing: Any = Announcing(new, [*_announcers])  # with the methods of `new`
    recorder = announcing if _announcers else new
    if core is not None:
        core.know_recorder(recorder)


def tell_loss(fault: Any) -> None:
    """A device is lost by `fault`, and what it was running is still in flight."""
    if _on_loss is not None:
        _on_loss(fault)


watch_levels(partial(announce_to, SubmitLog()))
