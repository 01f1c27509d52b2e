"""Large copies from and to the host: what threads do that copy, while an event loop turns.

Elements of a host array that is uploaded pass through the ring. A chunk is on its way to the
device as soon as it is full, so filling the next ones and the device's own copying go on at the
same time. To do so is a `Prerequisite`: an event loop turns meanwhile. Who does not wait for the
operation may change the array at once, so for such callers it is done on the spot, by the same
threads.
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
from numbasync.tensors.parallel_copy import HostArray, ParallelCopy

if TYPE_CHECKING:
    from numbasync.device.storage import Storage
    from numbasync.ops.context import Context

_BYTES = np.dtype(np.uint8)


class HostStaging:
    """A preparation: elements of a host array are copied to where the caller cannot change them.

    Attributes:
        aside: the same, for a thread that may wait for chunks of the ring to come back.
        is_shared: others may need it as well as the operation that does it.
    """

    def __init__(self, work: ParallelCopy[Any], patience: Deadline | None = None) -> None:
        self.aside = work
        self.is_shared = False
        self._patience = patience

    def run(self) -> None:
        """Do it, or wait until another thread has; hardly waiting for the device."""
        if self._patience is not None:
            self._patience.expedite()
        self.aside.run()

    def future(self, if_closed: Callable[[], object]) -> asyncio.Future[BaseException | None]:
        """The same by a thread that copies, while the running loop turns; see `beside`."""
        submit = partial(copy_threads.submit_with_result, partial(attempt, self.aside))
        return on_worker(submit, self, if_closed)

    def stop(self) -> None:
        """Leave out what has not been read yet; wait until no thread reads any more."""
        if self._patience is not None:
            self._patience.expedite()
        self.aside.stop()


def read(ctx: Context, need: HostStaging) -> Generator[Prerequisite, None, None]:
    """Steps: while the loop turns if the caller waits for the operation, else on the spot."""
    whole = ctx.root
    if not whole.awaited:
        need.run()
        return
    whole.reading = need
    need.is_shared = ctx is not whole
    try:
        yield need
    finally:
        whole.reading = None


class StagedCopyBack:
    """What the device has copied to the host, on its way to where the caller wants it: once the
    device is through, by whoever settles the submission; or, while the caller waits for it, by
    the threads that copy.
    """

    def __init__(self, dst: HostArray, src: HostArray, awaited: bool) -> None:
        self._work = parallel_copy.copying(dst, src)
        self._awaited = awaited
        self._there = False

    def settle(self) -> None:
        """The device is through."""
        self._there = True
        if self._awaited:
            with suppress(RuntimeError):  # no thread can be started; then who waits does it
                copy_threads.submit(self._try)
        else:
            self._work.run()

    def detach(self) -> None:
        """The caller does not wait any more: what has begun is done when it goes on."""
        self._awaited = False
        if self._there:
            self._try()

    @property
    def is_pending(self) -> bool:
        """Whether the device is through and the elements are not where they are to be."""
        return self._there and not self._work.is_over

    def run(self) -> None:
        """Do what is left, once the device is through; or raise what it failed with."""
        try:
            if self._there:
                self._work.run()
        finally:
            self = None  # type: ignore[assignment]  # the traceback holds this frame

    def wait(self) -> Generator[Any, None, None]:
        """`run` by other threads, while the loop turns. Errors come with the result."""
        if self.is_pending:
            with suppress(RuntimeError):
                yield from asyncio.wrap_future(copy_threads.submit_with_result(self._try))

    def _try(self) -> None:
        with suppress(Exception):
            self._work.run()


def is_large(array: HostArray) -> bool:
    """Whether its elements are to be copied by several threads."""
    return array.nbytes > parallel_copy.LARGE


def held(device: Device, nbytes: int) -> int:
    """Page-locked bytes that an upload of so many holds at once."""
    return min(nbytes, device.ring.nbytes) if nbytes > parallel_copy.LARGE else nbytes


class Staging:
    """Host elements on their way into new device memory, which nobody else knows yet: pieces of
    the copy may be enqueued in any order, with work of others in between.
    """

    def __init__(self, ctx: Context, storage: Storage, array: HostArray) -> None:
        self._ctx = ctx
        self._queue = ctx.queue
        self._ring = ctx.device.ring
        self._storage = storage
        self._patience = Deadline()
        self._lock = threading.Lock()
        ctx.submission.nbytes += held(ctx.device, array.nbytes)
        source = parallel_copy.plain(array)
        size = parallel_copy.part_bytes(source.nbytes, self._ring.CHUNK)
        work = ParallelCopy(parallel_copy.pieces(source, size), self._stage)
        self.reading = HostStaging(work, self._patience)

    def _stage(self, part: tuple[int, HostArray]) -> None:
        offset, piece = part
        ring = self._ring
        fits = piece.nbytes <= ring.CHUNK  # a structure may be larger
        chunk = ring.take(self._patience) if fits else None
        if chunk is None:
            self._enqueue(self._block(piece.nbytes), offset, piece)
            return
        told = False
        try:
            room = chunk.memory[: piece.nbytes]
            parallel_copy.place(room, piece)
            told = True
            self._copy(room, offset)
            ring.enqueued(chunk, self._ctx.stream.backend)
        except BaseException:
            if told:  # the device may copy from it, and nobody can tell when it has
                self._ctx.submission.retain(ring.until_dropped(chunk))
            else:
                ring.give(chunk)
            raise

    def _enqueue(self, room: HostArray, offset: int, piece: HostArray) -> None:
        parallel_copy.place(room, piece)
        self._copy(room, offset)

    def _copy(self, room: HostArray, offset: int) -> None:
        made = self._ctx.device.backend.array(
            self._storage.memory, offset, (room.nbytes,), (1,), _BYTES
        )
        self._queue.upload(made, room)

    def _block(self, nbytes: int) -> HostArray:
        """Page-locked memory besides the ring, which is held up by a stream that does not move."""
        block = self._ctx.device.backend.host_buffer(nbytes)
        with self._lock:
            self._ctx.submission.nbytes += nbytes
            self._ctx.submission.retain(block)
        return block[:nbytes]
