"""What one stream has passed: its submissions, their numbers, and the end of each.

The stream keeps its submissions, and they keep everything that the device may still touch,
until the stream's word has passed their numbers. Nobody else decides when memory may go:
dropping a future, a task, a loop or the stream itself does not.
"""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING

from numbasync.backend import protocols
from numbasync.device.submission import Submission
from numbasync.errors import DeviceLostError, DriverError

if TYPE_CHECKING:
    from numbasync.device.device import Device

MAX_UNSIGNALLED = 2**24  # numbers without a mark: a word has 32 bits, and counts on from its last
LOOK_EVERY = 16  # submissions; a look and what it settles cost about 2 us


class Progress:
    """Submissions in flight on one stream, in their order."""

    def __init__(self, device: Device, backend: protocols.Stream) -> None:
        self.device = device
        self.backend = backend
        self._lock = threading.RLock()
        self._in_flight: deque[Submission] = deque()
        self.nbytes = 0  # of all that is in flight
        self.has_dependencies = False  # something in flight fails if something else does
        self._sequence = backend.completed()  # a recycled stream counts on
        self._signalled = self._sequence  # the latest number that the device was told to write
        # Passed for certain, whatever the word says: the device was asked.
        self._confirmed = 0
        self.verified = 0  # passed without a fault until then: the device was asked
        self._broken: BaseException | None = None
        self._broken_trace: TracebackType | None = None
        self._unreported: BaseException | None = None
        # Suspended half-way, and those of them whose operation has gone.
        self._suspended: dict[Submission, None] = {}
        self._abandoned: deque[Submission] = deque()

    # --- submissions come ---

    def commit(self, submission: Submission, mark: bool = True) -> None:
        """Give `submission` the next number.

        Args:
            mark: have the device write the number behind its work: somebody will wait for it. For
                others a later mark does, which the next look may have to ask for.
        """
        if submission.is_empty:
            submission.settle(None)
            return
        in_flight = self._in_flight
        submission.is_trivial = (
            submission.queue is None and submission.dependencies is None
            and submission.after is None and not submission.nbytes
        )  # fmt: skip
        with self._lock:
            self._sequence = number = self._sequence + 1
            submission.sequence = number
            if not in_flight:
                self.device.busy[self] = None  # type: ignore[index]  # it is a Stream
            in_flight.append(submission)
            self.nbytes += submission.nbytes
            if mark:
                self._signalled = number
                submission.signalled = True
                self.backend.write(number)
        # Keeps a stream short that nobody awaits; now and then, since it is looked at anyway
        # by whoever awaits, synchronises, or asks for memory.
        if not len(in_flight) % LOOK_EVERY or number - self._signalled >= MAX_UNSIGNALLED:
            try:
                if not mark:
                    self.ensure_signalled(number)
                self.advance()
            except (DriverError, DeviceLostError):  # who waits for it looks again, and is told
                return

    def ensure_signalled(self, sequence: int) -> None:
        """Have the device write a number that is `sequence` or later."""
        if self._signalled < sequence:
            with self._lock:
                if self._in_flight:
                    self._in_flight[-1].signalled = True
                self._signalled = self._sequence
                self.backend.write(self._sequence)

    def suspend(self, submission: Submission) -> None:
        """It is half enqueued, and goes on later, or never: keep what the device uses."""
        self._suspended[submission] = None
        self.device.busy[self] = None  # type: ignore[index]  # it is a Stream

    def resume(self, submission: Submission) -> None:
        """It is held by whoever builds it, or by the queue, again."""
        self._suspended.pop(submission, None)
        if not self._suspended and not self._in_flight:
            self.device.busy.pop(self, None)  # type: ignore[call-overload]

    def abandon(self, submission: Submission) -> None:
        """Whoever was building it has gone. What is enqueued of it gets a number soon.

        Called by finalisers, which may run inside any lock, so it takes none.
        """
        self._abandoned.append(submission)

    # --- faults ---

    @property
    def is_broken(self) -> bool:
        """Whether it is known to pass nothing any more."""
        return self._broken is not None

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
        if (
            not 0 < sequence <= self.verified
            and not 0 < sequence <= self.backend.verified_sequence()
        ):
            passed = max(self.backend.completed(), self._confirmed)
            if not self._is_broken():
                self.verified = passed
        self.check()

    # --- submissions go ---

    def look(self) -> None:
        """Settle what the device has passed, also what has no mark behind it."""
        self.advance()
        number = self._sequence
        if self._in_flight and self._signalled < number:
            if self.backend.query():
                self._has_passed(number)
                self.advance()
            else:
                self.ensure_signalled(number)

    def _has_passed(self, number: int) -> None:
        """The device has said so, whatever its word says."""
        with self._lock:
            if number > self._confirmed:
                self._confirmed = number

    def is_signalled_after(self, number: int) -> bool:
        """Whether the device was told to write that number, or a later one."""
        return self._signalled >= number

    def advance(self) -> int:
        """Settle what the device has passed; the latest number that it passed."""
        if self._abandoned:
            self._commit_abandoned()
        passed = self._sequence if self._broken is not None else self.backend.completed()
        if passed < self._confirmed:
            passed = self._confirmed
        in_flight = self._in_flight
        if in_flight:
            try:
                if in_flight[0].sequence <= passed:
                    self._settle(passed)
            except IndexError:
                pass  # another thread settled it in between
        return passed

    def _settle(self, passed: int) -> None:
        if self.has_dependencies:
            self._settle_causes(passed)
        kept = []  # dropped outside the lock: finalisers may take long
        with self._lock:
            in_flight, broken = self._in_flight, self._broken
            while in_flight:
                submission = in_flight[0]
                if submission.sequence > passed:
                    break
                if submission.is_trivial and broken is None:
                    kept.append(submission.kept)
                    submission.kept = []
                    submission.done = True
                else:
                    kept.append(submission.settle(broken))
                    if submission.detached and submission.error is not None:
                        self._unreported = self._unreported or submission.error
                    self.nbytes -= submission.nbytes
                # Only now: a thread that still sees it waits for the lock, so that nobody
                # takes a result whose host side is not there yet.
                in_flight.popleft()
            if not in_flight:
                self.has_dependencies = False
                if not self._suspended:
                    self.device.busy.pop(self, None)  # type: ignore[call-overload]

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
            for cause in submission.dependencies or ():
                # Up to the cause and not further, or two streams that hold a cause of each
                # other would settle each other for ever. The device has passed it.
                if not cause.done and cause.sequence and cause.stream is not self:
                    cause.stream._settle(cause.sequence)

    def report(self) -> None:
        """Raise the first error of work that nobody holds a future of. Once."""
        error, self._unreported = self._unreported, None
        if error is not None:
            raise error

    def query_device(self) -> bool:
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
        number = self._sequence
        if not (self._in_flight and self.backend.query()) or self.backend.completed() >= number:
            return False
        self._has_passed(number)
        return True

    def break_with(self, fault: BaseException) -> None:
        """It will pass nothing any more: what is in flight fails with `fault`."""
        if self._broken is None:
            self._broken, self._broken_trace = fault, fault.__traceback__

    def at_work(self) -> list[Submission]:
        """What the device may be at: the first submission that it has not passed; those behind it,
        too, up to the first mark.
        """
        passed, found = self.backend.completed(), list[Submission]()
        for submission in list(self._in_flight):
            if submission.sequence > passed:
                found.append(submission)
                if submission.signalled:
                    break
        return found

    @property
    def pending(self) -> int:
        """Submissions in flight."""
        self.look()
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
