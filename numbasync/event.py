"""Events: marks in streams, with the device's time."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from numbasync import stream as streams
from numbasync.errors import CallerError, DeviceMismatchError, StateError
from numbasync.stream import Stream, check_stream
from numbasync.submission import Submission

if TYPE_CHECKING:
    from numbasync.device import Device


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
        check_stream(stream, "record")
        if stream.device is not self.device:
            raise DeviceMismatchError(
                f"an event of {self.device.label} cannot be recorded on {stream!r}."
            )
        streams.before_mark()
        stream.check()
        # Behind the mark: when the event is passed, the word says so, and what lies before it can
        # be settled.
        self._stream, self._number = stream, stream.mark("an event")
        stream.backend.record(self.backend)
        return self

    def wait(self, stream: Stream) -> None:
        """Work enqueued on `stream` from now on starts after this mark."""
        check_stream(stream, "wait")
        streams.before_mark()
        stream.check()
        stream.backend.wait(self.backend)
        submission = Submission(stream, "a wait for an event")
        submission.retain(self)
        stream.commit(submission)
        if self._stream is not None:
            stream.follow(self._stream, self._number)

    def query(self) -> bool:
        """Whether the mark is passed. Never blocks."""
        passed = self.backend.query()
        self._settle()
        return passed

    def synchronize(self) -> None:
        """Block the thread until the mark is passed."""
        self.backend.synchronize()
        self._settle()
        if self._stream is not None:
            self._stream.look_at_followed()

    def _settle(self) -> None:
        # What lies before the mark may have a host side, such as a copy into an array.
        if self._stream is not None:
            self._stream.advance()

    def __await__(self) -> Generator[Any, None, Event]:
        if self._stream is not None:
            yield from self._stream.wait(self._number)
            self._stream.verify(self._number)
        return self

    def elapsed_ms(self, later: Event) -> float:
        """Device milliseconds from this mark to `later`.

        Raises:
            StateError: one of them was not recorded, or has not been passed yet.
        CallerError: `later` is no event.
        """
        if not isinstance(later, Event):
            raise CallerError(
                f"elapsed_ms takes an event, not {type(later).__name__} ({later!r:.60})."
            )
        if self._stream is None or later._stream is None:
            raise StateError(
                f"elapsed_ms needs two recorded events, not {self!r} and {later!r}: call "
                "record(stream) on both."
            )
        return self.backend.elapsed_ms(later.backend)

    def __repr__(self) -> str:
        if self._stream is None:
            return f"<Event of {self.device.label}, never recorded>"
        return f"<Event of {self.device.label}, {'passed' if self.query() else 'pending'}>"
