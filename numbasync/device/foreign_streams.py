"""Streams and events of Numba, CuPy, PyTorch and others, as streams and events of numbasync.

There is one `Stream` for each driver stream, so that access records, order and completion work as
between numbasync's own streams. A foreign stream is kept while it has work, as every stream is, and
keeps the other library's object alive, so that the handle stays valid.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator, Hashable
from typing import TYPE_CHECKING, Any

from numbasync import backend as backends
from numbasync.backend import protocols
from numbasync.backend.stream_handles import Handle, event_handle, stream_handle
from numbasync.device import event as events
from numbasync.device import reactor
from numbasync.device import stream as streams
from numbasync.device.device import Device, default_device, devices
from numbasync.device.event import Event
from numbasync.device.stream import Stream
from numbasync.errors import DeviceMismatchError, StateError

if TYPE_CHECKING:
    from numbasync.backend.protocols import ForeignStream as Queue
    from numbasync.device.submission import Submission

LEGACY = 1  # the legacy default stream, as the driver and `__cuda_stream__` write it; also 0

# Keyed by the driver's unique identity of a stream; a handle may be reused by a later stream.
_known: weakref.WeakValueDictionary[Hashable, Stream] = weakref.WeakValueDictionary()
_lock = threading.RLock()


class ForeignStream(Stream):
    """A stream that another library made. Made by `Stream.of`."""

    backend: Queue

    def __init__(self, device: Device, queue: Queue, owner: object) -> None:
        super().__init__(device, queue)
        self._library = type(owner).__module__.partition(".")[0]
        self._owners: dict[Hashable, object] = {}

    def keep(self, owner: object) -> None:
        """Keep an object of the stream alive. One object of each class is kept: the first object
        may not own the handle, and a program may make such an object for each launch.
        """
        if getattr(owner, "numbasync", None) is not self:  # not made by `Stream.numba`
            # Numba has one class for streams of its own and external streams.
            key = type(owner), getattr(owner, "external", None) is True
            self._owners.setdefault(key, owner)

    @property
    def is_broken(self) -> bool:
        # True keeps the fast paths away, which do not call `check_open`.
        return super().is_broken or self.backend.is_captured()

    def check_open(self) -> None:
        self.check()
        self.backend.check_not_captured()

    def commit(self, submission: Submission, signal: bool = True) -> None:
        # Always signalled: a later signal would come behind work of the other library, or would be
        # captured into that library's graph.
        super().commit(submission)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, of {self._library}>"


@streams.of_another_library.provide
def stream_of(value: object, device: Device | None) -> Stream | None:
    """The stream for another library's object; None if `value` is no stream. See `Stream.of`."""
    handle = stream_handle(value)
    if handle is None:
        return None
    identity = backends.stream_identity(handle.number)
    number = handle.number
    if identity is None:
        device = _device_of(value, handle, device)
        identity, number = ("default", device.ordinal), LEGACY
    with _lock:
        stream = _known.get(identity)
        if stream is None:
            stream = _known[identity] = _adopted(value, number, device)
    if isinstance(stream, ForeignStream):
        stream.keep(value)
    return stream


# Of libraries that destroy none of their streams, by device and handle: asking the driver for a
# stream's identity would end a capture.
_kept: dict[tuple[Device, int], Stream] = {}


class _Numbered:
    """A stream of a library that keeps it itself, by its handle."""

    __module__ = "another library"  # as messages name it

    def __init__(self, number: int, ordinal: int) -> None:
        self.number = number
        self.device_index = ordinal

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.number


def stream_of_number(device: Device, number: int, owner: Any) -> Stream:
    """The stream of a library by its handle.

    Args:
        owner: the library's object that keeps the stream, None if the library keeps it for ever.
    """
    if owner is not None:
        return Stream.of(owner, device)
    stream = _kept.get((device, number))
    if stream is None:
        stream = Stream.of(_Numbered(number, device.ordinal), device)
        if isinstance(stream, ForeignStream):
            stream.is_kept = True
            _kept[device, number] = stream
    return stream


def _adopted(value: object, number: int, device: Device | None) -> Stream:
    if number != LEGACY:
        device = _gpu(backends.stream_ordinal(number))
    assert device is not None  # for a default stream, `_device_of` has found the device
    own = device.stream_with(number)
    if own is not None:
        return own
    queue = device.backend.foreign_stream(number)
    stream = ForeignStream(device, queue, value)
    weakref.finalize(stream, queue.drop).atexit = False
    device.add_stream(stream)
    return stream


def _gpu(ordinal: int) -> Device:
    for device in devices("cuda"):
        if device.ordinal == ordinal:
            return device
    raise DeviceMismatchError(f"cuda:{ordinal} is none of the devices: {devices()}.")


def _device_of(value: object, handle: Handle, device: Device | None) -> Device:
    """The GPU of a stream or event: according to its library, else the caller's `device`."""
    gpu = device or default_device()
    if handle.ordinal is not None:
        gpu = _gpu(handle.ordinal)
        if device is not None and device is not gpu:
            raise DeviceMismatchError(
                f"the {type(value).__name__} of {type(value).__module__} is of {gpu.label}, and "
                f"not of {device.label}."
            )
    if gpu not in devices("cuda"):
        raise DeviceMismatchError(
            f"the {type(value).__name__} of {type(value).__module__} is of a CUDA device, and "
            f"cannot be used on {gpu.label}: name the device, Stream.of(x, device) or "
            "Event.of(x, device), or work inside `with na.use_device(device):`."
        )
    return gpu


# --- events ------------------------------------------------------------------------------


class ForeignEvent(Event):
    """An event that another library made. Made by `Event.of`."""

    def __init__(self, device: Device, event: protocols.Event, owner: object) -> None:
        self.device = device
        self.backend = event
        self._stream = None
        self._number = 0
        self._owner = owner

    @property
    def was_recorded(self) -> bool:
        return True  # the other library may have recorded it; only the driver knows

    def __await__(self) -> Generator[Any, None, Event]:
        # The last record may be the other library's, so a stream has to wait for the event.
        if self.query():
            yield from reactor.need_not_wait()
        else:
            stream = self.device.new_stream()
            self.wait(stream)
            number = stream.enqueue_signal("an event of another library")
            yield from stream.wait(number)
            stream.verify(number)
            self._retire()
        return self

    def __repr__(self) -> str:
        state = "passed" if self.query() else "pending"
        return f"<Event of {self.device.label}, {state}, of {type(self._owner).__module__}>"


@events.of_another_library.provide
def event_of(value: object, device: Device | None) -> Event | None:
    """The event for another library's object; None if `value` is no event. See `Event.of`."""
    handle = event_handle(value)
    if handle is None:
        return None
    if not handle.number:
        raise StateError(
            f"{type(value).__name__} of {type(value).__module__} is made when it is first "
            "recorded: call its record() first, or take device.new_event()."
        )
    device = _device_of(value, handle, device)
    return ForeignEvent(device, device.backend.foreign_event(handle.number), value)
