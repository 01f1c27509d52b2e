"""The context of a running operation: its stream, its submission, its order after other work.

The submission keeps alive every object that the device may touch. Conflicting accesses from two
streams are ordered here: before such an access the context makes its own stream wait for the
other stream. A thread enqueues one operation at a time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

import numpy as np

from numbasync.arguments import LARGEST, check_whole
from numbasync.backend import protocols
from numbasync.backend.protocols import Prerequisite
from numbasync.device import access, tracing
from numbasync.device.access import is_strict
from numbasync.device.callsite import CallSite
from numbasync.device.device import Device
from numbasync.device.storage import MemoryPool, Storage
from numbasync.device.stream import Stream
from numbasync.device.submission import Submission
from numbasync.errors import (
    AccessConflictError,
    DeviceLostError,
    DeviceMismatchError,
    DriverError,
    OutOfDeviceMemoryError,
)
from numbasync.native import compiled, known
from numbasync.ops.backpressure import Admission, Capacity, is_limited
from numbasync.ops.home import how_to_run_on
from numbasync.ops.host_copies import HostCopyBack, HostReading
from numbasync.ops.try_enqueue import Enqueueable
from numbasync.public import Public


def allocated(device: Device, pool: MemoryPool, nbytes: int, stream: Stream) -> Storage:
    """Allocate `nbytes` for work on `stream`. If the pool is exhausted, collect garbage, query the
    device, trim the pool, and try once more.

    Raises:
        OutOfDeviceMemoryError: the bytes do not fit, even after that.
    """
    try:
        return pool.allocate(nbytes, stream.backend)
    except OutOfDeviceMemoryError:
        gc.collect()
        device.ask()
        pool.trim()
        return pool.allocate(nbytes, stream.backend)


@known
class Context(Public):
    """The context in which an operation runs.

    Attributes:
        stream: the stream that the operation's work goes to.
        device: the stream's device.
        pool: the pool that the operation allocates from.
        submission: the submission that the enqueued work belongs to.

    Examples:
        >>> def on_this_stream(ctx):
        ...     print(ctx.device.label, ctx.pool is ctx.device.pool)
        ...     return na.zeros(3)
        >>> t = await na.with_context(on_this_stream)
        cpu:0 True
    """

    _closed = _suspended = False  # defaults of the class, which most contexts keep
    admission: Admission | None = None  # the limits that the operation is submitted under
    awaited = False  # the submitting task is suspended until the work is done
    reading: HostReading | None = None  # the pending copy out of the caller's host memory
    copy_backs: tuple[HostCopyBack, ...] = ()  # copies that need not run on the caller's thread
    waits_for: Any = None  # a SharedRun whose steps another operation is taking
    records = False  # True: work is recorded for a graph, not enqueued
    _used = False  # work was enqueued, an access recorded or a wait added: it needs a number
    _ordered: set[Submission] | None = None

    def __init__(
        self,
        stream: Stream,
        pool: MemoryPool,
        name: str,
        site: CallSite | None,
        parent: Context | None = None,
    ) -> None:
        self.parent = parent
        self.stream = stream
        self.device = stream.device
        self.pool = pool
        self.submission = Submission(stream, name, site)
        if (recorder := tracing.recorder) is not None and not self.records:
            recorder.prepare(self.submission, None if parent is None else parent.submission)

    @property
    def queue(self) -> protocols.Queue:
        """The backend's queue for this submission. Call `read` or `write` for operands first."""
        self._used = True
        submission = self.submission
        if (recorder := tracing.recorder) is not None:
            recorder.reach(submission)
        if submission.queue is None:
            submission.queue = self.stream.backend.open()
        return submission.queue

    @property
    def asked(self) -> Stream:
        """The stream that the operation was submitted to; child operations may name it."""
        return self.stream

    def if_forgotten(self, call: Callable[[], None]) -> None:
        """Register `call` for work that was recorded and will never run. Enqueued work always
        runs, so this class ignores `call`.
        """

    def try_enqueue(self, op: Enqueueable[Any]) -> bool:
        """Enqueue a child operation on its fast path, if possible; whether it was enqueued."""
        if is_limited(self.admission):  # its steps wait for the bytes that they allocate
            return False
        submission = self.submission
        if (recorder := tracing.recorder) is not None:
            recorder.reach(submission)
        try:
            if not op.try_enqueue(submission, self.pool):
                return False
        except BaseException:
            self._used = self._used or bool(submission.keep_alive)  # non-empty if work was enqueued
            raise
        self._used = self._used or not submission.is_empty
        submission.is_empty = False  # `is_empty` was about this child only
        return True

    def order(self, source: protocols.Foreign) -> None:
        """Order later work of this stream after the work that another library has enqueued on its
        array.
        """
        source.order(self.stream.backend)

    def launched(self, names: tuple[str, ...], by: object) -> None:
        """Note the names of the kernels that were just enqueued.

        Args:
            by: the operation that enqueued them.
        """
        self.submission.launched += names

    def touch(self) -> None:
        """Mark the submission used: the caller may enqueue work of its own on `stream`."""
        self._used = True
        if (recorder := tracing.recorder) is not None:
            recorder.reach(self.submission)

    def retain(self, thing: object) -> None:
        """Keep `thing` alive until the device has passed the work of this submission.

        Examples:
            >>> def keeping(ctx):
            ...     array = np.ones(3, np.float32)
            ...     ctx.retain(array)  # alive until the device is done with the operation
            ...     return na.from_host(array)
            >>> t = await na.with_context(keeping)
        """
        self._used = True
        self.submission.retain(thing)

    def alloc(self, nbytes: int) -> Storage:
        """`nbytes` uninitialised bytes, for this stream and for streams ordered after it.

        Raises:
            OutOfDeviceMemoryError: the bytes do not fit, even after unused memory was returned.

        Examples:
            >>> def with_scratch(ctx):
            ...     scratch = ctx.alloc(1024)  # bytes, until the operation is done
            ...     return na.value(scratch.nbytes >= 1024)
            >>> await na.with_context(with_scratch)
            True
        """
        if type(nbytes) is not int or not 0 <= nbytes <= LARGEST:
            nbytes = check_whole(nbytes, "nbytes of alloc", 0)
        self._used = True
        self.submission.nbytes += nbytes
        storage = allocated(self.device, self.pool, nbytes, self.stream)
        storage.writer = self.submission
        self.submission.retain(storage)
        return storage

    def scratch(self, nbytes: int) -> Storage:
        """`alloc` for temporary memory that is not part of the result."""
        return self.alloc(nbytes)

    def host_buffer(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """`nbytes` of host memory for asynchronous copies, kept alive by the submission.

        Examples:
            >>> def download(ctx):
            ...     buffer = ctx.host_buffer(12)  # page-locked bytes
            ...     return na.value(buffer.nbytes)
            >>> await na.with_context(download)
            12
        """
        nbytes = check_whole(nbytes, "nbytes of host_buffer", 0)
        buffer = self.device.backend.host_buffer(nbytes)[:nbytes]
        self.submission.nbytes += nbytes
        self.retain(buffer)
        return buffer

    def room(self, nbytes: int | None = None) -> Generator[Prerequisite, None, None]:
        """Wait until `na.limit` admits `nbytes` more bytes; None: admits the operation itself."""
        if self.admission is not None:
            capacity = Capacity(self.admission, self.submission, nbytes)
            try:
                while not capacity.is_available():
                    yield capacity
            finally:  # also when the operation is withdrawn
                capacity.taken()

    # --- access records ---

    def _check_device(self, storage: Storage, name: object) -> None:
        owner = storage.pool.device
        if owner is not None:  # None: host memory, which every device may use
            used = storage if name is None else name
            label, here = f"{owner.kind}:{owner.ordinal}", self.device.label
            raise DeviceMismatchError(
                f"{self.submission.name} runs on {here}, but uses {used} of {label}.\n"
                f"{how_to_run_on(label, here)}"
            )

    def read(self, storage: Storage, name: object = None, *, anywhere: bool = False) -> None:
        """Record a read of `storage`: order it after the last writer, and keep it alive.

        Args:
            name: the tensor of the storage, for messages.
            anywhere: the storage may be another device's; the caller holds that `submit_lock`, too.
        """
        if storage.pool.device is not self.device.backend and not anywhere:
            self._check_device(storage, name)
        submission, writer = self.submission, storage.writer
        # The first checks of `after`, repeated here to avoid most calls.
        if writer is not None and not writer.done and writer.stream is not self.stream:
            self.after(writer, storage if name is None else name)
        if storage.links is not None:
            self._after_linked(storage, name, readers=False)
        if storage.attached_graphs is not None:
            storage.invalidate_graphs()
        if access.record_read(storage, submission):
            self._used = True
            submission.retain(storage)

    def write(self, storage: Storage, name: object = None) -> None:
        """Record a write of `storage`: order it after the last writer and all readers.

        Args:
            name: the tensor of the storage, for messages.
        """
        if storage.pool.device is not self.device.backend:
            self._check_device(storage, name)
        submission, writer = self.submission, storage.writer
        self._used = True
        if writer is not submission:
            if writer is not None and not writer.done and writer.stream is not self.stream:
                self.after(writer, storage if name is None else name)
            submission.retain(storage)
        if storage.readers:
            for reader in list(storage.readers.values()):
                self.after(reader, storage if name is None else name)
        if storage.links is not None:
            self._after_linked(storage, name, readers=True)
        if storage.attached_graphs is not None:
            storage.invalidate_graphs()
        access.record_write(storage, submission)

    def _after_linked(self, storage: Storage, name: object, readers: bool) -> None:
        """Order after the users of storages that overlap `storage`, which have own records."""
        shared = storage if name is None else name
        for other in storage.overlapping():
            if other.attached_graphs is not None:
                other.invalidate_graphs()
            self.after(other.writer, shared)
            if readers:
                for reader in list(other.readers.values()):
                    self.after(reader, shared)

    def after(self, other: Submission | None, shared: object = None) -> None:
        """Make later work of this stream wait for `other`, on any stream.

        Args:
            shared: the storage or tensor that both use, if that is the reason; strict ordering
                then raises, unless `other` is on an internal stream.
        """
        submission = self.submission
        if other is not None:
            other = other.latest  # for a graph: the submission of its last launch
        if other is None or other is submission or other.done or other.stream is self.stream:
            return
        number = other.sequence
        if number and (
            self.stream.follows(other.stream, number) or other.stream.advance() >= number
        ):
            return
        if self._ordered is not None and other in self._ordered:
            return
        if number and not other.stream.is_signalled_after(number):
            with suppress(DriverError, DeviceLostError):  # raised to the awaiter of `other`
                other.stream.poll()
            if other.done:
                return
        if shared is not None and is_strict() and not other.stream.is_internal:
            raise AccessConflictError(
                f"{submission.name} on {self.stream!r} and {other.name} on {other.stream!r} "
                f"both use {shared}, and at least one writes it.\n"
                "Await the first, chain them with then(), or run them on one stream; "
                "na.set_ordering('auto') does it for you."
            )
        self._used = True
        self.stream.wait_for(other.stream)
        if number:
            # Without a number, another thread is still adding work to `other`: wait again later.
            if self._ordered is None:
                self._ordered = set()
            self._ordered.add(other)

    def depend(self, other: Submission) -> None:
        """`after`, and fail this submission if `other` fails."""
        if other.done:
            other.raise_error()
            return
        if other is not self.submission:
            self._used = True
            self.after(other)
            self.submission.depends_on(other)

    def close(self, signal: bool = True) -> Submission:
        """End the submission: enqueued work gets a sequence number, also after an error.

        Args:
            signal: whether to add a completion signal for an awaiter; see `Stream.commit`.
        """
        if self._used:
            self.stream.commit(self.submission, signal)
        else:
            self.submission.retire(None)
            if (recorder := tracing.recorder) is not None:
                recorder.commit(self.submission)
        if self._suspended:
            self.stream.resume(self.submission)
        self._closed = True
        return self.submission

    def suspend(self) -> None:
        """Pause the submission at a prerequisite. The operation may be dropped before `close`."""
        if (recorder := tracing.recorder) is not None:
            recorder.pause(self.submission)
        if not self._suspended:
            self._suspended = True
            self.stream.suspend(self.submission)

    def withdraw(self) -> None:
        """End an unfinished submission: enqueued work runs, and its objects are kept until then."""
        if self._used:
            self.stream.abandon(self.submission)
        else:
            self.stream.resume(self.submission)
            self.submission.retire(None)
        self._closed = True

    def stop_reading(self) -> None:
        """Stop reading the caller's host memory; a shared copy is completed first."""
        reading = self.reading
        if reading is not None:
            with suppress(Exception):  # raised to the operations that need the copy
                reading.run() if reading.is_shared else reading.stop()

    def detach(self) -> None:
        """Complete the copy out of host memory, which the submitting caller may change next."""
        self.awaited = False
        if self.reading is not None:
            with suppress(Exception):  # raised to the operations that need the copy
                self.reading.run()
        for copy_back in self.copy_backs:
            copy_back.detach()

    def part(self, name: str) -> Context:
        """A child context on the same stream, whose submission has its own end and error."""
        child = Context(self.stream, self.pool, name, self.submission.site, self)
        if self.admission is not None:
            child.admission = self.admission
            self.admission.admit(child.submission)
        return child

    @property
    def root(self) -> Context:
        """The context of the outermost operation that this context belongs to."""
        ctx = self
        while ctx.parent is not None:
            ctx = ctx.parent
        return ctx

    def is_descendant_of(self, other: Context | None) -> bool:
        """Whether this context is `other`, or a descendant of it."""
        ctx: Context | None = self
        while ctx is not None and ctx is not other:
            ctx = ctx.parent
        return ctx is not None

    @compiled
    def __del__(self) -> None:
        # Dropped half-way, with its event loop or by ^C: the device may be running it.
        if not self._closed and (self._used or self._suspended) and not self.records:
            self.withdraw()
