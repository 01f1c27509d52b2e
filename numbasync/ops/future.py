"""The awaitable: an operation with its stream, until the device is through and to the value.

What nobody waits for any more is withdrawn: what has not been enqueued of it is not enqueued.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Generator
from typing import Any, TypeVar

from numbasync.device import reactor
from numbasync.device.submission import Submission
from numbasync.ops import submission_queue
from numbasync.ops.consume import warn_of_waste
from numbasync.ops.deferred_value import Later, made
from numbasync.ops.submit import State, Submitting, starting
from numbasync.public import Public

T = TypeVar("T")


class DeviceFuture(Submitting[T], Public):
    """An operation with its stream. Awaiting it gives its value, as often as you like.

    Cancelling the only await of an operation, or of a future of `schedule`, cancels it. What was
    spawned runs although nobody waits for it, until `cancel` is called. In any case only what has
    not been enqueued is withdrawn: the rest runs to its end, and its memory stays until then.
    """

    _asked = False  # the device has been asked whether all went well
    _waiters = 0  # that wait until it is submitted
    _elsewhere = 0  # of them, those who are no tasks of the loop in whose line it stands

    # --- cancelling ---

    def cancel(self) -> bool:
        """Withdraw what has not been enqueued; whoever awaits it gets `asyncio.CancelledError`.
        What is enqueued runs to its end. An operation that is half enqueued stops there.

        Returns:
            Whether there was anything to withdraw: False if all of it is enqueued, or it is done
            or cancelled already.
        """
        with starting:
            state, stands = self._state, self._line
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
        if stands is not None:
            stands.withdraw(self)
        return True

    def cancelled(self) -> bool:
        """Whether it was cancelled before all of it was enqueued."""
        return self._state is State.CANCELLED

    def give_up(self, spawned: bool) -> None:
        """The loop in whose line it stands has ended: its tasks wait for nothing any more."""
        with starting:
            is_wanted = (self._spawned and not spawned) or self._elsewhere > 0
        if not is_wanted:
            self.cancel()

    def _count(self, more: int, elsewhere: bool = False) -> None:
        with starting:
            self._waiters += more
            self._elsewhere += more * elsewhere

    def wait_no_more(self, elsewhere: bool = False) -> None:
        """One of those who wait for it does not any more: if it was the last, withdraw it."""
        with starting:
            self._count(-1, elsewhere)
            is_wanted = self._spawned or self._waiters > 0
        if is_wanted or not self.cancel():
            self.detach()

    def never_awaited(self) -> None:
        """Somebody who was to await it has been cancelled before it came to that."""
        self._count(1)
        self.wait_no_more()

    def want(self) -> None:
        """Start it, for somebody who calls `wait_no_more` or awaits its end."""
        self._count(1)
        self.start(awaited=True)
        with starting:
            self._elsewhere += self._stands_elsewhere()  # once for all: it may be awaited later

    def _stands_elsewhere(self) -> bool:
        """Whether it stands in the line of another loop than the running one."""
        stands = self._line
        return stands is not None and not stands.is_of(asyncio.get_running_loop())

    def detach(self) -> None:
        """Nobody waits for it any more: what it reads of the host's memory may be changed then."""
        ctx, self._awaited = self._ctx, False
        if ctx is not None:
            ctx.detach()
        for landing in self._landings:
            landing.detach()

    # --- waiting ---

    def __await__(self) -> Generator[Any, None, T]:
        try:
            reactor.current()  # or it would be submitted first, and refused then
            if self._state is State.IDLE:
                self.start(awaited=True)
            while (turn := self._starting_turn()) is not None:
                stands = self._line
                elsewhere = self._stands_elsewhere()
                self._count(1, elsewhere)
                try:
                    if stands is not None and stands.is_orphaned:
                        stands.drain()
                    else:
                        yield from turn.future()
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
                        yield from submission.stream.wait(submission.sequence)
                    for landing in self._landings:
                        yield from landing.wait()
                except BaseException:
                    # Who does not wait any more does not want its error; who gets one has seen it.
                    self._seen = True
                    self.detach()
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
            if self._state is State.CANCELLED:
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
            if type(value) is Later or type(value) is tuple:
                value = made(value)
            return value  # type: ignore[no-any-return]
        finally:
            error = submission = None
            landing = None  # type: ignore[assignment]
            self = None  # type: ignore[assignment]

    def sync(self) -> T:
        """Start it if need be, block the thread until it is done, and give its value."""
        self._count(1, elsewhere=True)
        try:
            self.start()
            submission_queue.drain()
            while (turn := self._starting_turn()) is not None:
                stands = self._line
                if stands is not None and stands.may_be_finished_here and not stands.submits_here:
                    stands.drain()
                else:
                    turn.run()  # another thread is at it
        except BaseException:
            self.wait_no_more(elsewhere=True)
            raise
        self._count(-1, elsewhere=True)
        submission = self._submission
        if submission is not None and not submission.done:
            submission.stream.wait_until_idle()
        return self._result()

    def done(self) -> bool:
        """Whether the value, or the error, is there. Never blocks."""
        if self._state is State.SUBMITTED and self._submission is not None:
            submission, stream = self._submission, self._submission.stream
            stream.advance()
            if not submission.done and not stream.is_signalled_after(submission.sequence):
                stream.look()
            return submission.done and not any(at.is_pending for at in self._landings)
        return self._state in (State.FAILED, State.CANCELLED)

    def __repr__(self) -> str:
        state = self._state.value
        if self._state is State.SUBMITTED:
            found = self._submission
            state = (
                "in flight" if found is not None and not found.done
                else "done" if found is None or found.error is None
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
