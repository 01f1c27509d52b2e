"""`gather`: every operation is started before any is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any, Literal, TypeVar, overload

from numbasync.device import reactor
from numbasync.device.callsite import CallSite, call_site
from numbasync.device.stream import Steps, Stream
from numbasync.device.submission import Submission
from numbasync.errors import OperationError
from numbasync.native import compiled, known
from numbasync.ops import first_use, submission_queue
from numbasync.ops.enqueue import try_enqueue
from numbasync.ops.future import DeviceFuture, warn_if_it_fails
from numbasync.ops.protocols import Operation
from numbasync.ops.reentrancy import exclusive
from numbasync.ops.run import describe, stream_for, stream_if_started

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")


# The result is a list. The first overloads say tuple, because only a tuple type can give each
# element its own type.
@overload
async def gather(a: Awaitable[A], /) -> tuple[A]: ...
@overload
async def gather(a: Awaitable[A], b: Awaitable[B], /) -> tuple[A, B]: ...
@overload
async def gather(a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], /) -> tuple[A, B, C]: ...
@overload
async def gather(
    a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], d: Awaitable[D], /
) -> tuple[A, B, C, D]: ...
@overload
async def gather(
    a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], d: Awaitable[D], e: Awaitable[E], /
) -> tuple[A, B, C, D, E]: ...
@overload
async def gather(
    a: Awaitable[A],
    b: Awaitable[B],
    c: Awaitable[C],
    d: Awaitable[D],
    e: Awaitable[E],
    f: Awaitable[F],
    /,
) -> tuple[A, B, C, D, E, F]: ...
@overload
async def gather(*ops: Awaitable[T], return_exceptions: Literal[False] = False) -> list[T]: ...
@overload
async def gather(
    *ops: Awaitable[T], return_exceptions: Literal[True]
) -> list[T | BaseException]: ...
@overload
async def gather(*ops: Awaitable[T], return_exceptions: bool) -> list[Any]: ...
async def gather(*ops: Any, return_exceptions: bool = False) -> Any:
    """Start every operation, then await them all.

    Args:
        ops: operations, futures of `spawn` or `schedule`, coroutines and other awaitables.
        return_exceptions: put an error in its value's place instead of raising it.

    Returns:
        The values, in order.

    Raises:
        The first error, after all operations have ended: an error of starting comes first, then
        errors of running, in the order of the arguments.

    Examples:
        >>> x, y = await na.gather(na.zeros(2), na.ones(3))
        >>> x.shape, y.shape
        ((2,), (3,))
        >>> bad = na.value(1).map(lambda n: n / 0)
        >>> await na.gather(na.value(1), bad, return_exceptions=True)
        [1, ZeroDivisionError('division by zero')]
    """
    started: list[Awaitable[Any] | Submission | BaseException] = []
    future: Any = None
    values: list[Any] = []
    failed: list[BaseException] = []
    site = call_site(1)
    for op in ops:
        try:
            started.append(_start(op, site))
        except Exception as error:
            started.append(error)
            failed.append(error)
    try:
        while len(values) < len(started):
            add_values(ops, started, values)
            if len(values) == len(started):
                break
            future = started[len(values)]
            try:
                if isinstance(future, BaseException):
                    values.append(future)
                elif isinstance(future, Submission):
                    values.append(await _Enqueued(ops[len(values)], future))
                else:
                    values.append(await future)
            except asyncio.CancelledError as error:
                if _is_cancelled(asyncio.current_task()):
                    raise
                values.append(error)
                failed.append(error)
            except Exception as error:
                values.append(error)
                failed.append(error)
        await Steps(reactor.need_not_wait())
    except BaseException:  # cancelled, closed or stopped: `gather` gives up its operations
        for future in started:
            if isinstance(future, asyncio.Future):
                future.cancel()
            elif isinstance(future, Submission):
                warn_if_it_fails(future)
            elif isinstance(future, DeviceFuture):
                future.wait_no_more()
        raise
    try:
        if failed and not return_exceptions:
            raise failed[0]
        return values
    finally:
        del started, values, failed, future  # the tracebacks of errors hold this frame


def _is_cancelled(task: asyncio.Task[Any] | None) -> bool:
    """Whether `task` itself was cancelled, not the awaitable that it waits for."""
    return task is not None and task.cancelling() > 0


@known
class _Enqueued:
    """The awaitable of an operation that was enqueued on its fast path."""

    __slots__ = ("op", "submission")

    def __init__(self, op: Operation[Any], submission: Submission) -> None:
        self.op = op
        self.submission = submission

    def __await__(self) -> Generator[Any, None, Any]:
        submission = self.submission
        try:
            if submission.done:
                yield from reactor.need_not_wait()
            else:
                # No completion signal of its own: one signal behind many operations is enough.
                yield from submission.stream.wait(submission.sequence, submission)
            return self.value()
        finally:
            del self, submission  # as in `awaiting`

    @compiled
    def value(self) -> Any:
        """The value of work that the device has passed; raises the error, if it failed."""
        submission = self.submission
        try:
            submission.raise_error()
            submission.stream.verify(submission.sequence)
            return self.op.result()
        finally:
            del self, submission


def _has_no_error(s: Submission) -> bool:
    """Whether work is done and verified free of errors, so that no wait is needed."""
    return s.done and s.error is None and s.sequence <= s.stream.verified


@compiled
def add_values(ops: tuple[Any, ...], started: list[Any], values: list[Any]) -> None:
    """Append the values of the operations that are done and verified, up to the first that is
    not.
    """
    for i in range(len(values), len(started)):
        if type(started[i]) is not Submission or not _has_no_error(started[i]):
            return
        values.append(ops[i].result())


@compiled
def _start(op: Any, site: CallSite | None) -> Awaitable[Any] | Submission:
    """An awaitable for `op`, whose work is started here; its submission, if it is enqueued on its
    fast path.
    """
    if isinstance(op, DeviceFuture):
        op.want(site)
        return op
    if hasattr(op, "steps"):
        op.consume()
        stream = stream_if_started(op)
        if stream is None:
            return asyncio.ensure_future(_once_started(op, site))
        if op.has_fast_path and submission_queue.is_empty():
            exclusive.check()
            submission = try_enqueue(op, stream, signal=False, site=site)
            if submission is not None:
                return submission
        return _wanted(op, stream, site)
    if isinstance(op, list | tuple):
        raise OperationError(
            f"gather takes operations, not a {type(op).__name__} of {len(op)}: write gather(*ops)."
        )
    if not isinstance(op, Awaitable):
        raise OperationError(
            f"gather takes operations and what can be awaited, not {describe(op)}."
        )
    future_of_awaitable: Awaitable[Any] = asyncio.ensure_future(op)
    return future_of_awaitable


async def _once_started(op: Operation[T], site: CallSite | None) -> T:
    """The value of an operation whose device has not been used before."""
    await Steps(first_use.starting(op))
    return await _wanted(op, stream_for(op), site)


@compiled
def _wanted(op: Operation[T], stream: Stream, site: CallSite | None = None) -> DeviceFuture[T]:
    """A future of `op`, started on `stream` for one waiter."""
    future = DeviceFuture(op, stream)
    future.want(site)
    return future
