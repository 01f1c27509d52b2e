"""What one operation enqueued on one stream, and what is kept alive for it.

The stream keeps a `Submission`, and that keeps everything that the device may still touch,
until the stream's word has passed its number.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from numbasync.callsite import CallSite
from numbasync.errors import NumbasyncError

if TYPE_CHECKING:
    from numbasync.stream import Stream


class Submission:
    """Work of one operation on one stream.

    Attributes:
        name: the operation, for messages.
        site: the line of the program that submitted it, for messages.
        launched: kernels that it has launched, for messages.
        sequence: its position on the stream; 0 until it has been committed.
        done: the device has passed it, and its host side is settled.
        error: why it failed, once it is done.
        queue: the backend's queue for its work.
        nbytes: what it has allocated, and holds in page-locked memory for copies.
        orphan: nobody holds a future of it; the stream itself reports its error.
    """

    __slots__ = (
        "_after", "_keep", "_trace", "causes", "done", "error", "launched", "name", "nbytes",
        "orphan", "queue", "sequence", "site", "stream",
    )  # fmt: skip

    def __init__(self, stream: Stream, name: str, site: CallSite | None = None) -> None:
        self.stream = stream
        self.name = name
        self.site = site
        self.launched: tuple[str, ...] = ()
        self.sequence = 0
        self.nbytes = 0
        self.done = False
        self.error: BaseException | None = None
        self.queue = stream.backend.open()
        self.orphan = False
        # Most submissions have none.
        self.causes: list[Submission] | None = None
        self._keep: list[object] = []
        self._after: list[Callable[[], None]] | None = None
        self._trace: TracebackType | None = None

    def retain(self, thing: object) -> None:
        """Keep `thing` alive until the device has passed this submission."""
        self._keep.append(thing)

    def afterwards(self, call: Callable[[], None]) -> None:
        """Call on the host once the device has passed this submission without failing."""
        if self._after is None:
            self._after = []
        self._after.append(call)

    def depends_on(self, other: Submission) -> None:
        """Fail if `other`, which is ordered before this one, fails."""
        if self.causes is None:
            self.causes = []
        self.causes.append(other)

    def settle(self, error: BaseException | None) -> list[object]:
        """The device has passed it: run the host side. Returns what it kept, to be dropped."""
        error = error or self._failure()
        for cause in self.causes or ():
            error = error or cause.error
        try:
            if error is None:
                for call in self._after or ():
                    call()
        except BaseException as failed:
            error = failed
        self.error = error
        if error is not None:
            self._trace = error.__traceback__
        kept, self._keep = self._keep, []
        self._after = self.causes = None
        self.done = True
        return kept

    def _failure(self) -> BaseException | None:
        """What its own work failed with; the message says whose work it was."""
        error = self.queue.failure()
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
