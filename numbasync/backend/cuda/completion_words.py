"""Completion counters: 32-bit words in pinned host memory, written by the device and its host
functions.

A stream writes its next sequence number to its completion counter behind the work. A poll is a
read of host memory, without a driver call. On devices that cannot write such words, events take
the counter's place.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from numbasync.backend.cuda.driver import cu, fail

PAGE_BYTES = 4096
WORD_BYTES = 64  # a cache line each: the device writes one while the host reads another
_MASK = 0xFFFFFFFF


class CompletionCounter:
    """One 32-bit word, readable from Python and native code, and writable by the device."""

    __slots__ = ("_index", "_view", "address", "device_address")

    def __init__(self, view: memoryview, index: int, address: int, device_address: Any) -> None:
        self._view = view
        self._index = index
        self.address = address
        self.device_address = device_address

    @property
    def place(self) -> tuple[memoryview, int]:
        """The memory that has the word, as words, and its index."""
        return self._view, self._index

    def read(self) -> int:
        return self._view[self._index]

    def write(self, value: int) -> None:
        self._view[self._index] = value & _MASK


class CompletionCounters:
    """Allocates counters from pinned pages, which stay until the process ends. A stream keeps its
    counters, since the stream itself is kept for reuse.
    """

    def __init__(self) -> None:
        self._spare: list[CompletionCounter] = []
        self._lock = threading.RLock()  # a finaliser inside `take` may give one back

    def take(self) -> CompletionCounter:
        """A counter that nobody uses.

        Raises:
            OutOfDeviceMemoryError: a page of them cannot be locked.
        """
        with self._lock:
            if not self._spare:
                self._spare += self._page()
            return self._spare.pop()

    def give(self, word: CompletionCounter) -> None:
        """Take back a counter that no device or host function writes any more."""
        with self._lock:
            self._spare.append(word)

    @staticmethod
    def _page() -> list[CompletionCounter]:
        flags = cu.CU_MEMHOSTALLOC_PORTABLE | cu.CU_MEMHOSTALLOC_DEVICEMAP
        result, address = cu.cuMemHostAlloc(PAGE_BYTES, flags)
        if result:
            fail(result, "cuMemHostAlloc")
        result, mapped = cu.cuMemHostGetDevicePointer(address, 0)
        if result:
            with contextlib.suppress(Exception):  # the error to tell of is the one above
                cu.cuMemFreeHost(address)
            fail(result, "cuMemHostGetDevicePointer")
        ctypes.memset(int(address), 0, PAGE_BYTES)
        page = (ctypes.c_uint32 * (PAGE_BYTES // 4)).from_address(int(address))
        view = memoryview(page).cast("B").cast("I")
        return [
            CompletionCounter(
                view, offset // 4, int(address) + offset, cu.CUdeviceptr(int(mapped) + offset)
            )
            for offset in range(0, PAGE_BYTES, WORD_BYTES)
        ]


class Gates:
    """The gates of one stream, through one counter. They may be opened in any order, by any thread:
    the counter says up to which gate all are open, and the stream passes them in order.
    """

    def __init__(self, word: CompletionCounter) -> None:
        self._word = word
        self._count = self._passed = 0
        self._opened: set[int] = set()
        self._lock = threading.RLock()

    def hold(self, stream: Any) -> Callable[[], None]:
        """Enqueue a gate on a stream; the function that opens it."""
        with self._lock:
            number = self._count + 1
            flags = cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
            address = self._word.device_address
            (result,) = cu.cuStreamWaitValue32(stream, address, number, flags)
            if result:
                fail(result, "cuStreamWaitValue32")
            self._count = number
        return partial(self._open, number)

    def _open(self, number: int) -> None:
        with self._lock:
            if number <= self._passed:
                return
            self._opened.add(number)
            while True:
                if self._passed + 1 not in self._opened:
                    break
                self._passed += 1
                self._opened.remove(self._passed)
            self._word.write(self._passed)


class CounterCompletion:
    """The completion signals of one stream, through its counter."""

    def __init__(self, handle: Any, word: CompletionCounter) -> None:
        self._handle = handle
        self._word = word
        self._view, self._index = word.place
        self._address = word.device_address
        self.addresses = word.address, int(word.device_address)
        self._passed = 0

    def write(self, sequence: int) -> None:
        (result,) = cu.cuStreamWriteValue32(self._handle, self._address, sequence & _MASK, 0)
        if result:
            fail(result, "cuStreamWriteValue32")

    def completed(self) -> int:
        # The word holds the low 32 bits; it is never 2**32 numbers ahead of the last poll.
        passed = self._passed
        step = (self._view[self._index] - passed) & _MASK
        if step:
            passed += step
            self._passed = passed
        return passed

    def release(self, last: int) -> CompletionCounter | None:
        """The counter, for reuse, when no further number is written; None if `last` may still be
        outstanding.
        """
        if self.completed() < last:
            return None
        self._word.write(0)
        return self._word


class EventCompletion:
    """The completion signals of one stream, one event each, where the device cannot write words."""

    addresses = 0, 0  # of no counter

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._waiting: deque[tuple[int, Any]] = deque()
        self._spare: list[Any] = []
        self._passed = 0
        self._lock = threading.Lock()

    def write(self, sequence: int) -> None:
        if self._spare:
            event = self._spare.pop()
        else:
            flags = cu.CUevent_flags.CU_EVENT_DISABLE_TIMING
            result, event = cu.cuEventCreate(flags)
            if result:
                fail(result, "cuEventCreate")
        (result,) = cu.cuEventRecord(event, self._handle)
        if result:
            fail(result, "cuEventRecord")
        self._waiting.append((sequence, event))

    def completed(self) -> int:
        with self._lock:
            while True:
                if not self._waiting:
                    break
                sequence, event = self._waiting[0]
                (result,) = cu.cuEventQuery(event)
                if result:
                    break  # not ready; or a fault, which `CudaStream.fault` reports
                self._waiting.popleft()
                self._spare.append(event)
                self._passed = sequence
            return self._passed

    def release(self, last: int) -> None:
        """Destroy the spare events, when no further signal is written."""
        self.completed()
        while self._spare:
            (result,) = cu.cuEventDestroy(self._spare.pop())
            if result:
                fail(result, "cuEventDestroy")
