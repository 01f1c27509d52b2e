"""Submission of one operation, from the first step to the last: on the fast path, through the
submission queue, or withdrawn half-way.

An operation runs as a generator of `Prerequisite`s: slow tasks that must be done before the
operation can resume. Everything between two prerequisites is enqueued without a pause.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Hashable
from contextvars import Context as Variables
from contextvars import copy_context
from enum import Enum
from types import TracebackType
from typing import Generic, TypeVar

from numbasync.arguments import with_type
from numbasync.backend.protocols import Prerequisite
from numbasync.device.callsite import CallSite, call_site
from numbasync.device.stream import Stream
from numbasync.device.submission import Submission
from numbasync.errors import CallerError, OperationError, ReentrancyError, StateError
from numbasync.ops import submission_queue
from numbasync.ops.backpressure import Admission, is_limited
from numbasync.ops.context import Context
from numbasync.ops.enqueue import context_for, error_to_raise, limited_steps, try_enqueue
from numbasync.ops.host_copies import HostCopyBack
from numbasync.ops.protocols import Operation
from numbasync.ops.reentrancy import OneShotEvent, exclusive

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


class Submitting(Generic[T]):
    """An operation and its stream, while the operation is being submitted."""

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

    def give_up(self, spawned: bool) -> None:
        """See `submission_queue.Waiting`. DeviceFuture overrides this: it counts its awaiters."""

    @property
    def lane(self) -> Hashable:
        """The limits that the operation is submitted under."""
        return () if self._admission is None else self._admission.under

    def may_pass(self, other: submission_queue.Waiting) -> bool:
        """Whether the two operations have different limits, and storages known to be disjoint."""
        own_operands = self._operands
        other_operands = other._operands if isinstance(other, Submitting) else None
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


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
