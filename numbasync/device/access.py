"""The access record of a storage, and the rule by which submissions that share one are ordered.

A storage has its last writer and, for each stream, its latest reader; of the readers on one stream
the latest says it all. A submission that reads starts after the last writer; one that writes starts
after the last writer and after every reader. Work on one stream is in order anyway, and what is
done needs none.

There are two ways to keep the rule. `Context.read` and `Context.write` make the stream wait for the
others, by events. The fast paths wait for nobody: under the device's `submit_lock` they ask whether
another stream is at the storage (`is_written_elsewhere`, `is_read_elsewhere`), give up if one is,
enqueue, and then record (`record_read`, `record_write`), so that an error leaves no record. The two
that are generated as source paste the same questions and records, from `questions` and `records`.
"""

from __future__ import annotations

from typing import Any

from numbasync.device.storage import MANY_READERS, Storage


def is_busy(submission: Any) -> bool:
    """Whether the device has not passed `submission`, as far as a look tells."""
    submission.stream.advance()
    return not submission.done


def is_written_elsewhere(storage: Storage, stream: Any) -> bool:
    """Whether another stream than `stream` is still to write `storage`."""
    writer = storage.writer
    return (
        writer is not None and not writer.done and writer.stream is not stream and is_busy(writer)
    )


def is_read_elsewhere(storage: Storage, stream: Any) -> bool:
    """Whether another stream than `stream` is still to read `storage`."""
    return any(
        not reader.done and reader.stream is not stream and is_busy(reader)
        for reader in list(storage.readers.values())
    )


def record_read(storage: Storage, submission: Any) -> bool:
    """`submission` reads it. False if that was recorded before."""
    readers = storage.readers
    if readers.get(submission.stream) is submission:
        return False
    if len(readers) >= MANY_READERS:
        readers = storage.forget_readers()
    readers[submission.stream] = submission
    return True


def record_write(storage: Storage, submission: Any) -> None:
    """`submission` writes it, after all that have read it."""
    storage.writer = submission
    if storage.readers:
        storage.readers = {}


def users(storage: Storage) -> list[Any]:
    """The submissions of its record, also those that are done."""
    return [s for s in (storage.writer, *storage.readers.values()) if s is not None]


# --- the same as source: `stream` and `submission` are names there, and so are those of `NAMES` ---

NAMES: dict[str, object] = {
    "is_busy": is_busy, "is_read_elsewhere": is_read_elsewhere, "MANY_READERS": MANY_READERS,
}  # fmt: skip


def questions(storage: str, writes: bool, refuse: str) -> list[str]:
    """Lines that run `refuse` if another stream is at the storage of that name."""
    lines = [
        f"writer = {storage}.writer",
        "if writer is not None and not writer.done and writer.stream is not stream:",
        f"    if is_busy(writer): {refuse}",
    ]
    if writes:
        lines.append(f"if {storage}.readers and is_read_elsewhere({storage}, stream): {refuse}")
    return lines


def records(storage: str, writes: bool) -> list[str]:
    """Lines that record what the submission does with the storage of that name."""
    if writes:
        return [
            f"{storage}.writer = submission",
            f"if {storage}.readers: {storage}.readers = {{}}",
        ]
    return [
        f"readers = {storage}.readers",
        "if readers.get(stream) is not submission:",
        f"    if len(readers) >= MANY_READERS: readers = {storage}.forget_readers()",
        "    readers[stream] = submission",
    ]
