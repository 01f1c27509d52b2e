"""Devices, as users hold them: the list of devices, the current device, and their streams.

The current device is a context variable: a task inherits the value, and tasks do not affect each
other.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from numbasync import backend as backends
from numbasync.arguments import check_whole, shown, with_type
from numbasync.backend import protocols
from numbasync.backend.protocols import MemoryStats
from numbasync.device import stream as streams
from numbasync.device import tracing
from numbasync.device.event import Event, EventPool
from numbasync.device.latency import Latent
from numbasync.device.limit_scope import InFlight as InFlight
from numbasync.device.limit_scope import Limit, limits_here
from numbasync.device.policies import SchedulingPolicy, StreamPoolRoundRobin, as_policy
from numbasync.device.scoped import scoped
from numbasync.device.staging_ring import Ring
from numbasync.device.storage import MemoryPool
from numbasync.device.stream import Stream, take_idle
from numbasync.device.submission import Submission, name_suspects
from numbasync.errors import CallerError, DeviceLostError, DeviceMismatchError, DriverError
from numbasync.fork import in_child
from numbasync.native import core, known, new_lock
from numbasync.public import Public

MOST_PRIORITY = 2**31 - 1  # a driver takes 32 bits, and the nearest priority that it has


@known
class Device(Latent, Public):
    """One GPU, or one virtual CPU device. Returned by `devices()`, never constructed.

    Attributes:
        kind: `"cuda"` or `"cpu"`.
        ordinal: the device's number among the devices of its kind.
        name: the product's name.
        compute_capability: (major, minor); (0, 0) on the CPU device.
        limits: the largest grid, block and shared memory of one launch.
        ring: page-locked chunks that large uploads pass through; see `ring.statistics()`.

    Examples:
        >>> device = na.devices("cpu")[0]
        >>> device.kind, device.ordinal, device.limits.max_threads_per_block
        ('cpu', 0, 1024)
        >>> device.policy = na.StreamPoolRoundRobin(device, 2)
        >>> device.synchronize()  # waits for all of its streams
    """

    __slots__ = (
        "__dict__", "__weakref__", "_policy", "_pool", "backend", "busy", "is_limited", "lost",
        "submit_lock",
    )  # fmt: skip

    def __init__(self, backend: protocols.Device) -> None:
        backends.check_backend(backend, "Device")
        self.backend = backend
        self.kind = backend.kind
        self.ordinal = backend.ordinal
        self.name = backend.name
        self.compute_capability = backend.compute_capability
        self.limits = backend.limits
        # Strong references: a stream that the program has dropped lives on while it has work.
        # A dict, which keeps the order.
        self.busy: dict[Stream, None] = {}
        # Held from an access record's update until the work that it stands for is enqueued: a
        # thread that finds the access in the record must find the work on the stream.
        self.submit_lock = new_lock()
        self.order_events = EventPool(backend)
        self.ring = Ring(backend)
        in_child(self.ring.start_over)
        self._lock = threading.RLock()
        self.latency = "normal"
        self._dropped_streams: dict[int, list[protocols.Stream]] = {}
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._policy: SchedulingPolicy | None = None
        self._pool: MemoryPool | None = None
        # For `na.limit`: the device-wide limit, the limits with open blocks, and whether there is
        # any limit at all, which the fast paths check.
        self.limit_of_all: Any = None
        self.open_bounds: dict[Any, None] = {}
        self.is_limited = False
        self.lost: DeviceLostError | None = None
        self._lost_trace: TracebackType | None = None

    @property
    def label(self) -> str:
        """`kind:ordinal`, the device's name in messages."""
        return f"{self.kind}:{self.ordinal}"

    # --- streams ---

    def new_stream(self, priority: int = 0) -> Stream:
        """A stream that no other caller has. When the stream is dropped, its queue is recycled.

        Args:
            priority: lower numbers run first, where the device has priorities.

        Examples:
            >>> stream = na.default_device().new_stream()
            >>> stream.device is na.default_device(), stream.query()
            (True, True)
        """
        if type(priority) is not int or abs(priority) > MOST_PRIORITY:
            priority = check_whole(priority, "a stream's priority", -MOST_PRIORITY, MOST_PRIORITY)
        self.check()
        self.reclaim()
        with self._lock:
            dropped = self._dropped_streams.setdefault(priority, [])
            backend = take_idle(dropped) or self.backend.new_stream(priority)
            return self._on(backend, dropped)

    def _on(self, backend: protocols.Stream, dropped: list[protocols.Stream]) -> Stream:
        """A new Stream for the queue `backend`, which goes to `dropped` when freed."""
        stream = Stream(self, backend)
        weakref.finalize(stream, dropped.append, backend).atexit = False
        self._streams.add(stream)
        return stream

    def stream_with(self, handle: int) -> Stream | None:
        """The device's own stream with that driver handle, dropped or not; None: no such stream."""
        with self._lock:
            for stream in self._streams:
                if type(stream) is not Stream or stream.backend.handle_number != handle:
                    continue
                return stream
            for dropped in self._dropped_streams.values():
                for backend in dropped:
                    if backend.handle_number != handle:
                        continue
                    dropped.remove(backend)
                    return self._on(backend, dropped)
        return None

    def add_stream(self, stream: Stream) -> None:
        """Add a stream that was made elsewhere to `streams`."""
        with self._lock:
            self._streams.add(stream)

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams that are held, by the program or the policy, or have work; oldest first."""
        with self._lock:
            return tuple(sorted(self._streams, key=lambda stream: stream.number))

    def new_event(self, timing: bool = True) -> Event:
        """A new event; an event without `timing` is cheaper and has no `elapsed_ms`.

        Examples:
            >>> event = na.default_device().new_event()
            >>> event.was_recorded
            False
        """
        return Event(self, timing)

    @property
    def is_started(self) -> bool:
        """Whether the device has a policy, and so streams: its first use is over."""
        return self._policy is not None

    @property
    def policy(self) -> SchedulingPolicy:
        """The policy for operations that name no stream. Default: four streams in turn."""
        if self._policy is None:
            with self._lock:
                if self._policy is None:
                    self._policy = StreamPoolRoundRobin(self, 4)
        return self._policy

    @policy.setter
    def policy(self, policy: SchedulingPolicy) -> None:
        self._policy = as_policy(policy)

    def synchronize(self) -> None:
        """Block the thread until every stream of this device is idle.

        Raises:
            The first error of `async_on` work, after all streams are idle.
        """
        streams.before_signal()
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
        """Retire everything that the device has passed, also on streams without awaiters."""
        for stream in list(self.busy):
            # Errors are raised to the awaiters of the work.
            with contextlib.suppress(DriverError, DeviceLostError):
                stream.poll()

    def ask(self) -> None:
        """`reclaim`, after querying the driver: a signal may be lost, or a fault have occurred."""
        for stream in list(self.busy):
            with contextlib.suppress(DriverError):  # as in `reclaim`
                stream.query_device()
        self.reclaim()

    @property
    def limit(self) -> Limit | None:
        """The tightest bounds of `na.limit` for submissions of this context; None: no bounds."""
        limits = [b.most for b in (*self.limits_held(), self.limit_of_all) if b is not None]
        ops = min((most.ops for most in limits if most.ops is not None), default=None)
        nbytes = min((most.bytes for most in limits if most.bytes is not None), default=None)
        return None if ops is None and nbytes is None else Limit(ops, nbytes)

    def limits_held(self) -> tuple[Any, ...]:
        """The limits of the open blocks of the current context, the outermost first."""
        here = limits_here.get()
        return tuple(dict.fromkeys(b for b in here if b.device is self and b.blocks))

    @property
    def open_limits(self) -> int:
        """The number of limits that have open `with` blocks, on any thread."""
        return len(self.open_bounds)

    def note_limits(self) -> None:
        """Update `is_limited` after a limit began or ended."""
        of_all = self.limit_of_all
        self.is_limited = bool(self.open_bounds) or (
            of_all is not None and of_all.most != Limit(None, None)
        )

    @property
    def in_flight(self) -> InFlight:
        """The operations and bytes in flight now, on all streams."""
        self.reclaim()
        streams = list(self.busy)
        return InFlight(sum(s.in_flight_count for s in streams), sum(s.nbytes for s in streams))

    # --- memory ---

    @property
    def pool(self) -> MemoryPool:
        """The pool that tensors of this device are allocated from."""
        if self._pool is None:
            with self._lock:
                if self._pool is None:
                    self._pool = self.new_pool()
        return self._pool

    @pool.setter
    def pool(self, pool: MemoryPool) -> None:
        if not isinstance(pool, MemoryPool):
            raise CallerError(
                f"{with_type(pool)} is no pool of memory.\nWrite: device.pool = device.new_pool()"
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
        """Whether the pool was created; otherwise no memory of the device is in use."""
        return self._pool is not None

    def new_pool(self, max_bytes: int | None = None) -> MemoryPool:
        """A pool of this device's memory, which hands out at most `max_bytes` at once.

        Examples:
            >>> device = na.default_device()
            >>> pool = device.new_pool(max_bytes=1_000_000)
            >>> pool.stats().used_current
            0
        """
        return MemoryPool(self.backend, max_bytes)

    def memory_stats(self) -> MemoryStats:
        """Bytes of the current pool, after memory of finished work was returned.

        Examples:
            >>> t = await na.zeros(1000)
            >>> na.default_device().memory_stats().used_current >= 4000
            True
        """
        self.reclaim()
        return self.pool.stats()

    # --- faults ---

    def check(self) -> None:
        """Raise if a fault has broken the device."""
        if self.lost is not None:
            raise self.lost.with_traceback(self._lost_trace)

    def lose(self, fault: DeviceLostError, building: Submission | None = None) -> None:
        """Mark the device as broken by `fault`: everything in flight fails with it, and everything
        later. The message names the work that was running.

        Args:
            building: the submission that was being enqueued when the fault was reported.
        """
        with self._lock:
            if self.lost is not None or fault.device not in (None, self):
                return
            fault.device = self
            streams = list(self.busy)
            running = [submission for stream in streams for submission in stream.at_work()]
            if building is not None and building.launched:
                running.append(building)
            name_suspects(fault, running)
            self.lost, self._lost_trace = fault, fault.__traceback__
        tracing.tell_loss(fault)
        for stream in streams:
            stream.break_with(fault)
            stream.advance()

    def forget_fault(self) -> None:
        """Undo `lose` for a fault that a test injected: the device works, with new streams."""
        self.lost = self._lost_trace = None
        self._policy = None

    # --- other devices ---

    def can_access(self, other: Device) -> bool:
        """Whether kernels of this device can read `other`'s memory directly.

        Examples:
            >>> first, second = na.devices("cpu")[:2]
            >>> first.can_access(second)
            True
        """
        return self is other or self.backend.can_access(check_device(other, "can_access").backend)

    def __repr__(self) -> str:
        return f"<Device {self.label} {self.name}>"


_devices: dict[tuple[str, int], Device] = {}
_lock = threading.RLock()
_current: ContextVar[Device | None] = ContextVar("numbasync_device", default=None)
_default: Device | None = None
if core is not None:
    core.know_devices(_current, None)


def _device_for(backend: protocols.Device) -> Device:
    with _lock:
        key = (backend.kind, backend.ordinal)
        if key not in _devices:
            _devices[key] = Device(backend)
        return _devices[key]


def known_devices() -> list[Device]:
    """The devices that were asked for so far; none is looked for."""
    with _lock:
        return [device for device in _devices.values() if device._pool is not None]


def devices(kind: str | None = None) -> list[Device]:
    """All devices, CUDA first; or the devices of one kind. There is always a CPU device.

    Args:
        kind: `"cuda"`, `"cpu"` or None.

    Examples:
        >>> [device.label for device in na.devices("cpu")]
        ['cpu:0', 'cpu:1']
    """
    return [_device_for(d) for d in backends.devices(kind)]


def default_device() -> Device:
    """The device of `use_device`, else the device that NUMBASYNC_DEVICE names.

    Raises:
        DeviceUnavailableError: NUMBASYNC_DEVICE names a device that cannot be used.

    Examples:
        >>> with na.use_device("cpu:1"):
        ...     na.default_device().label
        'cpu:1'
    """
    global _default
    device = current_device()
    if device is None:
        device = _default = _device_for(backends.preferred())
        if core is not None:
            core.know_devices(_current, device)
    return device


def current_device() -> Device | None:
    """`default_device()`; None if that has yet to be found, which takes long."""
    return _current.get() or _default


def set_default_device(device: Device | None) -> Device | None:
    """Make `device` the default of this process, for all threads and tasks that have not chosen
    one by `use_device`. Returns what was set before; None: nothing was.

    Args:
        device: None: the device that NUMBASYNC_DEVICE names, looked for when it is needed.

    Raises:
        CallerError: `device` is neither a device nor None.

    Examples:
        >>> before = na.set_default_device(na.devices("cpu")[1])
        >>> na.set_default_device(before).label
        'cpu:1'
    """
    if device is not None:
        check_device(device, "set_default_device")
    global _default
    before, _default = _default, device
    if core is not None:
        core.know_devices(_current, device)
    return before


def chosen_device(device: Device | None, what: str) -> Device:
    """`device`, an argument of a function or class `what`; the default device for None.

    Raises:
        CallerError: `device` is no device. The message says that `what` takes a device.

    Examples:
        >>> from numbasync.extending import chosen_device
        >>> chosen_device(None, "my_sort") is na.default_device()
        True
    """
    return default_device() if device is None else check_device(device, what)


def check_device(device: Any, what: str) -> Device:
    """`device`, an argument of a function or class `what`, which is no other object.

    Raises:
        CallerError: `device` is no device. The message says that `what` takes a device.

    Examples:
        >>> from numbasync.extending import check_device
        >>> check_device("cpu", "my_sort")
        Traceback (most recent call last):
            ...
        numbasync.errors.CallerError: my_sort takes a device, not str ('cpu'): ...
    """
    if isinstance(device, Device):
        return device
    raise CallerError(
        f"{what} takes a device, not {with_type(device)}: write na.devices('cpu')[0], say."
    )


def use_device(device: Device | str) -> AbstractContextManager[Device]:
    """Make `device` the default inside the block, for this task or thread only.

    Args:
        device: a device or its name: `"cpu"` and `"cuda"` are the first of their kind, `"cuda:1"`
            is the device with that ordinal.

    Raises:
        CallerError: there is no such device; the message names those that exist.

    Examples:
        >>> with na.use_device("cpu:1") as device:
        ...     t = await na.zeros(3)
        >>> t.device is device
        True
    """
    if isinstance(device, str):
        device = _device_for(backends.named(device))
    return scoped(_current, check_device(device, "use_device"))


def in_order(one: Device, other: Device) -> tuple[Device, Device]:
    """Two devices in the order in which their `submit_lock`s are taken, so that two threads that
    need both never wait for each other.
    """
    ascending = (one.kind, one.ordinal) <= (other.kind, other.ordinal)
    return (one, other) if ascending else (other, one)


def next_stream_of(device: Device) -> Stream:
    """The next stream of the device's policy; a new one, if the policy gave another device's.

    Examples:
        >>> from numbasync.extending import next_stream_of
        >>> device = na.devices("cpu")[1]
        >>> next_stream_of(device).device is device
        True
    """
    stream = device.policy.next_stream()
    if isinstance(stream, Stream) and stream.device is device:
        return stream
    return device.new_stream()


def checked_devices(devices: Any, what: str) -> tuple[Device, ...]:
    """`devices` as a tuple.

    Raises:
        CallerError: `devices` is no sequence of devices, or empty. The message says that `what`
            takes devices.
    """
    listed = (
        tuple(devices) if isinstance(devices, Sequence) and not isinstance(devices, str) else ()
    )
    wrong = [d for d in listed if not isinstance(d, Device)]
    if not listed or wrong:
        given = f"{shown(wrong[0])} among them" if wrong else f"{shown(devices)}"
        raise CallerError(
            f"{what} takes a list of devices, not {given}: write na.devices('cuda'), or "
            "na.devices('cpu')[:2], say."
        )
    return listed
