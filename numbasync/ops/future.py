"""The awaitable: an operation with its stream, from submission to the value.

When the last awaiter of an operation is cancelled, the operation is cancelled: the part of its
work that has not been enqueued yet is not enqueued.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Generator
from typing import Any, TypeVar

from numbasync.device import reactor
from numbasync.device.callsite import CallSite
from numbasync.device.submission import Submission
from numbasync.native import compiled, core
from numbasync.ops import submission_queue
from numbasync.ops.consume import warn_of_waste
from numbasync.ops.deferred_value import Later, made
from numbasync.ops.submit import State, Submitting, starting
from numbasync.public import Public

T = TypeVar("T")


class DeviceFuture(Submitting[T], Public):
    """An operation with its stream. A future may be awaited repeatedly, for the same value.

    Cancelling the only await of an operation, or of a future of `schedule`, cancels the operation.
    A spawned operation runs without awaiters until `cancel` is called. Cancelling stops only
    work that is not enqueued: enqueued work runs to its end, and keeps its memory until then.

    Examples:
        >>> stream = na.default_device().new_stream()
        >>> future = na.ones(3).to_host().schedule(stream)  # starts at the first await
        >>> await future
        array([1., 1., 1.], dtype=float32)
        >>> await future is await future
        True
    """

    _asked = False  # the driver has verified that the work ended without a fault
    _waiters = 0  # callers that wait until the operation is submitted
    _elsewhere = 0  # of the waiters, those outside the loop whose queue holds the operation

    # --- cancelling ---

    def cancel(self) -> bool:
        """Cancel the work that is not enqueued; awaiters get `asyncio.CancelledError`.
        Enqueued work runs to its end. An operation that is half enqueued stops there.

        Returns:
            Whether there was anything to cancel: False if all work is enqueued, or the
            operation is done or cancelled already.

        Examples:
            >>> future = na.ones(3).schedule(na.default_device().new_stream())
            >>> future.cancel(), future.cancelled()  # it had not begun
            (True, True)
        """
        with starting:
            state, queue = self._state, self._queue
            if self._entered or state not in (State.IDLE, State.STARTING):
                return False
            self._state = State.CANCELLED
        steps, ctx = self._steps, self._ctx
        if ctx is not None:
            ctx.stop_reading()
        if steps is not None:
            steps.close()
        if ctx is not None:
            ctx.withdraw()
        self._seen = True
        self._end(State.CANCELLED)
        if queue is not None:
            queue.withdraw(self)
        return True

    def cancelled(self) -> bool:
        """Whether the operation was cancelled before all of its work was enqueued.

        Examples:
            >>> future = na.spawn(na.ones(3))
            >>> _ = await future
            >>> future.cancelled()
            False
        """
        return self._state is State.CANCELLED

    def give_up(self, spawned: bool) -> None:
        """Cancel after the end of the loop whose queue holds the operation, unless waiters
        outside that loop remain, or the operation was spawned and `spawned` is False.
        """
        with starting:
            is_wanted = (self._spawned and not spawned) or self._elsewhere > 0
        if not is_wanted:
            self.cancel()

    def _count(self, more: int, elsewhere: bool = False) -> None:
        with starting:
            self._waiters += more
            self._elsewhere += more * elsewhere

    def wait_no_more(self, elsewhere: bool = False) -> None:
        """Remove one waiter; after the last one, cancel the operation unless it was spawned."""
        with starting:
            self._count(-1, elsewhere)
            is_wanted = self._spawned or self._waiters > 0
        if is_wanted or not self.cancel():
            self.detach()

    def never_awaited(self) -> None:
        """Record that the only prospective awaiter was cancelled before its await."""
        self._count(1)
        self.wait_no_more()

    def want(self, site: CallSite | None = None) -> None:
        """Start for one waiter. The caller must call `wait_no_more` or await the future."""
        self._count(1)
        self.start(awaited=True, site=site)
        with starting:
            self._elsewhere += self._stands_elsewhere()  # counted now; the await may come later

    def _stands_elsewhere(self) -> bool:
        """Whether the operation is in the submission queue of a loop other than the running one."""
        queue = self._queue
        return queue is not None and not queue.is_of(asyncio.get_running_loop())

    def detach(self) -> None:
        """Give up waiting: host memory that the operation reads is copied first, since the caller
        may change that memory from now on.
        """
        ctx, self._awaited = self._ctx, False
        if ctx is not None:
            ctx.detach()
        for copy_back in self._copy_backs:
            copy_back.detach()

    # --- waiting ---

    @property
    def is_enqueued(self) -> bool:
        """Whether nothing is left but that the device passes `submission`; `value` then returns."""
        return self._state in (State.SUBMITTED, State.FAILED) and not self._copy_backs

    @property
    def submission(self) -> Submission | None:
        """The enqueued work; None if there is none."""
        return self._submission

    @compiled
    def __await__(self) -> Generator[Any, None, T]:
        try:
            reactor.current()  # raises without a loop, before anything is submitted
            if self._state is State.IDLE:
                self.start(awaited=True)
            while (event := self._starting_turn()) is not None:
                queue = self._queue
                elsewhere = self._stands_elsewhere()
                self._count(1, elsewhere)
                try:
                    if queue is not None and queue.is_orphaned:
                        queue.drain()
                    else:
                        yield from event.future()
                except BaseException:
                    self.wait_no_more(elsewhere)
                    raise
                self._count(-1, elsewhere)
            submission = self._submission
            if submission is not None:
                try:
                    if submission.done:
                        yield from reactor.need_not_wait()
                    else:
                        yield from submission.stream.wait(submission.sequence, submission)
                    for copy_back in self._copy_backs:
                        yield from copy_back.wait()
                except BaseException:
                    # A cancelled awaiter needs no error; any other error is being raised now.
                    self._seen = True
                    self.detach()
                    raise
            return self.value()
        finally:
            # As in `_enqueue`: the traceback of an error holds this frame.
            submission = event = queue = None
            copy_back = None  # type: ignore[assignment]
            self = None  # type: ignore[assignment]

    def value(self) -> T:
        """The value of work that the device has passed; raises the error, if it failed."""
        error, submission = self._error, self._submission
        try:
            if self._state is State.CANCELLED:
                raise asyncio.CancelledError(f"{self._name} was cancelled")
            if error is not None:
                self._seen = True
                # Raised repeatedly, the error keeps its first traceback instead of growing it.
                raise error.with_traceback(self._trace)
            if submission is not None and submission.error is not None:
                self._seen = True
                submission.raise_error()
            if not self._asked:
                # The completion counter says done, not error-free; the driver knows of faults.
                self.stream.verify(0 if submission is None else submission.sequence)
                self._asked = True
            for copy_back in self._copy_backs:
                copy_back.run()
            value: Any = self._value
            if type(value) is Later or type(value) is tuple:
                value = made(value)
            return value  # type: ignore[no-any-return]
        finally:
            error = submission = None
            copy_back = None  # type: ignore[assignment]
            self = None  # type: ignore[assignment]

    def sync(self) -> T:
        """Start if necessary, block the thread until the work is done, and return the value.

        Examples:
            >>> na.spawn(na.ones(3).to_host()).sync()
            array([1., 1., 1.], dtype=float32)
        """
        self._count(1, elsewhere=True)
        try:
            self.start()
            submission_queue.drain()
            while (event := self._starting_turn()) is not None:
                queue = self._queue
                if queue is not None and queue.may_be_finished_here and not queue.submits_here:
                    queue.drain()
                else:
                    event.run()  # another thread is submitting the operation
        except BaseException:
            self.wait_no_more(elsewhere=True)
            raise
        self._count(-1, elsewhere=True)
        submission = self._submission
        if submission is not None and not submission.done:
            submission.stream.wait_until_idle()
        return self.value()

    def done(self) -> bool:
        """Whether the value or the error is available. Never blocks.

        Examples:
            >>> future = na.spawn(na.ones(3))
            >>> _ = await future
            >>> future.done()
            True
        """
        if self._state is State.SUBMITTED and self._submission is not None:
            submission, stream = self._submission, self._submission.stream
            stream.advance()
            if not submission.done and not stream.is_signalled_after(submission.sequence):
                stream.poll()
            return submission.done and not any(
                copy_back.is_pending for copy_back in self._copy_backs
            )
        return self._state in (State.FAILED, State.CANCELLED)

    def __repr__(self) -> str:
        state = self._state.value
        if self._state is State.SUBMITTED:
            submission = self._submission
            state = (
                "in flight" if submission is not None and not submission.done
                else "done" if submission is None or submission.error is None
                else "failed"
            )  # fmt: skip
        return f"<DeviceFuture {self._name}, {state}, on {self.stream!r}>"

    def __del__(self) -> None:
        state = self._state
        if state in (State.IDLE, State.STARTING) and not self._seen:
            what = (
                "scheduled but never awaited" if state is State.IDLE
                else "dropped with its event loop while it was being prepared"
            )  # fmt: skip
            site = self._site if self._op is None else getattr(self._op, "_site", None)
            warn_of_waste(f"{self._name} was {what}", site, self)
        if self._seen:
            return
        submission, error = self._submission, self._error
        if error is None and submission is not None:
            if not submission.done:
                submission.retain(_FailureWatch(submission))
                return
            error = submission.error
        if error is not None:
            _warn_failed(self._name, error)


class _FailureWatch:
    """Kept alive by the submission of a dropped future; its finaliser warns if the work failed."""

    def __init__(self, submission: Submission) -> None:
        self._submission = submission

    def __del__(self) -> None:
        submission = getattr(self, "_submission", None)
        if submission is not None and submission.error is not None:
            _warn_failed(submission.name, submission.error)


def warn_if_it_fails(submission: Submission) -> None:
    """Warn if `submission`, which has lost its awaiter, ends with an error."""
    if not submission.done:
        submission.retain(_FailureWatch(submission))


def _warn_failed(name: str, error: BaseException) -> None:
    warnings.warn(
        f"{name} failed and was never awaited: {type(error).__name__}: {error}",
        RuntimeWarning,
        stacklevel=3,
    )


if core is not None:
    core.know_futures(DeviceFuture, State, starting)
