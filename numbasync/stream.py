"""Streams and events as users hold them, and what is in flight on a stream.

A `Submission` is what one operation enqueued. The stream keeps it, and it keeps everything
that the device may still touch, until the stream's word has passed its number. Nobody else
decides when memory may go: dropping a future, a task, a loop or the stream itself does not.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from numbasync import reactor
from numbasync.backend import base
from numbasync.errors import DeviceMismatchError, StateError

if TYPE_CHECKING:
    from numbasync.device import Device


LOOK_EVERY = 8  # submissions; a look and what it settles cost about 2 us


class Submission:
    """Work of one operation on one stream.

    Attributes:
        name: the operation, for messages.
        sequence: its position on the stream; 0 until it has been committed.
        done: the device has passed it, and its host side is settled.
        error: why it failed, once it is done.
        queue: the backend's queue for its work.
        orphan: nobody holds a future of it; the stream itself reports its error.
    """

    __slots__ = (
        "_after", "_keep", "causes", "done", "error", "name", "orphan", "queue", "sequence",
        "stream",
    )  # fmt: skip

    def __init__(self, stream: Stream, name: str) -> None:
        self.stream = stream
        self.name = name
        self.sequence = 0
        self.done = False
        self.error: BaseException | None = None
        self.queue = stream.backend.open()
        self.orphan = False
        # Most submissions have none.
        self.causes: list[Submission] | None = None
        self._keep: list[object] = []
        self._after: list[Callable[[], None]] | None = None

    def retain(self, thing: object) -> None:
        """Keep `thing` alive until the device has passed this submission."""
        self._keep.append(thing)

    def afterwards(self, call: Callable[[], None]) -> None:
        """Call on the host once the device has passed this submission without failing."""
        if self._after is None:
            self._after = []
        self._after.append(call)

    def depends_on(self, other: Submission) -> None:
        """Fail if `other`, which is ordered before this one, fails."""
        if self.causes is None:
            self.causes = []
        self.causes.append(other)

    def settle(self, error: BaseException | None) -> list[object]:
        """The device has passed it: run the host side. Returns what it kept, to be dropped."""
        error = error or self.queue.failure()
        for cause in self.causes or ():
            error = error or cause.error
        try:
            if error is None:
                for call in self._after or ():
                    call()
        except BaseException as failed:
            error = failed
        self.error = error
        kept, self._keep = self._keep, []
        self._after = self.causes = None
        self.done = True
        return kept

    def __repr__(self) -> str:
        state = "done" if self.done else "in flight" if self.sequence else "being built"
        return f"<Submission {self.name}, {state}, number {self.sequence} on {self.stream!r}>"


class Stream:
    """An ordered queue of work on one device.

    Made by `device.new_stream()` or `await Stream.create(device)`. Streams do not wait for
    the legacy default stream, and are recycled, never destroyed.
    """

    def __init__(self, device: Device, backend: base.Stream) -> None:
        self.device = device
        self.backend = backend
        self._lock = threading.RLock()
        self._in_flight: deque[Submission] = deque()
        self._sequence = backend.completed()  # a recycled stream counts on
        self._broken: BaseException | None = None
        self._unreported: BaseException | None = None
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
            self.device.busy.add(self)
            self.backend.write(self._sequence)
        # Keeps a stream short that nobody awaits; now and then, since it is looked at anyway
        # by whoever awaits, synchronises, or asks for memory.
        if not self._sequence % LOOK_EVERY:
            self.advance()

    def mark(self, name: str = "a mark") -> int:
        """Make this point awaitable; its sequence number."""
        self.check()
        submission = Submission(self, name)
        self.commit(submission)
        return submission.sequence

    def follows(self, other: Stream, sequence: int) -> bool:
        """Whether what is enqueued here from now on starts after that point of `other`."""
        return other is self or self._follows.get(other, 0) >= sequence

    def wait_for(self, other: Stream) -> None:
        """Work enqueued here from now on starts after all that `other` holds now."""
        number = other._sequence
        events = other.device.order_events  # an event is recorded on its own device only
        event = events.take()
        other.backend.record(event)
        self.backend.wait(event)
        # A wait refers to the recording that is the latest when it is enqueued, so the
        # event can be recorded again at once.
        events.give(event)
        self._follows[other] = max(number, self._follows.get(other, 0))

    def check(self) -> None:
        """Raise if the stream is known to be broken."""
        if self._broken is not None:
            raise self._broken

    def verify(self) -> None:
        """Raise if the stream is broken. A word says "done", not "well": before a result is
        handed out, the device is asked.
        """
        self.give_up()
        self.check()

    # --- watching ---

    @property
    def spin_seconds(self) -> float:
        return self.device.backend.spin_seconds

    def advance(self) -> int:
        """Settle what the device has passed; the latest number that it passed."""
        passed = self._sequence if self._broken is not None else self.backend.completed()
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
            if not in_flight:
                self.device.busy.discard(self)

    def _settle_causes(self, passed: int) -> None:
        """Settle what others ordered these submissions after, so that its errors are known.
        Outside of this stream's lock: two streams may each hold a cause of the other.
        """
        for submission in list(self._in_flight):
            if submission.sequence > passed:
                return
            for cause in submission.causes or ():
                if not cause.done and cause.stream is not self:
                    cause.stream.advance()

    def report(self) -> None:
        """Raise the first error of work that nobody holds a future of. Once."""
        error, self._unreported = self._unreported, None
        if error is not None:
            raise error

    def wake(self, sequence: int, doorbell: base.Doorbell) -> bool:
        return self.backend.wake(sequence, doorbell)

    def give_up(self) -> bool:
        """If the device reports a fault, fail everything in flight. Whether it did."""
        if self._broken is None:
            fault = self.backend.fault()
            if fault is None:
                return False
            self._broken = fault
        self._settle(self._sequence)
        return True

    def wait(self, sequence: int) -> Generator[Any, None, None]:
        """Suspend the running task until the device has passed `sequence`."""
        if self.advance() >= sequence:
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
        self.check()
        try:
            self.backend.synchronize()
        except BaseException:
            self.give_up()
            raise
        self.advance()
        self.report()

    def query(self) -> bool:
        """Whether everything enqueued so far is done. Never blocks."""
        self.check()
        done = self.backend.query()
        self.advance()
        return done

    async def done(self) -> Stream:
        """Wait, without blocking the loop, for everything enqueued so far; the stream itself.

        Raises:
            What work of `async_on` failed with, which has no future to report it.
        """
        number = self.mark("Stream.done()")
        await _Awaitable(self.wait(number))
        self.verify()
        self.report()
        return self

    @property
    def pending(self) -> int:
        """Submissions in flight."""
        self.advance()
        return len(self._in_flight)

    def __getattr__(self, name: str) -> Any:
        # Only CUDA streams have the protocol, so that `hasattr` tells the truth.
        if name == "__cuda_stream__" and self.backend.native is not None:
            return self.backend.native.__cuda_stream__
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        state = "broken" if self._broken is not None else f"{len(self._in_flight)} in flight"
        return f"<Stream of {self.device.label}, {state}>"


class Event:
    """A mark in a stream, with the device's time. Made by `device.new_event()`.

    Awaiting it, and `query()`, refer to the last `record`. One that was never recorded
    counts as passed.
    """

    def __init__(self, device: Device, timing: bool = True) -> None:
        self.device = device
        self.backend = device.backend.new_event(timing)
        self._stream: Stream | None = None
        self._number = 0

    def record(self, stream: Stream) -> Event:
        """Mark the point that `stream` has been filled to; the event itself."""
        if stream.device is not self.device:
            raise DeviceMismatchError(
                f"an event of {self.device.label} cannot be recorded on {stream!r}."
            )
        stream.check()
        stream.backend.record(self.backend)
        self._stream, self._number = stream, stream.mark("an event")
        return self

    def wait(self, stream: Stream) -> None:
        """Work enqueued on `stream` from now on starts after this mark."""
        stream.check()
        stream.backend.wait(self.backend)
        submission = Submission(stream, "a wait for an event")
        submission.retain(self)
        stream.commit(submission)
        if self._stream is not None:
            stream._follows[self._stream] = max(self._number, stream._follows.get(self._stream, 0))

    def query(self) -> bool:
        """Whether the mark is passed. Never blocks."""
        passed = self.backend.query()
        self._settle()
        return passed

    def synchronize(self) -> None:
        """Block the thread until the mark is passed."""
        self.backend.synchronize()
        self._settle()

    def _settle(self) -> None:
        # What lies before the mark may have a host side, such as a copy into an array.
        if self._stream is not None:
            self._stream.advance()

    def __await__(self) -> Generator[Any, None, Event]:
        if self._stream is not None:
            yield from self._stream.wait(self._number)
            self._stream.verify()
        return self

    def elapsed_ms(self, later: Event) -> float:
        """Device milliseconds from this mark to `later`.

        Raises:
            StateError: one of them was not recorded, or has not been passed yet.
        """
        if self._stream is None or later._stream is None:
            raise StateError("elapsed_ms needs two recorded events: call record(stream) on both.")
        return self.backend.elapsed_ms(later.backend)

    def __repr__(self) -> str:
        if self._stream is None:
            return f"<Event of {self.device.label}, never recorded>"
        return f"<Event of {self.device.label}, {'passed' if self.query() else 'pending'}>"


class _Awaitable:
    """A generator as something that `await` accepts."""

    __slots__ = ("_steps",)

    def __init__(self, steps: Generator[Any, None, None]) -> None:
        self._steps = steps

    def __await__(self) -> Generator[Any, None, None]:
        return self._steps
