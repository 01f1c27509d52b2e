"""A ring of page-locked chunks that large uploads pass through.

Locking pages takes longer than copying them, so a chunk is used again as soon as the device has
passed the copy out of it: an upload of any size needs no more than the ring. An event behind each
copy tells.

All chunks are cut from one block, which the first large upload makes: to lock pages may wait for
all that the device is at, and what it is at may wait for whoever locks them.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbasync.backend import protocols

LOOK_SECONDS = 0.0001  # between two looks of a thread that waits for a chunk
# So long none came back: what the streams hold may wait for what the waiting thread is to do.
PATIENCE = 0.05
HURRIED = 0.001  # of a thread that somebody waits for; a link that is at work gives one in 40 us


@dataclass(frozen=True, slots=True)
class RingStatistics:
    """What the ring of a device is at, and has done.

    Attributes:
        chunk_bytes: of one chunk.
        most: chunks that there may be.
        chunks: those that there are: none until the first is needed, then all.
        in_use: those that are being filled, or that the device copies from.
        taken: how often a chunk has been handed out.
        waits: how often somebody had to wait for one.
        refusals: how often somebody went away without one.
    """

    chunk_bytes: int
    most: int
    chunks: int
    in_use: int
    taken: int
    waits: int
    refusals: int


class Deadline:
    """How many seconds those who stage one array wait for a chunk while none comes back."""

    def __init__(self) -> None:
        self.seconds = PATIENCE

    def expedite(self) -> None:
        """Somebody waits for them who can do nothing else."""
        self.seconds = min(self.seconds, HURRIED)

    def give_up(self) -> None:
        """It was in vain once: the streams do not move."""
        self.seconds = 0.0


class Chunk:
    """Page-locked bytes, and the event behind the copy that the device makes of them."""

    __slots__ = ("event", "memory")

    def __init__(self, memory: np.ndarray[Any, np.dtype[np.uint8]], event: protocols.Event) -> None:
        self.memory = memory
        self.event = event

    def is_passed(self) -> bool:
        """Whether the device is through with it."""
        try:
            return self.event.query()
        except Exception:  # a fault, which whoever enqueues next is told of; not to be used again
            return False


class Ring:
    """The chunks of one device. `take` one and fill it, enqueue a copy of it, and `enqueued` it;
    or `submit` it back as it is.
    """

    CHUNK = 2 * 2**20  # 40 us of a PCIe 5 link, 200 us of one thread that fills it
    MOST = 16

    def __init__(self, device: protocols.Device) -> None:
        self._device = device
        self._idle: list[Chunk] = []
        self._copied: list[Chunk] = []  # the device copies from them
        self._made = 0
        self._making = threading.RLock()
        self._is_being_made = False
        self._taken = self._waits = self._refusals = 0
        self._returned = 0.0  # when one came back last
        # Reentrant: a finaliser that runs inside may submit, too.
        self._lock = threading.RLock()

    @property
    def nbytes(self) -> int:
        """Page-locked bytes that there may be at most."""
        return self.CHUNK * self.MOST

    def take(self, patience: Deadline) -> Chunk | None:
        """A chunk to fill; waits for one for as long as others come back.

        Returns:
            None if there is none; `patience` is at its end then.

        Raises:
            OutOfDeviceMemoryError: it is the first, and the pages of the ring cannot be locked.
        """
        found = self._find()
        if found is None and patience.seconds:
            with self._lock:
                self._waits += 1
            begin = time.monotonic()
            while found is None and patience.seconds:
                time.sleep(LOOK_SECONDS)
                found = self._find()
                if found is None and self._since_return(begin) > patience.seconds:
                    patience.give_up()
        with self._lock:
            if found is None:
                self._refusals += 1
            else:
                self._taken += 1
        return found

    def _since_return(self, begin: float) -> float:
        """Seconds since one came back, or since `begin`."""
        return time.monotonic() - max(begin, self._returned)

    def _find(self) -> Chunk | None:
        if not self._made:
            self._make()
        with self._lock:
            if not self._idle:
                self._collect()
            return self._idle.pop() if self._idle else None

    def _make(self) -> None:
        # Not inside the lock of what others look at: locking pages takes long.
        with self._making:
            if self._made or self._is_being_made:  # the latter in a finaliser that runs in here
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
        """Take back what the device has passed. The caller holds the lock."""
        copied = self._copied
        # All of them: of two streams, the one that was told first may be done last.
        passed = [chunk.is_passed() for chunk in copied]
        if any(passed):
            self._returned = time.monotonic()
            self._idle += [c for c, over in zip(copied, passed, strict=True) if over]
            self._copied = [c for c, over in zip(copied, passed, strict=True) if not over]

    def enqueued(self, chunk: Chunk, stream: protocols.Stream) -> None:
        """A copy of it is on `stream`: it comes back when that is done."""
        stream.record(chunk.event)
        with self._lock:
            self._copied.append(chunk)

    def give(self, chunk: Chunk) -> None:
        """Nothing has been enqueued for it."""
        with self._lock:
            self._idle.append(chunk)

    def until_dropped(self, chunk: Chunk) -> object:
        """What holds it while nobody can tell whether the device has passed it, and gives it back
        when it goes.
        """
        return _Held(self, chunk)

    def start_over(self) -> None:
        """In a forked child: what the parent's threads were filling is nobody's."""
        self._lock, self._making = threading.RLock(), threading.RLock()
        self._is_being_made = False
        # Kept: to destroy the parent's events may call the driver, which a child must not.
        self._parents = [*self._idle, *self._copied]
        self._idle, self._copied, self._made = [], [], 0

    def statistics(self) -> RingStatistics:
        """What it is at. Looks at the device first."""
        with self._lock:
            self._collect()
            in_use = self._made - len(self._idle)
            return RingStatistics(
                self.CHUNK, self.MOST, self._made, in_use, self._taken, self._waits, self._refusals
            )

    def __repr__(self) -> str:
        found = self.statistics()
        return (
            f"<Ring of {self._device.kind}:{self._device.ordinal}, {found.in_use} of {found.most} "
            f"chunks of {found.chunk_bytes:,} B in use, {found.chunks} made>"
        )


class _Held:
    """Gives a chunk back in the end."""

    def __init__(self, ring: Ring, chunk: Chunk) -> None:
        self._ring = ring
        self._chunk = chunk

    def __del__(self) -> None:
        chunk = getattr(self, "_chunk", None)  # absent if the constructor failed
        if chunk is not None:
            self._ring.give(chunk)
