"""A submission: the work that one operation enqueued on one stream, and the objects kept for it.

The stream keeps the `Submission`, and the submission keeps every object that the device may still
touch, until the stream's completion counter has passed the submission's sequence number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from numbasync.backend import protocols
from numbasync.device import tracing
from numbasync.device.callsite import CallSite
from numbasync.errors import NumbasyncError
from numbasync.native import compiled, known

if TYPE_CHECKING:
    from numbasync.device.stream import Stream

MOST_SUSPECTS = 16  # submissions that the message of a fault names


class LaunchedName(str):
    """The name of a kernel that was launched.

    Attributes:
        shapes: of its arrays, by the names of its parameters.
    """

    __slots__ = ("shapes",)

    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    def __new__(cls, name: str, shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> Self:
        new = super().__new__(cls, name)
        new.shapes = shapes
        return new


@known
class Submission:
    """The work of one operation on one stream.

    Attributes:
        name: the operation, for messages.
        site: the line of the program that submitted the operation, for messages.
        launched: the names of the kernels launched, with shapes where they are known.
        sequence: the sequence number on the stream; 0 until committed.
        done: the device has passed the work, and its host side is complete.
        error: the reason of a failure, set once done.
        queue: the backend's queue for the work; None: none was opened, so no work can fail.
        nbytes: bytes allocated, and bytes held in page-locked memory for copies.
        copied: bytes of the copies of arrays, each counted once.
        is_empty: nothing was enqueued, so no sequence number is needed.
        is_trivial: nothing can fail and there is no host side to run. Set by `commit`.
        after: functions to call on completion.
        signalled: the device writes the sequence number behind the work.
        detached: there is no future; the stream itself reports the error.
        kept: the objects kept alive until the device has passed the work.

    Examples:
        >>> from numbasync.extending import Submission
        >>> def name_of(ctx):
        ...     submission: Submission = ctx.submission
        ...     return submission.name, submission.done
        >>> await na.with_context(name_of)
        ('with_context(name_of)', False)
    """

    # Every launch creates a submission: with slots its whole life costs a third less.
    __slots__ = (
        "__weakref__", "_trace", "after", "copied", "dependencies", "detached", "done", "error",
        "is_empty", "is_trivial", "keep_alive", "launched", "name", "nbytes", "queue", "sequence",
        "signalled", "site", "stream",
    )  # fmt: skip

    def __init__(self, stream: Stream, name: str, site: CallSite | None = None) -> None:
        self.stream = stream
        self.name = name
        self.site = site
        self.keep_alive: list[object] = []
        self.launched: tuple[str, ...] = ()
        self.sequence = self.nbytes = self.copied = 0
        self.done = self.is_empty = self.is_trivial = self.signalled = self.detached = False
        self.error: BaseException | None = None
        self.queue: protocols.Queue | None = None
        self.dependencies: list[Submission] | None = None
        self.after: list[Callable[[], None]] | None = None
        self._trace: TracebackType | None = None

    @property
    def latest(self) -> Submission:
        """This submission. See `attached_graphs.LastLaunch`, which differs."""
        return self

    def retain(self, thing: object) -> None:
        """Keep `thing` alive until the device has passed this submission."""
        self.keep_alive.append(thing)

    @compiled
    def launch_all(self, launches: list[tuple[protocols.Work, tuple[Any, ...]]]) -> None:
        """Enqueue launches, one behind the other, whose arguments are known to fit. The caller
        holds the device's `submit_lock`, and keeps and records what they read and write.
        """
        stream = self.stream.backend
        for work, arguments in launches:  # each queue is stored before the next, which may fail
            self.queue = stream.launch(work, list(arguments), self.queue)

    def on_complete(self, call: Callable[[], None]) -> None:
        """Register a call on the host for when the device has passed the work without failing."""
        if self.after is None:
            self.after = []
        self.after.append(call)

    def depends_on(self, other: Submission) -> None:
        """Fail if `other`, which the caller has ordered before this submission, fails."""
        if self.dependencies is None:
            self.dependencies = []
            self.stream.has_dependencies = True
        self.dependencies.append(other)

    @property
    def cannot_fail(self) -> bool:
        """Whether the submission can fail only if its stream does."""
        return self.queue is None and self.dependencies is None and self.after is None

    def retire(self, error: BaseException | None) -> list[object]:
        """Retire the submission, which the device has passed: determine the error, run the host
        side. Returns the kept objects, which the caller drops.
        """
        if error is None and self.queue is not None:
            error = self._failure(self.queue)
        if self.dependencies is not None:
            for dependency in self.dependencies:
                error = error or dependency.error
            self.dependencies = None
        if self.after is not None:
            try:
                while error is None and self.after:
                    self.after[0]()
                    del self.after[0]
            except Exception as exception:  # ^C: not retired, and the next to look goes on
                error = exception
            self.after = None
        if error is not None:
            self.error = error
            self._trace = error.__traceback__
            if (recorder := tracing.recorder) is not None:
                recorder.failed(self)
        keep_alive, self.keep_alive = self.keep_alive, []
        self.done = True
        return keep_alive

    def _failure(self, queue: protocols.Queue) -> BaseException | None:
        """The error of the submission's own work, with a message that names the operation."""
        error = queue.failure()
        if error is not None:
            locate(error, self)
        return error

    def raise_error(self) -> None:
        """Raise the submission's error, if any; repeated calls keep the first traceback."""
        if self.error is not None:
            raise self.error.with_traceback(self._trace)

    @property
    def described(self) -> str:
        """The operation, the kernels that it launched, and the line that submitted it."""
        kernels = list(dict.fromkeys(self.launched))
        shown = ", ".join(kernels[:4]) + (", ..." if len(kernels) > 4 else "")
        launched = f", which launched {shown}" if kernels and shown != self.name else ""
        where = f"; submitted at {self.site}" if self.site is not None else ""
        return f"{self.name}{launched}{where}"

    def __repr__(self) -> str:
        state = "done" if self.done else "in flight" if self.sequence else "being built"
        return f"<Submission {self.name}, {state}, number {self.sequence} on {self.stream!r}>"


def locate(error: BaseException, submission: Submission) -> None:
    """Add the operation and its submitting line to the message of a device's error, whose traceback
    shows only the waiting code.
    """
    where = f"In {submission.described}."
    if isinstance(error, NumbasyncError) and len(error.args) == 1:
        error.args = (f"{error.args[0]}\n{where}",)
    else:
        error.add_note(where)


def name_suspects(fault: BaseException, running: Sequence[Submission]) -> None:
    """Add the submissions that were running to the message of a fault, which one of them caused."""
    suspects = [submission.described for submission in running[:MOST_SUSPECTS]]
    if suspects:
        title = "At work then was" if len(suspects) == 1 else "At work then was one of"
        fault.args = ("\n  ".join([f"{fault}\n{title}:", *suspects]),)
