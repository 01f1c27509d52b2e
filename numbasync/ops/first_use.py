"""The first use of a device: what takes long of it is done by a thread, while the event loop turns.

Importing a backend, opening a GPU's context and making its streams takes about a second. Whoever
awaits the first operation of a process, or of a device, waits for that first. Blocking calls,
`spawn` and `schedule` need a stream at once, and do it themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from numbasync.device.device import Device, current_device, default_device
from numbasync.device.policies import StreamPoolRoundRobin
from numbasync.device.stream import Stream
from numbasync.native import compiled
from numbasync.ops.home import Home, check_home, device_at
from numbasync.ops.prerequisites import beside
from numbasync.ops.protocols import Operation

Going = asyncio.Future[BaseException | None]
# The starts that are going on, by loop and device; None: the default device, not known so far.
_going_on: WeakKeyDictionary[Any, dict[Device | None, Going]] = WeakKeyDictionary()


class _Start:
    """A prerequisite: what takes long of the first use of a device is done."""

    def __init__(self, device: Device | None) -> None:
        self.device = device

    def run(self) -> None:
        self.device = device = self.device or default_device()
        if not device.is_started:
            device.check()
            # The streams that are dropped here are those that the policy gets.
            _ = device.pool, StreamPoolRoundRobin(device)


@compiled
def is_started(op: Operation[Any]) -> bool:
    """Whether the device that `op` is going to run on has been used before."""
    return op.stream is not None or is_started_at(op.home)


def is_started_at(home: Home) -> bool:
    """`is_started` of an operation with this home that names no stream."""
    if isinstance(home, Stream):
        return True
    check_home(home)
    device = home or current_device()
    return device is not None and device.is_started


def starting(op: Operation[Any]) -> Generator[Any, None, None]:
    """Wait until the device of `op` is started. Those who wait go on in the order in which they
    began. An error is left to the caller, who meets it again.
    """
    if not is_started(op):
        yield from started(device_at(op.home) or current_device())


def started(device: Device | None) -> Generator[Any, None, BaseException | None]:
    """Wait until a device is started; None: the default device. Returns the error, if any."""
    loop = asyncio.get_running_loop()
    here = _going_on.setdefault(loop, {})
    if device not in here:
        start = _Start(device)
        here[device] = beside(start, lambda: None)
        # Before those who wait are resumed, which are next in the loop's turn.
        here[device].add_done_callback(lambda _: loop.call_soon(_end, here, device, start))
    future = here[device]
    if future.done():
        while here.get(device) is future:  # others have waited for longer
            yield
        return future.result()
    # Cancelling one of those who wait must not cancel the others.
    error = yield from asyncio.shield(future)
    return error


def _end(here: dict[Device | None, Going], device: Device | None, start: _Start) -> None:
    del here[device]
    if start.device is not None:
        with suppress(Exception):  # raised to those who run something on the device
            _ = start.device.policy  # from now on the device `is_started`
