"""Streams of the CPU device: queues that a few threads drain, each in its own order.

A stream is at every moment in one of three places: idle (nothing queued), with the engine
(queued or being run by one thread) or parked on a blocker (an event or a gate). So work on
one stream is ordered, work on two streams is not, and no thread waits for anything but work.
"""

from __future__ import annotations

import threading
import time
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


class Blocker:
    """Something a stream may have to wait for."""

    __slots__ = ("open", "parked")

    def __init__(self, is_open: bool = False) -> None:
        self.open = is_open
        self.parked: list[CpuStream] = []


class CpuEvent:
    """A mark in a stream. One that was never recorded counts as passed, as in CUDA."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.reached = Blocker(is_open=True)
        self.time_ns: int | None = None

    def query(self) -> bool:
        return self.reached.open

    def synchronize(self) -> None:
        reached = self.reached
        self._engine.wait_for(lambda: reached.open)

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
        self.stopping = False
        # The default condition has a reentrant lock; a finaliser may run inside it.
        self.changed = threading.Condition()

    def schedule(self, stream: CpuStream) -> None:
        """Give `stream` to a thread. The caller holds `changed` and owns the stream."""
        self._ready.append(stream)
        if self._idle:
            self.changed.notify_all()
        if len(self._ready) > self._idle and len(self._threads) < self._most and not self.stopping:
            thread = threading.Thread(
                target=self._work, name=f"numbasync-{self._name}-{len(self._threads)}", daemon=True
            )
            self._threads.add(thread)
            thread.start()

    def is_quiet(self) -> bool:
        """Whether no stream is being run or could be. The caller holds `changed`."""
        return not self._ready and not self._running

    def wait_for(self, true: Callable[[], bool]) -> None:
        with self.changed:
            self.changed.wait_for(true)

    def open(self, blocker: Blocker) -> None:
        with self.changed:
            blocker.open = True
            parked, blocker.parked = blocker.parked, []
            for stream in parked:
                self.schedule(stream)
            self.changed.notify_all()

    def stop(self) -> None:
        """End the threads at interpreter exit; what is still queued is dropped."""
        with self.changed:
            self.stopping = True
            self._ready.clear()
            self.changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join(timeout=1.0)

    def _work(self) -> None:
        while True:
            with self.changed:
                self._idle += 1
                found = self.changed.wait_for(
                    lambda: bool(self._ready) or self.stopping, timeout=IDLE_SECONDS
                )
                self._idle -= 1
                if self.stopping or not found:
                    self._threads.discard(threading.current_thread())
                    return
                stream = self._ready.popleft()
                self._running += 1
            stream.drain()
            with self.changed:
                self._running -= 1
                self.changed.notify_all()


class CpuStream:
    """One queue. Entries are work (a callable), a sequence number, or a blocker."""

    native = None

    def __init__(self, device: CpuDevice, engine: Engine) -> None:
        self.device = device
        self._engine = engine
        self._queue: deque[Callable[[], None] | int | Blocker] = deque()
        self._owned = False  # with the engine, or parked
        self._working = False  # a thread is inside an entry
        self._word = 0
        self._error: BaseException | None = None
        self._failures: dict[int, BaseException] = {}
        self._doorbells: list[tuple[int, Doorbell]] = []

    # --- enqueue ---

    def _push(self, entry: Callable[[], None] | int | Blocker) -> None:
        with self._engine.changed:
            self._queue.append(entry)
            if not self._owned:
                self._owned = True
                self._engine.schedule(self)

    def launch(
        self,
        executable: Interpreted,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        args: Sequence[Any],
    ) -> None:
        engine = self._engine
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

    def write(self, sequence: int) -> None:
        self._push(sequence)

    def record(self, event: CpuEvent) -> None:
        # A new mark each time: whoever waits for the former one waits for that one only.
        event.reached = Blocker()
        event.time_ns = None
        reached = event.reached

        def mark() -> None:
            if event.reached is reached:
                event.time_ns = time.perf_counter_ns()
            self._engine.open(reached)

        self._push(_Always(mark))

    def wait(self, event: CpuEvent) -> None:
        if not event.reached.open:
            self._push(event.reached)

    def hold(self) -> Callable[[], None]:
        gate = Blocker()
        self._push(gate)
        return lambda: self._engine.open(gate)

    # --- look ---

    def completed(self) -> int:
        return self._word

    def failure(self, sequence: int) -> BaseException | None:
        return self._failures.pop(sequence, None)

    def fault(self) -> BaseException | None:
        """Never: a kernel that raises fails its own operation, and the stream goes on."""
        return None

    def query(self) -> bool:
        # Not `_owned`: the thread that wrote the last word may not have let go yet.
        with self._engine.changed:
            return not self._queue and not self._working

    def synchronize(self) -> None:
        self._engine.wait_for(lambda: not self._owned)

    def wake(self, sequence: int, doorbell: Doorbell) -> bool:
        with self._engine.changed:
            if self._word < sequence:
                self._doorbells.append((sequence, doorbell))
                return True
        doorbell.ring()
        return True

    # --- run, on a worker thread ---

    def drain(self) -> None:
        """Run entries in order until the queue is empty or a blocker is shut."""
        changed = self._engine.changed
        while True:
            with changed:
                self._working = False
                if self._engine.stopping:
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
                if isinstance(entry, int):
                    self._pass(entry)
                    continue
                self._working = True
            if isinstance(entry, Blocker):
                continue
            if self._error is None or isinstance(entry, _Always):
                try:
                    entry()
                except BaseException as error:
                    # Delivered by `failure` to whoever awaits this operation; the rest
                    # of the operation is skipped, and the next one runs.
                    self._error = error
            del entry  # the last reference to the operands may be this one

    def _pass(self, sequence: int) -> None:
        if self._error is not None:
            self._failures[sequence] = self._error
            self._error = None
        self._word = sequence
        due = [bell for number, bell in self._doorbells if number <= sequence]
        if due:
            self._doorbells = [d for d in self._doorbells if d[0] > sequence]
            counters.callbacks += len(due)
            for bell in due:
                bell.ring()


class _Always:
    """Work that runs even after earlier work of the same operation has failed."""

    __slots__ = ("_run",)

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run

    def __call__(self) -> None:
        self._run()


def _convert(dst: np.ndarray[Any, Any], src: np.ndarray[Any, Any]) -> None:
    if src.dtype.kind == "c" and dst.dtype.kind not in "cb":
        src = src.real  # as the conversion does, but without NumPy's warning
    with np.errstate(all="ignore"):
        np.copyto(dst, src, casting="unsafe")
