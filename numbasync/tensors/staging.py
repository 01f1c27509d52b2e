"""Large host copies, done by the copy threads while an event loop turns.

An upload of a large host array passes through the staging ring. Each chunk is uploaded as soon as
it is full, so that filling the next chunks overlaps with the device's own copies. The staging is a
`Prerequisite`, during which an event loop turns. A caller that does not wait for the operation may
change the array right after submitting it, so the staging then blocks the caller, with the same
copy threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from numbasync.backend.protocols import Prerequisite
from numbasync.device import copy_threads
from numbasync.device.device import Device
from numbasync.device.staging_ring import Deadline
from numbasync.ops.prerequisites import attempt, on_worker
from numbasync.tensors import parallel_copy
from numbasync.tensors.array_spec import ArraySpec
from numbasync.tensors.parallel_copy import HostArray, ParallelCopy

if TYPE_CHECKING:
    from numbasync.device.storage import Storage
    from numbasync.ops.context import Context

_BYTES = np.dtype(np.uint8)


class HostStaging:
    """A prerequisite: copies host elements to memory that the caller cannot change.

    Attributes:
        work: the copy itself, for a thread that may wait until the ring's chunks are free again.
        is_shared: other operations may need the staging as well as the one that started it.
    """

    def __init__(self, work: ParallelCopy[Any], patience: Deadline | None = None) -> None:
        self.work = work
        self.is_shared = False
        self._patience = patience

    def run(self) -> None:
        """Stage the elements, or wait until another thread has; hardly waits for the device."""
        if self._patience is not None:
            self._patience.expedite()
        self.work.run()

    def future(self, if_closed: Callable[[], object]) -> asyncio.Future[BaseException | None]:
        """Stage the elements on a copy thread, while the running loop turns; see `on_worker`."""
        submit = partial(copy_threads.submit_with_result, partial(attempt, self.work))
        return on_worker(submit, self, if_closed)

    def stop(self) -> None:
        """Skip the parts that have not been read; wait until no thread reads the array any more."""
        if self._patience is not None:
            self._patience.expedite()
        self.work.stop()


def read(ctx: Context, need: HostStaging) -> Generator[Prerequisite, None, None]:
    """Steps that stage: as a prerequisite if the caller awaits the operation, else blocking."""
    root = ctx.root
    if not root.awaited:
        need.run()
        return
    root.reading = need
    need.is_shared = ctx is not root
    try:
        yield need
    finally:
        root.reading = None


class StagedCopyBack:
    """The host's copy of downloaded elements, from page-locked memory to the caller's array.

    The copy runs once the device is done: on the thread that retires the submission, or, while
    the caller waits for the submission, on the copy threads.
    """

    def __init__(self, dst: HostArray, src: HostArray, awaited: bool) -> None:
        self.target = dst
        self._work = parallel_copy.copying(dst, src)
        self._awaited = awaited
        self._there = False

    def settle(self) -> None:
        """Start the copy; called when the device is done, as the submission is retired."""
        self._there = True
        if self._awaited:
            with suppress(RuntimeError):  # no thread can be started; the waiting caller copies
                copy_threads.submit(self._try)
        else:
            self._work.run()

    def detach(self) -> None:
        """The caller stops waiting: finish a copy that may have begun before the caller goes on."""
        self._awaited = False
        if self._there:
            self._try()

    @property
    def is_pending(self) -> bool:
        """Whether the device is done and the elements are not yet in the caller's array."""
        return self._there and not self._work.is_over

    def run(self) -> None:
        """Finish the copy, if the device is done; raises the copy's own error."""
        try:
            if self._there:
                self._work.run()
        finally:
            self = None  # type: ignore[assignment]  # the traceback holds this frame

    def wait(self) -> Generator[Any, None, None]:
        """`run` on a copy thread, while the loop turns. Errors are raised with the result."""
        if self.is_pending:
            with suppress(RuntimeError):
                yield from asyncio.wrap_future(copy_threads.submit_with_result(self._try))

    def _try(self) -> None:
        with suppress(Exception):
            self._work.run()


def is_large(array: HostArray | ArraySpec) -> bool:
    """Whether several threads are to copy an array of so many bytes, while an event loop turns. A
    fast path leaves such arrays to the steps.
    """
    return array.nbytes > parallel_copy.LARGE


def staged_bytes(device: Device, nbytes: int) -> int:
    """Page-locked bytes that an upload of `nbytes` holds at any time. They count for `na.limit`,
    besides the tensor's own: `yield from ctx.room(nbytes + staged_bytes(ctx.device, nbytes))`.

    Examples:
        >>> from numbasync.extending import staged_bytes
        >>> staged_bytes(na.default_device(), 4000)
        4000
    """
    return min(nbytes, device.ring.nbytes) if nbytes > parallel_copy.LARGE else nbytes


class Staging:
    """An upload of host elements through the ring into new device memory.

    No other operation uses the memory yet, so the pieces may be enqueued in any order, with other
    operations' work in between.
    """

    def __init__(self, ctx: Context, storage: Storage, array: HostArray) -> None:
        self._ctx = ctx
        self._queue = ctx.queue
        self._ring = ctx.device.ring
        self._storage = storage
        self._patience = Deadline()
        self._lock = threading.Lock()
        ctx.submission.nbytes += staged_bytes(ctx.device, array.nbytes)
        source = parallel_copy.plain(array)
        size = parallel_copy.part_bytes(source.nbytes, self._ring.CHUNK)
        work = ParallelCopy(parallel_copy.pieces(source, size), self._stage)
        self.reading = HostStaging(work, self._patience)

    def _stage(self, part: tuple[int, HostArray]) -> None:
        offset, piece = part
        ring = self._ring
        fits = piece.nbytes <= ring.CHUNK  # a single structure may be larger
        taken = ring.take(self._patience) if fits else None
        if taken is None:
            self._enqueue(self._block(piece.nbytes), offset, piece)
            return
        target = taken.memory[: piece.nbytes]
        parallel_copy.place(target, piece)
        try:
            self._copy(target, offset)
            ring.enqueued(taken.chunk, self._ctx.stream.backend)
        except BaseException:  # the device may still copy from the chunk, and its end is unknown
            self._ctx.submission.retain(taken.memory)
            raise

    def _enqueue(self, room: HostArray, offset: int, piece: HostArray) -> None:
        parallel_copy.place(room, piece)
        self._copy(room, offset)

    def _copy(self, room: HostArray, offset: int) -> None:
        destination = self._ctx.device.backend.array(
            self._storage.memory, offset, (room.nbytes,), (1,), _BYTES
        )
        self._queue.upload(destination, room)
        self._ctx.submission.copied += room.nbytes

    def _block(self, nbytes: int) -> HostArray:
        """Page-locked memory outside the ring, whose chunks a stalled stream may hold."""
        block = self._ctx.device.backend.host_buffer(nbytes)
        with self._lock:
            self._ctx.submission.nbytes += nbytes
            self._ctx.submission.retain(block)
        return block[:nbytes]
