"""Where an operation is being run: what it retains, what it is ordered after.

What the device may touch is retained by the submission. What two streams share is ordered
here: an access that conflicts with work on another stream first makes its own stream wait
for that one. A thread enqueues one operation at a time.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, Protocol, TypeVar

from numbasync.backend import base
from numbasync.backend.base import Preparation
from numbasync.errors import (
    AccessConflictError,
    CallerError,
    DeviceMismatchError,
    OutOfDeviceMemoryError,
    ReentrancyError,
)
from numbasync.memory import MemoryPool, Storage
from numbasync.stream import Stream, Submission

T_co = TypeVar("T_co", covariant=True)


class Submittable(Protocol[T_co]):
    """An operation, as this stage sees it."""

    def claim(self) -> None:
        """Take the right to run it once; AlreadySubmittedError if it is taken."""
        ...

    def steps(self, ctx: Context) -> Generator[Preparation, None, T_co]: ...

    @property
    def unordered(self) -> bool:
        """It has no order with anything else."""
        ...

    @property
    def stream(self) -> Stream | None:
        """The stream that the operation itself asks for, if any."""
        ...


# --- ordering ------------------------------------------------------------------------

Ordering = Literal["auto", "strict"]
_ordering_default: Ordering = "auto"
_ordering: ContextVar[Ordering | None] = ContextVar("numbasync_ordering", default=None)


def _check_ordering(mode: str) -> None:
    if mode not in ("auto", "strict"):
        raise CallerError(f"there is no ordering {mode!r}; write 'auto' or 'strict'.")


def set_ordering(mode: Ordering) -> None:
    """What a conflict between streams does, in the whole process.

    Args:
        mode: `"auto"` orders it by submission; `"strict"` raises AccessConflictError.
    """
    global _ordering_default
    _check_ordering(mode)
    _ordering_default = mode


@contextmanager
def ordering(mode: Ordering) -> Iterator[None]:
    """`set_ordering` for the operations that this block submits."""
    _check_ordering(mode)
    token = _ordering.set(mode)
    try:
        yield
    finally:
        _ordering.reset(token)


# --- the execution lock --------------------------------------------------------------


class _Thread(threading.local):
    busy = False


_thread = _Thread()


class _Exclusive:
    """Only one operation is enqueued at a time on one thread. Keeps no state of its own."""

    def check(self) -> None:
        """Raise ReentrancyError if this thread is enqueuing an operation."""
        if _thread.busy:
            raise ReentrancyError(
                "an operation was run inside a closure of another one, on the same thread.\n"
                "Return it instead, and it will run next on the same stream:\n\n"
                "    op.then(lambda x: kernel(x))       # not: kernel(x).sync()\n\n"
                "or use then_unchecked if the closure must wait for a result."
            )

    def __enter__(self) -> None:
        if _thread.busy:
            self.check()
        _thread.busy = True

    def __exit__(self, *exc: object) -> None:
        _thread.busy = False


exclusive = _Exclusive()


@contextmanager
def unlocked() -> Iterator[None]:
    """Inside a closure: allow operations to be run, whose order is the caller's business."""
    busy, _thread.busy = _thread.busy, False
    try:
        yield
    finally:
        _thread.busy = busy


class Turn:
    """A preparation that another task or thread is busy with: wait until it is settled."""

    def __init__(self, thread: int | None = None) -> None:
        self._settled = threading.Event()
        self._calls: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._thread = thread or threading.get_ident()

    @property
    def is_settled(self) -> bool:
        return self._settled.is_set()

    def settle(self) -> None:
        """It is over; whoever waits goes on."""
        with self._lock:
            self._settled.set()
            calls, self._calls = self._calls, []
        for call in calls:
            call()

    def when_settled(self, call: Callable[[], None]) -> None:
        """Call on whatever thread settles it; now, if that has happened."""
        with self._lock:
            if not self._settled.is_set():
                self._calls.append(call)
                return
        call()

    def run(self, seconds: float | None = None) -> None:
        """Block the thread until it is settled, or for `seconds`."""
        if self._thread == threading.get_ident() and not self._settled.is_set():
            # What it waits for is suspended on this very thread, which would wait for itself.
            raise ReentrancyError(
                "this needs the result of an operation that is being prepared by this thread's "
                "event loop: await it instead of blocking the thread."
            )
        self._settled.wait(seconds)


# --- one submission ------------------------------------------------------------------


class Context:
    """Where an operation is being run.

    Attributes:
        stream: where its work goes.
        device: the stream's device.
        pool: where its memory comes from.
        submission: what its work belongs to.
    """

    __slots__ = (
        "_closed", "_ordered", "_suspended", "_used", "device", "parent", "pool", "stream",
        "submission",
    )  # fmt: skip

    def __init__(
        self, stream: Stream, pool: MemoryPool, name: str, parent: Context | None = None
    ) -> None:
        self._closed = self._suspended = False
        self.parent = parent
        self.stream = stream
        self.device = stream.device
        self.pool = pool
        self.submission = Submission(stream, name)
        # Something was enqueued, leased or waited for: the submission needs a number.
        self._used = False
        self._ordered: set[Submission] | None = None

    @property
    def queue(self) -> base.Queue:
        """Where work is enqueued. Operands must have been leased first."""
        self._used = True
        return self.submission.queue

    def touch(self) -> None:
        """The caller may enqueue work of its own on `stream`, which is to be waited for."""
        self._used = True

    def retain(self, thing: object) -> None:
        """Keep `thing` alive until the device has passed what is enqueued here."""
        self._used = True
        self.submission.retain(thing)

    def alloc(self, nbytes: int) -> Storage:
        """`nbytes` uninitialised bytes for work on this stream, and on others after it.

        Raises:
            OutOfDeviceMemoryError: they do not fit, even after unused memory was returned.
        """
        self._used = True
        stream = self.stream.backend
        try:
            storage = self.pool.allocate(nbytes, stream)
        except OutOfDeviceMemoryError:
            gc.collect()
            self.device.reclaim()
            self.pool.trim()
            storage = self.pool.allocate(nbytes, stream)
        storage.writer = self.submission
        self.submission.retain(storage)
        return storage

    # --- leases ---

    def _check_device(self, storage: Storage) -> None:
        owner = storage.pool.device
        if owner is not self.device.backend:
            raise DeviceMismatchError(
                f"{self.submission.name} runs on {self.device.label}, but uses {storage!r} of "
                f"{owner.kind}:{owner.ordinal}.\n"
                "Run it on a stream of the tensor's device, or inside `with na.use_device(d):`."
            )

    def read(self, storage: Storage) -> None:
        """Lease `storage` for reading: alive while in use, and after its last writer."""
        self._check_device(storage)
        me = self.submission
        if storage.writer is not me:
            self.after(storage.writer, storage)
        if storage.links is not None:
            self._after_linked(storage, readers=False)
        readers = storage.readers
        if readers.get(self.stream) is not me:
            self._used = True
            if len(readers) >= 8:
                # A reader keeps its stream; let those go that are done.
                readers = storage.readers = {s: r for s, r in readers.items() if not r.done}
            # Of the readers on one stream the latest says it all.
            readers[self.stream] = me
            me.retain(storage)

    def write(self, storage: Storage) -> None:
        """Lease `storage` for writing: after its last writer and everyone who reads it."""
        self._check_device(storage)
        me = self.submission
        self._used = True
        if storage.writer is not me:
            self.after(storage.writer, storage)
            me.retain(storage)
        if storage.readers:
            for reader in list(storage.readers.values()):
                self.after(reader, storage)
            storage.readers = {}
        if storage.links is not None:
            self._after_linked(storage, readers=True)
        storage.writer = me

    def _after_linked(self, storage: Storage, readers: bool) -> None:
        """After those who use what overlaps `storage`. Each storage keeps its own record."""
        for other in storage.linked():
            self.after(other.writer, other)
            if readers:
                for reader in list(other.readers.values()):
                    self.after(reader, other)

    def after(self, other: Submission | None, storage: Storage | None = None) -> None:
        """Start what is enqueued from now on after `other`, on whatever stream that is."""
        me = self.submission
        if other is None or other is me or other.done or other.stream is self.stream:
            return
        number = other.sequence
        if number and (
            self.stream.follows(other.stream, number) or other.stream.advance() >= number
        ):
            return
        if self._ordered is not None and other in self._ordered:
            return
        if storage is not None and (_ordering.get() or _ordering_default) == "strict":
            raise AccessConflictError(
                f"{me.name} on {self.stream!r} and {other.name} on {other.stream!r} both use "
                f"{storage!r}, and at least one writes it.\n"
                "Await the first, chain them with then(), or run them on one stream; "
                "na.set_ordering('auto') does it for you."
            )
        self._used = True
        self.stream.wait_for(other.stream)
        if number:
            # One that is still being built, by another thread, is waited for again.
            if self._ordered is None:
                self._ordered = set()
            self._ordered.add(other)

    def depend(self, other: Submission) -> None:
        """`after`, and fail if `other` fails."""
        if other.done:
            other.raise_error()
            return
        if other is not self.submission:
            self._used = True
            self.after(other)
            self.submission.depends_on(other)

    def close(self) -> Submission:
        """End the submission: what was enqueued gets a number, also after an error."""
        self._closed = True
        if self._suspended:
            self.stream.resume(self.submission)
        if self._used:
            self.stream.commit(self.submission)
        else:
            self.submission.settle(None)
        return self.submission

    def suspend(self) -> None:
        """It goes on later, or never: whoever holds its operation may drop it."""
        if not self._suspended:
            self._suspended = True
            self.stream.suspend(self.submission)

    def part(self, name: str) -> Context:
        """A context on the same stream, with a submission of its own: its own end and error."""
        return Context(self.stream, self.pool, name, self)

    def is_within(self, other: Context | None) -> bool:
        """Whether it is `other`, or a part of it."""
        found: Context | None = self
        while found is not None and found is not other:
            found = found.parent
        return found is not None

    def __del__(self) -> None:
        # Its operation was dropped half-way, with its event loop: the device may be at work.
        if getattr(self, "_suspended", False) and not self._closed:
            self.stream.abandon(self.submission)


def context_for(op: Submittable[Any], stream: Stream, pool: MemoryPool | None) -> Context:
    """A context for running `op` on `stream`.

    Raises:
        DeviceMismatchError: the pool is another device's.
        DeviceLostError: the stream is broken.
    """
    stream.check()
    pool = pool or stream.device.pool
    if pool.device is not stream.device.backend:
        raise DeviceMismatchError(f"{pool!r} cannot serve {stream!r}, which is another device's.")
    return Context(stream, pool, str(op))
