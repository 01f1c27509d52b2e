"""Streams, as users hold them: order between streams, and waiting for a point of a stream."""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from numbasync.arguments import with_type
from numbasync.backend import protocols
from numbasync.device import reactor, tracing
from numbasync.device.provided import Provided
from numbasync.device.submission import Submission
from numbasync.device.waits import Waits
from numbasync.errors import CallerError, DeviceLostError, DeviceMismatchError
from numbasync.native import compiled, known
from numbasync.public import Public

if TYPE_CHECKING:
    from numbasync.device.device import Device


def _do_nothing() -> None: ...


def _is_empty() -> bool:
    return True


async def _await_nothing() -> None: ...


def _is_no_stream(value: object, device: Device | None) -> Stream | None:
    return None


# By `ops.submission_queue`, since queued operations come before a signal that is enqueued now:
# drain the thread's submission queue; whether the queue is empty; drain the queue while the loop
# turns.
before_signal = Provided(_do_nothing)
queue_is_empty = Provided(_is_empty)
queue_is_drained = Provided(_await_nothing)
# By `foreign_streams`: the stream of another library's object, on the given device; None if the
# object is no stream.
of_another_library = Provided(_is_no_stream)

_numbers = itertools.count(1)
MANY_FOLLOWED = 16  # streams that were waited for, at which those that have ended are forgotten


class CudaStreamLike(Protocol):
    """A stream of another library, with the `__cuda_stream__` protocol."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


class Mark(NamedTuple):
    """A point of a stream, by an event, for one wait of another stream.

    Attributes:
        number: the latest sequence number before the point.
    """

    stream: Stream
    number: int
    event: Any


@known
class Stream(Waits, Public):
    """An ordered queue of work on one device.

    Made by `device.new_stream()` or `await Stream.create(device)`. Streams do not wait for
    the legacy default stream, and are recycled, never destroyed.

    Attributes:
        device: the stream's device.
        number: the stream's number in the process, for messages.

    Examples:
        >>> stream = na.default_device().new_stream()
        >>> t = na.full(3, 2).async_on(stream)  # enqueued; nobody has waited
        >>> stream is await stream.done()
        True
        >>> stream.query()
        True
    """

    __slots__ = ("__dict__", "__weakref__", "_follows", "number")
    # True: the program has no access to the stream, and so cannot order its work.
    is_internal = False
    # True: kept for as long as the process runs, whatever used it first.
    is_kept = False

    def __init__(self, device: Device, backend: protocols.Stream) -> None:
        super().__init__(device, backend)
        self.device = device
        self.number = next(_numbers)
        self._numba: weakref.ref[Any] | None = None
        # Other streams by their numbers, with the sequence number that later work of this stream
        # is ordered after; None: of no stream. A WeakKeyDictionary makes references at each use.
        self._follows: dict[int, tuple[weakref.ref[Stream], int]] | None = None

    @classmethod
    async def create(cls, device: Device) -> Stream:
        """The same as `device.new_stream()`.

        Examples:
            >>> stream = await na.Stream.create(na.default_device())
            >>> await na.spawn(na.ones(2).to_host(), stream)
            array([1., 1.], dtype=float32)
        """
        check_source(device, "Stream.create")
        return device.new_stream()

    @classmethod
    def of(cls, value: AnyStream, device: Device | None = None) -> Stream:
        """The stream for a stream object of Numba, CuPy, PyTorch, cuda.core, or any object with
        `__cuda_stream__`. Objects of one driver stream give the same Stream, as long as the Stream
        is held or has work. The Stream keeps the object alive, and destroys nothing. Every function
        that takes a stream takes such objects, too.

        Each GPU has one legacy default stream (`numba.cuda.default_stream()`,
        `cupy.cuda.Stream.null`). The driver orders it with other libraries' blocking streams, such
        as Numba's and most of CuPy's, but not with streams of numbasync: shared tensors order
        those with it.

        Args:
            device: the device of a default stream whose library does not say it; None: the default
                device. Other streams belong to one device.

        Raises:
            CallerError: `value` is no stream, or is the per-thread default stream.
            DeviceMismatchError: the stream is of another device than `device`, or there is no CUDA
                device.

        Examples:
            >>> stream = na.default_device().new_stream()
            >>> na.Stream.of(stream) is stream  # or of one of CuPy, PyTorch, Numba
            True
        """
        stream = value if isinstance(value, Stream) else of_another_library(value, device)
        if stream is None:
            raise CallerError(f"Stream.of takes a stream of any library, not {with_type(value)}.")
        if device is not None and stream.device is not device:
            raise DeviceMismatchError(f"{stream!r} is no stream of {device.label}.")
        return stream

    @property
    def numba(self) -> Any:
        """This stream as a Numba stream, for Numba's own calls, which run in order with the work
        of this stream: `cuda.to_device(x, stream=s.numba)`, `kernel.kernel[grid, block,
        s.numba](x)`. The Numba stream keeps this stream alive.

        Raises:
            DeviceMismatchError: the device is a CPU device, for which Numba has no streams.
        """
        numba_stream = None if self._numba is None else self._numba()
        if numba_stream is None:
            numba_stream = self.backend.numba_stream()
            numba_stream.numbasync = self  # keeps this stream, so that its queue is not recycled
            self._numba = weakref.ref(numba_stream)
        return numba_stream

    def next_stream(self) -> Stream:
        """This stream: a stream is a scheduling policy that always picks itself, so that
        `op.schedule(stream)` and `na.spawn(op, stream)` run on `stream`.

        Examples:
            >>> stream = na.default_device().new_stream()
            >>> stream.next_stream() is stream  # a stream is a policy, too
            True
        """
        return self

    # --- submitting ---

    def check_open(self) -> None:
        """Raise if nothing can be enqueued now."""
        self.check()

    def enqueue_signal(self, name: str = "a signal") -> int:
        """Enqueue a completion signal behind all work so far; the signal's sequence number."""
        before_signal()
        self.check_open()
        submission = Submission(self, name)
        self.commit(submission)
        return submission.sequence

    def follows(self, other: Stream, sequence: int) -> bool:
        """Whether later work of this stream is ordered after `sequence` of `other`."""
        if other is self:
            return True
        entry = None if self._follows is None else self._follows.get(other.number)
        return entry is not None and entry[1] >= sequence

    def follow(self, other: Stream, sequence: int) -> None:
        """Note that later work of this stream is ordered after `sequence` of `other`."""
        with self._lock:
            follows = self._follows
            if follows is None:
                follows = self._follows = {}
            entry = follows.get(other.number)
            if entry is None:
                if len(follows) >= MANY_FOLLOWED:
                    ended = [number for number, (ref, _) in follows.items() if ref() is None]
                    for number in ended:
                        del follows[number]
                follows[other.number] = weakref.ref(other), sequence
            elif entry[1] < sequence:
                follows[other.number] = entry[0], sequence

    def wait_for(self, other: Stream) -> None:
        """Order later work of this stream after all work that `other` holds now.

        Examples:
            >>> device = na.default_device()
            >>> first, second = device.new_stream(), device.new_stream()
            >>> t = na.ones(3).async_on(first)
            >>> second.wait_for(first)  # what is enqueued on `second` from now on runs after it
        """
        self.wait_behind(as_stream(other, "wait_for").mark())

    def mark(self) -> Mark:
        """The point behind all work that this stream holds now."""
        number, device = self._sequence, self.device
        event = device.order_events.take()  # an event is recorded on its own device only
        try:
            self.backend.record(event)
        except DeviceLostError as fault:
            device.lose(fault)
            raise device.lost or fault from None
        return Mark(self, number, event)

    def wait_behind(self, mark: Mark) -> None:
        """Order later work of this stream after a point of another one; `wait_for` in two halves,
        for several streams: a thread has to be on a stream's device for either.
        """
        other, number, event = mark
        # A wait refers to the latest recording at the time of its enqueueing, so the event may be
        # recorded again immediately, unless the host waits for it, later.
        if not self.backend.wait(event):
            other.device.order_events.give(event)
        self.follow(other, number)
        if (recorder := tracing.recorder) is not None:
            recorder.follow(self, other)

    # --- what users call ---

    def synchronize(self) -> None:
        """Block the thread until everything enqueued so far is done.

        Raises:
            The first error of `async_on` work, which has no future to report it.

        Examples:
            >>> stream = na.default_device().new_stream()
            >>> t = na.zeros(3).async_on(stream)
            >>> stream.synchronize()
            >>> stream.query()
            True
        """
        before_signal()
        self.wait_until_idle()
        self.report()

    @compiled
    def wait_until_idle(self) -> None:
        """`synchronize` without reporting errors of work: futures or a later call report them."""
        self.check()
        number, followed = self._sequence, self._followed()
        recorder = tracing.recorder
        began = 0 if recorder is None else recorder.now()
        try:
            self.backend.synchronize()
        except BaseException:
            self._is_broken()
            self.check()  # raises the fault, whose message names the work that was running
            raise
        if recorder is not None:
            recorder.blocked(self, number, began)
        self._has_passed(number)
        self.advance()
        self._retire_followed(followed)

    def _followed(self) -> Sequence[tuple[Stream, int]]:
        """Other streams, with the sequence numbers that this stream's work is ordered after now."""
        if self._follows is None:
            return ()
        with self._lock:  # no other thread changes the dictionary meanwhile
            entries = [(ref(), number) for ref, number in self._follows.values()]
        return [(other, number) for other, number in entries if other is not None]

    @staticmethod
    @compiled
    def _retire_followed(followed: Sequence[tuple[Stream, int]]) -> None:
        """Retire, on other streams, the work that this stream was ordered after when it was seen
        idle: that work is done too, and may have a host side to run. `followed` was read before
        the stream was seen idle, since another thread may order this stream after more work.
        """
        for other, number in followed:
            if 0 < other.front <= number:
                other._has_passed(number)
                other.advance()

    def poll_followed(self) -> None:
        """Retire finished work on the streams that this stream was ordered after."""
        for other, _ in self._followed():
            if other.front:
                other.poll()

    def query(self) -> bool:
        """Whether everything enqueued so far is done. Never blocks."""
        self.check()
        if not queue_is_empty():
            return False
        number, followed = self._sequence, self._followed()
        done = self.backend.query()
        if done:
            self._has_passed(number)
        self.advance()
        if done:
            self._retire_followed(followed)
        return done

    async def done(self) -> Stream:
        """Wait, without blocking the loop, for everything enqueued so far; returns the stream.

        Raises:
            The first error of `async_on` work, which has no future to report it.
        """
        reactor.current()
        await queue_is_drained()
        number = self.enqueue_signal("Stream.done()")
        await Steps(self.wait(number))
        self.verify(number)
        self.report()
        return self

    if TYPE_CHECKING:  # with `__getattr__`, type checkers take every name for an attribute

        def __cuda_stream__(self) -> tuple[int, int]: ...
    else:

        def __getattr__(self, name: str) -> Any:
            # Only CUDA streams have the protocol; for others `hasattr` must be False.
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


class Steps:
    """An awaitable made of a generator."""

    __slots__ = ("_steps",)

    def __init__(self, steps: Generator[Any, None, Any]) -> None:
        self._steps = steps

    def __await__(self) -> Generator[Any, None, Any]:
        return self._steps


AnyStream = Stream | CudaStreamLike


def check_source(device: Any, what: str) -> None:
    """Refuse what makes no streams.

    Raises:
        CallerError: the message says that `what` takes a device.
    """
    if isinstance(device, type) or not hasattr(device, "new_stream"):
        raise CallerError(
            f"{what} needs a device, not {with_type(device)}: write na.default_device(), or one "
            "of na.devices()."
        )


def as_stream(value: object, where: str) -> Stream:
    """`value`, an argument of a function or class `where`, as a Stream; another library's stream is
    converted.

    Raises:
        CallerError: `value` is no stream. The message says that `where` takes a stream.

    Examples:
        >>> from numbasync.extending import as_stream
        >>> stream = na.default_device().new_stream()
        >>> as_stream(stream, "my_sort") is stream
        True
    """
    if isinstance(value, Stream):
        return value
    stream = of_another_library(value, None)
    if stream is None:
        raise CallerError(f"{where} takes a stream, not {with_type(value)}.")
    return stream


def take_idle(dropped: list[protocols.Stream]) -> protocols.Stream | None:
    """Remove and return a dropped stream that is idle. A dropped stream without submissions may
    still have a gate, or a wait for an event, to pass.
    """
    for i, stream in enumerate(dropped):
        if stream.fault() is None and stream.query():
            return dropped.pop(i)
    return None
