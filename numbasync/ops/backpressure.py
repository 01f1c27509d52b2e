"""Back-pressure: how much may be in flight on a device, and waiting until there is room.

A program that submits faster than its device works piles up operations and their memory.
With a limit, submitting waits, as sending to a full queue does; it never fails.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
import threading
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

from numbasync.device import reactor
from numbasync.device.device import Device, chosen_device
from numbasync.device.limit_scope import InFlight, Limit, limits_here
from numbasync.errors import CallerError

if TYPE_CHECKING:
    from numbasync.device.submission import Submission

LOOK_SECONDS = 0.0002  # between two looks of a thread that waits for room
QUICK_LOOKS = 100  # at first, which only let other threads run in between
LOOK_AGAIN = 0.1  # of a loop, when nothing has come to its end
LATER = 0.001  # of a loop, when there is room for somebody who comes first
GONE = 0.5  # seconds without a look: a waiter of another thread or loop waits no more
ASK_EVERY = 500  # looks; in between, the device itself is not asked

_lock = threading.RLock()  # reentrant: a finaliser may leave a block
_tickets = itertools.count(1)


class Bounds:
    """One call of `na.limit`: what may be in flight of the operations that it admits.

    Attributes:
        most: how much that is.
        priority: of those who wait for room under it; None: as outside of it.
        blocks: how many `with` blocks of it are open.
        waiting: those who wait for room.
    """

    def __init__(self, device: Device, most: Limit, priority: int | None) -> None:
        self.device = device
        self.most = most
        self.priority = priority
        self.blocks = 0
        self.is_device_wide = True  # it admits all that the device is given
        # By their identity: unlike a set, it can be listed while other threads change it.
        self.waiting: weakref.WeakValueDictionary[int, Capacity] = weakref.WeakValueDictionary()
        self._admitted: list[Submission] = []

    def admit(self, submission: Submission) -> None:
        """Count it, from when it is enqueued until it is done."""
        if not self.is_device_wide and self.most != UNBOUNDED:
            with _lock:
                self._admitted.append(submission)

    def in_flight(self) -> InFlight:
        """What is in flight now. Looks at the device first."""
        if self.is_device_wide:
            return self.device.in_flight
        self.device.reclaim()
        with _lock:
            self._admitted = [s for s in self._admitted if not s.done]
            now = [s for s in self._admitted if s.sequence]
        return InFlight(len(now), sum(s.nbytes for s in now))

    def has_room(self, nbytes: int | None, mine: int) -> bool:
        """Whether there is room for `nbytes` more of an operation that has `mine` bytes already;
        None: for one that begins.
        """
        most = self.most
        if most == UNBOUNDED:
            return True
        now = self.in_flight()
        if now.ops == 0:
            return True
        if most.ops is not None and now.ops >= most.ops:
            return False  # also if it has begun: others may have gone meanwhile
        return most.bytes is None or now.bytes + mine + (nbytes or 1) <= most.bytes


UNBOUNDED = Limit(None, None)


class Setting:
    """A limit that has been set; as a context manager, of what the block submits instead."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        with _lock:
            device = bounds.device
            self._before: Bounds | None = None
            if bounds.most != UNBOUNDED or bounds.priority is None:
                self._before, device.limit_of_all = device.limit_of_all, bounds
                device.note_limits()
            else:  # a priority alone is of a block only
                bounds.is_device_wide = False
            _settings.add(self)

    def __enter__(self) -> Limit:
        bounds = self._bounds
        device = bounds.device
        with _lock:
            if bounds.is_device_wide:
                bounds.is_device_wide = False
                # As if it had never held for all; another thread may have set one meanwhile.
                if device.limit_of_all is bounds:
                    device.limit_of_all = self._before
                for other in _settings:
                    if other._before is bounds:
                        other._before = self._before
                self._before = None
            bounds.blocks += 1
            device.open_limits += bounds.blocks == 1
            device.note_limits()
        limits_here.set((*limits_here.get(), bounds))
        return bounds.most

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        bounds = self._bounds
        held = list(limits_here.get())
        if bounds in held:  # else the block is left in another context, by a finaliser perhaps
            held.reverse()
            held.remove(bounds)
            limits_here.set(tuple(reversed(held)))
        with _lock:
            bounds.blocks -= 1
            bounds.device.open_limits -= bounds.blocks == 0
            bounds.device.note_limits()

    def __repr__(self) -> str:
        return f"<limit of {self._bounds.device.label}: {self._bounds.most}>"


# Those that somebody holds; most are dropped where they are made, or left by their block.
_settings: weakref.WeakSet[Setting] = weakref.WeakSet()


def limit(
    ops: int | None = None,
    bytes: int | None = None,
    device: Device | None = None,
    priority: int | None = None,
) -> Setting:
    """Bound what is in flight: of the operations that `with na.limit(...):` submits, or, without
    `with`, of all that the device is given, until the next call: `na.limit()` lifts it.

    An operation that finds no room waits before it is enqueued: an await while the loop turns,
    a blocking form by blocking. A block is of its task, and of tasks that are made in it; blocks
    in blocks all hold, and so does the limit of the device. What is submitted in a block waits
    under its limit also when the block has been left. One that nobody awaits any more is not
    enqueued.

    Of those who wait for room, those of higher priority go first, and among equals those that
    were submitted first. Under one limit operations of a thread keep their order. Others pass
    them only if both are known to share no tensor; closures (`then`, `defer`) may use any.

    One that is larger than `bytes` alone goes when nothing else is in flight. Threads that
    submit at the same instant may exceed a limit by one operation each.

    Args:
        ops: most operations in flight; None for any number.
        bytes: most bytes that operations in flight have allocated on the device, and hold in
            page-locked host memory for copies; None for any number.
        device: default: the default device.
        priority: of what the block submits, higher first; None: as outside of it, at first 0.

    Returns:
        What `with` takes.

    Raises:
        CallerError: a bound is less than 1 or no whole number, `priority` is no whole number, or
            `device` is no device.
    """
    device = chosen_device(device, "limit")
    most = Limit(_bound("ops", ops), _bound("bytes", bytes))
    return Setting(Bounds(device, most, _whole(priority)))


def _whole(priority: Any) -> int | None:
    try:
        return None if priority is None else operator.index(priority)
    except TypeError:
        raise CallerError(
            f"limit(priority={priority!r:.60}): write a whole number; higher ones go first."
        ) from None


def _bound(name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        found = operator.index(value)
    except TypeError:
        found = 0
    if found < 1:
        raise CallerError(
            f"limit({name}={value!r}): nothing could ever be submitted; write a whole number of "
            f"at least 1, or leave {name} out for no bound."
        )
    return found


class Admission:
    """What limits an operation is submitted under, and its turn among those who wait for room."""

    __slots__ = ("device", "rank", "under")

    def __init__(self, device: Device) -> None:
        self.device = device
        self.under: tuple[Bounds, ...] = device.limits_held()
        of_all = device.limit_of_all
        given = (b.priority for b in (*reversed(self.under), of_all) if b is not None)
        self.rank = (-next((p for p in given if p is not None), 0), next(_tickets))

    def limits(self) -> tuple[Bounds, ...]:
        """Those that hold now. One of all operations may have been set or lifted meanwhile."""
        of_all = self.device.limit_of_all
        return self.under if of_all is None else (*self.under, of_all)

    def admit(self, submission: Submission) -> None:
        for bounds in self.under:
            bounds.admit(submission)


def _running_loop() -> weakref.ref[asyncio.AbstractEventLoop] | None:
    try:
        return weakref.ref(asyncio.get_running_loop())
    except RuntimeError:
        return None


class Capacity:
    """A preparation: there is room on the device, and nobody else comes first.

    Args:
        admission: of the operation.
        submission: its bytes count already.
        nbytes: for as many more bytes; None: for an operation that begins.
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
        """Who waits from now on: one that somebody has left, others go on with elsewhere.

        Args:
            blocks: so that nobody else of its thread goes on.
        """
        self._thread, self._loop = threading.get_ident(), _running_loop()
        self._blocks = blocks

    def is_available(self) -> bool:
        """Whether there is now. Looks at the device first. If not, it waits for its turn."""
        limits, self._looked = self._admission.limits(), time.monotonic()
        if self._fits(limits) and not self._is_behind(limits):
            return True
        for bounds in limits:
            bounds.waiting[id(self)] = self
        return False

    def taken(self) -> None:
        """It waits no more."""
        for bounds in self._admission.limits():
            bounds.waiting.pop(id(self), None)

    def _fits(self, limits: tuple[Bounds, ...]) -> bool:
        mine = self._submission.nbytes
        return all(bounds.has_room(self._nbytes, mine) for bounds in limits)

    def _is_behind(self, limits: tuple[Bounds, ...]) -> bool:
        """Whether somebody who comes first and waits under one of the limits could go now."""
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
        """Whether the loop that turns here turns for `other` too, however late both look."""
        return self._loop is not None and self._loop == other._loop

    def run(self) -> None:
        """Block the thread until there is."""
        looks = 0
        self._waits_here(blocks=True)
        while not self.is_available():
            time.sleep(0 if looks < QUICK_LOOKS else LOOK_SECONDS)
            looks += 1
            if not looks % ASK_EVERY:
                self._admission.device.ask()

    def future(self, _if_closed: object) -> asyncio.Future[BaseException | None]:
        """A future of the running loop: its value is None, or what looking failed with."""
        return asyncio.ensure_future(self._told())

    async def _told(self) -> BaseException | None:
        try:
            await self.wait()
        except Exception as error:
            return error
        return None

    async def wait(self) -> None:
        """Wait, while the loop turns, until something that is in flight has come to its end."""
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
            # Look again in any case: the limit may have been lifted.
            await asyncio.wait(waiting, timeout=LOOK_AGAIN, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future, stream in waiting.items():
                if not future.done():
                    future.cancel()
                    watcher.forget(stream, future)
                elif not future.cancelled():
                    future.exception()  # seen: the matter of whoever awaits that work
