"""What wakes an event loop behind the work of a stream: a thread of this process that sleeps in the
driver, or a host function of the driver. Both prove that the work before them has succeeded.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from numbasync.backend.cuda import host_callback
from numbasync.backend.cuda.completion_words import CompletionCounter
from numbasync.backend.cuda.driver import cu, enter, fail
from numbasync.backend.protocols import Waker, counters
from numbasync.native import core

if TYPE_CHECKING:
    from numbasync.backend.cuda.gpu import Gpu

MOST_WATCHES = 16  # threads of a GPU


class Watch:
    """A thread of the core, and the event that it waits for. Its sleep ends with an interrupt of
    the GPU, and it costs the stream an event; a host function runs before the work behind it.
    """

    def __init__(self, device: Gpu) -> None:
        enter(device)
        flags = cu.CUevent_flags.CU_EVENT_BLOCKING_SYNC | cu.CUevent_flags.CU_EVENT_DISABLE_TIMING
        result, self.event = cu.cuEventCreate(flags)
        if result:
            fail(result, "cuEventCreate")
        self.core = core.Watcher(int(self.event))
        self._device = device
        self._thread = threading.Thread(target=self._run, name="numbasync-watch", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            with contextlib.suppress(Exception):  # the error to tell of is the one above
                cu.cuEventDestroy(self.event)
            raise

    def _run(self) -> None:
        enter(self._device)
        self.core.run()

    def read(self) -> int:
        """1 while the thread waits; as a counter that a host function clears."""
        return int(self.core.is_busy)


class Watches:
    """The watches of a GPU that nobody uses."""

    def __init__(self, device: Gpu) -> None:
        self._device = device
        self._spare: list[Watch] = []
        self._count = 0
        self._lock = threading.RLock()

    def take(self) -> Watch | None:
        """A watch; None if there are `MOST_WATCHES`, or no thread can be started for one more."""
        with self._lock:
            if self._spare:
                return self._spare.pop()
            if self._count < MOST_WATCHES:
                with contextlib.suppress(RuntimeError):
                    watch = Watch(self._device)
                    self._count += 1
                    return watch
        return None

    def give(self, watch: Watch) -> None:
        """Take back a watch that has ended."""
        watch.core.rest()
        with self._lock:
            self._spare.append(watch)


class Notifications:
    """The notifications of one stream that have not been seen to come."""

    __slots__ = ("_device", "_handle", "_lock", "_pending", "_verified")

    def __init__(self, device: Gpu, handle: Any) -> None:
        self._device, self._handle = device, handle
        # For each: the sequence number before it, and what reads 0 when it has come.
        self._pending: deque[tuple[int, CompletionCounter | Watch]] = deque()
        self._lock = threading.Lock()
        self._verified = 0

    def __len__(self) -> int:
        return len(self._pending)

    def verified(self) -> int:
        """The latest sequence number that one has proved to be passed without a fault."""
        # The driver runs no host function behind a fault, and says of an event that it is behind
        # one: what has come proves that all work before it succeeded.
        # A thread notes that in the core's calls.
        with self._lock:
            while True:
                if not self._pending or self._pending[0][1].read():
                    break
                number, pending = self._pending.popleft()
                if isinstance(pending, CompletionCounter):
                    self._device.words.give(pending)
                    self._verified = max(self._verified, number)
                else:
                    self._device.watches.give(pending)
        return self._verified

    def wake(self, last: int, waker: Waker) -> bool:
        """Ask for a host function behind the stream's work; False if there is none.

        Args:
            last: the sequence number of the latest signal of the stream.
        """
        if waker.eventfd < 0 or not host_callback.host_function():
            return False
        enter(self._device)
        word = self._device.words.take()
        word.write(waker.eventfd + 1)
        pending = last, word
        self._pending.append(pending)
        if not host_callback.launch(self._handle, word.address):
            with self._lock:
                self._pending.remove(pending)
            word.write(0)
            self._device.words.give(word)
            return False  # no notification will come; `fault` finds a fault
        counters.callbacks += 1
        return True

    def watch(self, last: int, calls: Any, waker: Waker, seconds: float) -> bool:
        """Ask a thread to wait for the stream's work; False if there is none.

        Args:
            last: as for `wake`.
            calls: the core's calls of the stream, which note what the thread has found.
        """
        if waker.eventfd < 0:
            return False
        self.verified()  # returns the watches that have ended
        watch = self._device.watches.take()
        if watch is None:
            return False
        enter(self._device)
        (result,) = cu.cuEventRecord(watch.event, self._handle)
        if result:
            self._device.watches.give(watch)
            return False  # `fault` finds a fault
        watch.core.start(calls, last, seconds, waker.eventfd)
        self._pending.append((last, watch))
        counters.callbacks += 1
        return True
