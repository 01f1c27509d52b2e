"""Submission: one operation onto one stream, and the ways to wait for it.

The blocking forms do what an operation needs first on the spot; the awaiting forms leave it
to `DeviceFuture`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from numbasync.context import Context, Submittable, context_for, exclusive
from numbasync.device import default_device
from numbasync.future import DeviceFuture
from numbasync.scheduling import SchedulingPolicy
from numbasync.stream import Stream

T = TypeVar("T")


def _run(op: Submittable[T], ctx: Context) -> T:
    """Enqueue all of `op`, preparing what it needs on this thread."""
    steps = op.steps(ctx)
    try:
        need = next(steps)
        while True:
            try:
                need.run()
            except BaseException as error:
                need = steps.throw(error)
            else:
                need = next(steps)
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        ctx.close()


# --- running and waiting ----------------------------------------------------------------


def stream_for(op: Submittable[Any], policy: SchedulingPolicy | None = None) -> Stream:
    """The stream that `op` asks for, else the policy's next one."""
    if op.stream is not None:
        return op.stream
    return (policy or default_device().policy).next_stream()


def async_on(op: Submittable[T], stream: Stream) -> T:
    """Enqueue `op`; its value, whose device data is valid in the order of `stream`."""
    op.claim()
    with exclusive:
        return _run(op, context_for(op, stream, None))


def sync_on(op: Submittable[T], stream: Stream) -> T:
    """Enqueue `op` and block until `stream` is done, also if enqueuing failed.

    An error of enqueuing comes first; one of synchronising is then its note.
    """
    op.claim()
    return _sync(op, stream)


def _sync(op: Submittable[T], stream: Stream) -> T:
    with exclusive:
        ctx = context_for(op, stream, None)
        try:
            value = _run(op, ctx)
        except BaseException as error:
            try:
                stream.synchronize()
            except Exception as second:
                error.add_note(f"Synchronising the stream failed as well: {second}")
            raise
        stream.synchronize()
    if ctx.submission.error is not None:
        raise ctx.submission.error
    return value


def sync(op: Submittable[T]) -> T:
    """`sync_on` a stream of the default device's policy."""
    op.claim()
    return _sync(op, stream_for(op))


def schedule(op: Submittable[T], policy: SchedulingPolicy) -> DeviceFuture[T]:
    """Choose stream and pool now; the work starts at the first await."""
    op.claim()
    return DeviceFuture(op, stream_for(op, policy))


def spawn(op: Submittable[T], policy: SchedulingPolicy | None = None) -> DeviceFuture[T]:
    """Start `op` now; await the future, or not, for its value.

    An error of the operation arrives at the await; one of the policy, here.
    """
    op.claim()
    future = DeviceFuture(op, stream_for(op, policy))
    future.start()
    return future


def on_default_stream(op: Submittable[T]) -> DeviceFuture[T]:
    """What `await op` awaits."""
    op.claim()
    return DeviceFuture(op, stream_for(op))


async def gather(*ops: Any) -> list[Any]:
    """Start every operation, then await them all.

    Args:
        ops: operations, futures of `spawn` or `schedule`, coroutines and other awaitables.

    Returns:
        The values, in order.

    Raises:
        The first error in the order of the arguments, after all have settled.
    """
    started = [_start(op) for op in ops]
    values: list[Any] = []
    errors: list[Exception] = []
    try:
        for future in started:
            try:
                values.append(await future)
            except Exception as error:
                errors.append(error)
    except asyncio.CancelledError:
        for future in started:
            if isinstance(future, asyncio.Future):
                future.cancel()
        raise
    if errors:
        raise errors[0]
    return values


def _start(op: Any) -> Awaitable[Any]:
    """Something to await, whose work has begun."""
    if isinstance(op, DeviceFuture):
        op.start()
        return op
    return spawn(op) if hasattr(op, "steps") else asyncio.ensure_future(op)
