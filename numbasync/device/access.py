"""The access record of a storage, and the rule that orders submissions which share a storage.

The record of a storage has the last writer and, for each stream, the latest reader; earlier readers
on the same stream need no record. A reading submission starts after the last writer; a writing
submission starts after the last writer and after every reader. Work on one stream is in order
anyway, and finished work needs no ordering.

There are two implementations of the rule. `Context.read` and `Context.write` make the stream wait
for the other streams, by events. The fast paths never wait: under the device's `submit_lock` they
check whether another stream uses the storage (`is_written_elsewhere`, `is_read_elsewhere`), give up
if so, enqueue, and then record (`record_read`, `record_write`), so that an error leaves no record.

Where another stream's work has to be waited for, the mode says whether that is done, or refused:
`set_ordering`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Literal

from numbasync.arguments import is_one_of, shown
from numbasync.device.scoped import scoped
from numbasync.device.storage import MANY_READERS, Storage
from numbasync.errors import CallerError


def is_busy(submission: Any) -> bool:
    """Whether the device has not passed `submission`, according to a poll of its stream."""
    submission.stream.advance()
    return not submission.done


def is_written_elsewhere(storage: Storage, stream: Any) -> bool:
    """Whether a write of `storage` is in flight on a stream other than `stream`."""
    writer = storage.writer
    return (
        writer is not None and not writer.done and writer.stream is not stream and is_busy(writer)
    )


def is_read_elsewhere(storage: Storage, stream: Any) -> bool:
    """Whether a read of `storage` is in flight on a stream other than `stream`."""
    return any(
        not reader.done and reader.stream is not stream and is_busy(reader)
        for reader in list(storage.readers.values())
    )


def is_used_elsewhere(storage: Storage, stream: Any) -> bool:
    """Whether an access of `storage` is in flight on a stream other than `stream`."""
    return is_written_elsewhere(storage, stream) or is_read_elsewhere(storage, stream)


def record_read(storage: Storage, submission: Any) -> bool:
    """Record that `submission` reads `storage`. False if that was recorded before."""
    readers = storage.readers
    if readers.get(submission.stream) is submission:
        return False
    if len(readers) >= MANY_READERS and submission.stream not in readers:
        readers = storage.forget_readers()
    readers[submission.stream] = submission
    return True


def record_write(storage: Storage, submission: Any) -> None:
    """Record that `submission`, which is ordered after all readers, writes `storage`."""
    storage.writer = submission
    if storage.readers:
        storage.readers = {}


def users(storage: Storage) -> list[Any]:
    """The submissions in the access record of `storage`, including finished ones."""
    return [s for s in (storage.writer, *storage.readers.values()) if s is not None]


Ordering = Literal["auto", "strict"]
_ordering_default: Ordering = "auto"
_ordering: ContextVar[Ordering | None] = ContextVar("numbasync_ordering", default=None)


def _check_ordering(mode: str) -> None:
    if not is_one_of(mode, ("auto", "strict")):
        raise CallerError(f"there is no ordering {shown(mode)}; write 'auto' or 'strict'.")


def set_ordering(mode: Ordering) -> None:
    """Set the mode for conflicts between streams, in the whole process.

    Args:
        mode: `"auto"` orders a conflict by submission; `"strict"` raises AccessConflictError.

    Examples:
        >>> na.set_ordering("strict")
        >>> na.set_ordering("auto")  # the default
    """
    global _ordering_default
    _check_ordering(mode)
    _ordering_default = mode


def ordering(mode: Ordering) -> AbstractContextManager[object]:
    """`set_ordering` for the operations that the `with` block submits.

    Examples:
        >>> device = na.default_device()
        >>> t = await na.zeros(3)
        >>> with na.ordering("strict"):  # one stream: the order is written
        ...     stream = device.new_stream()
        ...     _ = na.fill(t, 1).async_on(stream)
        ...     _ = na.fill(t, 2).async_on(stream)
        >>> await t.to_host()
        array([2., 2., 2.], dtype=float32)
    """
    _check_ordering(mode)
    return scoped(_ordering, mode)


def is_strict() -> bool:
    """Whether conflicts are refused in the current context."""
    return (_ordering.get() or _ordering_default) == "strict"
