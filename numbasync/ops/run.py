"""Submission: one operation onto one stream, the ways to wait for it, and these ways as methods.

The blocking forms run an operation's prerequisites on the calling thread; the awaiting forms
leave prerequisites to `DeviceFuture`.
"""

from __future__ import annotations

import contextlib
from asyncio.events import _get_running_loop
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, TypeVar, cast

from numbasync.arguments import with_type
from numbasync.backend import array_protocols
from numbasync.device import reactor
from numbasync.device.callsite import CallSite, call_site
from numbasync.device.device import default_device
from numbasync.device.foreign_streams import stream_of
from numbasync.device.policies import SchedulingPolicy
from numbasync.device.storage import MemoryPool
from numbasync.device.stream import AnyStream, Stream
from numbasync.device.submission import Submission
from numbasync.errors import DeviceLostError, DriverError, OperationError
from numbasync.native import compiled
from numbasync.ops import first_use, submission_queue
from numbasync.ops.context import Context
from numbasync.ops.deferred_value import check_there, made
from numbasync.ops.enqueue import context_for, error_to_raise, limited_steps, run_steps, try_enqueue
from numbasync.ops.future import DeviceFuture
from numbasync.ops.home import Home, check_home
from numbasync.ops.protocols import Operation
from numbasync.ops.reentrancy import exclusive

T = TypeVar("T")


def _run(op: Operation[T], ctx: Context) -> T:
    """Enqueue all of `op`, with its prerequisites run on this thread."""
    try:
        return run_steps(limited_steps(op, ctx), ctx)
    except DeviceLostError as error:
        raise error_to_raise(error, ctx) from None
    finally:
        # No completion signal: the callers wait for the whole stream, or query later.
        ctx.close(signal=False)


# --- running and waiting ----------------------------------------------------------------


@compiled
def stream_for(op: Operation[Any], policy: SchedulingPolicy | AnyStream | None = None) -> Stream:
    """The stream that `op` names, else the policy's next stream; without a policy, that of the
    device of its tensors, or of the default device for an operation without tensors.

    Raises:
        OperationError: `policy` is no policy, or `op` names another stream than the caller.
    """
    named = op.stream
    if policy is None:
        return named or stream_at(op.home)
    scheduler: Any = policy if hasattr(policy, "next_stream") else stream_of(policy, None)
    if scheduler is None or isinstance(scheduler, type):
        raise OperationError(
            f"{describe(policy)} is no scheduling policy: a policy has next_stream(). A stream "
            "is one, and so is na.StreamPoolRoundRobin(device)."
        )
    if named is not None:
        return resolve_stream(op, named, scheduler if isinstance(scheduler, Stream) else None)
    chosen: Stream = scheduler.next_stream()
    return chosen


def stream_at(home: Home) -> Stream:
    """The next stream of the policy of a home, or the stream that it is."""
    if home is None:
        return default_device().policy.next_stream()
    if isinstance(home, Stream):
        return home
    check_home(home)
    stream = home.policy.next_stream()
    # A policy may give other devices' streams, to operations that may run anywhere.
    is_elsewhere = isinstance(stream, Stream) and stream.device is not home
    return home.new_stream() if is_elsewhere else stream


def stream_if_started(op: Operation[Any]) -> Stream | None:
    """`stream_for(op)`; None if its device has not been used before. The operation is asked once
    for its home: most awaits without the core pass here.
    """
    stream = op.stream
    if stream is None:
        home = op.home
        if first_use.is_started_at(home):
            stream = stream_at(home)
    return stream


def resolve_stream(op: Operation[Any], named: Stream | None, requested: Any) -> Stream:
    """The stream that `op` names in brackets, or the caller's.

    Raises:
        OperationError: the two differ, or `requested` is no stream.
    """
    if isinstance(requested, Stream) and named in (None, requested):
        return requested
    if requested is None and named is not None:
        return named
    requested = stream_of(requested, None) or requested
    if isinstance(requested, Stream) and named in (None, requested):
        return requested
    if not isinstance(requested, Stream):
        raise OperationError(f"{op} needs a na.Stream to run on, not {describe(requested)}.")
    raise OperationError(
        f"{op} names {named!r} in its brackets, but is run on {requested!r}.\n"
        "Leave one of the two out."
    )


@compiled
def consume_op(op: Any) -> Any:
    """`op`, consumed: the right to run it belongs to the caller.

    Raises:
        OperationError: `op` is no operation.
    """
    if not hasattr(op, "steps"):
        raise OperationError(f"{describe(op)} is no operation; only operations are submitted.")
    op.consume()
    return op


def async_on(op: Operation[T], stream: AnyStream | None) -> T:
    """Enqueue `op` and return its value; device data is valid in the order of `stream` only."""
    value = enqueue_on(op, stream)[1]
    check_there(value, "async_on")
    return value


def enqueue_on(
    op: Operation[T], stream: AnyStream | None, pool: MemoryPool | None = None
) -> tuple[Submission, T]:
    """`async_on` that also returns the submission. The stream reports the submission's error.

    Args:
        pool: the pool to allocate from; None: the device's.

    Examples:
        >>> from numbasync.extending import enqueue_on
        >>> stream = na.default_device().new_stream()
        >>> submission, z = enqueue_on(na.zeros(3), stream)
        >>> stream.synchronize()
        >>> submission.done, z.shape
        (True, (3,))
    """
    stream = resolve_stream(op, op.stream, stream)
    op.consume()
    exclusive.check()
    submission_queue.drain()
    submission = try_enqueue(op, stream, signal=False, pool=pool)
    if submission is not None:
        submission.detached = True
        return submission, op.result()
    return enqueue_by_steps(op, stream, pool, call_site(3))


@compiled
def enqueue_by_steps(
    op: Operation[T], stream: Stream, pool: MemoryPool | None, site: CallSite | None
) -> tuple[Submission, T]:
    """`enqueue_on` of an operation that is consumed, and has no fast path."""
    with exclusive.region():
        ctx = context_for(op, stream, pool, site)
        ctx.submission.detached = True
        return ctx.submission, _run(op, ctx)


def sync_on(op: Operation[T], stream: AnyStream) -> T:
    """Enqueue `op` and block until `stream` is done, also if enqueuing failed.

    An error of enqueuing takes precedence, then an error of synchronising, then an error of the
    work; the later errors become notes of the first.
    """
    stream = resolve_stream(op, op.stream, stream)
    op.consume()
    return _sync(op, stream)


@compiled
def _sync(op: Operation[T], stream: Stream) -> T:
    """`sync_on` of an operation that is consumed."""
    exclusive.check()
    submission_queue.drain()
    submission = try_enqueue(op, stream, signal=False)
    if submission is not None:
        try:
            stream.wait_until_idle()
        except Exception as error:
            _note_failure(error, submission)
            raise
        submission.raise_error()
        return op.result()
    return sync_by_steps(op, stream, call_site(3))


@compiled
def sync_by_steps(op: Operation[T], stream: Stream, site: CallSite | None) -> T:
    """`sync_on` of an operation that is consumed, and has no fast path."""
    with exclusive.region():
        ctx = context_for(op, stream, None, site)
        try:
            value = _run(op, ctx)
        except BaseException as error:
            try:
                stream.wait_until_idle()
            except Exception as second:
                error.add_note(f"Synchronising the stream failed as well: {second}")
            _note_failure(error, ctx.submission)
            raise
        try:
            stream.wait_until_idle()
        except Exception as error:
            _note_failure(error, ctx.submission)
            raise
    ctx.submission.raise_error()
    result: T = made(value)
    return result


@compiled
def _note_failure(error: BaseException, submission: Submission) -> None:
    """Add the work's own error as a note to `error`, which is raised to the caller."""
    with contextlib.suppress(DriverError, DeviceLostError):  # adds nothing to `error`
        submission.stream.poll()
    own = submission.error
    # A DeviceLostError was already reported by synchronising.
    if own is not None and own is not error and not isinstance(own, DeviceLostError):
        error.add_note(f"Its work failed as well: {type(own).__name__}: {own}")


def sync(op: Operation[T]) -> T:
    """`sync_on` a stream of the policy of the operation's home."""
    op.consume()
    return _sync(op, stream_for(op))


def schedule(op: Operation[T], policy: SchedulingPolicy | AnyStream) -> DeviceFuture[T]:
    """Choose stream and pool now; the first await starts the work."""
    return DeviceFuture(consume_op(op), stream_for(op, policy))


def spawn(op: Operation[T], policy: SchedulingPolicy | AnyStream | None = None) -> DeviceFuture[T]:
    """Start `op` now. Awaiting the future gives the value; the await is optional.

    An error of the operation is raised at the await; an error of the policy is raised here.

    Examples:
        >>> future = na.spawn(na.ones(3).to_host())  # runs from now on
        >>> await future
        array([1., 1., 1.], dtype=float32)
        >>> future.done()
        True
    """
    future = DeviceFuture(consume_op(op), stream_for(op, policy))
    future.start()
    return future


@compiled
def await_on_loop(op: Operation[T]) -> Generator[Any, None, T]:
    """The implementation of `await op`: run on a stream of the policy of its home."""
    op.consume()
    if _get_running_loop() is None:
        raise reactor.no_loop()
    stream = stream_if_started(op)
    if stream is None:
        yield from first_use.starting(op)
        stream = stream_for(op)
    submission = None
    try:
        if op.has_fast_path and submission_queue.is_empty():
            exclusive.check()
            submission = try_enqueue(op, stream, signal=False)  # `wait` adds a signal if needed
        if submission is None:
            return (yield from await_by_steps(op, stream))
        if submission.done:
            yield from reactor.need_not_wait()
        else:
            yield from stream.wait(submission.sequence, submission)
        submission.raise_error()
        stream.verify(submission.sequence)
        return op.result()
    finally:
        # The traceback of an error holds this frame, which must not hold these objects.
        del op, submission


@compiled
def await_by_steps(op: Operation[T], stream: Stream) -> Generator[Any, None, T]:
    """The rest of `await op` for an operation that is run step by step on `stream`."""
    return DeviceFuture(op, stream).__await__()


async def await_op(op: Awaitable[T]) -> T:
    """A coroutine that awaits `op`, for functions that take coroutines only."""
    return await op


def describe(value: object) -> str:
    """The description of a value in messages: its type, and the beginning of its `repr`; of another
    library's array, whose `repr` may wait for a GPU, its type alone.

    Examples:
        >>> from numbasync.extending import describe
        >>> describe(3), describe("x" * 200)[-5:]
        ('int (3)', '...)')
    """
    if array_protocols.is_foreign(value):
        return f"an array of {array_protocols.name_of(value)}"  # its `repr` may wait for a GPU
    return f"{with_type(value, 80)}"


class Runs:
    """The methods of an operation that run it: see the table of `DeviceOp`."""

    @property
    def home(self) -> Home:
        """Where the operation runs if nobody names a stream: the device of its tensors, on its
        policy's streams; of a graph, the graph's stream; None: on the default device.
        """
        return None

    def home_of_element(self, index: int) -> Home:
        """`home`, for one element of the tuple that the operation gives."""
        return self.home

    @compiled
    def __await__(self: Operation[T]) -> Generator[Any, None, T]:
        return await_on_loop(self)

    @compiled
    def sync(self: Operation[T]) -> T:
        """Run on a stream of the policy of `home`; block until the stream is done.

        Examples:
            >>> na.ones(3).to_host().sync()
            array([1., 1., 1.], dtype=float32)
        """
        return sync(self)

    @compiled
    def sync_on(self: Operation[T], stream: AnyStream) -> T:
        """Run on `stream` and block until the stream is done, also after an error.

        Examples:
            >>> stream = na.default_device().new_stream()
            >>> na.ones(3).to_host().sync_on(stream)
            array([1., 1., 1.], dtype=float32)
        """
        return sync_on(self, stream)

    @compiled
    def async_on(self: Operation[T], stream: AnyStream | None = None) -> T:
        """Enqueue on `stream` and return the value; device data is valid in stream order only.

        Args:
            stream: None for the one that the operation names, as `kernel[grid, block, stream]`
                does.

        Examples:
            >>> stream = na.default_device().new_stream()
            >>> z = na.zeros(3).async_on(stream)
            >>> _ = saxpy(z, 2.0, na.ones(3)).async_on(stream)  # behind it, on the same stream
            >>> z.to_host().sync_on(stream)
            array([2., 2., 2.], dtype=float32)
        """
        return async_on(self, stream)

    @compiled
    def schedule(self: Operation[T], policy: SchedulingPolicy | AnyStream) -> DeviceFuture[T]:
        """A future on the policy's next stream; the work starts at its first await.

        Examples:
            >>> future = na.ones(3).to_host().schedule(na.SingleStream(na.default_device()))
            >>> await future
            array([1., 1., 1.], dtype=float32)
        """
        return schedule(self, policy)

    def coroutine(self: Operation[T]) -> Coroutine[Any, Any, T]:
        """A coroutine that awaits the operation, for `create_task`, also of a task group, which
        takes nothing else. In `na.run`, no task is made of it: see `na.task_factory`.

        Examples:
            >>> async def main():
            ...     async with asyncio.TaskGroup() as group:
            ...         task = group.create_task(na.ones(3).to_host().coroutine())
            ...     return task.result()
            >>> na.run(main())
            array([1., 1., 1.], dtype=float32)
        """
        return await_op(cast("Awaitable[T]", self))
