"""Events: marks in streams, with the device's time."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from numbasync.device import stream as streams
from numbasync.device.stream import AnyStream, Stream, as_stream
from numbasync.device.submission import Submission
from numbasync.errors import CallerError, DeviceMismatchError, StateError
from numbasync.public import Public

if TYPE_CHECKING:
    from numbasync.device.device import Device


# A later stage, which knows all devices, sets it: the event that another library's object is, of
# the given device; None for what is no event.
of_another_library: Callable[[object, Device | None], Event | None] = lambda _value, _device: None  # noqa: E731


class Event(Public):
    """A mark in a stream, with the device's time. Made by `device.new_event()`.

    Awaiting it, and `query()`, refer to the last `record`. One that was never recorded
    counts as passed.
    """

    def __init__(self, device: Device, timing: bool = True) -> None:
        self.device = device
        self.backend = device.backend.new_event(timing)
        self._stream: Stream | None = None
        self._number = 0

    @classmethod
    def of(cls, value: object, device: Device | None = None) -> Event:
        """The event that an object of Numba, CuPy, PyTorch or cuda.core stands for, which it keeps
        and does not destroy. It may be recorded, and waited for, by both libraries: the driver
        knows the last record, also for `await`.

        Args:
            device: of which device it is, if its library does not say it (Numba, CuPy); None: the
                default device.

        Raises:
            CallerError: it is no event.
            StateError: its library makes it when it is first recorded (PyTorch), and has not yet.
            DeviceMismatchError: it is of another device than `device`, or no CUDA device is here.
        """
        found = value if isinstance(value, Event) else of_another_library(value, device)
        if found is None:
            raise CallerError(
                f"Event.of takes an event of any library, not {type(value).__name__} "
                f"({value!r:.60})."
            )
        if device is not None and found.device is not device:
            raise DeviceMismatchError(f"{found!r} is no event of {device.label}.")
        return found

    def record(self, stream: AnyStream) -> Event:
        """Mark the point that `stream` has been filled to; the event itself."""
        stream = as_stream(stream, "record")
        if stream.device is not self.device:
            raise DeviceMismatchError(
                f"an event of {self.device.label} cannot be recorded on {stream!r}."
            )
        streams.before_mark()
        stream.check_open()
        # Behind the mark: when the event is passed, the word says so, and what lies before it can
        # be settled.
        self._stream, self._number = stream, stream.mark("an event")
        stream.backend.record(self.backend)
        return self

    def wait(self, stream: AnyStream) -> None:
        """Work enqueued on `stream` from now on starts after this mark."""
        stream = as_stream(stream, "wait")
        streams.before_mark()
        stream.check_open()
        stream.backend.wait(self.backend)
        submission = Submission(stream, "a wait for an event")
        submission.retain(self)
        stream.commit(submission)
        if self._stream is not None:
            stream.follow(self._stream, self._number)

    @property
    def was_recorded(self) -> bool:
        """Whether there is a mark, as far as that is known here."""
        return self._stream is not None

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
            # The mark is enqueued before the event: the device may be between the two.
            self.backend.synchronize()
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
        if not (self.was_recorded and later.was_recorded):
            raise StateError(
                f"elapsed_ms needs two recorded events, not {self!r} and {later!r}: call "
                "record(stream) on both."
            )
        return self.backend.elapsed_ms(later.backend)

    def __repr__(self) -> str:
        if self._stream is None:
            return f"<Event of {self.device.label}, never recorded>"
        return f"<Event of {self.device.label}, {'passed' if self.query() else 'pending'}>"
