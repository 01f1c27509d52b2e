"""The reactor: watches the streams' completion for one event loop, first by polling, then asleep.

This module knows no CUDA and no device, only the `Watched` protocol, so that the protocol can
be tested with a counter. While work is short, the reactor polls once a loop turn. When no stream
has moved for the spin budget, the reactor stops turning the loop and asks the device to notify
the loop's waker. Where waits take equally long each time, the reactor polls again when the next
completion is due. An idle reactor schedules nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import operator
import threading
import time
import weakref
from bisect import insort
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol

from numbasync.backend import protocols
from numbasync.device.loop_wakeup import Waker as Waker
from numbasync.device.wait_estimate import LatencyEstimate
from numbasync.errors import InternalError, StateError
from numbasync.native import compiled, known

# uvloop and asyncio sleep whole milliseconds; finer timers return immediately.
POLL_SECONDS = 0.001
# A fault stops a stream before its notification: while asleep, query the driver this often.
WATCHDOG_SECONDS = 0.1
PATIENCE = 16  # awaits of finished work per turn of the loop

_finished_awaits = itertools.count(1)


@compiled
def turn_is_due() -> bool:
    """Whether an await whose work is done must let the loop turn: every `PATIENCE`-th must."""
    return next(_finished_awaits) % PATIENCE == 0


def need_not_wait() -> Generator[None, None, None]:
    """For an await whose work is done. Every `PATIENCE`-th call lets the loop turn: a task that
    awaits one short operation after the other must not keep other tasks from running.
    """
    if turn_is_due():
        yield


class Watched(Protocol):
    """A stream, as seen by the reactor."""

    @property
    def spin_seconds(self) -> float: ...

    def advance(self) -> int:
        """Retire finished submissions; the latest sequence number that the stream has passed."""
        ...

    def wake(self, sequence: int, waker: protocols.Waker) -> bool:
        """Notify `waker` once past `sequence`. False if the notification may be late or lost."""
        ...

    def query_device(self) -> bool:
        """Query the driver. Everything on the stream counts as passed if the stream is broken, or
        is idle although its counter lags; whether either was found.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReactorStatistics:
    """What one loop's reactor has done so far.

    Attributes:
        waiting: futures that wait now.
        turns: polls of all streams.
        sleeps: times that the reactor slept instead of turning the loop.
        rings: notifications of the waker.
        completed: futures that were woken.
    """

    waiting: int
    turns: int
    sleeps: int
    rings: int
    completed: int


# A sequence number, the future that waits for it, and what to call to complete the future.
_Waiter = tuple[int, "asyncio.Future[Any]", Callable[[None], None]]
_position = operator.itemgetter(0)


@known
class Reactor:
    """The watcher of one event loop. All methods must be called on that loop's thread."""

    __slots__ = ("__dict__", "__weakref__", "_last", "_queues")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        # Each queue is sorted by sequence number: one poll completes a prefix.
        self._queues: dict[Watched, list[_Waiter]] = {}
        # The notification requested of each stream: its sequence number, and whether it will be
        # prompt. Kept without waiters too, because the notification will still arrive.
        self._asked: weakref.WeakKeyDictionary[Watched, tuple[int, bool]] = (
            weakref.WeakKeyDictionary()
        )
        # Estimates of the next completion, for streams where estimating pays.
        self._forecasts: weakref.WeakKeyDictionary[Watched, LatencyEstimate] = (
            weakref.WeakKeyDictionary()
        )
        self._bell: Waker | None = None
        self._last = 0  # id of the task that called last; a number only, so that no task is kept
        # Of `ops.task_factory`: what was made since the last turn of the loop.
        self.created: Any = None
        self._next: asyncio.Handle | None = None
        self._turning = False  # `_next` is the loop's next turn, not a timer
        self._moved_at = 0.0
        self._checked_at = 0.0
        self._turns = self._sleeps = self._rings = self._completed = 0

    def is_awaited_by_one(self) -> bool:
        """Whether the running task was also the last to call, and nothing is watched: as far as is
        known here, a turn of the loop would serve no other task.
        """
        before, self._last = self._last, id(asyncio.current_task())
        return before == self._last and not self._queues

    def wait(self, stream: Watched, sequence: int) -> asyncio.Future[None]:
        """A future that is done when `stream` has passed `sequence`, or is broken."""
        future: asyncio.Future[None] = self._running_loop().create_future()
        self.watch(stream, sequence, future, future.set_result)
        return future

    def watch(
        self, stream: Watched, sequence: int, future: asyncio.Future[Any],
        complete: Callable[[None], None],
    ) -> None:  # fmt: skip
        """Call `complete(None)`, unless `future` is done, when `stream` has passed `sequence`, or
        is broken.
        """
        now = self._moved_at = time.perf_counter()
        queue = self._queues.get(stream)
        if queue is None:
            queue = self._queues[stream] = []
            if 0 < stream.spin_seconds < math.inf:  # 0: never polls; infinity: only polls
                self._forecasts.setdefault(stream, LatencyEstimate()).begin(now)
        waiter = sequence, future, complete
        if not queue or queue[-1][0] <= sequence:
            queue.append(waiter)
        else:
            insort(queue, waiter, key=_position)
            if queue[0] is waiter:
                self._asked.pop(stream, None)  # the requested notification is for a later number
        if not self._turning:
            self._turn_soon(self._running_loop())

    def look(self) -> None:
        """Poll in the next turn of the loop, whatever the reactor was waiting for."""
        if self._queues and not self._turning:
            self._turn_soon(self._running_loop())

    def forget(self, stream: Watched, future: asyncio.Future[Any]) -> None:
        """Stop watching for a future that has lost its awaiter."""
        queue = self._queues.get(stream)
        if queue is not None:
            queue[:] = [w for w in queue if w[1] is not future]
            if not queue:
                del self._queues[stream]
        if not self._queues:
            self._cancel_next()

    def close(self) -> None:
        """Hand the waker on to the next loop; the caller has found this loop closed."""
        self._queues.clear()
        self._asked.clear()
        self._next = None
        waker, self._bell = self._bell, None
        if waker is not None:
            Waker.hand_on(waker)

    def __del__(self) -> None:
        # The loop was collected before a later loop called `close`.
        waker = getattr(self, "_bell", None)
        if waker is not None:
            Waker.hand_on(waker)

    @property
    def is_orphaned(self) -> bool:
        """Whether the reactor's loop is closed or collected."""
        loop = self._loop()
        return loop is None or loop.is_closed()

    def statistics(self) -> ReactorStatistics:
        waiting = sum(len(q) for q in self._queues.values())
        return ReactorStatistics(waiting, self._turns, self._sleeps, self._rings, self._completed)

    def __repr__(self) -> str:
        s = self.statistics()
        return f"<Reactor {s.waiting} waiting on {len(self._queues)} streams, {s.turns} turns>"

    # --- the loop's turns ---

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop()
        if loop is None:
            raise InternalError("a reactor outlived its event loop")
        return loop

    def _cancel_next(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._turning = False

    def _turn_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        self._cancel_next()
        self._turning = True
        self._next = loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Poll every stream with waiters once; then schedule the next turn, or sleep."""
        self._next = None
        self._turning = False
        self._turns += 1
        moved = self._settle()
        if not self._queues:
            return
        loop = self._running_loop()
        now = time.perf_counter()
        if moved:
            self._moved_at = now
        still = now - self._moved_at
        due, looks_on = self._due(now)
        looks_on = looks_on or any(still < self._patience(stream) for stream in self._queues)
        if looks_on and still <= WATCHDOG_SECONDS:
            self._turn_soon(loop)
            return
        rings = not looks_on and self._ask_for_rings(loop)
        # While another thread computes, each driver call takes a switch interval. Work that has
        # completed meanwhile must not wait for a notification as well, so poll once more.
        if self._settle() or self._has_reported(now) or self._settle() or looks_on:
            if self._queues:
                self._turn_soon(loop)
            return
        self._sleeps += 1
        seconds = min(due - now, WATCHDOG_SECONDS) if rings else POLL_SECONDS
        self._next = loop.call_later(seconds, self._turn)

    def _patience(self, stream: Watched) -> float:
        """How many seconds to poll `stream` before sleeping."""
        estimate = self._forecasts.get(stream)
        patience = stream.spin_seconds
        return patience if estimate is None else max(patience, estimate.patience())

    def _due(self, now: float) -> tuple[float, bool]:
        """The estimated time at which polling has to begin again; and whether a stream is to be
        polled now. Polling pays, because waking a sleeping processor takes half a millisecond.
        """
        due, is_near = math.inf, False
        for stream in self._queues:
            estimate = self._forecasts.get(stream)
            if estimate is not None:
                start = estimate.begin_looking()
                is_near |= start <= now < start + estimate.WINDOW_S
                if start > now:
                    due = min(due, start)
        return due, is_near

    def _settle(self) -> bool:
        """Wake every waiter whose sequence number was passed; whether there was any."""
        moved = False
        waiter: _Waiter | None
        for stream, queue in list(self._queues.items()):
            try:
                passed = stream.advance()
            except Exception as error:
                self._fail(stream, error)
                moved = True
                continue
            count = 0
            for waiter in queue:
                if waiter[0] > passed:
                    break
                count += 1
                if not waiter[1].done():
                    waiter[2](None)
            waiter = None  # the traceback of an error may hold this frame
            if count:
                moved = True
                self._completed += count
                del queue[:count]
                if stream in self._forecasts:
                    self._forecasts[stream].end(time.perf_counter())
                if not queue:
                    del self._queues[stream]
                    self._asked.pop(stream, None)
        return moved

    def _fail(self, stream: Watched, error: Exception) -> None:
        """Pass the `error` of polling `stream` to its awaiters, which would wait for ever."""
        for _, future, _ in self._queues.pop(stream):
            if not future.done():
                future.set_exception(error)
        self._asked.pop(stream, None)

    def _has_reported(self, now: float) -> bool:
        """Query the driver about every stream, once per `WATCHDOG_SECONDS`; whether any stream was
        found broken, or idle although its counter lags, so that its work counts as passed.
        """
        if now - self._checked_at <= WATCHDOG_SECONDS:
            return False
        self._checked_at = now
        any_passed = False
        for stream in list(self._queues):  # no early exit: every stream is queried
            try:
                any_passed |= stream.query_device()
            except Exception as error:
                self._fail(stream, error)
                any_passed = True
        return any_passed

    def _ask_for_rings(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Request a notification of every stream for its first waiter; whether all are prompt."""
        if self._bell is None:
            waker = Waker.take()
            try:
                loop.add_reader(waker.fileno, self._on_wakeup)
            except NotImplementedError:  # Windows' proactor loop
                Waker.hand_on(waker)
                return False
            self._bell = waker
        for stream, queue in self._queues.items():
            front = queue[0][0]
            if self._asked.get(stream, (-1, False))[0] < front:
                try:
                    rings = stream.wake(front, self._bell)
                except Exception:  # the next poll, or driver query, raises the actual error
                    rings = False
                self._asked[stream] = (front, rings)
        return all(self._asked[stream][1] for stream in self._queues)

    def _on_wakeup(self) -> None:
        if self._bell is not None:
            self._bell.clear()
        self._rings += 1
        if self._queues and not self._turning:
            self._cancel_next()
            self._turn()


# The loop holds its reactor, in this attribute. The futures in a reactor hold the loop, so any
# other holder of the reactor would keep a dropped loop alive, with all that its tasks hold.
_ATTRIBUTE = "_numbasync_reactor"
_reactors: weakref.WeakSet[Reactor] = weakref.WeakSet()
_lock = threading.Lock()


def current() -> Reactor:
    """The running loop's reactor; created on first use.

    Raises:
        StateError: no asyncio event loop runs on this thread.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise no_loop() from None
    reactor: Reactor | None = getattr(loop, _ATTRIBUTE, None)
    return _make(loop) if reactor is None else reactor


def no_loop() -> StateError:
    """The error for awaiting an operation outside of an asyncio event loop."""
    return StateError(
        "operations are awaited on event loops of asyncio (its own, or uvloop), and none runs on "
        "this thread.\nWrite na.run(main()), or op.sync() to block the thread. Under trio:\n\n"
        "    value = await trio.to_thread.run_sync(op.sync)"
    )


def _make(loop: asyncio.AbstractEventLoop) -> Reactor:
    with _lock:
        # The program may still hold a loop that was closed under its waiters: the next loop closes
        # that loop's reactor.
        for old in [old for old in _reactors if old.is_orphaned]:
            _reactors.discard(old)
            old.close()
        reactor = Reactor(loop)
        _reactors.add(reactor)
        setattr(loop, _ATTRIBUTE, reactor)
        return reactor
