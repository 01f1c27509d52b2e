"""Devices as users hold them: which there are, which is current, and their streams.

The current device is a context variable: a task inherits it, and tasks do not leak into
each other.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from numbasync import backend as backends
from numbasync.backend import protocols
from numbasync.backend.protocols import MemoryStats
from numbasync.device import stream as streams
from numbasync.device.event import Event
from numbasync.device.limit_scope import InFlight as InFlight
from numbasync.device.limit_scope import Limit, limits_here
from numbasync.device.policies import SchedulingPolicy, StreamPoolRoundRobin
from numbasync.device.staging_ring import Ring
from numbasync.device.storage import MemoryPool
from numbasync.device.stream import Stream
from numbasync.device.submission import Submission
from numbasync.errors import CallerError, DeviceLostError, DeviceMismatchError, DriverError
from numbasync.fork import in_child
from numbasync.public import Public


class _EventPool:
    """Untimed events, used for an instant each to put one stream behind another."""

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


MOST_SUSPECTS = 16  # that the message of a fault names


def _take_idle(dropped: list[protocols.Stream]) -> protocols.Stream | None:
    """A stream that nobody holds and that has nothing left to do. A gate, or a wait for an
    event, may still be on one that has no submissions.
    """
    for i, stream in enumerate(dropped):
        if stream.fault() is None and stream.query():
            return dropped.pop(i)
    return None


class Device(Public):
    """One GPU, or one virtual CPU device. Found by `devices()`, never constructed.

    Attributes:
        kind: `"cuda"` or `"cpu"`.
        ordinal: its number among the devices of its kind.
        name: the product's name.
        compute_capability: (major, minor); (0, 0) on the CPU device.
        limits: what one launch may ask for.
        ring: page-locked chunks that large uploads pass through; `notify.statistics()`.
    """

    def __init__(self, backend: protocols.Device) -> None:
        self.backend = backend
        self.kind = backend.kind
        self.ordinal = backend.ordinal
        self.name = backend.name
        self.compute_capability = backend.compute_capability
        self.limits = backend.limits
        # Strong references: a stream that nobody holds lives on while it has work.
        # A dict for its order.
        self.busy: dict[Stream, None] = {}
        # Held from the leases of some storages until the work that they are for is enqueued:
        # another thread, which finds the lease, must find the work on the stream.
        self.submit_lock = threading.RLock()
        self.order_events = _EventPool(backend)
        self.ring = Ring(backend)
        in_child(self.ring.start_over)
        self._lock = threading.RLock()
        self._dropped_streams: dict[int, list[protocols.Stream]] = {}
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._policy: SchedulingPolicy | None = None
        self._pool: MemoryPool | None = None
        # Of `na.limit`: the one of all operations, how many have open blocks, and whether there is
        # any at all, which quick ways ask.
        self.limit_of_all: Any = None
        self.open_limits = 0
        self.is_limited = False
        self.lost: DeviceLostError | None = None
        self._lost_trace: TracebackType | None = None

    @property
    def label(self) -> str:
        """`kind:ordinal`, as messages name it."""
        return f"{self.kind}:{self.ordinal}"

    # --- streams ---

    def new_stream(self, priority: int = 0) -> Stream:
        """A stream of its own, until it is dropped; then its queue is used again.

        Args:
            priority: lower runs first, where the device has priorities.
        """
        self.check()
        self.reclaim()
        with self._lock:
            dropped = self._dropped_streams.setdefault(priority, [])
            backend = _take_idle(dropped) or self.backend.new_stream(priority)
            return self._on(backend, dropped)

    def _on(self, backend: protocols.Stream, dropped: list[protocols.Stream]) -> Stream:
        """The stream of a queue, which comes to `dropped` when nobody holds it."""
        stream = Stream(self, backend)
        weakref.finalize(stream, dropped.append, backend).atexit = False
        self._streams.add(stream)
        return stream

    def stream_with(self, handle: int) -> Stream | None:
        """The one of its own streams with that handle of the driver, also if it was dropped."""
        with self._lock:
            for stream in self._streams:
                if type(stream) is Stream and stream.backend.handle_number == handle:
                    return stream
            for dropped in self._dropped_streams.values():
                for backend in dropped:
                    if backend.handle_number == handle:
                        dropped.remove(backend)
                        return self._on(backend, dropped)
        return None

    def add_stream(self, stream: Stream) -> None:
        """List a stream that was made elsewhere."""
        with self._lock:
            self._streams.add(stream)

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams that somebody holds, also its policy, or that have work; oldest first."""
        with self._lock:
            return tuple(sorted(self._streams, key=lambda stream: stream.number))

    def new_event(self, timing: bool = True) -> Event:
        """An event; without `timing` it is cheaper and has no `elapsed_ms`."""
        return Event(self, timing)

    @property
    def policy(self) -> SchedulingPolicy:
        """Picks the stream of operations that name none. Default: four streams in turn."""
        if self._policy is None:
            with self._lock:
                if self._policy is None:
                    self._policy = StreamPoolRoundRobin(self, 4)
        return self._policy

    @policy.setter
    def policy(self, policy: SchedulingPolicy) -> None:
        policy = streams.of_another_library(policy, None) or policy
        if not hasattr(policy, "next_stream") or isinstance(policy, type):
            raise CallerError(
                f"a policy has next_stream(), which {policy!r:.60} has not; write "
                "device.policy = na.StreamPoolRoundRobin(device), say."
            )
        self._policy = policy

    def synchronize(self) -> None:
        """Block the thread until every stream of this device is idle.

        Raises:
            What work of `async_on` failed with; the first error, after all are idle.
        """
        streams.before_mark()
        errors: list[BaseException] = []
        for stream in list(self.busy):
            try:
                stream.synchronize()
            except Exception as error:
                errors.append(error)
        self.check()
        self.backend.synchronize()
        try:
            if errors:
                raise errors[0]
        finally:
            errors.clear()  # their tracebacks hold this frame

    def reclaim(self) -> None:
        """Let go of everything that the device has passed, also on streams nobody watches."""
        for stream in list(self.busy):
            # The matter of whoever waits for it.
            with contextlib.suppress(DriverError, DeviceLostError):
                stream.look()

    def ask(self) -> None:
        """`reclaim`, by the device's own answer: it may have lost a mark, or have a fault."""
        for stream in list(self.busy):
            with contextlib.suppress(DriverError):  # as there
                stream.query_device()
        self.reclaim()

    @property
    def limit(self) -> Limit | None:
        """The tightest bounds that `na.limit` sets to what is submitted here; None: there are
        none.
        """
        held = [each.most for each in (*self.limits_held(), self.limit_of_all) if each is not None]
        ops = min((most.ops for most in held if most.ops is not None), default=None)
        nbytes = min((most.bytes for most in held if most.bytes is not None), default=None)
        return None if ops is None and nbytes is None else Limit(ops, nbytes)

    def limits_held(self) -> tuple[Any, ...]:
        """The limits of open blocks that this is in, the outermost first."""
        here = limits_here.get()
        return tuple(dict.fromkeys(e for e in here if e.device is self and e.blocks))

    def note_limits(self) -> None:
        """A limit begins or ends."""
        self.is_limited = self.limit is not None or self.open_limits > 0

    @property
    def in_flight(self) -> InFlight:
        """What is in flight now, on all streams."""
        self.reclaim()
        streams = list(self.busy)
        return InFlight(sum(s.unsettled for s in streams), sum(s.nbytes for s in streams))

    # --- memory ---

    @property
    def pool(self) -> MemoryPool:
        """Where tensors of this device are allocated."""
        if self._pool is None:
            with self._lock:
                if self._pool is None:
                    self._pool = self.new_pool()
        return self._pool

    @pool.setter
    def pool(self, pool: MemoryPool) -> None:
        if not isinstance(pool, MemoryPool):
            raise CallerError(
                f"{type(pool).__name__} ({pool!r:.60}) is no pool of memory.\n"
                "Write: device.pool = device.new_pool()"
            )
        if pool.device is not self.backend:
            other = f"{pool.device.kind}:{pool.device.ordinal}"
            raise DeviceMismatchError(
                f"the pool is of {other}, the device is {self.label}.\n"
                f"Write: device.pool = device.new_pool()"
            )
        self._pool = pool

    @property
    def has_pool(self) -> bool:
        """Whether anybody has asked for it; else nothing of the device is in use."""
        return self._pool is not None

    def new_pool(self, max_bytes: int | None = None) -> MemoryPool:
        """A pool of this device's memory, which hands out at most `max_bytes` at once."""
        return MemoryPool(self.backend, max_bytes)

    def memory_stats(self) -> MemoryStats:
        """Bytes of the current pool, after letting go of what the device has passed."""
        self.reclaim()
        return self.pool.stats()

    # --- faults ---

    def check(self) -> None:
        """Raise if a fault has broken the device."""
        if self.lost is not None:
            raise self.lost.with_traceback(self._lost_trace)

    def lose(self, fault: DeviceLostError, building: Submission | None = None) -> None:
        """A fault has broken the device: everything in flight fails with it, and everything
        later. The message says what was at work.

        Args:
            building: what was being enqueued when the device told.
        """
        with self._lock:
            if self.lost is not None:
                return
            streams = list(self.busy)
            found = [submission for stream in streams for submission in stream.at_work()]
            if building is not None and building.launched:
                found.append(building)
            suspects = [s.described for s in found[:MOST_SUSPECTS]]
            if suspects:
                one = "At work then was" if len(suspects) == 1 else "At work then was one of"
                fault.args = ("\n  ".join([f"{fault}\n{one}:", *suspects]),)
            self.lost, self._lost_trace = fault, fault.__traceback__
        for stream in streams:
            stream.break_with(fault)
            stream.advance()

    def forget_fault(self) -> None:
        """The fault was injected by a test: the device works, with new streams."""
        self.lost = self._lost_trace = None
        self._policy = None

    # --- other devices ---

    def can_access(self, other: Device) -> bool:
        """Whether kernels here can read `other`'s memory directly."""
        return self is other or self.backend.can_access(other.backend)

    def __repr__(self) -> str:
        return f"<Device {self.label} {self.name}>"


_devices: dict[tuple[str, int], Device] = {}
_lock = threading.RLock()
_current: ContextVar[Device | None] = ContextVar("numbasync_device", default=None)
_default: Device | None = None


def _public(found: protocols.Device) -> Device:
    with _lock:
        key = (found.kind, found.ordinal)
        if key not in _devices:
            _devices[key] = Device(found)
        return _devices[key]


def devices(kind: str | None = None) -> list[Device]:
    """All devices, CUDA first; or those of one kind. There is always a CPU device.

    Args:
        kind: `"cuda"`, `"cpu"` or None.
    """
    return [_public(d) for d in backends.devices(kind)]


def default_device() -> Device:
    """The device of `use_device`, else the one that NUMBASYNC_DEVICE names.

    Raises:
        DeviceUnavailableError: NUMBASYNC_DEVICE asks for a device that cannot be used.
    """
    global _default
    chosen = _current.get()
    if chosen is not None:
        return chosen
    if _default is None:
        _default = _public(backends.preferred())
    return _default


def chosen_device(device: Device | None, what: str) -> Device:
    """`device`, or the default device for None.

    Raises:
        CallerError: it is no device. The message says that `what` takes one.
    """
    return default_device() if device is None else _checked(device, what)


def _checked(device: Any, what: str) -> Device:
    if isinstance(device, Device):
        return device
    raise CallerError(
        f"{what} takes a device, not {type(device).__name__} ({device!r:.60}): write "
        "na.devices('cpu')[0], say."
    )


@contextmanager
def use_device(device: Device | str) -> Iterator[Device]:
    """Make `device` the default inside the block, for this task or thread only.

    Args:
        device: one, or its name: `"cpu"` and `"cuda"` are the first of their kind, `"cuda:1"` is
            the one with that ordinal.

    Raises:
        CallerError: there is no such device; the message names those that exist.
    """
    if isinstance(device, str):
        device = _public(backends.named(device))
    _checked(device, "use_device")
    token = _current.set(device)
    try:
        yield device
    finally:
        _current.reset(token)
