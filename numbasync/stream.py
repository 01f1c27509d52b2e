"""Streams as users hold them, and what is in flight on one.

The stream keeps its submissions, and they keep everything that the device may still touch,
until the stream's word has passed their numbers. Nobody else decides when memory may go:
dropping a future, a task, a loop or the stream itself does not.
"""

from __future__ import annotations

import itertools
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from numbasync import reactor
from numbasync.backend import base
from numbasync.errors import CallerError, DeviceLostError, DriverError
from numbasync.submission import Submission

if TYPE_CHECKING:
    from numbasync.device import Device


def _nothing() -> None: ...


async def _nothing_to_await() -> None: ...


# What stands in line (a later stage) comes before a mark that is set now. That stage sets
# these: submit it now; whether there is nothing; submit it while the loop turns.
before_mark: Callable[[], None] = _nothing
nothing_waits: Callable[[], bool] = lambda: True  # noqa: E731
line_is_finished: Callable[[], Awaitable[None]] = _nothing_to_await

_numbers = itertools.count(1)

LOOK_EVERY = 8  # submissions; a look and what it settles cost about 2 us


class Stream:
    """An ordered queue of work on one device.

    Made by `device.new_stream()` or `await Stream.create(device)`. Streams do not wait for
    the legacy default stream, and are recycled, never destroyed.

    Attributes:
        device: its device.
        number: which one it is of the process's, for messages.
    """

    def __init__(self, device: Device, backend: base.Stream) -> None:
        self.device = device
        self.number = next(_numbers)
        self.backend = backend
        self._lock = threading.RLock()
        self._in_flight: deque[Submission] = deque()
        self.nbytes = 0  # of all that is in flight
        self._sequence = backend.completed()  # a recycled stream counts on
        # Passed for certain, whatever the word says: the device was asked.
        self._known = 0
        self._broken: BaseException | None = None
        self._broken_trace: TracebackType | None = None
        self._unreported: BaseException | None = None
        # Suspended half-way, and those of them whose operation has gone.
        self._suspended: dict[Submission, None] = {}
        self._abandoned: deque[Submission] = deque()
        # Of other streams, the number that what is enqueued here from now on starts after.
        self._follows: weakref.WeakKeyDictionary[Stream, int] = weakref.WeakKeyDictionary()

    @classmethod
    async def create(cls, device: Device) -> Stream:
        """The same as `device.new_stream()`."""
        return device.new_stream()

    def next_stream(self) -> Stream:
        """Itself: a stream is a scheduling policy that always picks itself, so that
        `op.schedule(stream)` and `na.spawn(op, stream)` do what they say.
        """
        return self

    # --- submitting ---

    def commit(self, submission: Submission) -> None:
        """Give `submission` the next number, and have the device write it behind its work."""
        with self._lock:
            self._sequence += 1
            submission.sequence = self._sequence
            self._in_flight.append(submission)
            self.nbytes += submission.nbytes
            self.device.busy[self] = None
            self.backend.write(self._sequence)
        # Keeps a stream short that nobody awaits; now and then, since it is looked at anyway
        # by whoever awaits, synchronises, or asks for memory.
        if not len(self._in_flight) % LOOK_EVERY:
            try:
                self.advance()
            except DriverError:  # who waits for it looks again, and is told
                return

    def suspend(self, submission: Submission) -> None:
        """It is half enqueued, and goes on later, or never: keep what the device uses."""
        self._suspended[submission] = None
        self.device.busy[self] = None

    def resume(self, submission: Submission) -> None:
        """It is held by whoever builds it, or by the queue, again."""
        self._suspended.pop(submission, None)
        if not self._suspended and not self._in_flight:
            self.device.busy.pop(self, None)

    def abandon(self, submission: Submission) -> None:
        """Whoever was building it has gone. What is enqueued of it gets a number soon.

        Called by finalisers, which may run inside any lock, so it takes none.
        """
        self._abandoned.append(submission)

    def mark(self, name: str = "a mark") -> int:
        """Make this point awaitable; its sequence number."""
        before_mark()
        self.check()
        submission = Submission(self, name)
        self.commit(submission)
        return submission.sequence

    def follows(self, other: Stream, sequence: int) -> bool:
        """Whether what is enqueued here from now on starts after that point of `other`."""
        return other is self or self._follows.get(other, 0) >= sequence

    def follow(self, other: Stream, sequence: int) -> None:
        """What is enqueued here from now on starts after that point of `other`."""
        self._follows[other] = max(sequence, self._follows.get(other, 0))

    def wait_for(self, other: Stream) -> None:
        """Work enqueued here from now on starts after all that `other` holds now."""
        check_stream(other, "wait_for")
        number = other._sequence
        events = other.device.order_events  # an event is recorded on its own device only
        event = events.take()
        other.backend.record(event)
        self.backend.wait(event)
        # A wait refers to the recording that is the latest when it is enqueued, so the
        # event can be recorded again at once.
        events.give(event)
        self.follow(other, number)

    def check(self) -> None:
        """Raise if the stream, or its device, is known to be broken."""
        if self._broken is not None:
            raise self._broken.with_traceback(self._broken_trace)
        if self.device.lost is not None:
            self.device.check()

    def verify(self, sequence: int) -> None:
        """Raise if the stream is broken. A word says "done", not "well": before a result is
        handed out, the device is asked, unless it has vouched for that point (0: for none).
        """
        if not 0 < sequence <= self.backend.vouched():
            self._is_broken()
        self.check()

    # --- watching ---

    @property
    def spin_seconds(self) -> float:
        return self.device.backend.spin_seconds

    def advance(self) -> int:
        """Settle what the device has passed; the latest number that it passed."""
        if self._abandoned:
            self._commit_abandoned()
        passed = self._sequence if self._broken is not None else self.backend.completed()
        if passed < self._known:
            passed = self._known
        in_flight = self._in_flight
        if in_flight:
            try:
                if in_flight[0].sequence <= passed:
                    self._settle(passed)
            except IndexError:
                pass  # another thread settled it in between
        return passed

    def _settle(self, passed: int) -> None:
        self._settle_causes(passed)
        kept = []  # dropped outside the lock: finalisers may take long
        with self._lock:
            in_flight = self._in_flight
            while in_flight and in_flight[0].sequence <= passed:
                submission = in_flight[0]
                kept.append(submission.settle(self._broken))
                if submission.orphan and submission.error is not None:
                    self._unreported = self._unreported or submission.error
                # Only now: a thread that still sees it waits for the lock, so that nobody
                # takes a result whose host side is not there yet.
                in_flight.popleft()
                self.nbytes -= submission.nbytes
            if not in_flight and not self._suspended:
                self.device.busy.pop(self, None)

    def _commit_abandoned(self) -> None:
        with self._lock:
            while self._abandoned:
                submission = self._abandoned.popleft()
                self.commit(submission)
                self.resume(submission)

    def _settle_causes(self, passed: int) -> None:
        """Settle what others ordered these submissions after, so that its errors are known.
        Outside of this stream's lock: two streams may each hold a cause of the other.
        """
        for submission in list(self._in_flight):
            if submission.sequence > passed:
                return
            for cause in submission.causes or ():
                # Up to the cause and not further, or two streams that hold a cause of each
                # other would settle each other for ever. The device has passed it.
                if not cause.done and cause.sequence and cause.stream is not self:
                    cause.stream._settle(cause.sequence)

    def report(self) -> None:
        """Raise the first error of work that nobody holds a future of. Once."""
        error, self._unreported = self._unreported, None
        if error is not None:
            raise error

    def wake(self, sequence: int, doorbell: base.Doorbell) -> bool:
        return self.backend.wake(sequence, doorbell)

    def give_up(self) -> bool:
        """Ask the device, not its word. If it reports a fault, fail everything in flight; if it
        is idle, everything is done. Whether it was one of these.
        """
        return self._is_broken() or self._has_lost_a_mark()

    def _is_broken(self) -> bool:
        if self._broken is None:
            fault = self.device.lost or self.backend.fault()
            if fault is None:
                return False
            if isinstance(fault, DeviceLostError):
                self.device.lose(fault)
            self.break_with(self.device.lost or fault)
        self._settle(self._sequence)
        return True

    def _has_lost_a_mark(self) -> bool:
        """Whether the stream is idle although its word says otherwise. Then what was enqueued
        is done: the device's own answer counts.
        """
        number = self._written()
        if not (self._in_flight and self.backend.query()) or self.backend.completed() >= number:
            return False
        self._known = max(self._known, number)
        return True

    def _written(self) -> int:
        """The latest number that the device has been told to write."""
        with self._lock:
            return self._sequence

    def break_with(self, fault: BaseException) -> None:
        """It will pass nothing any more: what is in flight fails with `fault`."""
        if self._broken is None:
            self._broken, self._broken_trace = fault, fault.__traceback__

    def at_work(self) -> Submission | None:
        """The submission that the device has not passed and that no other is before."""
        passed = self.backend.completed()
        return next((s for s in list(self._in_flight) if s.sequence > passed), None)

    def wait(self, sequence: int) -> Generator[Any, None, None]:
        """Suspend the running task until the device has passed `sequence`."""
        if self.advance() >= sequence:
            yield from reactor.need_not_wait()
            return
        watcher = reactor.current()
        future = watcher.wait(self, sequence)
        try:
            yield from future
        finally:
            if future.cancelled():
                watcher.forget(self, future)

    # --- what users call ---

    def synchronize(self) -> None:
        """Block the thread until everything enqueued so far is done.

        Raises:
            What work of `async_on` failed with, which has no future to report it.
        """
        before_mark()
        self.wait_until_idle()
        self.report()

    def wait_until_idle(self) -> None:
        """`synchronize`, which leaves errors to those who hold a future, or ask later."""
        self.check()
        number = self._written()
        try:
            self.backend.synchronize()
        except BaseException:
            self._is_broken()
            self.check()  # a fault's own message, which says what was at work
            raise
        self._known = max(self._known, number)
        self.advance()

    def query(self) -> bool:
        """Whether everything enqueued so far is done. Never blocks."""
        self.check()
        if not nothing_waits():
            return False
        done = self.backend.query()
        self.advance()
        return done

    async def done(self) -> Stream:
        """Wait, without blocking the loop, for everything enqueued so far; the stream itself.

        Raises:
            What work of `async_on` failed with, which has no future to report it.
        """
        await line_is_finished()
        number = self.mark("Stream.done()")
        await _Awaitable(self.wait(number))
        self.verify(number)
        self.report()
        return self

    @property
    def pending(self) -> int:
        """Submissions in flight."""
        self.advance()
        return len(self._in_flight)

    @property
    def unsettled(self) -> int:
        """`pending`, without a look."""
        return len(self._in_flight)

    @property
    def front(self) -> int:
        """The number of the first submission in flight; 0 if there is none."""
        try:
            return self._in_flight[0].sequence
        except IndexError:
            return 0

    def __getattr__(self, name: str) -> Any:
        # Only CUDA streams have the protocol, so that `hasattr` tells the truth.
        if name == "__cuda_stream__" and self.backend.native is not None:
            return self.backend.native.__cuda_stream__
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __del__(self) -> None:
        error = getattr(self, "_unreported", None)
        if error is not None:
            warnings.warn(
                f"work of async_on failed, and nobody synchronised its stream: "
                f"{type(error).__name__}: {error}",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )

    def __repr__(self) -> str:
        state = "broken" if self._broken is not None else f"{len(self._in_flight)} in flight"
        return f"<Stream {self.number} of {self.device.label}, {state}>"


class _Awaitable:
    """A generator as something that `await` accepts."""

    __slots__ = ("_steps",)

    def __init__(self, steps: Generator[Any, None, None]) -> None:
        self._steps = steps

    def __await__(self) -> Generator[Any, None, None]:
        return self._steps


def check_stream(value: object, where: str) -> None:
    """Refuse what is no stream.

    Raises:
        CallerError: the message says that `where` takes one.
    """
    if not isinstance(value, Stream):
        raise CallerError(f"{where} takes a stream, not {type(value).__name__} ({value!r:.60}).")
