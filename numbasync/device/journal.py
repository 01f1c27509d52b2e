"""The journal of a trace: what was enqueued, and waited for, in the order in which that was noted.

A note takes a few tens of nanoseconds, so that a program which only launches kernels runs as
without it. It is read later, and holds neither the submission nor its stream.
"""

from __future__ import annotations

import threading
from asyncio import current_task
from asyncio.events import _get_running_loop
from collections import deque
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

from numbasync.device.callsite import CallSite
from numbasync.native import compiled, core, new_lock


class Row(NamedTuple):
    """A note, read.

    Attributes:
        name, launched, site, device, sequence, nbytes, copied: what the submission says.
        stream: the number of its stream.
        thread, task: their names.
        more: what the writer of the note has added.
        began, ended: the host's times, in nanoseconds.
        passed: when the device had passed it; 0: that is not known.
    """

    name: str
    launched: tuple[str, ...]
    site: CallSite | None
    device: Any
    stream: int
    sequence: int
    nbytes: int
    copied: int
    thread: str
    task: str
    more: Any
    began: int
    ended: int
    passed: int


@compiled
def who() -> tuple[str, str]:
    """The names of the running thread and of its task, which is empty outside of tasks."""
    loop = _get_running_loop()
    task = None if loop is None else current_task(loop)
    return threading.current_thread().name, "" if task is None else task.get_name()


class Journal:
    """The newest notes, so many at most.

    Attributes:
        count: of all notes so far.
        due: the time from which on the recorder wants a mark on the stream of the next operation.
    """

    def __init__(self, most: int) -> None:
        self.count = self.due = 0
        self._rows: deque[Row] = deque(maxlen=most)
        self._lock = new_lock()

    def add(self, submission: Any, began: int, ended: int, passed: int, more: object) -> None:
        """Note an operation that was enqueued."""
        s, stream = submission, submission.stream
        self._append(
            Row(
                s.name, s.launched, s.site, stream.device, stream.number, s.sequence, s.nbytes,
                s.copied, *who(), more, began, ended, passed,
            )
        )  # fmt: skip

    def add_wait(
        self, how: object, stream: Any, sequence: int, submission: Any, began: int
    ) -> None:
        """Note that somebody knows now that a stream has passed a number.

        Args:
            how: see `TracedWait`; None: nobody has waited.
            submission: the one that was waited for, if it was one.
            began: 0: when the operation was enqueued.
        """
        name = "" if submission is None else submission.name
        self._append(
            Row(
                name, (), None, stream.device, stream.number, sequence, 0, 0, *who(), how, began,
                perf_counter_ns(), 0,
            )
        )  # fmt: skip

    def _append(self, row: Row) -> None:
        with self._lock:
            self._rows.append(row)
            self.count += 1

    def rows(self) -> Sequence[tuple[Any, ...]]:
        """The notes, as `Row` has them, in order."""
        with self._lock:
            return list(self._rows)


def new_journal(most: int) -> Journal:
    """A journal, of the core where that is installed."""
    journal: Journal = Journal(most) if core is None else core.Journal(most)
    return journal
