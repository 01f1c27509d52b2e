"""Access records that persist from launch to launch of a graph.

A launch uses every buffer of its graph, of which there may be many, but a buffer's access record
needs a change only if another operation used the buffer since. So each buffer names, once, a proxy
of the graph's *latest* launch as its writer or reader, and marks itself stale in the graph when
another operation uses it. A launch then records its access of the stale buffers only, and its cost
does not depend on the number of buffers.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping

from numbasync.device import access
from numbasync.device.storage import Storage
from numbasync.device.stream import Stream
from numbasync.device.submission import Submission
from numbasync.native import known
from numbasync.ops.context import Context

__all__ = ["leases"]

_all: weakref.WeakSet[AttachedGraph] = weakref.WeakSet()
_lock = threading.RLock()  # a finaliser may drop a graph inside any code


def leases() -> int:
    """The number of attached storages of all live graphs."""
    with _lock:
        return sum(len(attached.storages) for attached in _all)


@known
class LastLaunch:
    """A proxy of a graph's latest launch, which stands for a submission in access records."""

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


@known
class AttachedGraph:
    """The buffers of one graph. The caller of any method holds the device's `submit_lock`.

    Attributes:
        stale: the storages that other operations have used since the latest launch.
    """

    __slots__ = ("__weakref__", "_latest", "_stream", "_writes", "stale", "storages")

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
        """Whether a launch on `stream` needs no change of an access record."""
        return not self.stale and stream is self._stream

    def move_to(self, stream: Stream) -> bool:
        """Whether a launch on `stream` needs to wait for no other stream. Then the records name
        `stream`, and the caller passes `stale` to `launched`.
        """
        latest = self._latest
        if latest is None:
            return False
        for storage in list(self.stale):
            writes = storage in self._writes
            in_use = access.is_used_elsewhere if writes else access.is_written_elsewhere
            if storage.links is not None or in_use(storage, stream):
                return False
            storage.invalidate_graphs()  # of which other graphs may know
        if stream is not self._stream:
            if not latest.done and access.is_busy(latest):
                return False
            # Readers are recorded by their streams: on the old one others may take the entry.
            for storage in self.storages:
                if storage not in self._writes:
                    storage.readers[stream] = latest
            self._stream = stream
        return True

    def cover(self, written: Iterable[Storage]) -> None:
        """Record what the submission of the latest launch does beside the launch, as a part of the
        launch: its writes of `written`, and its uses of storages, by which these became stale.
        """
        latest = self._latest
        for storage in self.stale:
            if storage in self._writes:
                access.record_write(storage, latest)
            else:
                access.record_read(storage, latest)
        for storage in written:
            if storage.writer is not latest:
                access.record_write(storage, latest)
        self.stale.clear()

    def take(self, ctx: Context, names: Mapping[Storage, str]) -> list[Storage]:
        """Record the accesses that a launch needs, for its submission; returns their storages.

        Raises:
            AccessConflictError: strict ordering, and other streams are using the storages.
        """
        storages = list(self.stale if ctx.stream is self._stream else self.storages)
        for storage in storages:
            if storage in self._writes:
                ctx.write(storage, names.get(storage))
            else:
                ctx.read(storage, names.get(storage))
        self.follow(ctx)  # launches that only read a buffer are not ordered by its record
        return storages

    def follow(self, ctx: Context) -> None:
        """Order the work enqueued from now on after the latest launch."""
        if self._latest is not None:
            ctx.after(self._latest.latest)

    def launched(self, submission: Submission, taken: Iterable[Storage] = ()) -> None:
        """Note an enqueued launch. Its records of `taken` pass from its submission to the proxy."""
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
