"""Submission queues: the operations that one thread has started on its loop and not yet enqueued.

Device order follows submission order. While an operation waits for a prerequisite (such as the
compilation of its kernel), later operations of the same thread are queued behind it. A blocking
call drains the thread's queue first, and so does the end of the loop: spawned operations run.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import operator
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from numbasync.backend.protocols import Prerequisite
from numbasync.device import stream
from numbasync.ops.backpressure import Capacity
from numbasync.ops.prerequisites import attempt, beside
from numbasync.ops.reentrancy import unlocked

T = TypeVar("T")


class Waiting(Protocol):
    """An entry of a submission queue.

    Attributes:
        lane: the limits that the entry is submitted under. A lane is strictly first in, first out.
        place: the entry's number in the queue; later entries have higher numbers.
        behind: an earlier entry that this entry must not overtake, if one was found.
    """

    place: int
    behind: Waiting | None

    @property
    def lane(self) -> Hashable: ...

    def may_pass(self, other: Waiting) -> bool:
        """Whether overtaking `other`, which waits for capacity, changes no observable order."""
        ...

    def enqueue_until_prerequisite(self) -> Prerequisite | None:
        """Enqueue up to the next prerequisite; return it or the pending one, None at the end."""
        ...

    def resume(self, need: Prerequisite, error: BaseException | None) -> None:
        """Resume when `need` is done or has failed: enqueue up to the next prerequisite."""
        ...

    def give_up(self, spawned: bool) -> None:
        """Withdraw after the end of the loop, if only that loop's tasks wait, or if `spawned`."""
        ...


_place = operator.attrgetter("place")
_Job: TypeAlias = "asyncio.Future[BaseException | None]"

# All submission queues of all threads, by identity.
_lines: weakref.WeakValueDictionary[int, SubmissionQueue] = weakref.WeakValueDictionary()
queued: dict[int, None] = {}  # the identities of those that are not empty, for the core


class SubmissionQueue:
    """A submission queue, and the task that drains it.

    If the loop is closed while the queue is not empty, the thread that ran the first entry's
    prerequisite submits all entries.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # Weak: the thread holds its queue, and a loop holds its tasks and all that they hold.
        self._loop = weakref.ref(loop)
        self._waiting: OrderedDict[Waiting, Hashable] = OrderedDict()  # entry -> its lane
        self._lanes: dict[Hashable, OrderedDict[Waiting, None]] = {}
        # Entry -> its pending prerequisite, and the loop's future for that prerequisite.
        self._jobs: dict[Waiting, tuple[Prerequisite, _Job]] = {}
        self._places = itertools.count()
        self._lock = threading.RLock()
        self._thread = threading.current_thread()
        self._task: asyncio.Task[None] | None = None
        self._changed: asyncio.Future[None] | None = None  # set to make the task check again
        # Held by the thread running an entry; the entry's closures may re-enter.
        self._submitter = threading.RLock()
        self._keep_alive: list[object] = []
        _lines[id(self)] = self

    def add(self, waiting: Waiting) -> None:
        """Append an entry, and submit it immediately if no earlier entry must go first."""
        waiting.place = next(self._places)
        lane = self._waiting[waiting] = waiting.lane
        queued[id(self)] = None
        self._lanes.setdefault(lane, OrderedDict())[waiting] = None
        # Submit here, not in the task: a task that is cancelled at once never starts.
        if next(iter(self._lanes[lane])) is waiting and self._goes(waiting):
            return
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work_off())
            self._task.add_done_callback(self._worked_off)
        else:
            self._tell()

    def withdraw(self, waiting: Waiting) -> None:
        """Remove an entry, so that later entries do not wait for it. Any thread may call."""
        loop = self._loop()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            if self._thread is threading.current_thread():
                self._withdraw(waiting)
            elif loop is not None:  # the loop's thread may be iterating over the queue
                loop.call_soon_threadsafe(self._withdraw, waiting)

    def _withdraw(self, waiting: Waiting) -> None:
        job = self._jobs.get(waiting)
        self._leave(waiting)
        if job is not None:
            job[1].cancel()
        self._tell()

    def _tell(self) -> None:
        """Make the task check which entries may be submitted."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _worked_off(self, task: asyncio.Task[None]) -> None:
        if self._task is task:  # else a newer task is draining the queue
            self._task = None
            self.drain()

    async def passed(self) -> None:
        """Wait until all entries are submitted."""
        while self._waiting and not self.submits_here:
            task = self._task
            if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
                self.drain()
            else:
                await asyncio.wait([task])

    @property
    def submits_here(self) -> bool:
        """Whether the caller is a closure of the entry that is being submitted."""
        here: bool = self._submitter._is_owned()  # type: ignore[attr-defined]
        return here

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_orphaned(self) -> bool:
        """Whether the queue's own thread will never drain it: the loop or the thread has ended."""
        return self._is_closed or not self._thread.is_alive()

    @property
    def _is_closed(self) -> bool:
        loop = self._loop()
        return loop is None or loop.is_closed()

    def is_of(self, loop: asyncio.AbstractEventLoop) -> bool:
        return self._loop() is loop

    @property
    def may_be_finished_here(self) -> bool:
        return self._thread is threading.current_thread() or self.is_orphaned

    def drain(self, at_end: bool = False) -> None:
        """Submit all entries now, with prerequisites run on this thread. Inside a closure of the
        entry being submitted this does nothing. `at_end` of the loop, ^C withdraws all entries.
        """
        if self.submits_here:
            return
        stop: BaseException | None = None
        with self._lock:
            while self._waiting:
                try:
                    first = next(iter(self._waiting))
                    stops = at_end and isinstance(stop, KeyboardInterrupt)
                    if stops or self._is_closed:
                        first.give_up(stops)
                    prerequisite = self._submit(first.enqueue_until_prerequisite)
                    if prerequisite is None:
                        self._leave(first)
                    else:
                        _drain_unordered(self)
                        self._submit(partial(do, first, prerequisite))
                except BaseException as error:
                    stop = stop or error  # the other entries are submitted nevertheless
        if stop is not None:
            raise stop

    def _submit(self, call: Callable[[], T]) -> T:
        with self._submitter:
            return call()

    def _leave(self, waiting: Waiting) -> None:
        self._jobs.pop(waiting, None)
        key = self._waiting.get(waiting)
        lane = self._lanes.get(key)  # none, if ^C came while the entry was added, or left
        if lane is not None:
            lane.pop(waiting, None)
            if not lane:
                self._lanes.pop(key, None)
        self._waiting.pop(waiting, None)  # last: what is still in it is drained
        waiting.behind = None
        if not self._waiting:
            self._keep_alive.clear()
            queued.pop(id(self), None)
            if self._waiting:  # another thread adds an entry first, and then the queue
                queued[id(self)] = None

    def keep(self, thing: object) -> None:
        """Keep `thing` alive until all entries queued now are submitted."""
        self._keep_alive.append(thing)
        if not self._waiting:
            self._keep_alive.clear()

    def _has_to_wait(self, waiting: Waiting) -> bool:
        """Whether the entry must not be enqueued before one of the earlier entries."""
        if any(
            other.place < waiting.place and not isinstance(prerequisite, Capacity)
            for other, (prerequisite, _) in self._jobs.items()
        ):
            return True
        if waiting.behind is None or waiting.behind not in self._waiting:
            waiting.behind = None
            for other in self._waiting:
                if other is waiting:
                    break
                if not waiting.may_pass(other):
                    waiting.behind = other
                    break
        return waiting.behind is not None

    def _goes(self, waiting: Waiting) -> bool:
        """Submit a lane's first entry up to its next prerequisite, if allowed; whether it left."""
        job = self._jobs.get(waiting)
        if job is not None:
            prerequisite, future = job
            if not future.done():
                return False
            error = None if future.cancelled() else future.result()
            self._jobs.pop(waiting, None)
            self._submit(partial(waiting.resume, prerequisite, error))
        elif self._has_to_wait(waiting):
            return False
        next_prerequisite = self._submit(waiting.enqueue_until_prerequisite)
        if next_prerequisite is None:
            self._leave(waiting)
            return True
        self._jobs[waiting] = next_prerequisite, beside(next_prerequisite, self.drain)
        return False

    def _pass(self) -> None:
        """Submit all entries that may go, oldest first."""
        while True:
            firsts = sorted((next(iter(lane)) for lane in self._lanes.values()), key=_place)
            if not any(self._goes(first) for first in firsts):  # no entry has left
                return

    async def _work_off(self) -> None:
        loop, jobs = asyncio.get_running_loop(), list[asyncio.Future[Any]]()
        try:
            while self._waiting:
                self._pass()
                if self._waiting:
                    self._changed = loop.create_future()
                    jobs = [self._changed, *(job for _, job in self._jobs.values())]
                    await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
        except GeneratorExit:  # collected with its loop: a finaliser must not compile
            raise
        except asyncio.CancelledError:
            # The loop ends. It cancels the awaiting tasks too, which then withdraw their entries.
            for _ in range(3):
                await asyncio.sleep(0)
            self.drain(at_end=True)
            raise
        except BaseException:  # raised by a closure
            self.drain()
            raise
        finally:
            self._changed = None
            jobs.clear()  # a cancelled task keeps its frame, which would hold them


class _Thread(threading.local):
    line: SubmissionQueue | None = None
    # Queues of one entry each, for operations that have no order with others.
    unordered: weakref.WeakSet[SubmissionQueue] | None = None


_thread = _Thread()


def current(loop: asyncio.AbstractEventLoop) -> SubmissionQueue:
    """This thread's submission queue on `loop`, its running loop."""
    line = _thread.line
    if line is None or not line.is_of(loop):
        if line is not None:
            line.drain()
        line = _thread.line = SubmissionQueue(loop)
    return line


def unordered(loop: asyncio.AbstractEventLoop) -> SubmissionQueue:
    """A new queue for one operation that has no order with any other."""
    line = SubmissionQueue(loop)
    if _thread.unordered is None:
        _thread.unordered = weakref.WeakSet()
    _thread.unordered.add(line)
    return line


def _drain_unordered(but: SubmissionQueue) -> None:
    """Drain the thread's unordered queues: a blocking call may depend on one of their entries."""
    for line in [line for line in _thread.unordered or () if line is not but and line]:
        line.drain()


@stream.queue_is_empty.provide
def is_empty() -> bool:
    """Whether this thread's queue is empty, or the caller is a closure of its running entry."""
    line = _thread.line
    return line is None or not line or line.submits_here


_tickets = itertools.count(1)
_ticket: ContextVar[float] = ContextVar("numbasync_ticket", default=math.inf)


def stamp() -> None:
    """Record, in the current context, the submission time of the operation that runs in it."""
    _ticket.set(next(_tickets))


def _nonempty_queues() -> list[SubmissionQueue]:
    """The non-empty submission queues of all threads."""
    return [queue for ref in _lines.valuerefs() if (queue := ref()) is not None and queue]


def now(keep: object) -> int | None:
    """The current time stamp for `was_submitted_before`; None if all submission queues are empty.
    The object `keep` is kept alive until the operations queued now are submitted.
    """
    queues = _nonempty_queues()
    for queue in queues:
        queue.keep(keep)
    return next(_tickets) if queues else None


def was_submitted_before(moment: int) -> bool:
    """Whether the operation being enqueued had been submitted, and was queued, at `moment`."""
    return _ticket.get() < moment


def is_submitting() -> bool:
    """Whether the caller is a closure of an entry that this thread's queue is submitting."""
    line = _thread.line
    return line is not None and line.submits_here


@stream.before_signal.provide
def drain() -> None:
    """Submit all entries of this thread's queue. Call this before blocking the thread."""
    line = _thread.line
    if line:
        line.drain()


@stream.queue_is_drained.provide
async def finished() -> None:
    """Wait, while the loop turns, until this thread's queue is empty."""
    line = _thread.line
    if line:
        await line.passed()


def drain_orphaned() -> None:
    """Drain the queues whose own loop or thread has ended."""
    for queue in _nonempty_queues():
        if queue.is_orphaned:
            with unlocked():  # this thread may be enqueuing an operation that waits for the queue
                queue.drain()


def do(waiting: Waiting, need: Prerequisite) -> None:
    """Run the prerequisite `need` on this thread, then resume `waiting`."""
    try:
        error = attempt(need)
    except BaseException as stop:  # ^C
        waiting.resume(need, stop)
        raise
    waiting.resume(need, error)
