"""The line: what one thread has begun to submit on its event loop and could not finish.

Order follows submission. While an operation is being prepared (its kernel compiled, say),
what the thread submits next stands in line behind it, and is enqueued when its turn comes.
Whoever blocks the thread finishes the line first. So does the end of the loop: what was
spawned is run, whether or not anything had to be compiled for it.
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
    """Something that stands in line.

    Attributes:
        lane: the limits that it is submitted under. Within a lane nobody passes anybody.
        place: its number in the line; later ones have higher numbers.
        behind: one before it that it must not pass, if it has met one.
    """

    place: int
    behind: Waiting | None

    @property
    def lane(self) -> Hashable: ...

    def may_pass(self, other: Waiting) -> bool:
        """Whether nobody can tell if it is enqueued before `other`, which waits for room."""
        ...

    def begin(self) -> Prerequisite | None:
        """Enqueue up to a preparation, or give the one that it stands at; None at the end."""
        ...

    def go_on(self, need: Prerequisite, error: BaseException | None) -> None:
        """`need` is done, or failed: enqueue up to the next one."""
        ...

    def give_up(self, spawned: bool) -> None:
        """Its loop has ended: withdraw it, if it is for tasks of that loop, or `spawned`."""
        ...


_place = operator.attrgetter("place")
_Job: TypeAlias = "asyncio.Future[BaseException | None]"

# All lines, of all threads, by their identity.
_lines: weakref.WeakValueDictionary[int, Line] = weakref.WeakValueDictionary()


class Line:
    """A line, and the task that works it off.

    Should the loop be closed under it, the thread that has prepared for the first in line
    submits everyone.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # Weakly: the thread keeps its line, and a loop keeps its tasks and what they hold.
        self._loop = weakref.ref(loop)
        self._waiting: OrderedDict[Waiting, Hashable] = OrderedDict()  # with their lanes
        self._lanes: dict[Hashable, OrderedDict[Waiting, None]] = {}
        # Of those who stand at a preparation: which, and when the loop has it.
        self._jobs: dict[Waiting, tuple[Prerequisite, _Job]] = {}
        self._places = itertools.count()
        self._lock = threading.RLock()
        self._thread = threading.current_thread()
        self._task: asyncio.Task[None] | None = None
        self._changed: asyncio.Future[None] | None = None  # what the task waits for, too
        self._submitter = 0  # the thread that runs one of them, whose closures may come back
        self._kept: list[object] = []
        _lines[id(self)] = self

    def add(self, waiting: Waiting) -> None:
        """Stand in line, at the end; and go at once, if nobody before has to go first."""
        waiting.place = next(self._places)
        lane = self._waiting[waiting] = waiting.lane
        self._lanes.setdefault(lane, OrderedDict())[waiting] = None
        # Now: a task that is cancelled at once never begins.
        if next(iter(self._lanes[lane])) is waiting and self._goes(waiting):
            return
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work_off())
            self._task.add_done_callback(self._worked_off)
        else:
            self._tell()

    def withdraw(self, waiting: Waiting) -> None:
        """It will not go: those behind need not wait for it. Any thread may call."""
        loop = self._loop()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            if self._thread is threading.current_thread():
                self._withdraw(waiting)
            elif loop is not None:  # whose thread may be going through the line
                loop.call_soon_threadsafe(self._withdraw, waiting)

    def _withdraw(self, waiting: Waiting) -> None:
        job = self._jobs.get(waiting)
        self._leave(waiting)
        if job is not None:
            job[1].cancel()
        self._tell()

    def _tell(self) -> None:
        """Have the task look who may go."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _worked_off(self, task: asyncio.Task[None]) -> None:
        if self._task is task:  # or another one has begun meanwhile, and prepares beside the loop
            self._task = None
            self.drain()

    async def passed(self) -> None:
        """Wait until everyone is submitted."""
        while self._waiting and not self.submits_here:
            task = self._task
            if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
                self.drain()
            else:
                await asyncio.wait([task])

    @property
    def submits_here(self) -> bool:
        """Whether this is a closure of the first one."""
        return self._submitter == threading.get_ident()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_orphaned(self) -> bool:
        """Whether its own thread will not work on it any more."""
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
        """Submit everyone now, preparing on this thread. Inside a closure of the first one,
        which comes before all others anyway, nothing. `at_end` of the loop ^C is for everyone.
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
                    need = self._submit(first.begin)
                    if need is None:
                        self._leave(first)
                    else:
                        _finish_unordered(self)
                        self._submit(partial(do, first, need))
                except BaseException as error:
                    stop = stop or error  # its own matter; the others are submitted all the same
        if stop is not None:
            raise stop

    def _submit(self, call: Callable[[], T]) -> T:
        self._submitter = threading.get_ident()
        try:
            return call()
        finally:
            self._submitter = 0

    def _leave(self, waiting: Waiting) -> None:
        self._jobs.pop(waiting, None)
        if waiting in self._waiting:
            key = self._waiting.pop(waiting)
            lane = self._lanes[key]
            del lane[waiting]
            if not lane:
                del self._lanes[key]
        waiting.behind = None
        if not self._waiting:
            self._kept.clear()

    def keep(self, thing: object) -> None:
        """Keep it until everyone is submitted who stands here now."""
        self._kept.append(thing)
        if not self._waiting:
            self._kept.clear()

    def _has_to_wait(self, waiting: Waiting) -> bool:
        """Whether it must not be enqueued before one of those who stand before it."""
        if any(
            other.place < waiting.place and not isinstance(need, Capacity)
            for other, (need, _) in self._jobs.items()
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
        """Submit the first of a lane up to its next preparation, if it may; whether it has left."""
        job = self._jobs.get(waiting)
        if job is not None:
            need, done = job
            if not done.done():
                return False
            error = None if done.cancelled() else done.result()
            self._jobs.pop(waiting, None)
            self._submit(partial(waiting.go_on, need, error))
        elif self._has_to_wait(waiting):
            return False
        following = self._submit(waiting.begin)
        if following is None:
            self._leave(waiting)
            return True
        self._jobs[waiting] = following, beside(following, self.drain)
        return False

    def _pass(self) -> None:
        """Submit all who may go: those who came first, first."""
        while True:
            firsts = sorted((next(iter(lane)) for lane in self._lanes.values()), key=_place)
            if not any(self._goes(first) for first in firsts):  # none has left
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
        except GeneratorExit:  # collected with its loop: a finaliser is no place to compile
            raise
        except asyncio.CancelledError:
            # The loop ends. It cancels those who wait as well, who then withdraw from here.
            for _ in range(3):
                await asyncio.sleep(0)
            self.drain(at_end=True)
            raise
        except BaseException:  # a closure ends it
            self.drain()
            raise
        finally:
            self._changed = None
            jobs.clear()  # a cancelled task keeps its frame


class _Thread(threading.local):
    line: Line | None = None
    # Those who stand in no line, each in one of its own.
    unordered: weakref.WeakSet[Line] | None = None


_thread = _Thread()


def current(loop: asyncio.AbstractEventLoop) -> Line:
    """This thread's line on `loop`, its running loop."""
    line = _thread.line
    if line is None or not line.is_of(loop):
        if line is not None:
            line.drain()
        line = _thread.line = Line(loop)
    return line


def unordered(loop: asyncio.AbstractEventLoop) -> Line:
    """A line of its own, for something that has no order with anything."""
    line = Line(loop)
    if _thread.unordered is None:
        _thread.unordered = weakref.WeakSet()
    _thread.unordered.add(line)
    return line


def _finish_unordered(but: Line) -> None:
    """Who blocks the thread may wait for one that was begun by it and stands in no line."""
    for line in list(_thread.unordered or ()):
        if line is not but and line:
            line.drain()


def is_empty() -> bool:
    """Whether nothing stands in line on this thread, or its first one is asking."""
    line = _thread.line
    return line is None or not line or line.submits_here


_tickets = itertools.count(1)
_ticket: ContextVar[float] = ContextVar("numbasync_ticket", default=math.inf)


def stamp() -> None:
    """Note in the current context when what runs in it was submitted."""
    _ticket.set(next(_tickets))


def _standing() -> list[Line]:
    """The lines, of all threads, in which anything stands."""
    return [found for ref in _lines.valuerefs() if (found := ref()) is not None and found]


def now(keep: object) -> int | None:
    """This moment, for `was_submitted_before`; None if nothing stands in line anywhere.

    Args:
        keep: kept for what stands in line, until that is submitted.
    """
    found = _standing()
    for each in found:
        each.keep(keep)
    return next(_tickets) if found else None


def was_submitted_before(moment: int) -> bool:
    """Whether what is enqueued now had been submitted, and stood in line, at that moment."""
    return _ticket.get() < moment


def is_submitting() -> bool:
    """Whether this is a closure of the first one in line."""
    line = _thread.line
    return line is not None and line.submits_here


def drain() -> None:
    """Submit what stands in line on this thread: something that blocks it comes next."""
    line = _thread.line
    if line:
        line.drain()


async def finished() -> None:
    """`drain`, while the loop turns."""
    line = _thread.line
    if line:
        await line.passed()


def drain_orphaned() -> None:
    """Submit what stands in lines whose own threads will not work on them any more."""
    for each in _standing():
        if each.is_orphaned:
            with unlocked():  # this thread may be enqueuing something that waits for it
                each.drain()


stream.before_mark = drain
stream.nothing_waits = is_empty
stream.line_is_finished = finished


def do(waiting: Waiting, need: Prerequisite) -> None:
    """Prepare on this thread, and go on."""
    try:
        error = attempt(need)
    except BaseException as stop:  # ^C
        waiting.go_on(need, stop)
        raise
    waiting.go_on(need, error)
