"""Streams of the CPU device: queues of work, sequence numbers and blockers."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from numbasync.backend.cpu.protocols import Numbered
from numbasync.backend.cpu.runtime import tasks
from numbasync.backend.cpu.runtime.events import CpuEvent
from numbasync.backend.cpu.runtime.workers import (
    Blocker,
    Engine,
    changed,
    open_blocker,
    state,
    wait_for,
)
from numbasync.backend.protocols import Formula, Waker, Work, counters
from numbasync.errors import DeviceMismatchError, StateError
from numbasync.native import compiled, known

if TYPE_CHECKING:
    from numbasync.backend.cpu.runtime.array import CpuArray
    from numbasync.backend.cpu.runtime.graph import CpuGraph


STOPPED = (
    "this work ran on a thread that ^C, or another exception, has stopped half-way; what it writes "
    "is not complete."
)


@known
class CpuQueue:
    """Enqueues the work of one submission. After a failed entry, its later entries are skipped."""

    __slots__ = ("_stream", "error")

    def __init__(self, stream: CpuStream) -> None:
        self._stream = stream
        self.error: BaseException | None = None

    def launch(self, work: Work, args: Sequence[Any]) -> None:
        counters.launches += 1
        self._push(*tasks.launch(self._stream.engine, work, args))

    def upload(self, dst: CpuArray, src: np.ndarray[Any, Any]) -> None:
        counters.copies += 1
        self._push(*tasks.upload(self._stream.engine, dst, src))

    def download(self, dst: np.ndarray[Any, Any], src: CpuArray) -> None:
        counters.copies += 1
        self._push(*tasks.download(self._stream.engine, dst, src))

    def copy(self, dst: CpuArray, src: CpuArray) -> None:
        counters.copies += 1
        self._push(*tasks.copy(self._stream.engine, dst, src))

    def copy_peer(self, dst: CpuArray, src: CpuArray, source: object) -> None:
        self.copy(dst, src)  # all virtual devices share the memory

    def fill(self, dst: CpuArray, value: np.generic) -> None:
        self._push(*tasks.fill(self._stream.engine, dst, value))

    def generate(self, dst: CpuArray, formula: Formula) -> None:
        self._push(*tasks.generate(self._stream.engine, dst, formula))

    def call(self, function: Callable[..., None], arrays: Sequence[CpuArray]) -> None:
        self._push(partial(function, *(array.array for array in arrays)), False)

    def replay(self, graph: CpuGraph) -> None:
        counters.replays += 1
        for task in graph.entries():
            self._push(*task)

    def failure(self) -> BaseException | None:
        return self.error

    def _push(self, work: Callable[[], None], is_short: bool) -> None:
        has_begun = False
        stopped: BaseException | None = None

        def run() -> None:
            nonlocal has_begun, stopped
            if has_begun:  # what ran it was stopped, and it does not run again
                self.error = self.error or stopped or StateError(STOPPED)
            if self.error is not None:
                return
            has_begun = True
            try:
                work()
            except Exception as error:
                self.error = error
            except BaseException as stop:  # ^C is the running thread's
                stopped = stop
                raise

        self._stream.push(run, is_short)


@known
class CpuStream:
    """One stream: a queue of entries, each work (a callable), a sequence number, or a blocker.

    An entry stays in the queue until it is done, and a thread that runs an entry at once holds
    `state` meanwhile, so there is no mark of ownership that ^C could keep from being taken back.
    """

    __slots__ = (
        "__dict__", "__weakref__", "_owned", "_pushed", "_queue", "_wakeups", "_word", "device",
        "engine",
    )  # fmt: skip
    native = records = None
    handle_number = 0

    def __init__(self, device: Numbered, engine: Engine) -> None:
        self.device = device
        self.engine = engine
        self._queue: deque[Callable[[], None] | int | Blocker | None] = deque()
        self._owned = False  # scheduled on the engine, or parked on a blocker
        self._pushed = 0  # entries that were put into the queue
        self._word = 0
        self._wakeups: list[tuple[int, Waker]] = []
        engine.streams.add(self)

    def numba_stream(self) -> NoReturn:
        raise DeviceMismatchError(
            f"Numba has streams of CUDA devices only, and this one is of cpu:{self.device.ordinal}."
        )

    # --- enqueue ---

    def open(self) -> CpuQueue:
        return CpuQueue(self)

    @compiled
    def launch(self, work: Work, args: Sequence[Any], queue: CpuQueue | None) -> CpuQueue | None:
        short = None
        if queue is None and self.engine.checks is None:
            short = tasks.short_launch(work)
        if short is None or not short.is_plain:
            queue = queue or self.open()
            queue.launch(work, args)
            return queue
        with state:
            if not self._runs_at_once():
                queue = self.open()
                queue.launch(work, args)
                return queue
            counters.launches += 1
            try:
                short.run(args)
            except Exception as error:  # what has not failed needs no queue to say so
                queue = self.open()
                queue.error = error
        return queue

    def fill(self, dst: CpuArray, value: np.generic, queue: CpuQueue | None) -> CpuQueue:
        queue = queue or self.open()
        queue.fill(dst, value)
        return queue

    def upload(self, dst: CpuArray, block: Any, queue: CpuQueue | None) -> CpuQueue:
        queue = queue or self.open()
        queue.upload(dst, np.ndarray(dst.array.shape, dst.array.dtype, block))
        return queue

    def download(self, block: Any, src: CpuArray, queue: CpuQueue | None) -> CpuQueue:
        queue = queue or self.open()
        queue.download(np.ndarray(src.array.shape, src.array.dtype, block), src)
        return queue

    def copy_peer(
        self, dst: CpuArray, src: CpuArray, source: object, queue: CpuQueue | None
    ) -> CpuQueue:
        queue = queue or self.open()
        queue.copy_peer(dst, src, source)
        return queue

    def replay(self, graph: CpuGraph, queue: CpuQueue | None) -> CpuQueue:
        queue = queue or self.open()
        queue.replay(graph)
        return queue

    def push(self, entry: Callable[[], None] | int | Blocker, is_short: bool = False) -> None:
        """Enqueue an entry. A short entry on an idle stream runs on the calling thread instead:
        waking a worker, and being woken by it, takes longer.
        """
        with state:
            if is_short and self._runs_at_once():
                self._do(entry)
                return
            try:
                self._queue.append(entry)
                self._pushed += 1
                has_thread = self._be_scheduled()
            except BaseException:  # what is in the queue goes on, wherever ^C came
                self._be_scheduled()
                raise
            if not has_thread:
                self.engine.withdraw(self)
                self._queue.pop()
                self._pushed -= 1
                raise self.engine.refusal()

    @compiled
    def _runs_at_once(self) -> bool:
        """Whether the calling thread may run an entry now. The caller holds `state`, and holds it
        until the entry has ended.
        """
        return not self._queue and self.engine.runs_at_once()

    def _be_scheduled(self) -> bool:
        """Schedule a stream that has entries; again has no effect. The caller holds `state`. False:
        no thread can be started for it.
        """
        if self._queue and not self._owned:
            if not self.engine.schedule(self):
                return False
            self._owned = True
        return True

    def write(self, sequence: int) -> None:
        self.push(sequence, is_short=True)

    def record(self, event: CpuEvent) -> None:
        # A new blocker for each record: a waiter for the previous record is not delayed.
        reached = Blocker()

        def mark() -> None:
            reached.time_ns = self.engine.now_ns()
            open_blocker(reached)

        self.push(mark, is_short=True)
        event.reached = reached  # last: ^C leaves no event that nobody will reach

    def passed_ns(self) -> int | None:
        is_idle = not self._queue and self.engine.stepper is None
        return perf_counter_ns() if is_idle else None

    def wait(self, event: Any) -> bool:
        if not isinstance(event, CpuEvent):
            self.push(event.synchronize)  # a worker waits for an event of another kind of device
            return True
        if not event.reached.open:
            self.push(event.reached)
        return False

    def hold(self) -> Callable[[], None]:
        gate = Blocker()
        self.push(gate)
        return lambda: open_blocker(gate)

    # --- poll ---

    @compiled
    def completed(self) -> int:
        if self.engine.stepper is not None:
            self.engine.stepper.step()
        return self._word

    def fault(self) -> BaseException | None:
        """None always: a kernel that raises fails only its own operation, not the stream."""
        return None

    def verified_sequence(self) -> int:
        return self._word

    def query(self) -> bool:
        if self.engine.stepper is not None:
            self.engine.stepper.step()
        # Not `_owned`: the thread that wrote the last number may not have released the stream yet.
        with state:
            return not self._queue

    @compiled
    def spin_poll(self) -> bool:
        # One query is enough: short work is done when it is submitted, and repeated queries would
        # take the interpreter lock from the workers.
        with state:
            return not self._queue

    @property
    def _popped(self) -> int:
        """Entries that were put into the queue, and are done."""
        return self._pushed - len(self._queue)

    def synchronize(self) -> None:
        # Entries enqueued during the wait are not waited for.
        with state:
            self._owned = not self._be_scheduled() or self._owned
            last = self._pushed
        self.engine.schedule_again()  # also what ^C has kept from running where no thread is
        wait_for(lambda: self._popped >= last)

    def wake(self, sequence: int, waker: Waker) -> bool:
        with state:
            if self._word < sequence:
                self._wakeups.append((sequence, waker))
                return True
        waker.notify()
        return True

    # --- run, by a worker thread or by a step ---

    @compiled
    def run_one(self) -> bool:
        """Run the next entry. Returns False, with the stream no longer scheduled, if no entry is
        left or a blocker is closed.
        """
        with state:
            if self.engine.stopping:
                return False
            if not self._queue:  # only possible in a forked child, and after ^C in a step
                return self._goes_on()
            entry = self._queue[0]
            if isinstance(entry, Blocker) and not entry.open:
                if self not in entry.parked:
                    entry.parked.append(self)
                return False
            if isinstance(entry, int):
                self._pass(entry)
            if not callable(entry):
                self._queue.popleft()
                return self._goes_on()
        self._do(entry)  # ^C leaves it in the queue: what has not begun is run by the next step
        self._queue[0] = None
        del entry  # this may be the last reference to the operands
        with state:
            self._queue.popleft()
            return self._goes_on()

    def _goes_on(self) -> bool:
        """Whether the queue has more entries; the stream is owned then. The caller holds
        `changed`.
        """
        self._owned = bool(self._queue)
        changed.notify_all()
        return self._owned

    def _do(self, entry: Callable[[], None] | int | Blocker) -> None:
        if isinstance(entry, int):
            with state:
                self._pass(entry)
        elif callable(entry):
            try:
                entry()
            except Exception:  # of a record or a wait: the work of a queue stores its own errors
                traceback.print_exc()

    def _pass(self, sequence: int) -> None:
        self._word = sequence
        changed.notify_all()
        due = [waker for number, waker in self._wakeups if number <= sequence]
        if due:
            self._wakeups = [w for w in self._wakeups if w[0] > sequence]
            counters.callbacks += len(due)
            for waker in due:
                waker.notify()

    def resume(self) -> bool:
        """Schedule the stream if it has entries, unless it is parked. The caller holds `state`, and
        no thread runs the stream. False: none can be started: it is ready, for `run_here`.
        """
        front = self._queue[0] if self._queue else None
        if isinstance(front, Blocker) and not front.open and self in front.parked:
            return True
        self._owned = False
        if self._be_scheduled():
            return True
        self._owned = True
        return False

    def start_over(self) -> None:
        """In a forked child, reschedule the stream, which no thread runs, unless it is parked."""
        self._wakeups = []
        self.resume()
