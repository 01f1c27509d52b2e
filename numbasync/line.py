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
import os
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Protocol, TypeVar

from numbasync import stream
from numbasync.backend.base import Preparation
from numbasync.exclusive import LOOK_AGAIN, Turn, unlocked
from numbasync.helpers import background
from numbasync.limits import Room
from numbasync.staging import Reading

T = TypeVar("T")

_workers: ThreadPoolExecutor | None = None


def _executor() -> ThreadPoolExecutor:
    """Threads that compile while event loops turn; made when first needed."""
    global _workers
    if _workers is None:
        _workers = ThreadPoolExecutor(4, thread_name_prefix="numbasync-prepare")
    return _workers


def _forget_workers() -> None:
    global _workers
    _workers = None


if hasattr(os, "register_at_fork"):  # a forked child has none of the threads
    os.register_at_fork(after_in_child=_forget_workers)


class Waiting(Protocol):
    """Something that stands in line."""

    def begin(self) -> Preparation | None:
        """Enqueue up to a preparation; that one, if it stands at one already; None at the
        end.
        """
        ...

    def go_on(self, need: Preparation, error: BaseException | None) -> None:
        """`need` is done, or failed: enqueue up to the next one."""
        ...


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
        self._waiting: deque[Waiting] = deque()
        self._lock = threading.RLock()
        self._thread = threading.current_thread()
        self._task: asyncio.Task[None] | None = None
        self._submitter = 0  # the thread that runs the first one, whose closures may come back
        self._kept: list[object] = []
        _lines[id(self)] = self

    def add(self, waiting: Waiting) -> None:
        """Stand in line, at the end."""
        self._waiting.append(waiting)
        if self._task is None or self._task.done():
            first = self._waiting[0]
            # Now: a task that is cancelled at once never begins.
            need = self._submit(first.begin)
            job = None if need is None else self._prepare(need)
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._work_off(need, job))
            self._task.add_done_callback(self._worked_off)

    def _worked_off(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._task = None
        self.finish()

    async def passed(self) -> None:
        """Wait until everyone is submitted."""
        while self._waiting and not self.submits_here:
            task = self._task
            if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
                self.finish()
            else:
                await asyncio.wait([task])

    @property
    def submits_here(self) -> bool:
        """Whether this is a closure of the first one."""
        return self._submitter == threading.get_ident()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_left_alone(self) -> bool:
        """Whether its own thread will not work on it any more."""
        loop = self._loop()
        return loop is None or loop.is_closed() or not self._thread.is_alive()

    def is_of(self, loop: asyncio.AbstractEventLoop) -> bool:
        return self._loop() is loop

    @property
    def may_be_finished_here(self) -> bool:
        return self._thread is threading.current_thread() or self.is_left_alone

    def finish(self) -> None:
        """Submit everyone now, preparing on this thread. Inside a closure of the first one,
        which comes before all others anyway, nothing.
        """
        if self.submits_here:
            return
        stop: BaseException | None = None
        with self._lock:
            while self._waiting:
                try:
                    first = self._waiting[0]
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

    def _leave(self, first: Waiting) -> None:
        if self._waiting and self._waiting[0] is first:
            self._waiting.popleft()
        if not self._waiting:
            self._kept.clear()

    def keep(self, thing: object) -> None:
        """Keep it until everyone is submitted who stands here now."""
        self._kept.append(thing)
        if not self._waiting:
            self._kept.clear()

    def _prepare(self, need: Preparation) -> asyncio.Future[BaseException | None]:
        """Do it on another thread; or, if another task or thread is at it, wait for that."""
        if isinstance(need, Turn):
            return settled(need)
        if isinstance(need, Room):
            return asyncio.ensure_future(told(need.wait()))
        loop = asyncio.get_running_loop()
        done: asyncio.Future[BaseException | None] = loop.create_future()

        def tell(error: BaseException | None) -> None:
            if not done.done():
                done.set_result(error)

        def prepared(job: Future[BaseException | None]) -> None:
            try:
                # An exception if the preparation was stopped, by no Exception.
                error = job.exception() or job.result()
                loop.call_soon_threadsafe(tell, error)
            except RuntimeError:  # the loop is closed
                self.finish()

        try:
            job = (
                background(partial(attempt, need.aside)) if isinstance(need, Reading)
                else _executor().submit(attempt, need)
            )  # fmt: skip
            job.add_done_callback(prepared)
        except RuntimeError:  # no thread can be started
            tell(attempt(need))
        return done

    async def _work_off(
        self, need: Preparation | None, job: asyncio.Future[BaseException | None] | None
    ) -> None:
        first: Waiting | None = None
        try:
            while self._waiting:
                first = self._waiting[0]
                if need is None:
                    self._leave(first)
                else:
                    error = await (job or self._prepare(need))
                    job = None
                    self._submit(partial(first.go_on, need, error))
                need = self._submit(self._waiting[0].begin) if self._waiting else None
        except GeneratorExit:  # collected with its loop: a finaliser is no place to compile
            raise
        except BaseException:  # the loop ends, or a closure ends it
            self.finish()
            raise
        finally:
            first = need = job = None  # a cancelled task keeps its frame


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
            line.finish()
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
            line.finish()


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


def finish() -> None:
    """Submit what stands in line on this thread: something that blocks it comes next."""
    line = _thread.line
    if line:
        line.finish()


async def finished() -> None:
    """`finish`, while the loop turns."""
    line = _thread.line
    if line:
        await line.passed()


def finish_left_alone() -> None:
    """Submit what stands in lines whose own threads will not work on them any more."""
    for each in _standing():
        if each.is_left_alone:
            with unlocked():  # this thread may be enqueuing something that waits for it
                each.finish()


stream.before_mark = finish
stream.nothing_waits = is_empty
stream.line_is_finished = finished


def attempt(need: Preparation) -> BaseException | None:
    """Do it; the error as a value, so that it can be thrown where the need arose."""
    try:
        need.run()
    except Exception as error:
        return error
    return None


async def told(need: Awaitable[None]) -> BaseException | None:
    """Await it; the error as a value."""
    try:
        await need
    except Exception as error:
        return error
    return None


def do(waiting: Waiting, need: Preparation) -> None:
    """Prepare on this thread, and go on."""
    try:
        error = attempt(need)
    except BaseException as stop:  # ^C
        waiting.go_on(need, stop)
        raise
    waiting.go_on(need, error)


def settled(turn: Turn) -> asyncio.Future[BaseException | None]:
    """A future of the running loop that is done when `turn` is settled."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[BaseException | None] = loop.create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    def call() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(wake)

    turn.when_settled(call)
    # Its line's loop may be closed, or its thread end, without a word: look again.
    loop.call_later(LOOK_AGAIN, wake)
    return future
