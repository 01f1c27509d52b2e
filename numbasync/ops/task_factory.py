"""Futures of asyncio for operations, without a task: the task factory that makes them.

asyncio's functions make a task of whatever is no future: `asyncio.gather(op)` wraps the operation
into a coroutine, and has the loop make a task of it. The loop leaves that to its task factory.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio import tasks
from asyncio.events import _get_running_loop
from collections import deque
from contextvars import Context, copy_context
from types import CodeType, FrameType, GeneratorType
from typing import Any, NamedTuple, TypeVar

from numbasync.device import reactor
from numbasync.device.callsite import CallSite, call_site
from numbasync.device.submission import Submission
from numbasync.errors import DeviceLostError, DriverError
from numbasync.ops.future import DeviceFuture, warn_if_it_fails
from numbasync.ops.gather import _Enqueued, _start
from numbasync.ops.run import awaited
from numbasync.ops.running import Runs

T = TypeVar("T")


class _Call(NamedTuple):
    """The call that made a future: its line, and whether it was `asyncio.gather`."""

    site: CallSite | None
    is_gather: bool


class OperationFuture(asyncio.Future[T]):
    """The future of an operation, in the place of a task that awaits it, with the same meaning: the
    operation is submitted at the loop's next turn, with the context variables of the creation;
    cancelled before that, it does not run. `asyncio.all_tasks` does not list it.

    Futures made by `asyncio.gather` have no completion signals of their own: one behind all of them
    on a stream is enough, since `gather` waits for all.
    """

    # Until the submission.
    _op: Any = None
    _context: Context | None = None
    _call: _Call
    # From then on. The task waits, where that takes more than watching for the end of the work.
    _started: _Enqueued | DeviceFuture[T] | None = None
    _task: asyncio.Task[T] | None = None
    _message: Any = None  # of `cancel`
    _name = ""

    def start(self) -> Submission | None:
        """Submit the operation, unless the future is cancelled; the work to wait for, if any."""
        context, self._context = self._context, None
        try:
            return None if context is None or self.done() else context.run(self._submit)
        finally:
            del self  # the traceback of an error holds the frames of all callers

    def _submit(self) -> Submission | None:
        op, self._op = self._op, None
        started: Any = None
        submission: Submission | None
        try:
            self._started = started = _start(op, self._call.site)  # type: ignore[assignment]
            if type(started) is not _Enqueued and not started.is_enqueued:
                self._task = asyncio.Task(awaited(started), loop=self.get_loop())
                self._task.add_done_callback(self._end_with)
                return None
            submission = started.submission
            if submission is not None and not self._call.is_gather:
                stream, number = submission.stream, submission.sequence
                if stream.advance() < number:
                    stream.ensure_signalled(number)
            if submission is None or submission.done:
                self.complete()
                return None
            return submission
        except BaseException as error:
            self._fail(error)
            return None
        finally:
            del self, op, started

    def complete(self, _: None = None) -> None:
        """End with the value, or the error, of work that the device has passed."""
        started, self._started = self._started, None
        try:
            if started is not None:
                self.set_result(started.value())
        except BaseException as error:
            self._fail(error)
        finally:
            del self, started

    def _fail(self, error: BaseException) -> None:
        """End with `error`, as a task does whose coroutine raises it."""
        self._started = None
        if isinstance(error, asyncio.CancelledError):
            super().cancel(*error.args[:1])
        elif isinstance(error, StopIteration):
            wrapped = RuntimeError("an operation raised StopIteration")
            wrapped.__cause__ = error
            self.set_exception(wrapped)
        else:
            self.set_exception(error)
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise error

    def _end_with(self, task: asyncio.Task[T]) -> None:
        self._task = self._started = None
        if task.cancelled():
            super().cancel(self._message)
        elif (error := task.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(task.result())

    # --- what a task has ---

    def cancel(self, msg: Any | None = None) -> bool:
        """Withdraw what is not enqueued. Enqueued work runs to its end, and keeps its memory."""
        task, op = self._task, self._op
        if self.done() or (task is not None and not task.cancel(msg)):
            return False
        started, self._op, self._started, self._message = self._started, None, None, msg
        if isinstance(started, DeviceFuture):
            started.wait_no_more()
        elif started is not None:
            warn_if_it_fails(started.submission)
        elif isinstance(op, DeviceFuture):
            op.never_awaited()
        elif op is not None:
            op.suppress_warning()
        if task is not None:
            return True  # the future ends when the task has ended
        if started is not None and started.submission is not None:
            reactor.current().forget(started.submission.stream, self)
        return super().cancel(msg)

    def get_name(self) -> str:
        """The name that `create_task` was called with."""
        return self._name

    def set_name(self, value: object) -> None:
        self._name = str(value)


class _Created:
    """The futures that were made since the loop's last turn, and are submitted in the next one."""

    def __init__(self) -> None:
        self.futures: deque[OperationFuture[Any]] = deque()
        self._works: deque[tuple[OperationFuture[Any], Submission]] = deque()
        # Of the latest `asyncio.gather`: its frame, how far that was up, and its `_Call`.
        self.latest: tuple[FrameType, int, _Call] | None = None

    def submit(self, watcher: reactor.Reactor) -> None:
        """Submit all operations, in order, and have `watcher` complete their futures."""
        self.latest = watcher.created = future = None
        futures, works = self.futures, self._works
        try:
            while futures:
                future = futures.popleft()
                submission = future.start()
                if submission is not None:
                    works.append((future, submission))
        except BaseException:  # ^C, which has ended one of them
            asyncio.get_running_loop().call_soon(self.submit, watcher)
            raise
        finally:
            future = None
        for stream in dict.fromkeys(submission.stream for _, submission in works):
            with contextlib.suppress(DriverError, DeviceLostError):  # the watcher raises them, too
                stream.poll()  # enqueues a signal, if the stream is not idle and has none
        while works:
            future, submission = works.popleft()
            if submission.done:
                future.complete()
            else:
                watcher.watch(submission.stream, submission.sequence, future, future.complete)
        del future


# --- the task factory ---


def _code_of_wrapper() -> CodeType:
    """The code of the coroutine into which `asyncio.ensure_future` wraps what is none; a version of
    Python has it in `asyncio.tasks` or inside the function. Where it is in neither, the code of
    `awaited`, so that asyncio's coroutines are not recognised, and tasks are made of them.
    """
    for place in (*vars(tasks).values(), *asyncio.ensure_future.__code__.co_consts):
        code = getattr(place, "__code__", place)
        if isinstance(code, CodeType) and code.co_name == "_wrap_awaitable":
            return code
    return awaited.__code__


_WRAPPER, _AWAITED = _code_of_wrapper(), awaited.__code__
_GATHER = asyncio.gather.__code__
# The modules between a program's line and the task factory.
_BETWEEN = frozenset({__name__, "asyncio.tasks", "asyncio.base_events", "asyncio.taskgroups"})


def task_factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
    """The task factory of `na.run`. Other loops get it by

        asyncio.get_running_loop().set_task_factory(na.task_factory)

    With it, `asyncio.gather(op)`, `asyncio.ensure_future(op)`, `create_task(op.coroutine())` and
    what else would make a task to await an operation, or a future of `spawn` or `schedule`, give a
    future of asyncio without a task. All else gives tasks.
    """
    # Python 3.11 wraps into a generator.
    is_generator = type(coro) is GeneratorType
    code = coro.gi_code if is_generator else getattr(coro, "cr_code", None)
    if (code is _AWAITED or code is _WRAPPER) and _get_running_loop() is loop:
        frame = coro.gi_frame if is_generator else coro.cr_frame
        op = None if frame is None else frame.f_locals[frame.f_code.co_varnames[0]]
        if isinstance(op, Runs | DeviceFuture):
            coro.close()
            return _future_of(op, loop, **options)
    return asyncio.Task(coro, loop=loop, **options)


def eager_task_factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
    """`task_factory`, by which tasks start when they are created."""
    return task_factory(loop, coro, **{"eager_start": True, **options})


def _future_of(
    op: Any, loop: asyncio.AbstractEventLoop, context: Context | None = None, name: str = "",
    eager_start: bool = False,
) -> OperationFuture[Any]:  # fmt: skip
    """A future of `op`, which begins in the next turn of the loop."""
    future = OperationFuture[Any](loop=loop)
    future._op = op
    future._context = copy_context() if context is None else context
    if name:
        future._name = name
    watcher = reactor.current()
    created = watcher.created
    if created is None:
        created = watcher.created = _Created()
        loop.call_soon(created.submit, watcher)
    latest = created.latest
    if latest is not None and sys._getframe(latest[1]) is latest[0]:
        future._call = latest[2]
    else:
        future._call = _call(created)
    created.futures.append(future)
    return future


def _call(created: _Created) -> _Call:
    """The call that makes a future now, through the task factory."""
    above, frame, gather = 1, sys._getframe(1), None
    while frame.f_globals.get("__name__") in _BETWEEN and frame.f_back is not None:
        if frame.f_code is _GATHER:
            gather = frame, above - 1
        above, frame = above + 1, frame.f_back
    call = _Call(call_site(above), gather is not None)
    if gather is not None:
        created.latest = (*gather, call)
    return call
