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
from typing import Any, TypeVar

from numbasync.arguments import with_type
from numbasync.device import reactor, tracing
from numbasync.device.callsite import CallSite, call_site
from numbasync.device.submission import Submission
from numbasync.device.wait_estimate import kind_of
from numbasync.errors import CallerError, DeviceLostError, DriverError, OperationError
from numbasync.ops.future import DeviceFuture, warn_if_it_fails
from numbasync.ops.gather import _Enqueued, _start
from numbasync.ops.run import Runs, await_op

T = TypeVar("T")


class OperationFuture(asyncio.Future[T]):
    """The future of an operation, in the place of a task that awaits it, with the same meaning: the
    operation is submitted at the loop's next turn, with the context variables of the creation;
    cancelled before that, it does not run. `asyncio.all_tasks` does not list it.
    """

    __slots__ = ("_op", "_started", "_task")  # which most futures need, without a dictionary
    _op: Any  # until the submission
    # From then on. The task waits, where that takes more than watching for the end of the work.
    _started: _Enqueued | DeviceFuture[T] | None
    _task: asyncio.Task[T] | None
    _message: Any = None  # of `cancel`
    _name = ""

    def submit(self, site: CallSite | None, has_signal: bool) -> Submission | None:
        """Submit the operation, unless the future is cancelled. Returns the work to wait for.

        Args:
            has_signal: enqueue a completion signal, for this work only.
        """
        op, self._op = self._op, None
        started: Any = None
        try:
            if op is None:
                return None
            is_enqueued = isinstance(op, DeviceFuture) and op.is_enqueued
            started = op if is_enqueued else _start(op, site)
            if type(started) is Submission:
                enqueued: Any = op
                started = _Enqueued(enqueued, started)
            self._started = started
            if isinstance(started, asyncio.Task):  # of the first operation of a device
                self._started, self._task = None, started
                self._task.add_done_callback(self._end_with)
                return None
            if type(started) is not _Enqueued and not started.is_enqueued:
                self._task = asyncio.Task(await_op(started), loop=self.get_loop())
                self._task.add_done_callback(self._end_with)
                return None
            submission: Submission | None = started.submission
            if has_signal and submission is not None:
                stream, number = submission.stream, submission.sequence
                if stream.advance() < number:
                    stream.ensure_signalled(number)
            if submission is not None and not submission.done:
                return submission
            self.complete()
        except BaseException as error:
            self._fail(error)
        finally:
            del self, op, started  # the traceback of an error holds the frames of all callers
        return None

    def complete(self, _: None = None) -> None:
        """End with the value, or the error, of work that the device has passed."""
        started, self._started = self._started, None
        try:
            if started is not None:
                recorder, submission = tracing.recorder, started.submission
                if recorder is not None and submission is not None:
                    recorder.awaited(submission, None)
                self.set_result(started.value())
        except BaseException as error:
            self._fail(error)
        finally:
            submission = None
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
        if isinstance(started, _Enqueued):
            warn_if_it_fails(started.submission)
        elif started is not None and task is not None:
            started.wait_no_more()
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


class _Call:
    """A call of the program that makes futures: many, if it is `asyncio.gather`. They share a copy
    of the context variables, and completion signals: one behind all of them on a stream is enough,
    since `gather` waits for all.
    """

    __slots__ = ("context", "depth", "frame", "futures", "is_gather", "site")

    def __init__(self, context: Context | None, depth: int, frame: FrameType | None) -> None:
        self.context = copy_context() if context is None else context
        self.futures: deque[OperationFuture[Any]] = deque()
        self.frame = frame  # of `asyncio.gather`, which was `depth` frames above; else None
        self.depth = depth
        self.is_gather = frame is not None
        self.site: CallSite | None = None

    def submit(self, works: deque[tuple[OperationFuture[Any], Submission]]) -> None:
        """Submit the operations, in order; append to `works` what is to be waited for."""
        self.frame = future = None
        futures, site, has_signal = self.futures, self.site, not self.is_gather
        try:
            while futures:
                future = futures.popleft()
                submission = future.submit(site, has_signal)
                if submission is not None:
                    works.append((future, submission))
        finally:
            del future, works


class _Created:
    """The futures that were made since the loop's last turn, and are submitted in the next one."""

    def __init__(self) -> None:
        self.calls: deque[_Call] = deque()
        self._works: deque[tuple[OperationFuture[Any], Submission]] = deque()

    def submit(self, watcher: reactor.Reactor) -> None:
        """Submit all operations, in order, and have `watcher` complete their futures."""
        watcher.created = None
        calls, works = self.calls, self._works
        try:
            while calls:
                calls[0].context.run(calls[0].submit, works)
                calls.popleft()
        except BaseException:  # ^C, which has ended one of them
            asyncio.get_running_loop().call_soon(self.submit, watcher)
            raise
        for stream in dict.fromkeys(submission.stream for _, submission in works):
            with contextlib.suppress(DriverError, DeviceLostError):  # the watcher raises them, too
                stream.poll()  # enqueues a signal, if the stream is not idle and has none
        while works:
            future, submission = works.popleft()
            if submission.done:
                future.complete()
            else:
                watcher.watch(
                    submission.stream,
                    submission.sequence,
                    future,
                    future.complete,
                    kind_of(submission),
                )
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
    return await_op.__code__


_OPERATIONS = (Runs, DeviceFuture)
_WRAPPER, _AWAITED = _code_of_wrapper(), await_op.__code__
_GATHER = asyncio.gather.__code__
# The modules between a program's line and the task factory.
_BETWEEN = frozenset({__name__, "asyncio.tasks", "asyncio.base_events", "asyncio.taskgroups"})


def task_factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
    """The task factory of `na.run`. Other loops get it by

        asyncio.get_running_loop().set_task_factory(na.task_factory)

    With it, `asyncio.gather(op)`, `asyncio.ensure_future(op)`, `create_task(op.coroutine())` and
    what else would make a task to await an operation, or a future of `spawn` or `schedule`, give a
    future of asyncio without a task. All else gives tasks.

    Examples:
        >>> async def main():
        ...     asyncio.get_running_loop().set_task_factory(na.task_factory)
        ...     op = na.ones(2).to_host()
        ...     return await asyncio.gather(op, na.value(1))
        >>> asyncio.run(main())
        [array([1., 1.], dtype=float32), 1]
    """
    # Python 3.11 wraps into a generator.
    is_generator = type(coro) is GeneratorType
    code = coro.gi_code if is_generator else getattr(coro, "cr_code", None)
    if (code is _AWAITED or code is _WRAPPER) and _get_running_loop() is loop:
        frame = coro.gi_frame if is_generator else coro.cr_frame
        op = None if frame is None else frame.f_locals[frame.f_code.co_varnames[0]]
        if isinstance(op, _OPERATIONS):
            coro.close()
            watcher = reactor.current()
            future: OperationFuture[Any] = OperationFuture(loop=loop)
            future._op, future._started, future._task = op, None, None
            call = watcher.created and watcher.created.calls[-1]
            if call and call.frame and call.frame is _frame_above(call.depth):
                call.futures.append(future)
            else:
                _note_call(future, watcher, **options)
            return future
    try:
        return asyncio.Task(coro, loop=loop, **options)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        if not asyncio.iscoroutine(coro):
            raise OperationError(
                f"task_factory takes a coroutine, not {with_type(coro)}: write op.coroutine()."
            ) from None
        if isinstance(loop, asyncio.AbstractEventLoop):
            raise
        raise CallerError(
            f"task_factory takes a loop, not {with_type(loop)}: write "
            "asyncio.get_running_loop().set_task_factory(na.task_factory)."
        ) from None


def eager_task_factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
    """`task_factory`, by which tasks start when they are created."""
    return task_factory(loop, coro, **{"eager_start": True, **options})


def _frame_above(depth: int) -> FrameType | None:
    """The frame so many frames above the caller."""
    try:
        return sys._getframe(depth + 1)
    except ValueError:  # the stack is shorter
        return None


def _note_call(
    future: OperationFuture[Any], watcher: reactor.Reactor, *, context: Context | None = None,
    name: str | None = None, eager_start: bool = False,
) -> None:  # fmt: skip
    """Have the loop's next turn submit the operation of `future`, which a new call makes."""
    if name is not None:
        future.set_name(name)
    above, frame = 1, sys._getframe(1)
    gather, depth = None, 0
    while frame.f_globals.get("__name__") in _BETWEEN and frame.f_back is not None:
        if frame.f_code is _GATHER:
            gather, depth = frame, above - 1  # above `task_factory`
        above, frame = above + 1, frame.f_back
    call = _Call(context, depth, gather)
    call.site = call_site(above)
    call.futures.append(future)
    if watcher.created is None:
        watcher.created = _Created()
        future.get_loop().call_soon(watcher.created.submit, watcher)
    watcher.created.calls.append(call)
