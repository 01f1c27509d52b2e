"""A ring of page-locked chunks that large uploads pass through.

Locking pages takes longer than copying them, so a chunk is reused as soon as the device has
passed the copy out of it: an upload of any size needs no more than the ring. An event behind each
copy shows that.

All chunks are cut from one block, which the first large upload allocates. Locking pages later
could deadlock: locking may wait for all running work, and that work may wait for the locking
thread.
"""

from __future__ import annotations

import threading
import time
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from numbasync.backend import protocols
from numbasync.device import copy_threads

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"

LOOK_SECONDS = 0.0001  # sleep between two polls of a thread that waits for a chunk
# Seconds without a returned chunk after which a thread gives up: the streams may be waiting for
# work that this thread has yet to enqueue.
WAIT_S = 0.05
# The same for a thread that a blocked caller waits for; a busy link returns a chunk in 40 us.
HURRIED = 0.001


@dataclass(frozen=True, slots=True)
class RingStatistics:
    """The state of a device's ring, and its counts so far.

    Attributes:
        chunk_bytes: bytes of one chunk.
        most: the largest number of chunks.
        chunks: the number of allocated chunks: 0 until the first is needed, then `most`.
        in_use: chunks that are being filled, or that the device copies from.
        taken: how often `take` returned a chunk.
        waits: how often `take` had to wait.
        refusals: how often `take` returned None.
    """

    chunk_bytes: int
    most: int
    chunks: int
    in_use: int
    taken: int
    waits: int
    refusals: int


class Deadline:
    """How many seconds the threads that stage one array wait while no chunk is returned."""

    def __init__(self) -> None:
        self.seconds = WAIT_S

    def expedite(self) -> None:
        """Shorten the wait, because a blocked caller waits for the staging."""
        self.seconds = min(self.seconds, HURRIED)

    def give_up(self) -> None:
        """Wait no more: a wait has failed once, so the streams do not move."""
        self.seconds = 0.0


class Chunk:
    """Page-locked bytes, and the event behind the copy that the device makes of them.

    A chunk is idle if nobody has its bytes, and the device has made its copy. So nothing has to be
    given back, which ^C could prevent.

    Attributes:
        user: the view of the bytes that whoever has taken the chunk holds. The garbage collector
            does not know it, and so does not end it before finalisers that let the device use it.
        is_copied: a copy is enqueued, with `event` behind it, and was not seen to be made.
    """

    __slots__ = ("event", "is_copied", "memory", "user")

    def __init__(self, memory: Bytes, event: protocols.Event) -> None:
        self.memory = memory
        self.event = event
        self.user: weakref.ref[Bytes] | None = None
        self.is_copied = False

    def take(self) -> Taken:
        memory = self.memory[:]
        self.user = weakref.ref(memory)
        return Taken(self, memory)

    @property
    def is_idle(self) -> bool:
        return not self.is_copied and (self.user is None or self.user() is None)

    def is_passed(self) -> bool:
        """Whether the device has finished copying from the chunk."""
        try:
            return self.event.query()
        except Exception:  # a fault, raised by the next enqueueing; the chunk is not reused
            return False


class Taken(NamedTuple):
    """A chunk, until `memory`, of which views are taken, has ended."""

    chunk: Chunk
    memory: Bytes


class Ring:
    """The chunks of one device. `take` a chunk, fill it, enqueue a copy out of it, call
    `enqueued`, and drop its memory. While it is unknown whether the device has passed such a copy,
    hold the memory.
    """

    CHUNK = 2 * 2**20  # 40 us of a PCIe 5 link, 200 us of one thread that fills it
    MOST = 16

    def __init__(self, device: protocols.Device) -> None:
        self._device = device
        self._chunks: list[Chunk] = []
        self._making = threading.RLock()
        self._is_being_made = False
        self._taken = self._waits = self._refusals = 0
        self._returned = 0.0  # time of the latest return of a chunk
        # Reentrant: a finaliser that runs while the lock is held may submit an upload.
        self._lock = threading.RLock()

    @property
    def nbytes(self) -> int:
        """The page-locked bytes of the whole ring."""
        return self.CHUNK * self.MOST

    def take(self, patience: Deadline) -> Taken | None:
        """A chunk to fill. Waits for a free chunk for as long as other chunks are returned.

        Returns:
            The chunk; None if no chunk became free, and `patience` has ended.

        Raises:
            OutOfDeviceMemoryError: on first use, if the pages of the ring cannot be locked.
        """
        chunk = self._find()
        if chunk is None and patience.seconds:
            with self._lock:
                self._waits += 1
            begin = time.monotonic()
            while chunk is None and patience.seconds:
                time.sleep(LOOK_SECONDS)
                chunk = self._find()
                if chunk is None and self._since_return(begin) > patience.seconds:
                    patience.give_up()
        if chunk is None:
            with self._lock:
                self._refusals += 1
        return chunk

    def _since_return(self, begin: float) -> float:
        """Seconds since the latest return of a chunk, or since `begin`."""
        return time.monotonic() - max(begin, self._returned)

    def _find(self) -> Taken | None:
        if not self._chunks:
            self._make()
        with self._lock:
            chunk = self._first_idle()
            if chunk is None:
                self._collect()
                chunk = self._first_idle()
            if chunk is None:
                return None
            self._taken += 1
            return chunk.take()

    def _first_idle(self) -> Chunk | None:
        return next((chunk for chunk in self._chunks if chunk.is_idle), None)

    def _make(self) -> None:
        # Not inside `_lock`, which other threads need to poll: locking pages takes long.
        with self._making:
            if self._chunks or self._is_being_made:  # the latter in a finaliser that runs here
                return
            self._is_being_made = True
            try:
                size, device = self.CHUNK, self._device
                block = device.host_buffer(self.nbytes)
                chunks = [
                    Chunk(block[i * size : (i + 1) * size], device.new_event(timing=False))
                    for i in range(self.MOST)
                ]
            finally:
                self._is_being_made = False
            self._chunks = chunks
            copy_threads.add_device()

    def _collect(self) -> None:
        """Note which copies the device has made. The caller must hold the lock."""
        # Query every chunk: copies on different streams may complete in any order.
        for chunk in self._chunks:
            if chunk.is_copied and chunk.is_passed():
                self._returned = time.monotonic()
                chunk.is_copied = False

    def enqueued(self, chunk: Chunk, stream: protocols.Stream) -> None:
        """Note that a copy out of `chunk` is on `stream`: the chunk is idle when that is done."""
        stream.record(chunk.event)
        chunk.is_copied = True

    def start_over(self) -> None:
        """Reset in a forked child, which has none of the parent's threads that filled chunks."""
        self._lock, self._making = threading.RLock(), threading.RLock()
        self._is_being_made = False
        # Kept alive: destroying the parent's events may call the driver, which a child must not.
        self._parents, self._chunks = self._chunks, []

    def statistics(self) -> RingStatistics:
        """The current state and counts. Polls the device first."""
        with self._lock:
            self._collect()
            made, in_use = len(self._chunks), sum(not chunk.is_idle for chunk in self._chunks)
            return RingStatistics(
                self.CHUNK, self.MOST, made, in_use, self._taken, self._waits, self._refusals
            )

    def __repr__(self) -> str:
        s = self.statistics()
        return (
            f"<Ring of {self._device.kind}:{self._device.ordinal}, {s.in_use} of {s.most} "
            f"chunks of {s.chunk_bytes:,} B in use, {s.chunks} made>"
        )
