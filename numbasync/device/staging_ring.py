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
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbasync.backend import protocols

LOOK_SECONDS = 0.0001  # sleep between two polls of a thread that waits for a chunk
# Seconds without a returned chunk after which a thread gives up: the streams may be waiting for
# work that this thread has yet to enqueue.
PATIENCE = 0.05
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
        self.seconds = PATIENCE

    def expedite(self) -> None:
        """Shorten the wait, because a blocked caller waits for the staging."""
        self.seconds = min(self.seconds, HURRIED)

    def give_up(self) -> None:
        """Wait no more: a wait has failed once, so the streams do not move."""
        self.seconds = 0.0


class Chunk:
    """Page-locked bytes, and the event behind the copy that the device makes of them."""

    __slots__ = ("event", "memory")

    def __init__(self, memory: np.ndarray[Any, np.dtype[np.uint8]], event: protocols.Event) -> None:
        self.memory = memory
        self.event = event

    def is_passed(self) -> bool:
        """Whether the device has finished copying from the chunk."""
        try:
            return self.event.query()
        except Exception:  # a fault, raised by the next enqueueing; the chunk is not reused
            return False


class Ring:
    """The chunks of one device. `take` a chunk, fill it, enqueue a copy out of it and call
    `enqueued`; or `give` the chunk back unused.
    """

    CHUNK = 2 * 2**20  # 40 us of a PCIe 5 link, 200 us of one thread that fills it
    MOST = 16

    def __init__(self, device: protocols.Device) -> None:
        self._device = device
        self._idle: list[Chunk] = []
        self._copied: list[Chunk] = []  # chunks that the device may still copy from
        self._made = 0
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

    def take(self, patience: Deadline) -> Chunk | None:
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
        with self._lock:
            if chunk is None:
                self._refusals += 1
            else:
                self._taken += 1
        return chunk

    def _since_return(self, begin: float) -> float:
        """Seconds since the latest return of a chunk, or since `begin`."""
        return time.monotonic() - max(begin, self._returned)

    def _find(self) -> Chunk | None:
        if not self._made:
            self._make()
        with self._lock:
            if not self._idle:
                self._collect()
            return self._idle.pop() if self._idle else None

    def _make(self) -> None:
        # Not inside `_lock`, which other threads need to poll: locking pages takes long.
        with self._making:
            if self._made or self._is_being_made:  # the latter in a finaliser that runs here
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
            with self._lock:
                self._idle = chunks
                self._made = len(chunks)

    def _collect(self) -> None:
        """Take back the chunks that the device has passed. The caller must hold the lock."""
        copied = self._copied
        # Query every chunk: copies on different streams may complete in any order.
        passed = [chunk.is_passed() for chunk in copied]
        if any(passed):
            self._returned = time.monotonic()
            self._idle += [c for c, is_passed in zip(copied, passed, strict=True) if is_passed]
            self._copied = [c for c, is_passed in zip(copied, passed, strict=True) if not is_passed]

    def enqueued(self, chunk: Chunk, stream: protocols.Stream) -> None:
        """Note that a copy out of `chunk` is on `stream`: the chunk returns when that is done."""
        stream.record(chunk.event)
        with self._lock:
            self._copied.append(chunk)

    def give(self, chunk: Chunk) -> None:
        """Give back a chunk that no enqueued copy uses."""
        with self._lock:
            self._idle.append(chunk)

    def until_dropped(self, chunk: Chunk) -> object:
        """An object that gives the chunk back when freed, for a chunk of which it is unknown
        whether the device has passed it.
        """
        return _Held(self, chunk)

    def start_over(self) -> None:
        """Reset in a forked child, which has none of the parent's threads that filled chunks."""
        self._lock, self._making = threading.RLock(), threading.RLock()
        self._is_being_made = False
        # Kept alive: destroying the parent's events may call the driver, which a child must not.
        self._parents = [*self._idle, *self._copied]
        self._idle, self._copied, self._made = [], [], 0

    def statistics(self) -> RingStatistics:
        """The current state and counts. Polls the device first."""
        with self._lock:
            self._collect()
            in_use = self._made - len(self._idle)
            return RingStatistics(
                self.CHUNK, self.MOST, self._made, in_use, self._taken, self._waits, self._refusals
            )

    def __repr__(self) -> str:
        s = self.statistics()
        return (
            f"<Ring of {self._device.kind}:{self._device.ordinal}, {s.in_use} of {s.most} "
            f"chunks of {s.chunk_bytes:,} B in use, {s.chunks} made>"
        )


class _Held:
    """Gives a chunk back when freed."""

    def __init__(self, ring: Ring, chunk: Chunk) -> None:
        self._ring = ring
        self._chunk = chunk

    def __del__(self) -> None:
        chunk = getattr(self, "_chunk", None)  # absent if the constructor failed
        if chunk is not None:
            self._ring.give(chunk)
