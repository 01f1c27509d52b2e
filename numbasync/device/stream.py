"""Streams as users hold them: order between them, and waiting for what one has passed."""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol

from numbasync.backend import protocols
from numbasync.device import reactor
from numbasync.device.in_flight import Progress
from numbasync.device.submission import Submission
from numbasync.errors import CallerError, DeviceMismatchError
from numbasync.public import Public

if TYPE_CHECKING:
    from numbasync.device.device import Device


def _nothing() -> None: ...


async def _nothing_to_await() -> None: ...


# What stands in line (a later stage) comes before a mark that is set now. That stage sets
# these: submit it now; whether there is nothing; submit it while the loop turns.
before_mark: Callable[[], None] = _nothing
nothing_waits: Callable[[], bool] = lambda: True  # noqa: E731
line_is_finished: Callable[[], Awaitable[None]] = _nothing_to_await
# A later stage, which knows all devices, sets it: the stream that another library's object is,
# of the given device; None for what is no stream.
of_another_library: Callable[[object, Device | None], Stream | None] = lambda _value, _device: None  # noqa: E731

_numbers = itertools.count(1)


class CudaStreamLike(Protocol):
    """A stream of another library, by the protocol that these have agreed on."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


MAX_SPIN_BACKOFF = 63  # awaits without a glance, where glances are in vain


class Stream(Progress, Public):
    """An ordered queue of work on one device.

    Made by `device.new_stream()` or `await Stream.create(device)`. Streams do not wait for
    the legacy default stream, and are recycled, never destroyed.

    Attributes:
        device: its device.
        number: which one it is of the process's, for messages.
    """

    # The program does not have it, and cannot be told to order what is on it.
    is_internal = False

    def __init__(self, device: Device, backend: protocols.Stream) -> None:
        super().__init__(device, backend)
        self.number = next(_numbers)
        self._numba: weakref.ref[Any] | None = None
        # Glances in vain: the awaits that do without because of the latest, and those left.
        self._spin_misses = self._spin_backoff = 0
        # Of other streams, the number that what is enqueued here from now on starts after.
        self._follows: weakref.WeakKeyDictionary[Stream, int] = weakref.WeakKeyDictionary()

    @classmethod
    async def create(cls, device: Device) -> Stream:
        """The same as `device.new_stream()`."""
        return device.new_stream()

    @classmethod
    def of(cls, value: AnyStream, device: Device | None = None) -> Stream:
        """The stream that an object of Numba, CuPy, PyTorch, cuda.core, or any with
        `__cuda_stream__`, stands for: the same one for the same stream of the driver, as long as
        somebody holds it or it has work. It keeps the object, and destroys nothing. What takes a
        stream takes such objects, too.

        The legacy default stream (`numba.cuda.default_stream()`, `cupy.cuda.Stream.null`) is one
        of each GPU. The driver orders it with other libraries' blocking streams, such as Numba's
        and most of CuPy's, and not with streams of numbasync, which shared tensors order with it.

        Args:
            device: of which device a default stream is whose library does not say it; None: the
                default device. Other streams belong to one.

        Raises:
            CallerError: it is no stream, or the per-thread default stream.
            DeviceMismatchError: it is of another device than `device`, or no CUDA device is here.
        """
        found = value if isinstance(value, Stream) else of_another_library(value, device)
        if found is None:
            raise CallerError(
                f"Stream.of takes a stream of any library, not {type(value).__name__} "
                f"({value!r:.60})."
            )
        if device is not None and found.device is not device:
            raise DeviceMismatchError(f"{found!r} is no stream of {device.label}.")
        return found

    @property
    def numba(self) -> Any:
        """This stream as one of Numba's, for Numba's own calls, in order with what is enqueued
        here: `cuda.to_device(x, stream=s.numba)`, `kernel.kernel[grid, block, s.numba](x)`. It
        keeps this stream.

        Raises:
            DeviceMismatchError: it is of a CPU device, of which Numba has no streams.
        """
        known = None if self._numba is None else self._numba()
        if known is None:
            known = self.backend.numba_stream()
            known.numbasync = self  # by it this queue is nobody else's
            self._numba = weakref.ref(known)
        return known

    def next_stream(self) -> Stream:
        """Itself: a stream is a scheduling policy that always picks itself, so that
        `op.schedule(stream)` and `na.spawn(op, stream)` do what they say.
        """
        return self

    # --- submitting ---

    def check_open(self) -> None:
        """Raise if nothing can be enqueued now."""
        self.check()

    def mark(self, name: str = "a mark") -> int:
        """Make this point awaitable; its sequence number."""
        before_mark()
        self.check_open()
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
        other = as_stream(other, "wait_for")
        number = other._sequence
        events = other.device.order_events  # an event is recorded on its own device only
        event = events.take()
        other.backend.record(event)
        self.backend.wait(event)
        # A wait refers to the recording that is the latest when it is enqueued, so the
        # event can be recorded again at once.
        events.give(event)
        self.follow(other, number)

    # --- watching ---

    @property
    def spin_seconds(self) -> float:
        return self.device.backend.spin_seconds

    def wake(self, sequence: int, waker: protocols.Waker) -> bool:
        # A ring comes behind all that is enqueued. The backend knows of what has a mark.
        return self.backend.wake(sequence, waker) and self._signalled >= self._sequence

    def wait(self, sequence: int) -> Generator[Any, None, None]:
        """Suspend the running task until the device has passed `sequence`."""
        if self.advance() >= sequence:
            yield from reactor.need_not_wait()
            return
        watcher = reactor.current()
        if watcher.is_awaited_by_one() and self._spin_poll():
            yield from reactor.need_not_wait()
            return
        if self._signalled < sequence:
            self.ensure_signalled(sequence)
            if self.advance() >= sequence:
                yield from reactor.need_not_wait()
                return
        future = watcher.wait(self, sequence)
        try:
            yield from future
        finally:
            if future.cancelled():
                watcher.forget(self, future)

    def _spin_poll(self) -> bool:
        """Look for a moment, without letting the loop turn, whether all is done. After glances in
        vain, so many awaits as doubles each time do without.
        """
        if self._spin_backoff:
            self._spin_backoff -= 1
            return False
        number = self._sequence
        try:
            is_idle = self.backend.spin_poll()
        except BaseException:
            self._is_broken()
            self.check()  # a fault's own message, which says what was at work
            raise
        if not is_idle:
            self._spin_misses = self._spin_backoff = min(
                2 * self._spin_misses + 1, MAX_SPIN_BACKOFF
            )
            return False
        self._spin_misses = 0
        self._has_passed(number)
        self.verified = max(self.verified, number)
        self.advance()
        return True

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
        number = self._sequence
        try:
            self.backend.synchronize()
        except BaseException:
            self._is_broken()
            self.check()  # a fault's own message, which says what was at work
            raise
        self._has_passed(number)
        self.advance()
        if self._follows:
            self._settle_followed()

    def _settle_followed(self) -> None:
        """It is idle: what it came behind on other streams is done. That may have a host side."""
        for other, number in list(self._follows.items()):
            if 0 < other.front <= number:
                other._has_passed(number)
                other.advance()

    def look_at_followed(self) -> None:
        """Settle what the streams that it came behind have passed."""
        for other in list(self._follows):
            if other.front:
                other.look()

    def query(self) -> bool:
        """Whether everything enqueued so far is done. Never blocks."""
        self.check()
        if not nothing_waits():
            return False
        number = self._sequence
        done = self.backend.query()
        if done:
            self._has_passed(number)
        self.advance()
        if done and self._follows:
            self._settle_followed()
        return done

    async def done(self) -> Stream:
        """Wait, without blocking the loop, for everything enqueued so far; the stream itself.

        Raises:
            What work of `async_on` failed with, which has no future to report it.
        """
        reactor.current()
        await line_is_finished()
        number = self.mark("Stream.done()")
        await Steps(self.wait(number))
        self.verify(number)
        self.report()
        return self

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


class Steps:
    """A generator as something that `await` accepts."""

    __slots__ = ("_steps",)

    def __init__(self, steps: Generator[Any, None, None]) -> None:
        self._steps = steps

    def __await__(self) -> Generator[Any, None, None]:
        return self._steps


AnyStream = Stream | CudaStreamLike


def as_stream(value: object, where: str) -> Stream:
    """A stream as it is, and one of another library as ours.

    Raises:
        CallerError: it is none. The message says that `where` takes one.
    """
    if isinstance(value, Stream):
        return value
    found = of_another_library(value, None)
    if found is None:
        raise CallerError(f"{where} takes a stream, not {type(value).__name__} ({value!r:.60}).")
    return found
