"""The awaitable: an operation with its stream, from submission to the value.

An operation runs as a generator of `Prerequisite`s: slow tasks that must be done before the
operation can resume. Everything between two prerequisites is enqueued without a pause: on the fast
path, or through the submission queue.

When the last awaiter of an operation is cancelled, the operation is cancelled: the part of its
work that has not been enqueued yet is not enqueued. ^C in an await is such a cancellation, made by
asyncio's runner.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Generator, Hashable
from contextvars import Context as Variables
from contextvars import copy_context
from enum import Enum
from types import TracebackType
from typing import Any, Generic, TypeVar

from numbasync.arguments import with_type
from numbasync.backend.protocols import Prerequisite
from numbasync.device import reactor
from numbasync.device.callsite import CallSite, call_site
from numbasync.device.stream import Stream
from numbasync.device.submission import Submission
from numbasync.errors import CallerError, OperationError, ReentrancyError, StateError
from numbasync.native import compiled, core
from numbasync.ops import submission_queue
from numbasync.ops.backpressure import Admission, is_limited
from numbasync.ops.consume import warn_of_waste
from numbasync.ops.context import Context
from numbasync.ops.deferred_value import Later, made
from numbasync.ops.enqueue import context_for, error_to_raise, limited_steps, try_enqueue
from numbasync.ops.host_copies import HostCopyBack
from numbasync.ops.protocols import Operation
from numbasync.ops.reentrancy import OneShotEvent, exclusive
from numbasync.public import Public

T = TypeVar("T")

# Guards the state of futures: of two threads that await one future, one starts it. Reentrant,
# because a finaliser may submit.
starting = threading.RLock()


class State(Enum):
    IDLE = "idle"
    STARTING = "starting"
    SUBMITTED = "submitted"
    FAILED = "failed"
    CANCELLED = "cancelled"


class DeviceFuture(Public, Generic[T]):
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

    # Initial values are class attributes, because every launch creates one of these objects.
    _state = State.IDLE
    _ctx: Context | None = None
    _steps: Generator[Prerequisite, None, T] | None = None
    # While queued: the pending prerequisite, the queue, the event that is set when submission
    # ends, and the submitter's context variables.
    _need: Prerequisite | None = None
    _queue: submission_queue.SubmissionQueue | None = None
    _turn: OneShotEvent | None = None
    _variables: Variables | None = None
    _submission: Submission | None = None
    _value: T | None = None
    _error: BaseException | None = None
    _trace: TracebackType | None = None
    _starter = 0  # identity of the thread that called `start`
    _site: CallSite | None = None
    _seen = True  # the error was raised to a caller; or the constructor failed
    _awaited = False  # the task that called `start` is suspended until the work is done
    _entered = False  # a thread is enqueuing the operation, so it cannot be cancelled
    _spawned = False  # the operation runs even without an awaiter
    _admission: Admission | None = None
    _operands: frozenset[int] | None = None
    place = 0
    behind: submission_queue.Waiting | None = None
    _copy_backs: tuple[HostCopyBack, ...] = ()
    _asked = False  # the driver has verified that the work ended without a fault
    _waiters = 0  # callers that wait until the operation is submitted
    _elsewhere = 0  # of the waiters, those outside the loop whose queue holds the operation

    def __init__(self, op: Operation[T], stream: Stream) -> None:
        self.stream = stream
        self._op: Operation[T] | None = op
        try:
            self._name = op.label
            self._pool = stream.device.pool
        except AttributeError:
            if not hasattr(op, "label"):
                raise OperationError(
                    f"a DeviceFuture is of an operation, not of {with_type(op)}: write "
                    "na.spawn(op)."
                ) from None
            raise CallerError(
                f"next_stream() of the policy gave no stream, but {with_type(stream)}: write "
                "device.new_stream(), say."
            ) from None
        self._seen = False

    # --- starting ---

    def start(self, awaited: bool = False, site: CallSite | None = None) -> None:
        """Submit the work now, unless already started. Errors are raised at the await.

        Args:
            awaited: the caller does nothing else until the work is done, or calls `detach`.
            site: the program's line, for messages; None: the line that runs now.
        """
        begins = False
        try:
            with starting:
                if self._state is not State.IDLE:
                    return
                begins, self._starter = True, threading.get_ident()
                self._state = State.STARTING
            self._site = call_site(2) if site is None else site
            self._begin_here(awaited)
        except BaseException as stop:
            if begins and self._state is State.STARTING:  # nobody goes on with it
                queue = self._queue
                self._stop(stop)
                if queue is not None:
                    queue.withdraw(self)
            raise

    def _begin_here(self, awaited: bool) -> None:
        self._entered = True
        self._awaited = awaited
        self._spawned = not awaited
        if self.stream.device.is_limited:
            self._admission = Admission(self.stream.device)
        try:
            exclusive.check()
        except ReentrancyError as error:
            self._seen = True  # raised to the caller here
            self._fail(error)
            raise
        # An unordered operation (a compilation) never queues behind, or delays, others.
        op = self._op
        unordered = op is not None and op.unordered
        try:
            if unordered or submission_queue.is_empty():
                self._begin()
        finally:
            self._entered = False
        if self._state is not State.STARTING:
            return
        loop = None if submission_queue.is_submitting() else _running_loop()
        if loop is None:
            submission_queue.drain()
            prerequisite = self.enqueue_until_prerequisite()
            while prerequisite is not None:
                submission_queue.do(self, prerequisite)
                prerequisite = self.enqueue_until_prerequisite()
            return
        if self._admission is None:
            self._admission = Admission(self.stream.device)
        if op is not None and self._state is State.STARTING:
            self._operands = op.operands()
        self._variables = copy_context()
        self._variables.run(submission_queue.stamp)
        self._queue = (
            submission_queue.unordered(loop) if unordered else submission_queue.current(loop)
        )
        self._queue.add(self)

    def enqueue_until_prerequisite(self) -> Prerequisite | None:
        """Enqueue up to the next prerequisite and return it; None if nothing is left."""
        if self._need is None and self._op is not None:
            try:
                if self._enter():
                    self._begin()
            finally:
                self._entered = False
        return self._need

    def _enter(self) -> bool:
        """Whether enqueuing may proceed now; while `_entered` is True, `cancel` is refused."""
        with starting:
            self._entered = self._state is State.STARTING
            return self._entered

    def _begin(self) -> None:
        op, self._op = self._op, None
        if op is None:
            return
        if op.has_fast_path and not is_limited(self._admission) and self._begins_at_once(op):
            return
        try:
            self._ctx = context_for(op, self.stream, self._pool, self._site, self._name)
        except Exception as error:
            self._fail(error)
            return
        self._ctx.awaited = self._awaited
        self._ctx.admission = self._admission
        self._steps = limited_steps(op, self._ctx)
        self._step(None)

    def _begins_at_once(self, op: Operation[T]) -> bool:
        try:
            # A caller that awaits immediately may do without a completion signal.
            submission = try_enqueue(op, self.stream, not self._awaited, self._pool, self._site)
            if submission is None:
                return False
        except Exception as error:
            self._fail(error)
            return True
        except BaseException as stop:  # as in `_enqueue`
            self._stop(stop)
            raise
        self._value = op.result()
        self._submission = submission
        self._end(State.SUBMITTED)
        return True

    def resume(self, need: Prerequisite, error: BaseException | None) -> None:
        """Resume after the prerequisite `need`: enqueue up to the next prerequisite."""
        if self._need is need:  # else another thread has drained the queue
            try:
                if self._enter():
                    self._step(error)
            finally:
                self._entered = False

    @property
    def lane(self) -> Hashable:
        """The limits that the operation is submitted under."""
        return () if self._admission is None else self._admission.under

    def may_pass(self, other: submission_queue.Waiting) -> bool:
        """Whether the two operations have different limits, and storages known to be disjoint."""
        own_operands = self._operands
        other_operands = other._operands if isinstance(other, DeviceFuture) else None
        return (
            own_operands is not None and other_operands is not None and self.lane != other.lane
            and own_operands.isdisjoint(other_operands)
        )  # fmt: skip

    def _step(self, error: BaseException | None) -> None:
        if self._variables is None:
            self._enqueue(error)
        else:
            self._variables.run(self._enqueue, error)

    def _enqueue(self, error: BaseException | None) -> None:
        """Enqueue up to the next prerequisite, or to the end."""
        steps, ctx = self._steps, self._ctx
        if steps is None or ctx is None:
            return
        try:
            with exclusive.region():
                try:
                    self._need = next(steps) if error is None else steps.throw(error)
                    ctx.suspend()
                    return
                except StopIteration as end:
                    self._value = end.value
                except BaseException:
                    ctx.detach()
                    ctx.close()
                    raise
                # As in `_begins_at_once`.
                submission = ctx.close(signal=not self._awaited)
                self._submission, self._copy_backs = submission, ctx.copy_backs
            self._end(State.SUBMITTED)
        except Exception as failed:
            self._fail(error_to_raise(failed, ctx))
        except BaseException as stop:
            # The exception stops the running caller; awaiters get the StateError instead.
            self._stop(stop)
            raise
        finally:
            # The error's traceback holds this frame. The frame must not hold `self`: the cycle
            # would keep the error, and the tensors in its frames, until a garbage collection.
            del steps, ctx, error
            self = None  # type: ignore[assignment]

    def _fail(self, error: BaseException) -> None:
        if self._variables is not None and self._site is not None:
            # The operation was queued, so its traceback does not lead to the submitting line.
            error.add_note(f"{self._name} was submitted at {self._site}.")
        # The first traceback entry is this module's own frame. It is dropped: through its
        # callers it would hold `self` and everything that their variables hold.
        trace = error.__traceback__
        self._error = error.with_traceback(None if trace is None else trace.tb_next)
        self._trace = error.__traceback__
        self._end(State.FAILED)

    def _stop(self, stop: BaseException) -> None:
        """Fail, for awaiters, since `stop` ends the caller that was submitting the operation."""
        self._fail(StateError(f"whoever submitted {self._name} was stopped: {stop!r}"))
        self._seen = True

    def _end(self, state: State) -> None:
        with starting:
            self._state = state
            event = self._turn
        self._op = self._steps = self._ctx = self._need = self._variables = self._queue = None
        self._admission = self._operands = None
        if event is not None:
            event.set_done()

    def _starting_turn(self) -> OneShotEvent | None:
        """The event that is set when submission ends; None if submission has ended."""
        with starting:
            if self._state is not State.STARTING:
                return None
            if self._turn is None:
                self._turn = OneShotEvent(self._starter)
            return self._turn

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


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


if core is not None:
    core.know_futures(DeviceFuture, State, starting)
