"""What one operation enqueued on one stream, and what is kept alive for it.

The stream keeps a `Submission`, and that keeps everything that the device may still touch,
until the stream's word has passed its number.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from numbasync.backend import protocols
from numbasync.device.callsite import CallSite
from numbasync.errors import NumbasyncError

if TYPE_CHECKING:
    from numbasync.device.stream import Stream


class Submission:
    """Work of one operation on one stream.

    Attributes:
        name: the operation, for messages.
        site: the line of the program that submitted it, for messages.
        launched: kernels that it has launched, for messages.
        sequence: its position on the stream; 0 until it has been committed.
        done: the device has passed it, and its host side is settled.
        error: why it failed, once it is done.
        queue: the backend's queue for its work; None: it has opened none, so none can fail.
        nbytes: what it has allocated, and holds in page-locked memory for copies.
        is_empty: nothing has been enqueued for it, so it needs no number.
        has_no_end: nothing of it can fail, and nothing is to be done at its end. Set by `commit`.
        after: what is called at its end.
        marked: the device writes its number behind it.
        detached: nobody holds a future of it; the stream itself reports its error.
        kept: what is kept alive until the device has passed it.
    """

    # What most submissions have, on the class: making one is part of every launch.
    launched: tuple[str, ...] = ()
    sequence = 0
    nbytes = 0
    done = False
    error: BaseException | None = None
    queue: protocols.Queue | None = None
    is_empty = False
    is_trivial = False
    signalled = False
    detached = False
    dependencies: list[Submission] | None = None
    after: list[Callable[[], None]] | None = None
    _trace: TracebackType | None = None

    def __init__(self, stream: Stream, name: str, site: CallSite | None = None) -> None:
        self.stream = stream
        self.name = name
        self.site = site
        self.kept: list[object] = []

    @property
    def latest(self) -> Submission:
        """Itself. See `attached_graphs.LastLaunch`."""
        return self

    def retain(self, thing: object) -> None:
        """Keep `thing` alive until the device has passed this submission."""
        self.kept.append(thing)

    def on_complete(self, call: Callable[[], None]) -> None:
        """Call on the host once the device has passed this submission without failing."""
        if self.after is None:
            self.after = []
        self.after.append(call)

    def depends_on(self, other: Submission) -> None:
        """Fail if `other`, which is ordered before this one, fails."""
        if self.dependencies is None:
            self.dependencies = []
            self.stream.has_dependencies = True
        self.dependencies.append(other)

    @property
    def cannot_fail(self) -> bool:
        """Whether nothing of its own can fail, unless its stream does."""
        return self.queue is None and self.dependencies is None and self.after is None

    def settle(self, error: BaseException | None) -> list[object]:
        """The device has passed it: run the host side. Returns what it kept, to be dropped."""
        if error is None and self.queue is not None:
            error = self._failure(self.queue)
        if self.dependencies is not None:
            for cause in self.dependencies:
                error = error or cause.error
            self.dependencies = None
        if self.after is not None:
            try:
                if error is None:
                    for call in self.after:
                        call()
            except BaseException as failed:
                error = failed
            self.after = None
        if error is not None:
            self.error = error
            self._trace = error.__traceback__
        kept, self.kept = self.kept, []
        self.done = True
        return kept

    def _failure(self, queue: protocols.Queue) -> BaseException | None:
        """What its own work failed with; the message says whose work it was."""
        error = queue.failure()
        if error is not None:
            locate(error, self)
        return error

    def raise_error(self) -> None:
        """Raise what it failed with, if it did; however often, with one traceback."""
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
    """Say in the message of an error of the device which operation it is of, and who submitted
    that: the traceback is of whoever waits for it.
    """
    where = f"In {submission.described}."
    if isinstance(error, NumbasyncError) and len(error.args) == 1:
        error.args = (f"{error.args[0]}\n{where}",)
    else:
        error.add_note(where)
