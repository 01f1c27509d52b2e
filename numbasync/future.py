"""The awaitable: an operation with its stream, from the first step to the value.

An operation is run as a generator of `Preparation`s, things that must be done before it can
go on and that may take long. Between two of them everything is enqueued at once.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Generator
from contextvars import Context as Variables
from contextvars import copy_context
from enum import Enum
from typing import Any, Generic, TypeVar

from numbasync import line
from numbasync.backend.base import Preparation
from numbasync.context import Context, Submittable, Turn, context_for, exclusive
from numbasync.errors import ReentrancyError
from numbasync.stream import Stream, Submission

T = TypeVar("T")

_starting = threading.Lock()  # who begins a future that two threads await at once


class _State(Enum):
    IDLE = "idle"
    STARTING = "starting"
    SUBMITTED = "submitted"
    FAILED = "failed"


class DeviceFuture(Generic[T]):
    """An operation with its stream. Awaiting it gives its value, as often as you like.

    Cancelling an await stops the waiting, not the work: what was submitted runs to its end
    and its memory stays until then.
    """

    def __init__(self, op: Submittable[T], stream: Stream) -> None:
        self.stream = stream
        self._op: Submittable[T] | None = op
        self._name = str(op)
        self._pool = stream.device.pool
        self._state = _State.IDLE
        self._ctx: Context | None = None
        self._steps: Generator[Preparation, None, T] | None = None
        # While it stands in line: what it stands at, who waits, and its context variables.
        self._need: Preparation | None = None
        self._line: line.Line | None = None
        self._turn: Turn | None = None
        self._variables: Variables | None = None
        self._submission: Submission | None = None
        self._value: T | None = None
        self._error: BaseException | None = None
        self._seen = False  # the error has reached somebody

    # --- starting ---

    def start(self) -> None:
        """Submit the work now, unless that has been done. Errors arrive at the await."""
        with _starting:
            if self._state is not _State.IDLE:
                return
            self._state = _State.STARTING
        try:
            exclusive.check()
        except ReentrancyError as error:
            self._seen = True  # the caller gets it now
            self._fail(error)
            raise
        # A compilation has no order with anything, so nothing waits for it.
        unordered = self._op is not None and self._op.unordered
        if (unordered or line.is_empty()) and self.begin() is None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            line.finish()
            need = self.begin()
            while need is not None:
                self.go_on(need, line.attempt(need))
                need = self.begin()
            return
        self._turn = Turn()
        self._variables = copy_context()
        self._line = line.Line(loop) if unordered else line.current(loop)
        self._line.add(self)

    def begin(self) -> Preparation | None:
        """Enqueue up to a preparation; None at the end."""
        if self._need is None and self._op is not None:
            op, self._op = self._op, None
            try:
                self._ctx = context_for(op, self.stream, self._pool)
            except Exception as error:
                self._fail(error)
                return None
            self._steps = op.steps(self._ctx)
            self._step(None)
        return self._need

    def go_on(self, need: Preparation, error: BaseException | None) -> None:
        """`need` is done: enqueue up to the next preparation."""
        if self._need is need:  # else somebody has finished it meanwhile
            self._step(error)

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
                    return
                except StopIteration as end:
                    self._value = end.value
                except BaseException:
                    ctx.close()
                    raise
                self._submission = ctx.close()
            self._end(_State.SUBMITTED)
        except BaseException as failed:
            self._fail(failed)
            if not isinstance(failed, Exception):
                raise
        finally:
            # The error's traceback holds this frame; so that the error, and the tensors in
            # its frames, do not wait for the collector, the frame must not hold us.
            del steps, ctx, error
            self = None  # type: ignore[assignment]

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._end(_State.FAILED)

    def _end(self, state: _State) -> None:
        self._state = state
        self._op = self._steps = self._ctx = self._need = self._variables = self._line = None
        if self._turn is not None:
            self._turn.settle()

    # --- waiting ---

    def __await__(self) -> Generator[Any, None, T]:
        try:
            if self._state is _State.IDLE:
                self.start()
            while self._state is _State.STARTING:
                stands = self._line
                if stands is not None and stands.loop.is_closed():
                    stands.finish()
                    continue
                turn = self._turn
                # Without a turn, another thread is inside `start` at this moment.
                yield from (asyncio.sleep(0).__await__() if turn is None else line.settled(turn))
            submission = self._submission
            if submission is not None and not submission.done:
                yield from submission.stream.wait(submission.sequence)
                if submission.error is None:
                    submission.stream.verify()
            return self._result()
        finally:
            # As in `_enqueue`: an error raised here passes through this frame.
            submission = turn = stands = None
            self = None  # type: ignore[assignment]

    def _result(self) -> T:
        error = self._error
        if error is None and self._submission is not None:
            error = self._submission.error
        try:
            if error is not None:
                self._seen = True
                raise error
            value: Any = self._value
            return value  # type: ignore[no-any-return]
        finally:
            error = None
            self = None  # type: ignore[assignment]

    def sync(self) -> T:
        """Start it if need be, block the thread until it is done, and give its value."""
        self.start()
        line.finish()
        stands, turn = self._line, self._turn
        if stands is not None and stands.may_be_finished_here:
            stands.finish()
        if self._state is _State.STARTING and turn is not None:
            turn.run()  # it stands in another thread's line
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
