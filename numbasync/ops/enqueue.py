"""The start of a submission: on the fast path or step by step, with capacity awaited first."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from numbasync.backend.protocols import Prerequisite
from numbasync.device import tracing
from numbasync.device.callsite import CallSite, call_site
from numbasync.device.storage import MemoryPool
from numbasync.device.stream import Stream
from numbasync.device.submission import Submission
from numbasync.errors import DeviceLostError, DeviceMismatchError
from numbasync.native import compiled
from numbasync.ops.backpressure import Admission
from numbasync.ops.context import Context
from numbasync.ops.protocols import Operation

T = TypeVar("T")


def context_for(
    op: Operation[Any],
    stream: Stream,
    pool: MemoryPool | None,
    site: CallSite | None,
    name: str | None = None,
) -> Context:
    """A context for running `op` on `stream`, submitted at `site`.

    Args:
        name: of the submission, where it is known: `op.label` may be put together anew.

    Raises:
        DeviceMismatchError: the pool belongs to another device.
        DeviceLostError: a fault has broken the device.
    """
    stream.check_open()
    pool = pool or stream.device.pool
    if pool.device is not stream.device.backend:
        raise DeviceMismatchError(f"{pool!r} cannot serve {stream!r}, which is another device's.")
    ctx = Context(stream, pool, op.label if name is None else name, site)
    if stream.device.is_limited:
        ctx.admission = Admission(stream.device)
    return ctx


@compiled
def try_enqueue(
    op: Operation[Any], stream: Stream, signal: bool, pool: MemoryPool | None = None,
    site: CallSite | None = None,
) -> Submission | None:  # fmt: skip
    """Enqueue all of `op` on `stream` by its fast path, with a completion signal if `signal`. The
    result is the submission, or None if `op` has to be run step by step.

    Args:
        site: the line of the program that submits it; None: the one that runs now.
    """
    device = stream.device
    if not op.has_fast_path or stream.is_broken or device.lost is not None or device.is_limited:
        return None
    submission = Submission(stream, op.label)
    recorder = tracing.recorder
    if recorder is not None:
        recorder.begin(submission)
    try:
        if not op.try_enqueue(submission, pool):
            if recorder is not None:
                recorder.drop(submission)
            return None
        submission.site = call_site(1) if site is None else site  # the device is at work already
        stream.commit(submission, signal)
    except BaseException as error:
        note_failed_enqueue(error, submission, stream)
        raise
    return submission


@compiled
def note_failed_enqueue(error: BaseException, submission: Submission, stream: Stream) -> None:
    """Commit what was enqueued before `error`; ^C may come after the launch, too. Objects in use
    are kept until the device has passed them.

    Raises:
        DeviceLostError: `error` is a fault of earlier work, which the device's own error names.
    """
    if submission.keep_alive and not stream.has(submission):
        if (recorder := tracing.recorder) is not None:
            recorder.begin(submission)  # the core tells of an operation when it is enqueued
        stream.commit(submission, signal=False)
    if isinstance(error, DeviceLostError):
        device = stream.device
        device.lose(error, submission)
        raise device.lost or error from None


def limited_steps(op: Operation[T], ctx: Context) -> Generator[Prerequisite, None, T]:
    """The steps of `op`, preceded under a limit by the wait for capacity."""
    admission = ctx.admission
    if admission is None or op.unordered or not admission.limits():
        return op.steps(ctx)
    return _admitted(op, ctx, admission)


def _admitted(
    op: Operation[T], ctx: Context, admission: Admission
) -> Generator[Prerequisite, None, T]:
    yield from ctx.room()
    admission.admit(ctx.submission)
    return (yield from op.steps(ctx))


def error_to_raise(error: Exception, ctx: Context) -> Exception:
    """The error to raise when enqueuing failed with `error`. A device fault was caused by earlier
    work, so the result is then the device's error, which names that work.
    """
    if isinstance(error, DeviceLostError):
        ctx.device.lose(error, ctx.submission)
        return ctx.device.lost or error
    return error


def run_steps(steps: Generator[Prerequisite, None, T], ctx: Context | None = None) -> T:
    """Run `steps`, of the context `ctx`, to the end, with prerequisites run on this thread; the
    value.
    """
    try:
        prerequisite = next(steps)
        while True:
            if ctx is not None and (recorder := tracing.recorder) is not None:
                recorder.pause(ctx.submission)
            try:
                prerequisite.run()
            except BaseException as error:
                prerequisite = steps.throw(error)
            else:
                prerequisite = next(steps)
    except StopIteration as end:
        value: T = end.value
        return value
