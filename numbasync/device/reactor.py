"""The reactor: watches the streams' completion for one event loop, by polling and asleep.

This module knows no CUDA and no device, only the `Watched` protocol, so that the protocol can
be tested with a counter. Short work is polled once a loop turn. For longer work the loop sleeps
until shortly before the work is due, by the last waits for like work; a timer with microseconds
ends the sleep. What nobody could foresee is polled now and then, and later notifies the loop's
waker, too. An idle reactor schedules nothing.
"""

from __future__ import annotations

import asyncio
import math
import operator
import threading
import time
import weakref
from bisect import insort
from collections.abc import Callable, Hashable
from typing import Any

from numbasync.device.loop_alarm import Alarm
from numbasync.device.loop_turns import need_not_wait as need_not_wait
from numbasync.device.loop_wakeup import Waker as Waker
from numbasync.device.wait_estimate import LATENESS_S, LastWaits, WaitEstimate
from numbasync.device.watched import ReactorStatistics, Watched
from numbasync.errors import InternalError, StateError
from numbasync.native import known

__all__ = ["current"]

POLL_SECONDS = 0.001  # between polls where a notification alone would end the sleep, and may not
# A fault stops a stream before its notification: while asleep, query the driver this often.
WATCHDOG_SECONDS = 0.1
PLANNED_S = 50e-6  # how long a decision to poll at every turn of the loop stands
MOST_SPINNING = 4  # tasks that poll for themselves at a time; others are woken by the reactor

# A sequence number, the future that waits for it, what to call to complete the future, and the kind
# of work; None: work that is polled throughout.
_Waiter = tuple[int, "asyncio.Future[Any]", Callable[[None], None], Hashable]
_position = operator.itemgetter(0)


@known
class Reactor:
    """The watcher of one event loop. All methods must be called on that loop's thread."""

    __slots__ = (
        "__dict__", "__weakref__", "_before", "_last", "_turning", "last_waits",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        # Each queue is sorted by sequence number: one poll completes a prefix.
        self._queues: dict[Watched, list[_Waiter]] = {}
        self._began: dict[Watched, float] = {}  # when the wait for the first of a queue began
        # The notification requested of each stream: its sequence number, and whether it will be
        # prompt. Kept without waiters too, because the notification will still arrive.
        self._asked: weakref.WeakKeyDictionary[Watched, tuple[int, bool]] = (
            weakref.WeakKeyDictionary()
        )
        self.last_waits = LastWaits()
        self._alarm = Alarm()
        self._waker: Waker | None = None
        # Ids of the task that called last, and of the one before; numbers, so that no task is kept.
        self._last = self._before = 0
        # For each task that polls for itself now, a mark of its own: ^C may come between a number's
        # change and the `try` that undoes it.
        self.spinning = set[object]()
        # Of `ops.task_factory`: what was made since the last turn of the loop.
        self.created: Any = None
        self._next: asyncio.Handle | None = None
        self._turning = False  # `_next` is the loop's next turn, not a timer
        self._has_slept = False  # since the last poll
        self._moved_at = 0.0
        self._polls_until = 0.0  # without another decision
        self._checked_at = 0.0
        self._turns = self._sleeps = self._wakeups = self._completed = 0

    # --- tasks that poll for themselves ---

    def others(self) -> int:
        """How many a turn of the loop would serve beside the running task, as far as is known here:
        the tasks that have called since it last did, 2 if it never has, and the polls of the loop.
        """
        task = id(asyncio.current_task())
        tasks = 0 if task == self._last else 1 if task == self._before else 2
        if tasks:
            self._before, self._last = self._last, task
        return tasks + self._turning

    def note_poll(self) -> None:
        """Count a poll that a task made for itself."""
        self._turns += 1

    def note_end(self, kind: Hashable, seconds: float) -> None:
        """Note the end of a task's own polls: how long its wait took."""
        self._completed += 1
        self.last_waits.note(kind, seconds)

    # --- waiting ---

    def wait(
        self, stream: Watched, sequence: int, kind: Hashable = "", began: float | None = None
    ) -> asyncio.Future[None]:
        """A future that is done when `stream` has passed `sequence`, or is broken. See `watch`."""
        future: asyncio.Future[None] = self._running_loop().create_future()
        self.watch(stream, sequence, future, future.set_result, kind, began)
        return future

    def watch(
        self, stream: Watched, sequence: int, future: asyncio.Future[Any],
        complete: Callable[[None], None], kind: Hashable = "", began: float | None = None,
    ) -> None:  # fmt: skip
        """Call `complete(None)`, unless `future` is done, when `stream` has passed `sequence`, or
        is broken.

        Args:
            kind: the kind of work, whose last waits foresee the end of this one; None: poll
                throughout.
            began: when the wait began, by `perf_counter`; None: now.
        """
        now = self._moved_at = time.perf_counter()
        self._polls_until = 0.0
        queue = self._queues.get(stream)
        if queue is None:
            queue = self._queues[stream] = []
            self._began[stream] = now if began is None else began
        waiter = sequence, future, complete, kind
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
                del self._queues[stream], self._began[stream]
        if not self._queues:
            self._cancel_next()

    def close(self) -> None:
        """Hand the waker on to the next loop; the caller has found this loop closed."""
        self._queues.clear()
        self._began.clear()
        self._asked.clear()
        self._next = None
        waker, self._waker = self._waker, None
        if waker is not None:
            Waker.hand_on(waker)
        self._alarm.close()

    def __del__(self) -> None:
        # The loop was collected before a later loop called `close`.
        if hasattr(self, "_waker"):
            self.close()

    @property
    def is_orphaned(self) -> bool:
        """Whether the reactor's loop is closed or collected."""
        loop = self._loop()
        return loop is None or loop.is_closed()

    def statistics(self) -> ReactorStatistics:
        waiting = len(self.spinning) + sum(len(q) for q in self._queues.values())
        return ReactorStatistics(waiting, self._turns, self._sleeps, self._wakeups, self._completed)

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
        self._alarm.stop()

    def _turn_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        self._cancel_next()
        self._turning = True
        self._next = loop.call_soon(self._turn)

    def _turn(self, is_notified: bool = False) -> None:
        """Poll every stream with waiters once; then schedule the next turn, or sleep.

        Args:
            is_notified: a notification has ended the sleep, not its time.
        """
        self._next = None
        self._turning = False
        self._turns += 1
        has_slept, self._has_slept = self._has_slept, False
        moved = self._settle(has_slept, has_slept and not is_notified)
        if not self._queues:
            return
        loop = self._running_loop()
        now = time.perf_counter()
        if moved:
            self._moved_at = now
        elif now < self._polls_until:
            self._turn_soon(loop)
            return
        seconds, is_timed, asked, far = self._plan(now)
        if not seconds and now - self._moved_at <= WATCHDOG_SECONDS:
            self._polls_until = now + PLANNED_S
            self._turn_soon(loop)
            return
        self._polls_until = 0.0
        # Without a timer, the notification alone ends the sleep: uvloop and asyncio sleep whole
        # milliseconds.
        if asked and not self._ask_for_wakeups(loop, asked):
            seconds = min(seconds, POLL_SECONDS)
        if far:
            self._ask_for_wakeups(loop, far)
        # While another thread computes, each driver call takes a switch interval. Work that has
        # completed meanwhile must not wait for a notification as well, so poll once more.
        asks_driver = asked or far or now - self._checked_at > WATCHDOG_SECONDS
        if (
            asks_driver and (self._settle() or self._has_reported(now) or self._settle())
        ) or not seconds:
            if self._queues:
                self._turn_soon(loop)
            return
        self._sleeps += 1
        self._has_slept = True
        if not is_timed or not self._alarm.start(loop, seconds, self._turn):
            self._next = loop.call_later(max(seconds, POLL_SECONDS), self._turn)

    def _plan(self, now: float) -> tuple[float, bool, list[Watched], list[Watched]]:
        """The seconds until the next poll, 0: in the loop's next turn; whether a timer ends them;
        the streams that are to notify the waker, and those that may do so earlier than the timer.
        """
        seconds, is_timed, asked, far = WATCHDOG_SECONDS, False, list[Watched](), list[Watched]()
        lateness = self._alarm.lateness
        for stream, queue in self._queues.items():
            spin, kind, elapsed = stream.spin_seconds, queue[0][3], now - self._began[stream]
            if spin == math.inf or (kind is None and spin):
                return 0.0, False, [], []
            if not spin or (not self._alarm.has_timers and elapsed >= spin):
                asked.append(stream)
                continue
            estimate = self.last_waits.get(kind, _UNKNOWN)
            wait = estimate.seconds_until_poll(elapsed, lateness.seconds, spin)
            if elapsed >= spin and (
                lateness.is_long or estimate.needs_notification(elapsed, lateness.seconds)
            ):
                asked.append(stream)
            elif elapsed >= spin and estimate.is_far(elapsed, lateness.seconds):
                far.append(stream)
            if wait < seconds:
                seconds, is_timed = wait, True
        return seconds, is_timed and seconds > 0, asked, far

    def _settle(self, has_slept: bool = False, by_timer: bool = False) -> bool:
        """Wake every waiter whose sequence number was passed; whether there was any.

        Args:
            has_slept: the loop was asleep until now.
            by_timer: the time of its timer ended the sleep, not a notification.
        """
        moved = False
        waiter: _Waiter | None
        for stream, queue in list(self._queues.items()):
            try:
                passed = stream.advance()
            except Exception as error:
                self._fail(stream, error)
                moved = True
                continue
            count, kind = 0, queue[0][3]
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
                self._note_end(stream, kind, has_slept, by_timer)
                if not queue:
                    del self._queues[stream], self._began[stream]
                    self._asked.pop(stream, None)
        return moved

    def _note_end(self, stream: Watched, kind: Hashable, has_slept: bool, by_timer: bool) -> None:
        """Note the end of the wait for the first of a queue, which begins the next one's."""
        if 0 < stream.spin_seconds < math.inf:
            now = time.perf_counter()
            if kind is not None:
                # Work that was done before the loop woke: it has to wake earlier the next time.
                sooner = max(self._alarm.lateness.seconds, LATENESS_S) if has_slept else 0.0
                self.last_waits.note(kind, now - self._began[stream], sooner, by_timer)
            self._began[stream] = now

    def _fail(self, stream: Watched, error: Exception) -> None:
        """Pass the `error` of polling `stream` to its awaiters, which would wait for ever."""
        self._began.pop(stream)
        for _, future, _, _ in self._queues.pop(stream):
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

    def _ask_for_wakeups(self, loop: asyncio.AbstractEventLoop, streams: list[Watched]) -> bool:
        """Request a notification of these streams for their first waiters; whether all are
        prompt.
        """
        if self._waker is None:
            waker = Waker.take()
            try:
                loop.add_reader(waker.fileno, self._on_wakeup)
            except NotImplementedError:  # Windows' proactor loop
                Waker.hand_on(waker)
                return False
            self._waker = waker
        for stream in streams:
            front = self._queues[stream][0][0]
            if self._asked.get(stream, (-1, False))[0] < front:
                try:
                    may_wake = stream.wake(front, self._waker)
                except Exception:  # the next poll, or driver query, raises the actual error
                    may_wake = False
                self._asked[stream] = (front, may_wake)
        return all(self._asked[stream][1] for stream in streams)

    def _on_wakeup(self) -> None:
        if self._waker is not None:
            self._waker.clear()
        self._wakeups += 1
        if self._queues and not self._turning:
            self._cancel_next()
            self._turn(is_notified=True)


_UNKNOWN = WaitEstimate()  # of work that was never waited for long

# The loop holds its reactor, in this attribute. The futures in a reactor hold the loop, so any
# other holder of the reactor would keep a dropped loop alive, with all that its tasks hold.
_ATTRIBUTE = "_numbasync_reactor"
_reactors: weakref.WeakSet[Reactor] = weakref.WeakSet()
_lock = threading.Lock()


def running_loops() -> list[asyncio.AbstractEventLoop]:
    """The event loops that run, on any thread, and have used a device."""
    with _lock:
        loops = [reactor._loop() for reactor in _reactors]
    return [loop for loop in loops if loop is not None and loop.is_running()]


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
