"""Back-pressure: limits of the work in flight on a device, and waiting for capacity under them.

A program that submits faster than its device works piles up operations and their memory.
Under a limit, submitting waits, as sending to a full queue does; submitting never fails.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

from numbasync.arguments import LARGEST, as_whole, shown
from numbasync.device import reactor
from numbasync.device.device import Device, chosen_device
from numbasync.device.limit_scope import InFlight, Limit, begins_block, limits_here
from numbasync.errors import CallerError

if TYPE_CHECKING:
    from numbasync.device.submission import Submission

LOOK_SECONDS = 0.0002  # sleep between two polls of a blocked thread
QUICK_LOOKS = 100  # first polls of a blocked thread, which only yield to other threads
LOOK_AGAIN = 0.1  # seconds until a loop polls again although nothing has completed
LATER = 0.001  # seconds until a loop polls again when a waiter of higher rank has capacity
GONE = 0.5  # seconds without a poll after which a waiter of another thread or loop is ignored
ASK_EVERY = 500  # polls per query of the device itself

_lock = threading.RLock()  # reentrant: a finaliser may leave a block
_tickets = itertools.count(1)


class Bounds:
    """One call of `na.limit`: a bound of the work in flight of the operations that it admits.

    Attributes:
        most: the bound.
        priority: the priority of operations that wait under the bound; None: inherited.
        blocks: the number of open `with` blocks.
        waiting: the waiters for capacity, by identity.
    """

    def __init__(self, device: Device, most: Limit, priority: int | None) -> None:
        self.device = device
        self.most = most
        self.priority = priority
        self.blocks = 0
        self.is_device_wide = True  # the bound holds for every operation of the device
        # Keyed by identity: unlike a set, the dictionary can be listed while other threads change
        # it.
        self.waiting: weakref.WeakValueDictionary[int, Capacity] = weakref.WeakValueDictionary()
        self._admitted: list[Submission] = []

    def admit(self, submission: Submission) -> None:
        """Count `submission`, from the time when it is enqueued until it is done."""
        if not self.is_device_wide and self.most != UNBOUNDED:
            with _lock:
                self._admitted.append(submission)

    def in_flight(self) -> InFlight:
        """The operations and bytes in flight now. Polls the device first."""
        if self.is_device_wide:
            return self.device.in_flight
        self.device.reclaim()
        with _lock:
            self._admitted = [s for s in self._admitted if not s.done]
            enqueued = [s for s in self._admitted if s.sequence]
        return InFlight(len(enqueued), sum(s.nbytes for s in enqueued))

    def has_room(self, nbytes: int | None, mine: int) -> bool:
        """Whether an operation that holds `mine` bytes may have `nbytes` more; None: whether a new
        operation may start.
        """
        most = self.most
        if most == UNBOUNDED:
            return True
        current = self.in_flight()
        if current.ops == 0:
            return True
        if most.ops is not None and current.ops >= most.ops:
            return False  # also for a started operation: others may have been admitted meanwhile
        return most.bytes is None or current.bytes + mine + (nbytes or 1) <= most.bytes


UNBOUNDED = Limit(None, None)


class Setting:
    """A limit that has been set, device-wide; as a context manager, for the block's submissions
    only.
    """

    def __init__(self, bounds: Bounds, is_block: bool) -> None:
        self._bounds = bounds
        self._before: Bounds | None = None
        if is_block or (bounds.most == UNBOUNDED and bounds.priority is not None):
            bounds.is_device_wide = False  # a priority alone has no device-wide meaning
            return
        with _lock:
            try:
                self._before = bounds.device.limit_of_all
                _settings.add(self)
                bounds.device.limit_of_all = bounds
                bounds.device.note_limits()
            except BaseException:  # ^C: it is not set
                self._lift()
                raise

    def _lift(self) -> None:
        """Undo the device-wide limit; another thread may have replaced it meanwhile. The caller
        holds `_lock`.
        """
        bounds = self._bounds
        if bounds.device.limit_of_all is bounds:
            bounds.device.limit_of_all = self._before
        for other in _settings:
            if other._before is bounds:
                other._before = self._before
        bounds.is_device_wide = False
        self._before = None
        bounds.device.note_limits()

    def _set_blocks(self, blocks: int) -> None:
        """Note how many blocks are open; again has no effect. The caller holds `_lock`."""
        bounds = self._bounds
        bounds.blocks = blocks
        if blocks:
            bounds.device.open_bounds[bounds] = None
        else:
            bounds.device.open_bounds.pop(bounds, None)
        bounds.device.note_limits()

    def __enter__(self) -> Limit:
        bounds = self._bounds
        with _lock:
            before = bounds.blocks
            try:
                if bounds.is_device_wide:
                    self._lift()
                self._set_blocks(before + 1)
                limits_here.set((*(b for b in limits_here.get() if b.blocks), bounds))
            except BaseException:  # ^C: the block does not begin
                self._set_blocks(before)
                raise
        return bounds.most

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        bounds = self._bounds
        with _lock:
            blocks = bounds.blocks - 1
            try:
                self._set_blocks(blocks)
                held = list(limits_here.get())
                if bounds in held:  # else another context leaves the block, such as a finaliser
                    held.reverse()
                    held.remove(bounds)
                    limits_here.set(tuple(reversed(held)))
            finally:  # also where ^C came
                self._set_blocks(blocks)

    def __del__(self) -> None:
        # Without a block that could leave it: ^C came between the setting and its block.
        bounds = getattr(self, "_bounds", None)
        if bounds is None:
            return
        if bounds in bounds.device.open_bounds:
            with _lock:
                self._set_blocks(0)
        if bounds in (here := limits_here.get()):
            limits_here.set(tuple(b for b in here if b.blocks))

    def __repr__(self) -> str:
        return f"<limit of {self._bounds.device.label}: {self._bounds.most}>"


# The settings that the program still holds; most are dropped immediately, or left by their block.
_settings: weakref.WeakSet[Setting] = weakref.WeakSet()


def limit(
    ops: int | None = None,
    bytes: int | None = None,
    device: Device | None = None,
    priority: int | None = None,
) -> Setting:
    """Bound the work in flight: of the operations submitted in `with na.limit(...):`, or, without
    `with`, of all operations of the device until the next call. `na.limit()` lifts the bound.

    An operation without capacity waits before it is enqueued: an await waits while the loop turns,
    a blocking form blocks. A block applies to its task and to tasks created in the block. Nested
    blocks all apply, and so does the device-wide limit. An operation submitted in a block waits
    under the block's limit even after the block has been left. A waiting operation that has lost
    its last awaiter is not enqueued.

    Waiting operations are admitted in the order of priority, higher first, then of submission.
    Under one limit the operations of a thread keep their order. An operation under other limits
    overtakes a waiting one only if the two are known to share no tensor; closures (`then`,
    `defer`) may use any tensor.

    A single operation larger than `bytes` is admitted when nothing else is in flight. Threads
    that submit at the same instant may exceed a limit by one operation each.

    Args:
        ops: most operations in flight; None for any number.
        bytes: most bytes that operations in flight have allocated on the device, and hold in
            page-locked host memory for copies; None for any number.
        device: default: the default device.
        priority: of the block's operations, higher first; None: inherited, 0 outside of blocks.

    Returns:
        A setting that may be used as a context manager.

    Raises:
        CallerError: a bound is less than 1 or no whole number, `priority` is no whole number, or
            `device` is no device.

    Examples:
        >>> total = await na.zeros(1000)
        >>> with na.limit(ops=4, bytes=64_000):
        ...     futures = [na.spawn(saxpy(total, 1.0, na.ones(1000))) for _ in range(20)]
        ...     _ = await na.gather(*futures)
        >>> await total[0].item()
        20.0
    """
    is_block = begins_block(sys._getframe(1))
    device = chosen_device(device, "limit")
    most = Limit(_bound("ops", ops), _bound("bytes", bytes))
    return Setting(Bounds(device, most, _whole(priority)), is_block)


def _whole(priority: Any) -> int | None:
    number = as_whole(priority)
    if number is None and priority is not None:
        raise CallerError(
            f"limit(priority={shown(priority)}): write a whole number; higher ones go first."
        )
    return number


def _bound(name: str, value: Any) -> int | None:
    if value is None:
        return None
    bound = as_whole(value)
    if bound is None or not 1 <= bound <= LARGEST:
        raise CallerError(
            f"limit({name}={shown(value)}): nothing could ever be submitted; write a whole number "
            f"of at least 1, or leave {name} out for no bound."
        )
    return bound


class Admission:
    """The limits that an operation is submitted under, and its rank among waiting operations."""

    __slots__ = ("device", "rank", "under")

    def __init__(self, device: Device) -> None:
        self.device = device
        self.under: tuple[Bounds, ...] = device.limits_held()
        of_all = device.limit_of_all
        priorities = (b.priority for b in (*reversed(self.under), of_all) if b is not None)
        self.rank = (-next((p for p in priorities if p is not None), 0), next(_tickets))

    def limits(self) -> tuple[Bounds, ...]:
        """The limits that apply now. The device-wide one may have changed since submission."""
        of_all = self.device.limit_of_all
        return self.under if of_all is None else (*self.under, of_all)

    def admit(self, submission: Submission) -> None:
        for bounds in self.under:
            bounds.admit(submission)


def is_limited(admission: Admission | None) -> bool:
    """Whether an operation with this admission waits for capacity: then it has no fast path."""
    return admission is not None and bool(admission.limits())


def _running_loop() -> weakref.ref[asyncio.AbstractEventLoop] | None:
    try:
        return weakref.ref(asyncio.get_running_loop())
    except RuntimeError:
        return None


class Capacity:
    """A prerequisite: capacity under the limits, with no waiter of higher rank that could go.

    Args:
        admission: the operation's admission.
        submission: the operation's submission, whose bytes count already.
        nbytes: the additional bytes wanted; None: the operation is about to start.
    """

    def __init__(
        self, admission: Admission, submission: Submission, nbytes: int | None = None
    ) -> None:
        self._admission = admission
        self._submission = submission
        self._nbytes = nbytes
        self._looked = 0.0
        self._waits_here()

    def _waits_here(self, blocks: bool = False) -> None:
        """Record the running thread and loop as the waiter: a wait that one task has abandoned can
        be continued by another task or thread.

        Args:
            blocks: the waiter blocks its thread, so that no other operation of the thread can go.
        """
        self._thread, self._loop = threading.get_ident(), _running_loop()
        self._blocks = blocks

    def is_available(self) -> bool:
        """Whether there is capacity now. Polls the device first. If not, registers as a waiter."""
        limits, self._looked = self._admission.limits(), time.monotonic()
        if self._fits(limits) and not self._is_behind(limits):
            return True
        for bounds in limits:
            bounds.waiting[id(self)] = self
        return False

    def taken(self) -> None:
        """Unregister the waiter: the capacity was taken, or is no longer wanted."""
        for bounds in self._admission.limits():
            bounds.waiting.pop(id(self), None)

    def _fits(self, limits: tuple[Bounds, ...]) -> bool:
        held_bytes = self._submission.nbytes
        return all(bounds.has_room(self._nbytes, held_bytes) for bounds in limits)

    def _is_behind(self, limits: tuple[Bounds, ...]) -> bool:
        """Whether a waiter of higher rank, under one of the same limits, could go now."""
        return any(
            (other := ref()) is not None
            and other._admission.rank < self._admission.rank
            and (self._looked - other._looked < GONE or self._is_beside(other))
            and not (self._blocks and other._thread == self._thread)
            and other._fits(other._admission.limits())
            for bounds in limits
            for ref in bounds.waiting.valuerefs()
        )

    def _is_beside(self, other: Capacity) -> bool:
        """Whether `other` waits on the same loop, and so will poll, however late."""
        return self._loop is not None and self._loop == other._loop

    def run(self) -> None:
        """Block the thread until there is capacity."""
        looks = 0
        self._waits_here(blocks=True)
        while not self.is_available():
            time.sleep(0 if looks < QUICK_LOOKS else LOOK_SECONDS)
            looks += 1
            if not looks % ASK_EVERY:
                self._admission.device.ask()

    def future(self, _if_closed: object) -> asyncio.Future[BaseException | None]:
        """A future of the running loop: its value is None, or the error that polling raised."""
        return asyncio.ensure_future(self._told())

    async def _told(self) -> BaseException | None:
        try:
            await self.wait()
        except Exception as error:
            return error
        return None

    async def wait(self) -> None:
        """Wait, while the loop turns, until some work in flight completes, or for LOOK_AGAIN."""
        watcher = reactor.current()
        self._waits_here()
        fronts = [(s, s.front) for s in list(self._admission.device.busy)]
        if self.is_available():
            return
        if not any(front for _, front in fronts):
            await asyncio.sleep(LATER)
            return
        for s, front in fronts:
            s.ensure_signalled(front)
        waiting = {watcher.wait(s, front): s for s, front in fronts if front}
        try:
            # The timeout is needed because the limit may be lifted meanwhile.
            await asyncio.wait(waiting, timeout=LOOK_AGAIN, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future, stream in waiting.items():
                if not future.done():
                    future.cancel()
                    watcher.forget(stream, future)
                elif not future.cancelled():
                    future.exception()  # marks the error retrieved: that work's awaiter raises it
