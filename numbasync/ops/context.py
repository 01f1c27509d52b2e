"""Where an operation is being run: what it retains, what it is ordered after.

What the device may touch is retained by the submission. What two streams share is ordered
here: an access that conflicts with work on another stream first makes its own stream wait
for that one. A thread enqueues one operation at a time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import numpy as np

from numbasync.backend import protocols
from numbasync.backend.protocols import Prerequisite
from numbasync.device import access
from numbasync.device.callsite import CallSite
from numbasync.device.device import Device
from numbasync.device.ordering import is_strict
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
from numbasync.ops.backpressure import Admission, Capacity
from numbasync.ops.try_enqueue import Enqueueable
from numbasync.public import Public

T = TypeVar("T")


def allocated(device: Device, pool: MemoryPool, nbytes: int, stream: Stream) -> Storage:
    """Memory for work on `stream`; what nobody uses any more is looked for first, if need be.

    Raises:
        OutOfDeviceMemoryError: they do not fit, even after that.
    """
    try:
        return pool.allocate(nbytes, stream.backend)
    except OutOfDeviceMemoryError:
        gc.collect()
        device.ask()
        pool.trim()
        return pool.allocate(nbytes, stream.backend)


# --- one submission ------------------------------------------------------------------


class HostReading(Protocol):
    """Elements of the caller's array on their way to where the caller cannot change them."""

    is_shared: bool  # by operations other than the one that does it

    def run(self) -> None: ...

    def stop(self) -> None: ...


class HostCopyBack(Protocol):
    """What the device has copied, on its way to the caller's array."""

    @property
    def is_pending(self) -> bool: ...

    def detach(self) -> None: ...

    def run(self) -> None: ...

    def wait(self) -> Generator[Any, None, None]: ...


class Context(Public):
    """Where an operation is being run.

    Attributes:
        stream: where its work goes.
        device: the stream's device.
        pool: where its memory comes from.
        submission: what its work belongs to.
    """

    # What most contexts have, on the class.
    _closed = _suspended = False
    admission: Admission | None = None  # the limits that it is submitted under
    awaited = False  # whoever submits it is suspended until it is done
    reading: HostReading | None = None  # of host memory, while others go on
    landings: tuple[HostCopyBack, ...] = ()  # what the caller's thread need not copy at the end
    waits_for: Any = None  # a shared operation that another one runs
    records = False  # what is enqueued is noted, not done
    # Something was enqueued, leased or waited for: the submission needs a number.
    _used = False
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

    @property
    def queue(self) -> protocols.Queue:
        """Where work is enqueued. Operands must have been leased first."""
        self._used = True
        submission = self.submission
        if submission.queue is None:
            submission.queue = self.stream.backend.open()
        return submission.queue

    @property
    def asked(self) -> Stream:
        """The stream that the operation was to go to, which its parts may name."""
        return self.stream

    def if_forgotten(self, call: Callable[[], None]) -> None:
        """Call if what was enqueued will never run: never, but for what is only recorded."""

    def try_enqueue(self, op: Enqueueable[Any]) -> bool:
        """Enqueue a part of the operation at once, if that can be; whether it was."""
        submission = self.submission
        try:
            if not op.try_enqueue(submission, self.pool):
                return False
        except BaseException:
            self._used = self._used or bool(submission.kept)  # by what was enqueued of it
            raise
        self._used = self._used or not submission.is_empty
        submission.is_empty = False  # that part of it was
        return True

    def order(self, source: protocols.Foreign) -> None:
        """Start what is enqueued from now on after what another library has enqueued for its
        array.
        """
        source.order(self.stream.backend)

    def launched(self, names: tuple[str, ...], by: object) -> None:
        """The kernel that was just enqueued.

        Args:
            by: the operation.
        """
        self.submission.launched += names

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
        self.submission.nbytes += nbytes
        storage = allocated(self.device, self.pool, nbytes, self.stream)
        storage.writer = self.submission
        self.submission.retain(storage)
        return storage

    def scratch(self, nbytes: int) -> Storage:
        """`alloc` for what an operation needs in between, and nobody sees."""
        return self.alloc(nbytes)

    def host_buffer(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Host bytes that the device copies from and to without blocking, retained."""
        buffer = self.device.backend.host_buffer(nbytes)[:nbytes]
        self.submission.nbytes += nbytes
        self.retain(buffer)
        return buffer

    def room(self, nbytes: int | None = None) -> Generator[Prerequisite, None, None]:
        """Wait until `na.limit` allows so many bytes more; None: an operation to begin."""
        if self.admission is not None:
            need = Capacity(self.admission, self.submission, nbytes)
            try:
                while not need.is_available():
                    yield need
            finally:  # also when it is withdrawn
                need.taken()

    # --- leases ---

    def _check_device(self, storage: Storage) -> None:
        owner = storage.pool.device
        if owner is not None:  # else it is the host's, for every device
            raise DeviceMismatchError(
                f"{self.submission.name} runs on {self.device.label}, but uses {storage!r} of "
                f"{owner.kind}:{owner.ordinal}.\n"
                "Run it on a stream of the tensor's device, or inside `with na.use_device(d):`."
            )

    def read(self, storage: Storage, name: object = None) -> None:
        """Lease `storage` for reading: alive while in use, and after its last writer.

        Args:
            name: the tensor that it is of, for messages.
        """
        if storage.pool.device is not self.device.backend:
            self._check_device(storage)
        me, writer = self.submission, storage.writer
        # What `after` looks at first, to spare most calls of it.
        if writer is not None and not writer.done and writer.stream is not self.stream:
            self.after(writer, storage if name is None else name)
        if storage.links is not None:
            self._after_linked(storage, readers=False)
        if storage.attached_graphs is not None:
            storage.invalidate_graphs()
        if access.record_read(storage, me):
            self._used = True
            me.retain(storage)

    def write(self, storage: Storage, name: object = None) -> None:
        """Lease `storage` for writing: after its last writer and everyone who reads it.

        Args:
            name: the tensor that it is of, for messages.
        """
        if storage.pool.device is not self.device.backend:
            self._check_device(storage)
        me, writer = self.submission, storage.writer
        self._used = True
        if writer is not me:
            if writer is not None and not writer.done and writer.stream is not self.stream:
                self.after(writer, storage if name is None else name)
            me.retain(storage)
        if storage.readers:
            for reader in list(storage.readers.values()):
                self.after(reader, storage if name is None else name)
        if storage.links is not None:
            self._after_linked(storage, readers=True)
        if storage.attached_graphs is not None:
            storage.invalidate_graphs()
        access.record_write(storage, me)

    def _after_linked(self, storage: Storage, readers: bool) -> None:
        """After those who use what overlaps `storage`. Each storage keeps its own record."""
        for other in storage.overlapping():
            if other.attached_graphs is not None:
                other.invalidate_graphs()
            self.after(other.writer, other)
            if readers:
                for reader in list(other.readers.values()):
                    self.after(reader, other)

    def after(self, other: Submission | None, shared: object = None) -> None:
        """Start what is enqueued from now on after `other`, on whatever stream that is.

        Args:
            shared: what both use, if that is why: strict ordering refuses it, unless `other` is on
                a stream that the program does not have.
        """
        me = self.submission
        if other is not None:
            other = other.latest  # of a graph, what it launched last
        if other is None or other is me or other.done or other.stream is self.stream:
            return
        number = other.sequence
        if number and (
            self.stream.follows(other.stream, number) or other.stream.advance() >= number
        ):
            return
        if self._ordered is not None and other in self._ordered:
            return
        if number and not other.stream.is_signalled_after(number):
            with suppress(DriverError, DeviceLostError):  # the matter of whoever waits for it
                other.stream.look()
            if other.done:
                return
        if shared is not None and is_strict() and not other.stream.is_internal:
            raise AccessConflictError(
                f"{me.name} on {self.stream!r} and {other.name} on {other.stream!r} both use "
                f"{shared!r}, and at least one writes it.\n"
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

    def close(self, mark: bool = True) -> Submission:
        """End the submission: what was enqueued gets a number, also after an error.

        Args:
            mark: somebody will wait for it; see `Stream.commit`.
        """
        self._closed = True
        if self._suspended:
            self.stream.resume(self.submission)
        if self._used:
            self.stream.commit(self.submission, mark)
        else:
            self.submission.settle(None)
        return self.submission

    def suspend(self) -> None:
        """It goes on later, or never: whoever holds its operation may drop it."""
        if not self._suspended:
            self._suspended = True
            self.stream.suspend(self.submission)

    def withdraw(self) -> None:
        """It does not go on: what is enqueued runs, and is kept until the device has passed it."""
        self._closed = True
        if self._used:
            self.stream.abandon(self.submission)
        else:
            self.stream.resume(self.submission)
            self.submission.settle(None)

    def stop_reading(self) -> None:
        """Read no more of what the caller may change when this returns, but what others need."""
        reading = self.reading
        if reading is not None:
            with suppress(Exception):  # told where it is needed
                reading.run() if reading.is_shared else reading.stop()

    def detach(self) -> None:
        """Whoever submits it goes on now, and may change what it reads: read it first."""
        self.awaited = False
        if self.reading is not None:
            with suppress(Exception):  # told where it is needed
                self.reading.run()
        for landing in self.landings:
            landing.detach()

    def part(self, name: str) -> Context:
        """A context on the same stream, with a submission of its own: its own end and error."""
        part = Context(self.stream, self.pool, name, self.submission.site, self)
        if self.admission is not None:
            part.admission = self.admission
            self.admission.admit(part.submission)
        return part

    @property
    def root(self) -> Context:
        """The context of the whole operation that it is a part of."""
        found = self
        while found.parent is not None:
            found = found.parent
        return found

    def is_descendant_of(self, other: Context | None) -> bool:
        """Whether it is `other`, or a part of it."""
        found: Context | None = self
        while found is not None and found is not other:
            found = found.parent
        return found is not None

    def __del__(self) -> None:
        # Its operation was dropped half-way, with its event loop: the device may be at work.
        if getattr(self, "_suspended", False) and not self._closed:
            self.withdraw()
