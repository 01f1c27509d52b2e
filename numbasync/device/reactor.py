"""Watches stream positions for one event loop: looks often, then sleeps until it is rung.

There is no CUDA and no device here, only the `Watched` protocol, so that the protocol can
be tested with a counter. While work is short the reactor looks once a loop turn; when
nothing has moved for the stream's spin budget it stops turning the loop and asks the
device to ring the loop's doorbell; what takes as long every time it looks for again when it is
due. An idle reactor schedules nothing.
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
from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

from numbasync.backend import protocols
from numbasync.device.loop_wakeup import Waker as Waker
from numbasync.device.wait_estimate import LatencyEstimate
from numbasync.errors import InternalError, StateError

# uvloop and asyncio both sleep whole milliseconds at least; finer timers return at once.
POLL_SECONDS = 0.001
# A fault stops the stream before it can ring: while asleep, ask the driver this often.
WATCHDOG_SECONDS = 0.1
PATIENCE = 16  # awaits that need not wait before the loop turns

_prompt = itertools.count(1)


def need_not_wait() -> Generator[None, None, None]:
    """For an await whose work is done. Of so many, one lets the loop turn: a task that awaits one
    short operation after the other must not keep the others from running.
    """
    if next(_prompt) % PATIENCE == 0:
        yield


class Watched(Protocol):
    """A stream, as the reactor sees it."""

    @property
    def spin_seconds(self) -> float: ...

    def advance(self) -> int:
        """Settle what the stream has passed; the latest sequence number that it passed."""
        ...

    def wake(self, sequence: int, waker: protocols.Waker) -> bool:
        """Ring once past `sequence`. False if the ring may come late or never."""
        ...

    def query_device(self) -> bool:
        """Ask the device whether the stream is broken; if so settle everything on it."""
        ...


@dataclass(frozen=True, slots=True)
class ReactorStatistics:
    """What one loop's reactor has done so far."""

    waiting: int
    turns: int
    sleeps: int
    rings: int
    completed: int


# One future, and before it the position that it waits for.
_Waiter = tuple[int, "asyncio.Future[None]"]
_position = operator.itemgetter(0)


class Reactor:
    """The watcher of one event loop. All its methods run on that loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        # Each queue is sorted by sequence number: one look at the front settles a prefix.
        self._queues: dict[Watched, list[_Waiter]] = {}
        # What was asked of each stream's bell: up to which number, and whether it is prompt.
        # Kept while nobody waits: the bell will still ring.
        self._asked: weakref.WeakKeyDictionary[Watched, tuple[int, bool]] = (
            weakref.WeakKeyDictionary()
        )
        # When they are expected, where that pays.
        self._forecasts: weakref.WeakKeyDictionary[Watched, LatencyEstimate] = (
            weakref.WeakKeyDictionary()
        )
        self._bell: Waker | None = None
        self._last = 0  # which task asked last; a number only, so that no task is kept
        self._next: asyncio.Handle | None = None
        self._turning = False  # `_next` is the loop's next turn, not a timer
        self._moved_at = 0.0
        self._checked_at = 0.0
        self._turns = self._sleeps = self._rings = self._completed = 0

    def is_awaited_by_one(self) -> bool:
        """Whether the running task is the one that asked last, and nothing is watched: as far as is
        known here, letting the loop turn would serve nobody else.
        """
        before, self._last = self._last, id(asyncio.current_task())
        return before == self._last and not self._queues

    def wait(self, stream: Watched, sequence: int) -> asyncio.Future[None]:
        """A future that is done when `stream` has passed `sequence`, or is broken."""
        loop = self._running_loop()
        future: asyncio.Future[None] = loop.create_future()
        now = self._moved_at = time.perf_counter()
        queue = self._queues.get(stream)
        if queue is None:
            queue = self._queues[stream] = []
            if 0 < stream.spin_seconds < math.inf:  # else to look is of no use, or all there is
                self._forecasts.setdefault(stream, LatencyEstimate()).begin(now)
        waiter = sequence, future
        if not queue or queue[-1][0] <= sequence:
            queue.append(waiter)
        else:
            insort(queue, waiter, key=_position)
            if queue[0] is waiter:
                self._asked.pop(stream, None)  # the bell was asked for a later one
        if not self._turning:
            self._turn_soon(loop)
        return future

    def look(self) -> None:
        """Look now, whatever the reactor was waiting for."""
        if self._queues and not self._turning:
            self._turn_soon(self._running_loop())

    def forget(self, stream: Watched, future: asyncio.Future[None]) -> None:
        """Stop watching for a future whose awaiter has gone."""
        queue = self._queues.get(stream)
        if queue is not None:
            queue[:] = [w for w in queue if w[1] is not future]
            if not queue:
                del self._queues[stream]
        if not self._queues:
            self._cancel_next()

    def close(self) -> None:
        """Give the doorbell to the next loop; this one is closed."""
        self._queues.clear()
        self._asked.clear()
        self._next = None
        bell, self._bell = self._bell, None
        if bell is not None:
            Waker.hand_on(bell)

    def __del__(self) -> None:
        # The loop went away before another one could clear up after it.
        bell = getattr(self, "_bell", None)
        if bell is not None:
            Waker.hand_on(bell)

    @property
    def is_orphaned(self) -> bool:
        """Whether its loop is closed, or gone."""
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
        """Look at every stream with waiters once; then turn again, or sleep."""
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
        # Beside a thread that computes, each call of the driver takes a switch interval: what has
        # come meanwhile need not wait for the ring as well.
        if self._settle() or self._has_reported(now) or self._settle() or looks_on:
            if self._queues:
                self._turn_soon(loop)
            return
        self._sleeps += 1
        seconds = min(due - now, WATCHDOG_SECONDS) if rings else POLL_SECONDS
        self._next = loop.call_later(seconds, self._turn)

    def _patience(self, stream: Watched) -> float:
        """How long to look for it before sleeping."""
        forecast = self._forecasts.get(stream)
        patience = stream.spin_seconds
        return patience if forecast is None else max(patience, forecast.patience())

    def _due(self, now: float) -> tuple[float, bool]:
        """When the next of the streams is to be looked at, as they went before; whether one is to
        be looked at now. A bell that wakes a processor from its sleep takes half a millisecond.
        """
        due, is_near = math.inf, False
        for stream in self._queues:
            forecast = self._forecasts.get(stream)
            if forecast is not None:
                begin = forecast.begin_looking()
                is_near |= begin <= now < begin + forecast.WINDOW_S
                if begin > now:
                    due = min(due, begin)
        return due, is_near

    def _settle(self) -> bool:
        """Wake every waiter whose position has been passed; whether there was one."""
        moved = False
        for stream, queue in list(self._queues.items()):
            try:
                passed = stream.advance()
            except Exception as error:
                self._fail(stream, error)
                moved = True
                continue
            count = 0
            for sequence, future in queue:
                if sequence > passed:
                    break
                count += 1
                if not future.done():
                    future.set_result(None)
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
        """Looking at `stream` raised: rather than wait for ever, its awaiters get that."""
        for _, future in self._queues.pop(stream):
            if not future.done():
                future.set_exception(error)
        self._asked.pop(stream, None)

    def _has_reported(self, now: float) -> bool:
        """Ask every stream, now and then, whether it will pass nothing by itself any more;
        whether one has said so, and settled what is on it.
        """
        if now - self._checked_at <= WATCHDOG_SECONDS:
            return False
        self._checked_at = now
        told = False
        for stream in list(self._queues):  # all are asked
            try:
                told |= stream.query_device()
            except Exception as error:
                self._fail(stream, error)
                told = True
        return told

    def _ask_for_rings(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Ask every stream to ring when it passes its front; whether all will be prompt."""
        if self._bell is None:
            bell = Waker.take()
            try:
                loop.add_reader(bell.fileno, self._on_wakeup)
            except NotImplementedError:  # Windows' proactor loop
                Waker.hand_on(bell)
                return False
            self._bell = bell
        for stream, queue in self._queues.items():
            front = queue[0][0]
            if self._asked.get(stream, (-1, False))[0] < front:
                try:
                    rings = stream.wake(front, self._bell)
                except Exception:  # the next look, or the next question, tells what it is
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


# The loop holds its reactor, in this attribute: what waits in a reactor holds the loop, so
# held by anyone else it would keep a loop that was dropped, and all that its tasks hold.
_ATTRIBUTE = "_numbasync_reactor"
_reactors: weakref.WeakSet[Reactor] = weakref.WeakSet()
_lock = threading.Lock()


def current() -> Reactor:
    """The running loop's reactor; made on first use.

    Raises:
        StateError: no loop of asyncio's kind runs on this thread.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise no_loop() from None
    reactor: Reactor | None = getattr(loop, _ATTRIBUTE, None)
    return _make(loop) if reactor is None else reactor


def no_loop() -> StateError:
    """What says that operations are awaited from asyncio only."""
    return StateError(
        "operations are awaited on event loops of asyncio (its own, or uvloop), and none runs on "
        "this thread.\nWrite na.run(main()), or op.sync() to block the thread. Under trio:\n\n"
        "    value = await trio.to_thread.run_sync(op.sync)"
    )


def _make(loop: asyncio.AbstractEventLoop) -> Reactor:
    with _lock:
        # A loop that was closed under its waiters may be held by somebody: the next loop
        # clears up after it.
        for old in [old for old in _reactors if old.is_orphaned]:
            _reactors.discard(old)
            old.close()
        reactor = Reactor(loop)
        _reactors.add(reactor)
        setattr(loop, _ATTRIBUTE, reactor)
        return reactor
