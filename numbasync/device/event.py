"""Events: points of streams, with the device's time."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from numbasync.arguments import check_bool, with_type
from numbasync.backend import protocols
from numbasync.device import stream as streams
from numbasync.device.provided import Provided
from numbasync.device.stream import AnyStream, Stream, as_stream
from numbasync.device.submission import Submission
from numbasync.errors import CallerError, DeviceMismatchError, StateError
from numbasync.public import Public

if TYPE_CHECKING:
    from numbasync.device.device import Device


class EventPool:
    """Untimed events, each used for an instant to order one stream after another."""

    def __init__(self, device: protocols.Device) -> None:
        self._device = device
        self._spare: list[Any] = []

    def take(self) -> Any:
        try:
            return self._spare.pop()
        except IndexError:
            return self._device.new_event(timing=False)

    def give(self, event: Any) -> None:
        self._spare.append(event)


def _is_no_event(value: object, device: Device | None) -> Event | None:
    return None


# By `foreign_streams`: the event of another library's object, on the given device; None if the
# object is no event.
of_another_library = Provided(_is_no_event)


class Event(Public):
    """A point of a stream, with the device's time. Made by `device.new_event()`.

    Awaiting an event, and `query()`, refer to the last `record`. An event that was never recorded
    counts as passed.

    Attributes:
        device: the event's device.

    Examples:
        >>> device = na.default_device()
        >>> stream = device.new_stream()
        >>> t = na.zeros(3).async_on(stream)
        >>> event = device.new_event().record(stream)  # behind the work so far
        >>> await event
        <Event of cpu:0, passed>
        >>> event.query()
        True
    """

    def __init__(self, device: Device, timing: bool = True) -> None:
        self.device = device
        try:
            new_event = device.backend.new_event
        except AttributeError:
            raise CallerError(
                f"an event needs a device, not {with_type(device)}: write "
                "na.default_device().new_event()."
            ) from None
        self.backend = new_event(check_bool(timing, "timing of an event"))
        self._stream: Stream | None = None
        self._number = 0

    @classmethod
    def of(cls, value: object, device: Device | None = None) -> Event:
        """The event for an event object of Numba, CuPy, PyTorch or cuda.core. The Event keeps the
        object alive and does not destroy it. Both libraries may record the event and wait for it:
        the driver knows the last record, also for `await`.

        Args:
            device: the event's device, if its library does not say it (Numba, CuPy); None: the
                default device.

        Raises:
            CallerError: `value` is no event.
            StateError: the library creates the event at its first record (PyTorch), which has not
                happened yet.
            DeviceMismatchError: the event is of another device than `device`, or there is no CUDA
                device.

        Examples:
            >>> event = na.default_device().new_event()
            >>> na.Event.of(event) is event  # of an event of another library: its `na.Event`
            True
        """
        event = value if isinstance(value, Event) else of_another_library(value, device)
        if event is None:
            raise CallerError(f"Event.of takes an event of any library, not {with_type(value)}.")
        if device is not None and event.device is not device:
            raise DeviceMismatchError(f"{event!r} is no event of {device.label}.")
        return event

    def record(self, stream: AnyStream) -> Event:
        """Record the event behind all work enqueued on `stream` so far; returns the event."""
        stream = as_stream(stream, "record")
        if stream.device is not self.device:
            raise DeviceMismatchError(
                f"an event of {self.device.label} cannot be recorded on {stream!r}."
            )
        streams.before_signal()
        stream.check_open()
        # The event comes behind the signal: when the event is passed, the completion counter shows
        # the signal's number, so that the work before it can be retired.
        self._stream, self._number = stream, stream.enqueue_signal("an event")
        stream.backend.record(self.backend)
        return self

    def wait(self, stream: AnyStream) -> None:
        """Order later work of `stream` after this event.

        Examples:
            >>> device = na.default_device()
            >>> first, second = device.new_stream(), device.new_stream()
            >>> event = device.new_event().record(first)
            >>> _ = event.wait(second)  # `second` goes on when `first` has passed the event
        """
        stream = as_stream(stream, "wait")
        streams.before_signal()
        stream.check_open()
        stream.backend.wait(self.backend)
        submission = Submission(stream, "a wait for an event")
        submission.retain(self)
        stream.commit(submission)
        if self._stream is not None:
            stream.follow(self._stream, self._number)

    @property
    def was_recorded(self) -> bool:
        """Whether the event was recorded, as far as numbasync knows."""
        return self._stream is not None

    def query(self) -> bool:
        """Whether the device has passed the event. Never blocks."""
        passed = self.backend.query()
        self._retire()
        return passed

    def synchronize(self) -> None:
        """Block the thread until the device has passed the event.

        Examples:
            >>> device = na.default_device()
            >>> event = device.new_event().record(device.new_stream())
            >>> event.synchronize()
            >>> event.query()
            True
        """
        self.backend.synchronize()
        self._retire()
        if self._stream is not None:
            self._stream.poll_followed()

    def _retire(self) -> None:
        # The work before the event may have a host side to run, such as a copy into an array.
        if self._stream is not None:
            self._stream.advance()

    def __await__(self) -> Generator[Any, None, Event]:
        if self._stream is not None:
            yield from self._stream.wait(self._number)
            self._stream.verify(self._number)
            # The signal is enqueued before the event: the device may be between the two.
            self.backend.synchronize()
        return self

    def elapsed_ms(self, later: Event) -> float:
        """Device milliseconds from this event to `later`.

        Raises:
            StateError: one of the events was not recorded, or has not been passed yet.
            CallerError: `later` is no event.

        Examples:
            >>> device = na.default_device()
            >>> stream = device.new_stream()
            >>> before = device.new_event().record(stream)
            >>> t = na.ones(1000).async_on(stream)
            >>> after = await device.new_event().record(stream)
            >>> before.elapsed_ms(after) >= 0
            True
        """
        if not isinstance(later, Event):
            raise CallerError(f"elapsed_ms takes an event, not {with_type(later)}.")
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
