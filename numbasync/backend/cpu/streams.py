"""Streams of the CPU device: queues that a few threads drain, each in its own order.

A stream is at every moment in one of three places: idle (nothing queued), with the engine
(queued or being run by one thread) or parked on a blocker (an event or a gate). So work on
one stream is ordered, work on two streams is not, and no thread waits for anything but work.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numbasync.backend.base import Dim3, Doorbell, counters
from numbasync.errors import StateError

if TYPE_CHECKING:
    from numbasync.backend.cpu.device import CpuArray, CpuDevice
    from numbasync.backend.cpu.interpret import Interpreted

IDLE_SECONDS = 2.0  # a worker that found nothing to do for this long ends

# One lock for all virtual devices, since a stream of one may wait for an event of another.
# The default condition's lock is reentrant; a finaliser may run inside it.
changed = threading.Condition()
if hasattr(os, "register_at_fork"):  # another thread may have held it when the process forked
    os.register_at_fork(after_in_child=changed._at_fork_reinit)  # type: ignore[attr-defined]


class Blocker:
    """Something a stream may have to wait for."""

    __slots__ = ("calls", "open", "parked")

    def __init__(self, is_open: bool = False) -> None:
        self.open = is_open
        self.parked: list[CpuStream] = []
        self.calls: list[Callable[[], None]] = []


def open_blocker(blocker: Blocker) -> None:
    """Let everyone go on who waits for it, on whatever device."""
    with changed:
        blocker.open = True
        parked, blocker.parked = blocker.parked, []
        calls, blocker.calls = blocker.calls, []
        for stream in parked:
            stream.engine.schedule(stream)
        changed.notify_all()
    for call in calls:
        call()


def wait_for(true: Callable[[], bool]) -> None:
    with changed:
        changed.wait_for(true)


class CpuEvent:
    """A mark in a stream. One that was never recorded counts as passed, as in CUDA."""

    def __init__(self) -> None:
        self.reached = Blocker(is_open=True)
        self.time_ns: int | None = None

    def query(self) -> bool:
        return self.reached.open

    def synchronize(self) -> None:
        reached = self.reached
        wait_for(lambda: reached.open)

    def notify(self, call: Callable[[], None]) -> None:
        with changed:
            if not self.reached.open:
                self.reached.calls.append(call)
                return
        call()

    def elapsed_ms(self, later: CpuEvent) -> float:
        if self.time_ns is None or later.time_ns is None:
            raise StateError(
                "elapsed_ms needs two events that were recorded and have been passed.\n"
                "Await both, or call synchronize() on the later one, first."
            )
        return (later.time_ns - self.time_ns) / 1e6


class Engine:
    """The threads of one virtual device."""

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._most = threads
        self._ready: deque[CpuStream] = deque()
        self._running = 0
        self._idle = 0
        self._threads: set[threading.Thread] = set()
        self.streams: weakref.WeakSet[CpuStream] = weakref.WeakSet()
        self.stopping = False

    def schedule(self, stream: CpuStream) -> None:
        """Give `stream` to a thread. The caller holds `changed` and owns the stream."""
        self._ready.append(stream)
        if self._idle:
            changed.notify_all()
        if len(self._ready) > self._idle and len(self._threads) < self._most and not self.stopping:
            thread = threading.Thread(
                target=self._work, name=f"numbasync-{self._name}-{len(self._threads)}", daemon=True
            )
            self._threads.add(thread)
            thread.start()

    def is_quiet(self) -> bool:
        """Whether no stream is being run or could be. The caller holds `changed`."""
        return not self._ready and not self._running

    def stop(self) -> None:
        """End the threads at interpreter exit; what is still queued is dropped."""
        with changed:
            self.stopping = True
            self._ready.clear()
            changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join(timeout=1.0)

    def after_fork(self) -> None:
        """A forked child has none of the threads: start over with what is queued."""
        self._threads.clear()
        self._running = self._idle = 0
        self._ready.clear()
        for stream in self.streams:
            stream.start_over()

    def _work(self) -> None:
        while True:
            with changed:
                self._idle += 1
                found = changed.wait_for(
                    lambda: bool(self._ready) or self.stopping, timeout=IDLE_SECONDS
                )
                self._idle -= 1
                if self.stopping or not found:
                    self._threads.discard(threading.current_thread())
                    return
                stream = self._ready.popleft()
                self._running += 1
            stream.drain()
            with changed:
                self._running -= 1
                changed.notify_all()


class CpuQueue:
    """The work of one submission. After an entry has failed, its later ones are skipped."""

    __slots__ = ("_stream", "error")

    def __init__(self, stream: CpuStream) -> None:
        self._stream = stream
        self.error: BaseException | None = None

    def launch(
        self,
        executable: Interpreted,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        args: Sequence[Any],
    ) -> None:
        engine = self._stream.engine
        counters.launches += 1
        self._push(lambda: executable.run(grid, block, shared_bytes, args, engine))

    def upload(self, dst: CpuArray, src: np.ndarray[Any, Any]) -> None:
        counters.copies += 1
        self._push(lambda: np.copyto(dst.array, src.reshape(dst.array.shape)))

    def download(self, dst: np.ndarray[Any, Any], src: CpuArray) -> None:
        counters.copies += 1
        self._push(lambda: np.copyto(dst, src.array.reshape(dst.shape)))

    def copy(self, dst: CpuArray, src: CpuArray) -> None:
        counters.copies += 1
        self._push(lambda: _convert(dst.array, src.array))

    def fill(self, dst: CpuArray, value: np.generic) -> None:
        self._push(lambda: dst.array.fill(value))

    def failure(self) -> BaseException | None:
        return self.error

    def _push(self, work: Callable[[], None]) -> None:
        def run() -> None:
            if self.error is None:
                try:
                    work()
                except BaseException as error:
                    self.error = error

        self._stream.push(run)


class CpuStream:
    """One queue. Entries are work (a callable), a sequence number, or a blocker."""

    native = None

    def __init__(self, device: CpuDevice, engine: Engine) -> None:
        self.device = device
        self.engine = engine
        self._queue: deque[Callable[[], None] | int | Blocker] = deque()
        self._owned = False  # with the engine, or parked
        self._working = False  # a thread is inside an entry
        self._pushed = 0
        self._popped = 0
        self._word = 0
        self._doorbells: list[tuple[int, Doorbell]] = []
        engine.streams.add(self)

    # --- enqueue ---

    def open(self) -> CpuQueue:
        return CpuQueue(self)

    def push(self, entry: Callable[[], None] | int | Blocker) -> None:
        with changed:
            self._queue.append(entry)
            self._pushed += 1
            if not self._owned:
                self._owned = True
                self.engine.schedule(self)

    def write(self, sequence: int) -> None:
        self.push(sequence)

    def record(self, event: CpuEvent) -> None:
        # A new mark each time: whoever waits for the former one waits for that one only.
        event.reached = Blocker()
        event.time_ns = None
        reached = event.reached

        def mark() -> None:
            if event.reached is reached:
                event.time_ns = time.perf_counter_ns()
            open_blocker(reached)

        self.push(mark)

    def wait(self, event: Any) -> None:
        if not isinstance(event, CpuEvent):
            self.push(event.synchronize)  # of another kind of device: a worker waits for it
        elif not event.reached.open:
            self.push(event.reached)

    def hold(self) -> Callable[[], None]:
        gate = Blocker()
        self.push(gate)
        return lambda: open_blocker(gate)

    # --- look ---

    def completed(self) -> int:
        return self._word

    def fault(self) -> BaseException | None:
        """Never: a kernel that raises fails its own operation, and the stream goes on."""
        return None

    def query(self) -> bool:
        # Not `_owned`: the thread that wrote the last word may not have let go yet.
        with changed:
            return not self._queue and not self._working

    def synchronize(self) -> None:
        # What is enqueued while we wait is not waited for.
        with changed:
            last = self._pushed
            changed.wait_for(
                lambda: self._popped > last or (self._popped == last and not self._working)
            )

    def wake(self, sequence: int, doorbell: Doorbell) -> bool:
        with changed:
            if self._word < sequence:
                self._doorbells.append((sequence, doorbell))
                return True
        doorbell.ring()
        return True

    # --- run, on a worker thread ---

    def drain(self) -> None:
        """Run entries in order until the queue is empty or a blocker is shut."""
        while True:
            with changed:
                if self._working:
                    self._working = False
                    changed.notify_all()
                if self.engine.stopping:
                    return
                if not self._queue:
                    self._owned = False
                    changed.notify_all()
                    return
                entry = self._queue[0]
                if isinstance(entry, Blocker) and not entry.open:
                    entry.parked.append(self)
                    return
                self._queue.popleft()
                self._popped += 1
                if isinstance(entry, int):
                    self._pass(entry)
                if not callable(entry):
                    continue
                self._working = True
            try:
                entry()
            except Exception:  # a mark or a wait: work keeps its own errors
                traceback.print_exc()
            del entry  # the last reference to the operands may be this one

    def _pass(self, sequence: int) -> None:
        self._word = sequence
        changed.notify_all()
        due = [bell for number, bell in self._doorbells if number <= sequence]
        if due:
            self._doorbells = [d for d in self._doorbells if d[0] > sequence]
            counters.callbacks += len(due)
            for bell in due:
                bell.ring()

    def start_over(self) -> None:
        """In a forked child: nobody runs this stream, unless it is parked."""
        self._working = False
        self._doorbells = []
        front = self._queue[0] if self._queue else None
        if self._owned and not (isinstance(front, Blocker) and not front.open):
            self._owned = bool(self._queue)
            if self._owned:
                self.engine.schedule(self)


def _convert(dst: np.ndarray[Any, Any], src: np.ndarray[Any, Any]) -> None:
    if src.dtype.kind == "c" and dst.dtype.kind not in "cb":
        src = src.real  # as the conversion does, but without NumPy's warning
    with np.errstate(all="ignore"):
        np.copyto(dst, src, casting="unsafe")
