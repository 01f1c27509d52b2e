"""Back-pressure: how much may be in flight on a device, and waiting until there is room.

A program that submits faster than its device works piles up operations and their memory.
With a limit, submitting waits, as sending to a full queue does; it never fails.
"""

from __future__ import annotations

import asyncio
import operator
import threading
import time
from types import TracebackType
from typing import Any

from numbasync import reactor
from numbasync.device import Device, Limit, chosen_device
from numbasync.errors import CallerError

LOOK_SECONDS = 0.0002  # between two looks of a thread that waits for room
QUICK_LOOKS = 100  # at first, which only let other threads run in between
LOOK_AGAIN = 0.1  # of a loop, when nothing has come to its end
ASK_EVERY = 500  # looks; in between, the device itself is not asked

_scoping = threading.RLock()  # reentrant: a finaliser may leave a block


class Setting:
    """A limit that has been set; as a context manager, until the end of the block."""

    def __init__(self, device: Device, before: Limit | None) -> None:
        self._device = device
        self._before = before

    def __enter__(self) -> Limit | None:
        with _scoping:
            self._device.limit_scopes.append(self)
        return self._device.limit

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with _scoping:
            scopes = self._device.limit_scopes
            at = scopes.index(self)
            scopes.remove(self)
            if at == len(scopes):
                self._device.limit = self._before
            else:  # a block of another task began inside this one, and goes on
                scopes[at]._before = self._before

    def __repr__(self) -> str:
        return f"<limit of {self._device.label}: {self._device.limit}>"


def limit(
    ops: int | None = None,
    bytes: int | None = None,
    device: Device | None = None,
) -> Setting:
    """Bound what is in flight on a device: from now on, or inside `with na.limit(...):`.

    An operation that finds no room waits before it is enqueued: an await while the loop turns,
    a blocking form by blocking. What is submitted behind it on the same loop waits behind it.
    One that is larger than `bytes` alone goes when nothing else is in flight. Threads that
    submit at the same instant may exceed a limit by one operation each.

    Args:
        ops: most operations in flight; None for any number.
        bytes: most bytes that operations in flight have allocated on the device, and hold in
            page-locked host memory for copies; None for any number.
        device: default: the default device.

    Returns:
        What `with` takes: at the end of the block the limit is again what it was before.

    Raises:
        CallerError: a bound is less than 1 or no whole number, or `device` is no device.
    """
    device = chosen_device(device, "limit")
    found = Limit(_bound("ops", ops), _bound("bytes", bytes))
    setting = Setting(device, device.limit)
    device.limit = None if found == Limit(None, None) else found
    return setting


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


class Room:
    """A preparation: there is room on `device`.

    Args:
        nbytes: for as many more bytes; None: for an operation that begins.
        mine: bytes that the same operation has already.
    """

    def __init__(self, device: Device, nbytes: int | None = None, mine: int = 0) -> None:
        self._device = device
        self._nbytes = nbytes
        self._mine = mine

    def is_there(self) -> bool:
        """Whether there is now. Looks at the device first."""
        most = self._device.limit
        if most is None:
            return True
        now = self._device.in_flight
        if now.ops == 0:
            return True
        if most.ops is not None and now.ops >= most.ops and self._nbytes is None:
            return False
        if most.bytes is None:
            return True
        return now.bytes + self._mine + (self._nbytes or 1) <= most.bytes

    def run(self) -> None:
        """Block the thread until there is."""
        looks = 0
        while not self.is_there():
            time.sleep(0 if looks < QUICK_LOOKS else LOOK_SECONDS)
            looks += 1
            if not looks % ASK_EVERY:
                self._device.ask()

    async def wait(self) -> None:
        """Wait, while the loop turns, until something that is in flight has come to its end."""
        watcher = reactor.current()
        fronts = [(s, s.front) for s in list(self._device.busy)]
        if not any(front for _, front in fronts) or self.is_there():
            return
        for s, front in fronts:
            s.have_marked(front)
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
