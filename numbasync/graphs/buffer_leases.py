"""Leases that stand from launch to launch of a graph.

A launch uses every buffer of its graph, which may be many; but what has to be known of them
changes only if somebody else uses one in between. So each buffer names, once, the graph's
*latest* launch as its user, and tells the graph when others come. A launch then takes the leases
of those buffers alone, and costs the same however many buffers there are.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable

from numbasync.device import access
from numbasync.device.storage import Storage
from numbasync.device.stream import Stream
from numbasync.device.submission import Submission
from numbasync.ops.context import Context

_all: weakref.WeakSet[AttachedGraph] = weakref.WeakSet()
_lock = threading.RLock()  # a finaliser may end a graph anywhere


def leases() -> int:
    """How many stand now, for graphs that somebody holds."""
    with _lock:
        return sum(len(standing.storages) for standing in _all)


class LastLaunch:
    """The latest launch of a graph, where a storage has a submission as its writer or reader."""

    __slots__ = ("latest",)

    def __init__(self, latest: Submission) -> None:
        self.latest = latest

    @property
    def stream(self) -> Stream:
        return self.latest.stream

    @property
    def sequence(self) -> int:
        return self.latest.sequence

    @property
    def done(self) -> bool:
        return self.latest.done

    @property
    def name(self) -> str:
        return self.latest.name

    def __repr__(self) -> str:
        return f"<the latest launch: {self.latest!r}>"


class AttachedGraph:
    """The buffers of one graph. Whoever calls it holds the device's `submit_lock`.

    Attributes:
        dirty: those that others have used since the latest launch.
    """

    def __init__(self, reads: Iterable[Storage], writes: Iterable[Storage]) -> None:
        self._writes = dict.fromkeys(writes)
        self.storages = {**self._writes, **dict.fromkeys(reads)}
        self.stale: dict[Storage, None] = dict(self.storages)
        self._stream: Stream | None = None
        self._latest: LastLaunch | None = None
        for storage in self.storages:
            storage.attach_graph(self)
            storage.holders += 1
        with _lock:
            _all.add(self)

    def __del__(self) -> None:
        for storage in getattr(self, "storages", ()):
            storage.holders -= 1

    def is_current_on(self, stream: Stream) -> bool:
        """Whether a launch on `stream` needs no lease."""
        return not self.stale and stream is self._stream

    def take(self, ctx: Context) -> list[Storage]:
        """The leases that a launch needs, taken for its submission; their storages.

        Raises:
            AccessConflictError: strict ordering, and others are at them.
        """
        todo = list(self.stale if ctx.stream is self._stream else self.storages)
        for storage in todo:
            if storage in self._writes:
                ctx.write(storage)
            else:
                ctx.read(storage)
        self.follow(ctx)  # who only reads is in no order with itself
        return todo

    def follow(self, ctx: Context) -> None:
        """Start what is enqueued from now on after the latest launch."""
        if self._latest is not None:
            ctx.after(self._latest.latest)

    def launched(self, submission: Submission, taken: Iterable[Storage] = ()) -> None:
        """The launch is enqueued; until now `taken` were leased to it alone."""
        latest = self._latest
        if latest is None:
            latest = self._latest = LastLaunch(submission)
        latest.latest = submission
        self._stream = submission.stream
        for storage in taken:
            if storage in self._writes:
                access.record_write(storage, latest)
            else:
                access.record_read(storage, latest)
        self.stale.clear()
