"""The line: what one thread has begun to submit on its event loop and could not finish.

Order follows submission. While an operation is being prepared (its kernel compiled, say),
what the thread submits next stands in line behind it, and is enqueued when its turn comes.
Whoever blocks the thread finishes the line first. So does the end of the loop: what was
spawned is run, whether or not anything had to be compiled for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from numbasync.backend.base import Preparation
from numbasync.context import Turn

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


class Line:
    """A line, and the task that works it off."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[Waiting] = deque()
        self._lock = threading.RLock()
        self._thread = threading.get_ident()
        self._task: asyncio.Task[None] | None = None

    def add(self, waiting: Waiting) -> None:
        """Stand in line, at the end."""
        self._waiting.append(waiting)
        if self._task is None or self._task.done():
            self._task = self.loop.create_task(self._work_off())

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def may_be_finished_here(self) -> bool:
        """Whether its thread is the running one, or does not work on it any more."""
        return self._thread == threading.get_ident() or self.loop.is_closed()

    def finish(self) -> None:
        """Submit everyone now, preparing on this thread."""
        with self._lock:
            while self._waiting:
                first = self._waiting[0]
                need = first.begin()
                if need is None:
                    self._leave(first)
                else:
                    first.go_on(need, attempt(need))

    def _leave(self, first: Waiting) -> None:
        if self._waiting and self._waiting[0] is first:
            self._waiting.popleft()

    async def _work_off(self) -> None:
        first: Waiting | None
        need: Preparation | None
        try:
            while self._waiting:
                first = self._waiting[0]
                need = first.begin()
                if need is None:
                    self._leave(first)
                else:
                    error = await prepared(need)
                    first.go_on(need, error)
        except asyncio.CancelledError:  # the loop ends
            self.finish()
            raise
        finally:
            first = need = None  # a cancelled task keeps its frame


class _Thread(threading.local):
    line: Line | None = None


_thread = _Thread()


def current(loop: asyncio.AbstractEventLoop) -> Line:
    """This thread's line on `loop`, its running loop."""
    line = _thread.line
    if line is None or line.loop is not loop:
        if line is not None:
            line.finish()
        line = _thread.line = Line(loop)
    return line


def is_empty() -> bool:
    """Whether nothing stands in line on this thread."""
    line = _thread.line
    return line is None or not line


def finish() -> None:
    """Submit what stands in line on this thread: something that blocks it comes next."""
    line = _thread.line
    if line:
        line.finish()


def attempt(need: Preparation) -> BaseException | None:
    """Do it; the error as a value, so that it can be thrown where the need arose."""
    try:
        need.run()
    except Exception as error:
        return error
    return None


async def prepared(need: Preparation) -> BaseException | None:
    """`attempt` on another thread; or, if another task or thread is at it, wait for that."""
    if not isinstance(need, Turn):
        return await asyncio.get_running_loop().run_in_executor(_executor(), attempt, need)
    await settled(need)
    return None


def settled(turn: Turn) -> asyncio.Future[None]:
    """A future of the running loop that is done when `turn` is settled."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    def call() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(wake)

    turn.when_settled(call)
    return future
