"""The awaitable: an operation with its stream, from the first step to the value.

What nobody waits for any more is withdrawn: what has not been enqueued of it is not enqueued.

An operation is run as a generator of `Preparation`s, things that must be done before it can
go on and that may take long. Between two of them everything is enqueued at once.
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

from numbasync import line, reactor
from numbasync.backend.base import Preparation
from numbasync.begin import admitted, at_once, context_for, named
from numbasync.callsite import CallSite, call_site
from numbasync.context import Context, Submittable
from numbasync.errors import ReentrancyError, StateError
from numbasync.exclusive import Turn, exclusive
from numbasync.limits import Admission
from numbasync.preparing import settled
from numbasync.staging import Landing
from numbasync.stream import Stream
from numbasync.submission import Submission

T = TypeVar("T")

# Who begins a future that two threads await at once. Reentrant: a finaliser may submit.
_starting = threading.RLock()


class _State(Enum):
    IDLE = "idle"
    STARTING = "starting"
    SUBMITTED = "submitted"
    FAILED = "failed"
    CANCELLED = "cancelled"


class DeviceFuture(Generic[T]):
    """An operation with its stream. Awaiting it gives its value, as often as you like.

    Cancelling the only await of an operation, or of a future of `schedule`, cancels it. What was
    spawned runs although nobody waits for it, until `cancel` is called. In any case only what has
    not been enqueued is withdrawn: the rest runs to its end, and its memory stays until then.
    """

    # What a new one has, on the class: making one is part of every launch.
    _state = _State.IDLE
    _ctx: Context | None = None
    _steps: Generator[Preparation, None, T] | None = None
    # While it stands in line: what it stands at, who waits, and its context variables.
    _need: Preparation | None = None
    _line: line.Line | None = None
    _turn: Turn | None = None
    _variables: Variables | None = None
    _submission: Submission | None = None
    _value: T | None = None
    _error: BaseException | None = None
    _trace: TracebackType | None = None
    _starter = 0  # the thread that starts it
    _site: CallSite | None = None
    _seen = True  # the error has reached somebody; or the constructor failed
    _asked = False  # the device has been asked whether all went well
    _awaited = False  # who started it is suspended until it is done
    _entered = False  # some thread is enqueuing it
    _spawned = False  # it runs although nobody waits for it
    _waiters = 0  # that wait until it is submitted
    _admission: Admission | None = None
    _operands: frozenset[int] | None = None
    place = 0
    behind: line.Waiting | None = None
    _landings: tuple[Landing, ...] = ()

    def __init__(self, op: Submittable[T], stream: Stream) -> None:
        self.stream = stream
        self._op: Submittable[T] | None = op
        self._name = op.label
        self._pool = stream.device.pool
        self._seen = False

    # --- starting ---

    def start(self, awaited: bool = False) -> None:
        """Submit the work now, unless that has been done. Errors arrive at the await.

        Args:
            awaited: the caller does nothing else until it is done, or calls `let_go`.
        """
        with _starting:
            if self._state is not _State.IDLE:
                return
            self._state = _State.STARTING
            self._starter = threading.get_ident()
        self._site = call_site(2)
        self._awaited = awaited
        self._spawned = not awaited
        if self.stream.device.is_limited:
            self._admission = Admission(self.stream.device)
        try:
            exclusive.check()
        except ReentrancyError as error:
            self._seen = True  # the caller gets it now
            self._fail(error)
            raise
        # A compilation has no order with anything, so nothing waits for it.
        op = self._op
        unordered = op is not None and op.unordered
        if (unordered or line.is_empty()) and self.begin() is None:
            return
        loop = None if line.is_submitting() else _running_loop()
        if loop is None:
            line.finish()
            need = self.begin()
            while need is not None:
                line.do(self, need)
                need = self.begin()
            return
        if self._admission is None:
            self._admission = Admission(self.stream.device)
        if op is not None and self._state is _State.STARTING:
            self._operands = op.operands()
        self._variables = copy_context()
        self._variables.run(line.stamp)
        self._line = line.unordered(loop) if unordered else line.current(loop)
        self._line.add(self)

    def begin(self) -> Preparation | None:
        """Enqueue up to a preparation; None at the end."""
        if self._need is None and self._op is not None and self._enter():
            try:
                self._begin()
            finally:
                self._entered = False
        return self._need

    def _enter(self) -> bool:
        """Whether it may be enqueued now; until `_entered` is set back it is not withdrawn."""
        with _starting:
            self._entered = self._state is _State.STARTING
            return self._entered

    def _begin(self) -> None:
        op, self._op = self._op, None
        if op is None or (op.is_quick and self._begins_at_once(op)):
            return
        try:
            self._ctx = context_for(op, self.stream, self._pool, self._site)
        except Exception as error:
            self._fail(error)
            return
        self._ctx.awaited = self._awaited
        self._ctx.admission = self._admission
        self._steps = admitted(op, self._ctx)
        self._step(None)

    def _begins_at_once(self, op: Submittable[T]) -> bool:
        try:
            # Who waits for it at once may do without a mark.
            submission = at_once(op, self.stream, not self._awaited, self._pool)
            if submission is None:
                return False
            submission.site = self._site
        except Exception as error:
            self._fail(error)
            return True
        except BaseException as stop:  # as in `_enqueue`
            self._fail(StateError(f"whoever submitted {self._name} was stopped: {stop!r}"))
            self._seen = True
            raise
        self._value = op.result()
        self._submission = submission
        self._end(_State.SUBMITTED)
        return True

    def go_on(self, need: Preparation, error: BaseException | None) -> None:
        """`need` is done: enqueue up to the next preparation."""
        if self._need is need and self._enter():  # else somebody has finished it meanwhile
            try:
                self._step(error)
            finally:
                self._entered = False

    @property
    def lane(self) -> Hashable:
        """The limits that it is submitted under."""
        return () if self._admission is None else self._admission.under

    def may_pass(self, other: line.Waiting) -> bool:
        """Whether it is under other limits, and known to use nothing that `other` uses."""
        mine = self._operands
        theirs = other._operands if isinstance(other, DeviceFuture) else None
        return (
            mine is not None and theirs is not None and self.lane != other.lane
            and mine.isdisjoint(theirs)
        )  # fmt: skip

    def _step(self, error: BaseException | None) -> None:
        if self._variables is None:
            self._enqueue(error)
        else:
            self._variables.run(self._enqueue, error)

    def _enqueue(self, error: BaseException | None) -> None:
        """Enqueue up to the next preparation, or to the end."""
        steps, ctx = self._steps, self._ctx
        if steps is None or ctx is None:
            return
        try:
            with exclusive:
                try:
                    self._need = next(steps) if error is None else steps.throw(error)
                    ctx.suspend()
                    return
                except StopIteration as end:
                    self._value = end.value
                except BaseException:
                    ctx.let_go()
                    ctx.close()
                    raise
                self._submission, self._landings = ctx.close(), ctx.landings
            self._end(_State.SUBMITTED)
        except Exception as failed:
            self._fail(named(failed, ctx))
        except BaseException as stop:
            # It goes to whoever is running this now, and to nobody later.
            self._fail(StateError(f"whoever submitted {self._name} was stopped: {stop!r}"))
            self._seen = True
            raise
        finally:
            # The error's traceback holds this frame; so that the error, and the tensors in
            # its frames, do not wait for the collector, the frame must not hold us.
            del steps, ctx, error
            self = None  # type: ignore[assignment]

    def _fail(self, error: BaseException) -> None:
        if self._variables is not None and self._site is not None:
            # It stood in line, so the traceback does not lead to who submitted it.
            error.add_note(f"{self._name} was submitted at {self._site}.")
        # Without our own frame, which comes first: by way of its callers it would hold us, and
        # what their variables hold.
        trace = error.__traceback__
        self._error = error.with_traceback(None if trace is None else trace.tb_next)
        self._trace = error.__traceback__
        self._end(_State.FAILED)

    def _end(self, state: _State) -> None:
        with _starting:
            self._state = state
            turn = self._turn
        self._op = self._steps = self._ctx = self._need = self._variables = self._line = None
        self._admission = self._operands = None
        if turn is not None:
            turn.settle()

    def cancel(self) -> bool:
        """Withdraw what has not been enqueued; whoever awaits it gets `asyncio.CancelledError`.
        What is enqueued runs to its end. An operation that is half enqueued stops there.

        Returns:
            Whether there was anything to withdraw: False if all of it is enqueued, or it is done
            or cancelled already.
        """
        with _starting:
            state, stands = self._state, self._line
            if self._entered or state not in (_State.IDLE, _State.STARTING):
                return False
            self._state = _State.CANCELLED
        steps, ctx = self._steps, self._ctx
        if ctx is not None:
            ctx.stop_reading()
        if steps is not None:
            steps.close()
        if ctx is not None:
            ctx.withdraw()
        self._seen = True
        self._end(_State.CANCELLED)
        if stands is not None:
            stands.withdraw(self)
        return True

    def cancelled(self) -> bool:
        """Whether it was cancelled before all of it was enqueued."""
        return self._state is _State.CANCELLED

    def wait_no_more(self) -> None:
        """One of those who wait for it does not any more: if it was the last, withdraw it."""
        with _starting:
            self._waiters -= 1
            is_wanted = self._spawned or self._waiters > 0
        if is_wanted or not self.cancel():
            self.let_go()

    def want(self) -> None:
        """Start it, for somebody who calls `wait_no_more` or awaits its end."""
        with _starting:
            self._waiters += 1
        self.start(awaited=True)

    def let_go(self) -> None:
        """Nobody waits for it any more: what it reads of the host's memory may be changed then."""
        ctx, self._awaited = self._ctx, False
        if ctx is not None:
            ctx.let_go()
        for landing in self._landings:
            landing.let_go()

    def _starting_turn(self) -> Turn | None:
        """What is settled when it has been submitted; None if it has."""
        with _starting:
            if self._state is not _State.STARTING:
                return None
            if self._turn is None:
                self._turn = Turn(self._starter)
            return self._turn

    # --- waiting ---

    def __await__(self) -> Generator[Any, None, T]:
        try:
            if self._state is _State.IDLE:
                self.start(awaited=True)
            while (turn := self._starting_turn()) is not None:
                stands = self._line
                if stands is not None and stands.is_left_alone:
                    stands.finish()
                    continue
                with _starting:
                    self._waiters += 1
                try:
                    yield from settled(turn)
                except (asyncio.CancelledError, GeneratorExit):
                    self.wait_no_more()
                    raise
                with _starting:
                    self._waiters -= 1
            submission = self._submission
            if submission is not None:
                try:
                    if submission.done:
                        yield from reactor.need_not_wait()
                    else:
                        yield from submission.stream.wait(submission.sequence)
                    for landing in self._landings:
                        yield from landing.wait()
                except BaseException:
                    # Who does not wait any more does not want its error; who gets one has seen it.
                    self._seen = True
                    self.let_go()
                    raise
            return self._result()
        finally:
            # As in `_enqueue`: an error raised here passes through this frame.
            submission = turn = stands = None
            landing = None  # type: ignore[assignment]
            self = None  # type: ignore[assignment]

    def _result(self) -> T:
        error, submission = self._error, self._submission
        try:
            if self._state is _State.CANCELLED:
                raise asyncio.CancelledError(f"{self._name} was cancelled")
            if error is not None:
                self._seen = True
                # However often it is raised, with the traceback that it had at first.
                raise error.with_traceback(self._trace)
            if submission is not None and submission.error is not None:
                self._seen = True
                submission.raise_error()
            if not self._asked:
                # Whoever looked first has settled it, by its word alone.
                self.stream.verify(0 if submission is None else submission.sequence)
                self._asked = True
            for landing in self._landings:
                landing.run()
            value: Any = self._value
            return value  # type: ignore[no-any-return]
        finally:
            error = submission = None
            landing = None  # type: ignore[assignment]
            self = None  # type: ignore[assignment]

    def sync(self) -> T:
        """Start it if need be, block the thread until it is done, and give its value."""
        self.start()
        line.finish()
        while (turn := self._starting_turn()) is not None:
            stands = self._line
            if stands is not None and stands.may_be_finished_here and not stands.submits_here:
                stands.finish()
            else:
                turn.run()  # another thread is at it
        submission = self._submission
        if submission is not None and not submission.done:
            submission.stream.wait_until_idle()
        return self._result()

    def done(self) -> bool:
        """Whether the value, or the error, is there. Never blocks."""
        if self._state is _State.SUBMITTED and self._submission is not None:
            submission, stream = self._submission, self._submission.stream
            stream.advance()
            if not submission.done and not stream.has_mark_behind(submission.sequence):
                stream.look()
            return submission.done and not any(at.is_open for at in self._landings)
        return self._state in (_State.FAILED, _State.CANCELLED)

    def __repr__(self) -> str:
        state = self._state.value
        if self._state is _State.SUBMITTED:
            found = self._submission
            state = (
                "in flight" if found is not None and not found.done
                else "done" if found is None or found.error is None
                else "failed"
            )  # fmt: skip
        return f"<DeviceFuture {self._name}, {state}, on {self.stream!r}>"

    def __del__(self) -> None:
        state = self._state
        if state in (_State.IDLE, _State.STARTING) and not self._seen:
            what = (
                "scheduled but never awaited" if state is _State.IDLE
                else "dropped with its event loop while it was being prepared"
            )  # fmt: skip
            warnings.warn(
                f"{self._name} was {what}: it has not run",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )
        if self._seen:
            return
        submission, error = self._submission, self._error
        if error is None and submission is not None:
            if not submission.done:
                submission.retain(_Unseen(submission))
                return
            error = submission.error
        if error is not None:
            _warn_of(self._name, error)


class _Unseen:
    """Stands for a dropped future until its work is done, and then for its error."""

    def __init__(self, submission: Submission) -> None:
        self._submission = submission

    def __del__(self) -> None:
        submission = getattr(self, "_submission", None)
        if submission is not None and submission.error is not None:
            _warn_of(submission.name, submission.error)


def warn_if_it_fails(submission: Submission) -> None:
    """Nobody waits for it any more, and nobody has said that its error is not wanted."""
    if not submission.done:
        submission.retain(_Unseen(submission))


def _warn_of(name: str, error: BaseException) -> None:
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
