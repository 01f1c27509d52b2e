"""The awaitable: an operation with its stream, from the first step to the value.

An operation is run as a generator of `Preparation`s, things that must be done before it can
go on and that may take long (compiling a kernel). Here they are done on another thread while
the event loop turns; between two of them everything is enqueued at once.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any, Generic, TypeVar

from numbasync.backend.base import Preparation
from numbasync.context import Context, Submittable, context_for, exclusive
from numbasync.errors import ReentrancyError
from numbasync.stream import Stream, Submission

T = TypeVar("T")


class _State(Enum):
    IDLE = "idle"
    PREPARING = "preparing"
    SUBMITTED = "submitted"
    FAILED = "failed"


_workers: ThreadPoolExecutor | None = None


def _executor() -> ThreadPoolExecutor:
    """Threads that compile while event loops turn; made when first needed."""
    global _workers
    if _workers is None:
        _workers = ThreadPoolExecutor(4, thread_name_prefix="numbasync-prepare")
    return _workers


class DeviceFuture(Generic[T]):
    """An operation with its stream. Awaiting it gives its value, as often as you like.

    Cancelling an await stops the waiting, not the work: what was submitted runs to its end
    and its memory stays until then. An operation that is still being prepared is dropped
    when its only awaiter is cancelled.
    """

    def __init__(self, op: Submittable[T], stream: Stream) -> None:
        self.stream = stream
        self._op: Submittable[T] | None = op
        self._name = str(op)
        self._pool = stream.device.pool
        self._state = _State.IDLE
        self._submission: Submission | None = None
        self._value: T | None = None
        self._error: BaseException | None = None
        self._seen = False  # the error has reached somebody
        self._preparing: asyncio.Task[None] | None = None
        self._awaiters = 0

    # --- starting ---

    def start(self) -> None:
        """Submit the work now, unless that has been done. Errors arrive at the await."""
        if self._state is not _State.IDLE or self._op is None:
            return
        op, self._op = self._op, None
        try:
            ctx = context_for(op, self.stream, self._pool)
        except Exception as error:
            self._fail(error)
            return
        steps = op.steps(ctx)
        try:
            need = self._step(steps, ctx, None)
        except ReentrancyError as error:
            self._fail(error)
            self._seen = True  # the caller gets it now
            raise
        if need is None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            while need is not None:
                need = self._step(steps, ctx, _try(need))
            return
        self._state = _State.PREPARING
        self._preparing = loop.create_task(self._prepare(steps, ctx, need))

    def _step(
        self, steps: Generator[Preparation, None, T], ctx: Context, error: BaseException | None
    ) -> Preparation | None:
        """Enqueue up to the next preparation; None at the end."""
        with exclusive:
            try:
                try:
                    return next(steps) if error is None else steps.throw(error)
                except StopIteration as end:
                    self._value = end.value
                except BaseException:
                    ctx.close()
                    raise
                self._submission = ctx.close()
                self._state = _State.SUBMITTED
            except BaseException as failed:
                self._fail(failed)
                if not isinstance(failed, Exception):
                    raise
        return None

    async def _prepare(
        self, steps: Generator[Preparation, None, T], ctx: Context, need: Preparation | None
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            while need is not None:
                error = await loop.run_in_executor(_executor(), _try, need)
                need = self._step(steps, ctx, error)
        except asyncio.CancelledError:
            steps.close()
            ctx.close()
            self._fail(asyncio.CancelledError(f"{self._name} was cancelled before it was enqueued"))
            self._seen = True
            raise

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._state = _State.FAILED

    # --- waiting ---

    def __await__(self) -> Generator[Any, None, T]:
        if self._state is _State.IDLE:
            self.start()
            # This await began the work, so it may also take it back.
            yield from self._join(may_cancel=True)
        else:
            yield from self._join(may_cancel=False)
        submission = self._submission
        if submission is not None and not submission.done:
            yield from submission.stream.wait(submission.sequence)
            if submission.error is None:
                submission.stream.verify()
        return self._result()

    def _join(self, may_cancel: bool) -> Generator[Any, None, None]:
        task = self._preparing
        if task is None or task.done():
            return
        if task.get_loop() is not asyncio.get_running_loop():
            # Prepared by another loop: look now and then; it is only until it is submitted.
            while not task.done():
                yield from asyncio.sleep(0.001).__await__()
            return
        self._awaiters += 1
        try:
            yield from asyncio.shield(task).__await__()
        except asyncio.CancelledError:
            if may_cancel and self._awaiters == 1 and not task.done():
                task.cancel()
            raise
        finally:
            self._awaiters -= 1

    def _result(self) -> T:
        error = self._error
        if error is None and self._submission is not None:
            error = self._submission.error
        if error is not None:
            self._seen = True
            raise error
        return self._value  # type: ignore[return-value]  # set, since there is no error

    def sync(self) -> T:
        """Start it if need be, block the thread until it is done, and give its value."""
        self.start()
        if self._state is _State.PREPARING:
            raise ReentrancyError(
                f"{self._name} is being compiled for a running event loop: await it instead."
            )
        submission = self._submission
        if submission is not None and not submission.done:
            submission.stream.synchronize()
        return self._result()

    def done(self) -> bool:
        """Whether the value, or the error, is there. Never blocks."""
        if self._state is _State.SUBMITTED and self._submission is not None:
            self._submission.stream.advance()
            return self._submission.done
        return self._state is _State.FAILED

    def __repr__(self) -> str:
        state = self._state.value
        if self._state is _State.SUBMITTED:
            state = "done" if self._submission is None or self._submission.done else "in flight"
        return f"<DeviceFuture {self._name}, {state}, on {self.stream!r}>"

    def __del__(self) -> None:
        if getattr(self, "_state", None) is _State.IDLE:
            warnings.warn(
                f"{self._name} was scheduled but never awaited: it has not run",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )
        submission = getattr(self, "_submission", None)
        error = getattr(self, "_error", None) or (submission.error if submission else None)
        if error is not None and not self._seen:
            warnings.warn(
                f"{self._name} failed and was never awaited: {type(error).__name__}: {error}",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )


def _try(need: Preparation) -> BaseException | None:
    """Do it; the error as a value, so that it can be thrown where the need arose."""
    try:
        need.run()
    except Exception as error:
        return error
    return None
