"""The engine that runs the streams of the CPU device, by a few threads or by steps; and blockers.

A stream is always in one of three states: idle (its queue is empty), owned by the engine (ready,
or being run by one thread), or parked on a blocker (an event or a gate). Therefore work on one
stream is ordered, work on two streams is not, and threads wait for nothing but work.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import ClassVar

from numbasync.backend.cpu.protocols import Schedulable, Stepping
from numbasync.backend.protocols import Checks, counters
from numbasync.errors import DeviceError
from numbasync.native import core, known
from numbasync.threads import refused

STEP_PAUSE = 0.001
IDLE_SECONDS = 2.0  # a worker ends after this time without work


class _Changed(threading.Condition):
    """A condition that knows whether a thread waits: to notify nobody takes half a microsecond.

    Only workers, and a thread that forks, use its `wait`, which ^C may end without the lock in its
    hands. Others wait at a door of their own, and do not hold the lock meanwhile.
    """

    def __init__(self, lock: threading.RLock) -> None:
        super().__init__(lock)
        self.waiting = 0
        self._doors: deque[threading.Lock] = deque()

    def wait(self, timeout: float | None = None) -> bool:
        self.waiting += 1
        try:
            return super().wait(timeout)
        finally:
            self.waiting -= 1

    def door(self) -> threading.Lock:
        """A lock to be acquired, which is released by the next `notify_all`. The caller holds the
        lock of the condition.
        """
        door = threading.Lock()
        door.acquire()
        self.waiting += 1
        self._doors.append(door)
        return door

    def notify_all(self) -> None:
        if self.waiting:
            while self._doors:
                if self._doors[0].locked():  # else ^C came behind its release
                    self._doors[0].release()
                self._doors.popleft()
                self.waiting -= 1
            super().notify_all()


# One lock for all virtual devices, since a stream of one may wait for an event of another.
# The lock is reentrant, since a finaliser may run inside it.
# `state` is the lock of `changed`. It is taken as `state`: an RLock is written in C, and the
# `__enter__` of a condition is not, so that ^C may come there when the lock is taken already.
state = threading.RLock()
changed = _Changed(state)

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _before_fork() -> None:
    """Let every thread finish its entry, and hold the threads until the fork is done. The child
    has its parent's streams, but no thread that could finish an entry begun in the parent.
    """
    changed.acquire()
    Engine.is_forking = True
    me = threading.current_thread()
    changed.wait_for(lambda: not any(e.is_at_work and not e.owns(me) for e in list(_engines)))


def _after_fork_in_parent() -> None:
    Engine.is_forking = False
    changed.notify_all()
    changed.release()


def _after_fork_in_child() -> None:
    Engine.is_forking = False
    changed._at_fork_reinit()  # type: ignore[attr-defined]
    changed.waiting = 0
    changed._doors.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )


class Blocker:
    """An event or a gate that streams may have to wait for."""

    __slots__ = ("calls", "open", "parked", "time_ns")

    def __init__(self, is_open: bool = False) -> None:
        self.open = is_open
        self.time_ns: int | None = None  # of an event: when it was passed
        self.parked: list[Schedulable] = []
        self.calls: list[Callable[[], None]] = []


def open_blocker(blocker: Blocker) -> None:
    """Open a blocker: resume its parked streams, on all devices, and make its calls."""
    with state:
        blocker.open = True
        left = []
        while True:
            if not blocker.parked:
                break
            stream = blocker.parked[0]
            if not stream.engine.schedule(stream):
                left.append(stream)
            del blocker.parked[0]  # last: after ^C the next call goes on
        changed.notify_all()
    while blocker.calls:
        blocker.calls[0]()
        del blocker.calls[0]
    run_here(left)


def run_here(streams: Iterable[Schedulable]) -> None:
    """Run streams that no thread runs, as none can be started, on the thread that made them ready:
    their operations were submitted before, so nobody else can be told.
    """
    for stream in streams:
        stream.engine.run_here(stream)


# The steppers of engines that have no threads now: waiting threads step them.
stepped: list[Stepping] = []


def wait_for(true: Callable[[], bool]) -> None:
    """Block the thread until `true()`, which is called with `state` held. ^C ends the wait."""
    while True:
        with state:
            if true():
                return
            door = None if stepped else changed.door()
        progress = [stepper.step() for stepper in stepped] if door is None else []
        if door is None and not any(progress):
            with state:
                if true():
                    return
                door = changed.door()
            door.acquire(timeout=STEP_PAUSE)  # for a gate, or another thread
        elif door is not None:
            door.acquire()


@known
class Engine:
    """The threads of one virtual device.

    Attributes:
        is_forking: of all engines: the process is about to fork, so nothing may begin.
        drawn: the stream that a step has taken, and not yet put back.
    """

    __slots__ = (
        "__weakref__", "_idle", "_most", "_name", "_ready", "_running", "_threads", "_why_not",
        "checks", "drawn", "stepper", "stopping", "streams",
    )  # fmt: skip
    is_forking: ClassVar[bool] = False

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._most = threads
        self._ready: deque[Schedulable] = deque()
        self._running: set[Schedulable] = set()  # each by one thread
        self._idle = 0
        self._threads: set[threading.Thread] = set()
        self._why_not: BaseException = RuntimeError("no thread")  # the latest that did not start
        self.streams: weakref.WeakSet[Schedulable] = weakref.WeakSet()
        self.stopping = False
        self.stepper: Stepping | None = None
        self.drawn: Schedulable | None = None
        self.checks: Checks | None = None
        _engines.add(self)

    @property
    def is_at_work(self) -> bool:
        """Whether a thread is running a stream."""
        return bool(self._running) or (self.stepper is not None and self.stepper.is_at_work)

    def owns(self, thread: threading.Thread) -> bool:
        return thread in self._threads

    def schedule(self, stream: Schedulable) -> bool:
        """Make `stream` ready for a thread; again has no effect. The caller holds `state` and owns
        the stream. False: there is no thread, and none can be started, so the caller has to
        `run_here` or to `withdraw` what is ready.
        """
        if stream not in self._ready:
            self._ready.append(stream)
        if self.stepper is not None:
            return True
        if self._idle:
            changed.notify_all()
        if len(self._ready) > self._idle and len(self._threads) < self._most and not self.stopping:
            try:
                self._start_thread()
            except RuntimeError as error:
                if not self._threads:  # else the others go on, one fewer
                    self._why_not = error.with_traceback(None)
                    return False
        return True

    def _start_thread(self) -> None:
        thread = threading.Thread(
            target=self._work, name=f"numbasync-{self._name}-{len(self._threads)}", daemon=True
        )
        self._threads.add(thread)
        try:
            thread.start()
        except BaseException:  # ^C may also come when it runs already: then it notes itself
            self._threads.discard(thread)
            raise

    def run_here(self, stream: Schedulable) -> None:
        """Run a ready stream for which no thread can be started on the calling thread, unless a
        thread has come and taken it. After ^C it is ready again.
        """
        has_it: list[Schedulable] = []
        try:
            try:
                with state:
                    if stream in self._ready:
                        has_it.append(stream)
                        self._running.add(stream)
                        self._ready.remove(stream)
                while True:  # and no condition: Python 3.12 jumps back from one outside the `try`
                    if not has_it or not stream.run_one():
                        break
                has_it.clear()
            finally:
                self._leave(stream, has_it)
        except BaseException:
            self._leave(stream, has_it)  # once more, as ^C may have come in the first
            raise

    def _leave(self, stream: Schedulable, has_it: list[Schedulable]) -> None:
        with state:
            if has_it and stream not in self._ready:
                self._ready.append(stream)
            has_it.clear()
            self._running.discard(stream)
            changed.notify_all()

    def withdraw(self, stream: Schedulable) -> None:
        """Make a stream not ready that `schedule` found no thread for. The caller holds `state`."""
        if stream in self._ready:
            self._ready.remove(stream)

    def refusal(self) -> DeviceError:
        """The error of an entry for which `schedule` found no thread."""
        return refused(f"work of {self._name}", self._why_not)

    # --- without threads ---

    def be_stepped(self, stepper: Stepping | None) -> None:
        """Let `stepper` run the streams instead of threads; None: let the threads run them."""
        if stepper is not None:
            wait_for(lambda: not self._running)
        with state:
            if stepper is not None:
                stepped.append(stepper)
            elif self.stepper is not None:
                stepped.remove(self.stepper)
            self.stepper = stepper
            ready, self._ready = self._ready, deque()
            left = [stream for stream in ready if not self.schedule(stream)]
            changed.notify_all()
        run_here(left)

    def draw(self, choose: Callable[[int], int]) -> Schedulable | None:
        """A ready stream, which the caller must run now and then `put_back`; None if none is."""
        with state:
            ready = self._ready
            if not ready:
                return None
            at = choose(len(ready))
            if at:
                ready.rotate(-at)
            self.drawn = ready[0]
            return ready.popleft()

    @property
    def has_ready(self) -> bool:
        """Whether a stream can be drawn, unless another thread draws it first."""
        return bool(self._ready)

    def put_back(self) -> None:
        """Let the drawn stream go on, if there is one; also one that ^C has kept from it."""
        with state:
            stream = self.drawn
            has_thread = stream is None or stream.resume()
            self.drawn = None
            changed.notify_all()
        if stream is not None and not has_thread:
            run_here([stream])

    def now_ns(self) -> int:
        return time.perf_counter_ns() if self.stepper is None else self.stepper.now_ns()

    def runs_at_once(self) -> bool:
        """Whether the calling thread, which holds `changed`, may run an entry of an idle stream."""
        return self.stepper is None and not self.stopping and not self.is_forking

    def schedule_again(self) -> None:
        """Start threads for what is ready, of which a second ^C may have left it without."""
        with state:
            left = [stream for stream in list(self._ready) if not self.schedule(stream)]
        run_here(left)

    def is_quiet(self) -> bool:
        """Whether no stream is running or ready. The caller holds `changed`."""
        return not self._ready and not self._running and self.drawn is None

    def stop(self) -> None:
        """End the threads at interpreter exit. Work that is still queued is dropped."""
        with state:
            self.stopping = True
            self._ready.clear()
            changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join(timeout=1.0)

    def after_fork(self) -> None:
        """In a forked child, which has none of the threads, reschedule the queued work."""
        with state:
            self._threads.clear()
            self._running.clear()
            self._idle = 0
            self._ready.clear()
            for stream in list(self.streams):
                stream.start_over()

    def _work(self) -> None:
        with state:
            self._threads.add(threading.current_thread())
        while True:
            with state:
                self._idle += 1
                is_work_ready = changed.wait_for(
                    lambda: (
                        bool(self._ready and self.stepper is None and not self.is_forking)
                        or self.stopping
                    ),
                    timeout=IDLE_SECONDS,
                )
                self._idle -= 1
                # What became ready meanwhile, and may not begin yet, counts on this thread.
                if self.stopping or not (is_work_ready or self._ready):
                    self._threads.discard(threading.current_thread())
                    return
                if not is_work_ready:
                    continue
                stream = self._ready.popleft()
                self._running.add(stream)
            goes_on = True
            while goes_on:
                with suppress(BaseException):  # the entry has noted it, and is skipped next
                    goes_on = stream.run_one()
                if self.stepper is not None or self.is_forking:
                    break
            with state:
                self._running.discard(stream)
                if goes_on:
                    self.schedule(stream)
                changed.notify_all()
            del stream  # while idle, the thread must not keep the stream and its queue alive


if core is not None:
    core.know_workers(state, changed, counters)
