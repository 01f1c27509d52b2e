"""The submissions in flight on one stream: their sequence numbers, their completion, their faults.

The stream keeps its submissions, and the submissions keep every object that the device may still
touch, until the stream's completion counter has passed their numbers. Nothing else frees memory
in use: not dropping a future, a task, a loop or the stream itself.
"""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Any, Protocol

from numbasync.arguments import with_type
from numbasync.backend import protocols
from numbasync.device import tracing
from numbasync.device.submission import Submission
from numbasync.errors import CallerError, DeviceLostError, DriverError
from numbasync.native import compiled, core, known, new_lock

# Sequence numbers without a signal: the counter has 32 bits and is extended from its last value.
MAX_UNSIGNALLED = 2**24
LOOK_EVERY = 64  # submissions per poll; the signal that a poll needs costs the driver about 2 us


class StreamOwner(Protocol):
    """The part of a device that its streams' submissions use.

    Attributes:
        lost: the fault that stopped the whole device.
        busy: the streams that have submissions in flight.
    """

    lost: DeviceLostError | None

    @property
    def busy(self) -> dict[Any, None]: ...

    def lose(self, fault: DeviceLostError) -> None:
        """Note the fault that stopped the device."""

    def check(self) -> None:
        """Raise if the device is lost."""


@known
class Progress:
    """The submissions in flight on one stream, in order."""

    __slots__ = (
        "_abandoned", "_broken", "_broken_trace", "_confirmed", "_in_flight", "_lock", "_owner",
        "_sequence", "_signalled", "_suspended", "_unreported", "backend", "device",
        "has_dependencies", "nbytes", "verified",
    )  # fmt: skip

    def __init__(self, owner: StreamOwner, backend: protocols.Stream) -> None:
        if not hasattr(backend, "completed"):
            raise CallerError(
                f"a Stream is of a device's queue, not of {with_type(backend)}: write "
                "device.new_stream()."
            )
        self._owner = owner
        self.backend = backend
        self._lock = new_lock()
        self._in_flight: deque[Submission] = deque()
        self.nbytes = 0  # sum over the submissions in flight
        self.has_dependencies = False  # a submission in flight fails if another one fails
        self._sequence = backend.completed()  # a recycled stream continues its numbers
        self._signalled = self._sequence  # the latest number that has a signal enqueued
        # Passed according to the driver, whatever the completion counter says.
        self._confirmed = 0
        self.verified = 0  # passed without a fault, according to the driver
        self._broken: BaseException | None = None
        self._broken_trace: TracebackType | None = None
        self._unreported: BaseException | None = None
        # Half-enqueued submissions; and those of them whose operation was dropped.
        self._suspended: dict[Submission, None] = {}
        self._abandoned: deque[Submission] = deque()

    # --- adding submissions ---

    @compiled
    def commit(self, submission: Submission, signal: bool = True) -> None:
        """Give `submission` the next sequence number.

        Args:
            signal: enqueue a signal of the number behind the work, for an awaiter. Without one, a
                later signal covers the submission; the next `poll` enqueues one if needed.
        """
        if submission.is_empty:
            submission.retire(None)
            if (recorder := tracing.recorder) is not None:
                recorder.commit(submission)
            return
        in_flight = self._in_flight
        submission.is_trivial = (
            submission.queue is None and submission.dependencies is None
            and submission.after is None and not submission.nbytes
        )  # fmt: skip
        with self._lock:
            # ^C may come between any two of these: a number may be left out, and the device knows
            # of the stream before the submission is in flight.
            self._sequence = number = self._sequence + 1
            submission.sequence = number
            if submission.dependencies is not None:  # others may be retired since `depends_on`
                self.has_dependencies = True
            self._owner.busy[self] = None
            in_flight.append(submission)
            self.nbytes += submission.nbytes
            if signal:
                self.backend.write(number)
                self._signalled = number
                submission.signalled = True
        if (recorder := tracing.recorder) is not None:
            recorder.commit(submission)
        # Bounds the queue of a stream without awaiters. Rarely, because awaiting, synchronising
        # and allocating poll the stream as well.
        if not len(in_flight) % LOOK_EVERY or number - self._signalled >= MAX_UNSIGNALLED:
            try:
                if not signal:
                    self.ensure_signalled(number)
                passed = self.advance()
                if recorder is not None:
                    recorder.passed(self, passed)
            except (DriverError, DeviceLostError):  # the awaiter polls again, and raises the error
                return

    def ensure_signalled(self, sequence: int) -> None:
        """Enqueue a signal, unless `sequence` or a later number has one already."""
        if self._signalled < sequence:
            with self._lock:
                number = self._sequence
                self.backend.write(number)
                if self._in_flight:
                    self._in_flight[-1].signalled = True
                self._signalled = number

    def suspend(self, submission: Submission) -> None:
        """Hold a half-enqueued submission, which keeps the objects that the device uses, until
        `resume` or `abandon`.
        """
        self._suspended[submission] = None
        self._owner.busy[self] = None

    def resume(self, submission: Submission) -> None:
        """Release a submission of `suspend`: its builder, or the queue, holds it again."""
        self._suspended.pop(submission, None)
        self._forget_if_idle()

    def _forget_if_idle(self) -> None:
        """Let the device forget this stream, if nothing is in flight. Another thread that submits
        at the same time adds its submission first, and then the stream.
        """
        if not self._suspended and not self._in_flight and not self._abandoned:
            self._owner.busy.pop(self, None)
            if self._suspended or self._in_flight or self._abandoned:
                self._owner.busy[self] = None

    def abandon(self, submission: Submission) -> None:
        """Note a submission whose builder has gone. The next `advance` commits it.

        Finalisers call this method and may run inside any lock, so the method takes no lock.
        """
        self._abandoned.append(submission)
        self._owner.busy[self] = None

    def has(self, submission: Submission) -> bool:
        """Whether the submission was committed: it is in flight, or done."""
        return submission.done or submission in self._in_flight

    @property
    def submissions(self) -> tuple[Submission, ...]:
        """The submissions in flight, in order."""
        return tuple(self._in_flight.copy())  # a copy is made at once; other threads go on

    # --- faults ---

    @property
    def is_broken(self) -> bool:
        """Whether a fault is known to have stopped the stream."""
        return self._broken is not None

    def check(self) -> None:
        """Raise if the stream, or its device, is known to be broken."""
        if self._broken is not None:
            raise self._broken.with_traceback(self._broken_trace)
        if self._owner.lost is not None:
            self._owner.check()

    @compiled
    def verify(self, sequence: int) -> None:
        """Raise if the stream is broken. The completion counter says done, not error-free: before a
        result is returned, the driver is queried, unless `sequence` is verified (0: never is).
        """
        if (
            not 0 < sequence <= self.verified
            and not 0 < sequence <= self.backend.verified_sequence()
        ):
            passed = max(self.backend.completed(), self._confirmed)
            if not self._is_broken():
                self.verified = passed
        self.check()

    # --- retiring submissions ---

    def poll(self) -> None:
        """Retire the submissions that the device has passed; query the driver for unsignalled ones,
        and enqueue a signal if the stream is not idle.
        """
        self.advance()
        number = self._sequence
        if self._in_flight and self._signalled < number:
            if self.backend.query():
                self._has_passed(number)
                self.advance()
            else:
                self.ensure_signalled(number)
        elif not self._in_flight:  # ^C may have come before a submission was in flight
            with self._lock:
                self._forget_if_idle()

    def _has_passed(self, number: int) -> None:
        """Note that the driver reported `number` as passed, whatever the counter says."""
        with self._lock:
            if number > self._confirmed:
                self._confirmed = number

    def is_signalled_after(self, number: int) -> bool:
        """Whether `number`, or a later number, has a signal enqueued."""
        return self._signalled >= number

    @compiled
    def advance(self) -> int:
        """Poll the counter and retire passed submissions; the latest number that was passed."""
        if self._abandoned:
            self._commit_abandoned()
        passed = self._sequence if self._broken is not None else self.backend.completed()
        if passed < self._confirmed:
            passed = self._confirmed
        in_flight = self._in_flight
        if in_flight:
            try:
                if in_flight[0].sequence <= passed:
                    self._retire(passed)
            except IndexError:
                pass  # another thread has retired it in between
        return passed

    @compiled
    def _retire(self, passed: int) -> None:
        if self.has_dependencies:
            self._retire_dependencies(passed)
        dropped = []  # dropped outside the lock: finalisers may take long
        with self._lock:
            in_flight, broken = self._in_flight, self._broken
            while True:
                if not in_flight:
                    break
                submission = in_flight[0]
                if submission.sequence > passed:
                    break
                if submission.is_trivial and broken is None:
                    dropped.append(submission.keep_alive)
                    submission.keep_alive = []
                    submission.done = True
                else:
                    dropped.append(submission.retire(broken))
                    if submission.detached and submission.error is not None:
                        self._unreported = self._unreported or submission.error
                    self.nbytes -= submission.nbytes
                # Removed last: another thread that still sees the submission waits for the lock,
                # so that no result is returned before its host side is complete.
                in_flight.popleft()
            if not in_flight:
                self.has_dependencies = False
                self.nbytes = 0  # whatever ^C has kept from being counted
                self._forget_if_idle()

    def _commit_abandoned(self) -> None:
        with self._lock:
            while True:
                if not self._abandoned:
                    break
                submission = self._abandoned[0]
                if not self.has(submission):
                    self.commit(submission)
                self._suspended.pop(submission, None)
                self._abandoned.popleft()  # last: after ^C the next call goes on
            self._forget_if_idle()

    def _retire_dependencies(self, passed: int) -> None:
        """Retire the dependencies of these submissions on other streams, so that their errors are
        known. The caller must not hold this stream's lock: two streams may depend on each other.
        """
        for submission in list(self._in_flight):
            if submission.sequence > passed:
                return
            for dependency in submission.dependencies or ():
                # The device has passed the dependency. Retire up to it and not further, or two
                # streams that depend on each other would retire each other for ever.
                if not dependency.done and dependency.sequence and dependency.stream is not self:
                    dependency.stream._retire(dependency.sequence)

    def report(self) -> None:
        """Raise the first unreported error of work without a future (`async_on`), once."""
        error, self._unreported = self._unreported, None
        if error is not None:
            raise error

    def query_device(self) -> bool:
        """Query the driver instead of the counter. After a fault, everything in flight fails; if
        the stream is idle although the counter lags, everything is done. Whether either was found.
        """
        return self._is_broken() or self._has_lost_a_signal()

    def _is_broken(self) -> bool:
        if self._broken is None:
            fault = self._owner.lost or self.backend.fault()
            if fault is None:
                return False
            if isinstance(fault, DeviceLostError):
                self._owner.lose(fault)
            self.break_with(self._owner.lost or fault)
        self._retire(self._sequence)
        return True

    def _has_lost_a_signal(self) -> bool:
        """Whether the stream is idle although the counter says otherwise (a lost signal). Then all
        enqueued work is noted as passed: the driver's answer counts.
        """
        number = self._sequence
        if not (self._in_flight and self.backend.query()) or self.backend.completed() >= number:
            return False
        self._has_passed(number)
        return True

    def break_with(self, fault: BaseException) -> None:
        """Mark the stream broken: submissions in flight fail with `fault`."""
        if self._broken is None:
            self._broken, self._broken_trace = fault, fault.__traceback__

    def at_work(self) -> list[Submission]:
        """The submissions that the device may be running: the first that is not passed, and those
        behind it up to the first signal.
        """
        passed, running = self.backend.completed(), list[Submission]()
        for submission in list(self._in_flight):
            if submission.sequence > passed:
                running.append(submission)
                if submission.signalled:
                    break
        return running

    @property
    def pending(self) -> int:
        """The number of submissions in flight. Polls first."""
        self.poll()
        return len(self._in_flight)

    @property
    def in_flight_count(self) -> int:
        """`pending`, without polling."""
        return len(self._in_flight)

    @property
    def front(self) -> int:
        """The sequence number of the first submission in flight; 0 if nothing is in flight."""
        try:
            return self._in_flight[0].sequence
        except IndexError:
            return 0


if core is not None:
    core.know_faults((DriverError, DeviceLostError))
